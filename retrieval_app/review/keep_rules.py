"""Rules that decide which image of every group of near-duplicates is kept."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal, TypeAlias

from index.filters.condition import Condition
from index.gallery.gallery import Gallery
from index.labels.decisions import DUPLICATES, DuplicateDecision
from retrieval_app.reports.duplicates_report import DuplicateGroup, DuplicateReport, GroupedImage, find_undropped
from retrieval_app.review.subjects import find_subjects

KeepRule: TypeAlias = Literal["largest", "first"]


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """Decisions of a rule, and numbers of groups that stay open: `unmatched` have no searchable image to keep."""

    decisions: tuple[DuplicateDecision, ...]
    dropped: int
    differing: int
    bursts: int
    unmatched: int

    def to_json(self) -> dict[str, int]:
        """Counts of the groups that are decided and that stay open, and of the dropped images."""
        counts = ("dropped", "differing", "bursts", "unmatched")
        return {"groups": len(self.decisions), **{name: getattr(self, name) for name in counts}}


def choose_kept(
    gallery: Gallery,
    found: DuplicateReport,
    *,
    rule: KeepRule,
    where: Condition | None = None,
    decided: Container[str] = (),
    only: Container[str] | None = None,
    bursts: bool = False,
) -> RuleOutcome:
    """Decide which image of every open group is kept; bursts and groups whose labels differ are left to a person.

    Dropped images count as gone. Only images that are searched, and that meet `where`, are kept. Groups whose names are
    `decided` stay as they are; `only` names the groups to decide.
    """
    matching: set[int] | None = None
    if where is not None:
        with gallery.catalog() as catalog:
            matching = set(catalog.matching_ids(where).tolist())
    labels = gallery.decided.by_id
    chosen: list[tuple[DuplicateGroup, GroupedImage]] = []
    dropped = 0
    differing = left_bursts = unmatched = 0
    for name, group in found.by_name.items():
        if name in decided or (only is not None and name not in only):
            continue
        here = find_undropped(gallery, group)
        if len(here) < 2:
            continue
        able = [image for image in here if image.indexed and (matching is None or image.id in matching)]
        now = {labels[image.id].label if image.id in labels else image.label for image in here}
        if len(now - {None}) > 1:
            differing += 1
        elif not bursts and group.is_burst(here):
            left_bursts += 1
        elif not able:
            unmatched += 1
        else:
            chosen.append((group, able[0] if rule == "first" else max(able, key=lambda image: image.size_bytes)))
            dropped += len(here) - 1
    subjects = find_subjects(gallery, (image.id for group, _ in chosen for image in group.images))
    decisions = tuple(
        DuplicateDecision(tuple(subjects[image.id] for image in group.images), DUPLICATES, (kept.id,))
        for group, kept in chosen
    )
    return RuleOutcome(decisions, dropped, differing, left_bursts, unmatched)
