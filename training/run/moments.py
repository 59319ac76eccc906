"""The moments that leave-one-out is made of, of which every process of a training sums a part."""

from __future__ import annotations

from index.arrays import Floats, Labels
from index.labels.leave_one_out import Doubles, Sums, Tell, sum_moments
from training.run.distributed import current_team


def sum_moments_together(rows: Floats, parts: Doubles, labels: Labels, *, count: int, tell: Tell) -> Sums:
    """As `sum_moments`, on rank 0: the others are handed their rows."""
    team = current_team()
    if team.size == 1:
        return sum_moments(rows, parts, labels, count=count, tell=tell)
    team.ask(_help_summing, count)
    slices = [team.part_of(len(rows), rank=rank) for rank in range(team.size)]
    own = team.hand_out([(rows[part], parts[part], labels[part]) for part in slices])
    return sum_moments(*own, count=count, tell=tell, add_up=team.add_up)


def _help_summing(count: int) -> None:
    team = current_team()
    own: tuple[Floats, Doubles, Labels] = team.hand_out(None)
    sum_moments(*own, count=count, add_up=team.add_up)
