"""Error rates of two people who answered the same questions, without the truth (Hui and Walter, 1980).

Two tests of unknown error rates, applied to groups with different shares of wrong labels, determine both: expectation
maximisation over the truth, as of Dawid and Skene (1979), with the shares of the groups and the rates of both people.
"""

from dataclasses import dataclass

import numpy as np

from index.arrays import Doubles, Ids, Mask

_ROUNDS = 500
_USUAL, _WEIGHT = 0.05, 4.0  # error rate that a person is taken to have by so many answers


@dataclass(frozen=True, slots=True)
class Reviewers:
    """What the answers of two people say of both.

    Attributes:
        answers: that both gave.
        wrong: estimated number of wrong labels among these.
        agreement: share of equal ones.
        overlooked: estimated shares of the wrong labels that the first and the second called right.
        invented: of the right labels that they called wrong.
    """

    answers: int
    wrong: float
    agreement: float
    overlooked: tuple[float, float]
    invented: tuple[float, float]


def compare_people(first: Mask, second: Mask, groups: Ids) -> Reviewers:
    """Error rates from (n,) answers, True where a label is called wrong, of images of (n,) groups."""
    answers = np.stack([first, second]).astype(np.float64)  # (2, n)
    count = int(groups.max()) + 1
    p_wrong: Doubles = answers.mean(axis=0) * 0.9 + 0.05  # (n,) that the label is wrong
    sizes = np.bincount(groups, minlength=count)
    for _ in range(_ROUNDS):
        p_right = 1 - p_wrong
        overlooked = ((1 - answers) @ p_wrong + _USUAL * _WEIGHT) / (p_wrong.sum() + _WEIGHT)  # (2,)
        invented = (answers @ p_right + _USUAL * _WEIGHT) / (p_right.sum() + _WEIGHT)
        share = ((np.bincount(groups, weights=p_wrong, minlength=count) + 0.5) / (sizes + 1))[groups]
        if_wrong = share * np.where(answers == 1, 1 - overlooked[:, None], overlooked[:, None]).prod(axis=0)
        if_right = (1 - share) * np.where(answers == 1, invented[:, None], 1 - invented[:, None]).prod(axis=0)
        now = if_wrong / (if_wrong + if_right)
        if np.abs(now - p_wrong).max() < 1e-9:
            break
        p_wrong = now
    one, two = overlooked.tolist()
    three, four = invented.tolist()
    return Reviewers(len(first), float(p_wrong.sum()), float((first == second).mean()), (one, two), (three, four))
