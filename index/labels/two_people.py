"""Annotator error rates: of two people who answered the same questions, without the truth (Hui and Walter, 1980).

Two tests of unknown error rates, applied to groups with different shares of wrong labels, determine both rates:
expectation maximisation over the truth (Dawid and Skene, 1979), with the shares of the groups and both people's rates.
"""

from dataclasses import dataclass

import numpy as np

from index.arrays import Doubles, Ids, Mask

_ROUNDS = 500
_PRIOR_ERRORS, _PRIOR_ANSWERS = 0.2, 4.0  # added to a person's errors and answers: a prior rate of 5 %


@dataclass(frozen=True, slots=True)
class AnnotatorErrorRates:
    """Estimated error rates of two people.

    Attributes:
        answers: number of labels that both answered.
        wrong: estimated number of wrong labels among these.
        agreement: share of equal answers.
        false_negative_rates: estimated shares of the wrong labels that the first and the second person called right.
        false_positive_rates: estimated shares of the right labels that each of them called wrong.
    """

    answers: int
    wrong: float
    agreement: float
    false_negative_rates: tuple[float, ...]
    false_positive_rates: tuple[float, ...]


def estimate_annotator_error_rates(first: Mask, second: Mask, groups: Ids) -> AnnotatorErrorRates:
    """Error rates from (n,) answers, True where a label is called wrong, of images of (n,) groups."""
    answers = np.stack([first, second]).astype(np.float64)  # (2, n)
    count = int(groups.max()) + 1
    p_wrong: Doubles = answers.mean(axis=0) * 0.9 + 0.05  # (n,) that the label is wrong
    sizes = np.bincount(groups, minlength=count)
    for _ in range(_ROUNDS):
        p_right = 1 - p_wrong
        missed = ((1 - answers) @ p_wrong + _PRIOR_ERRORS) / (p_wrong.sum() + _PRIOR_ANSWERS)  # (2,)
        invented = (answers @ p_right + _PRIOR_ERRORS) / (p_right.sum() + _PRIOR_ANSWERS)
        share = ((np.bincount(groups, weights=p_wrong, minlength=count) + 0.5) / (sizes + 1))[groups]
        if_wrong = share * np.where(answers == 1, 1 - missed[:, None], missed[:, None]).prod(axis=0)
        if_right = (1 - share) * np.where(answers == 1, invented[:, None], 1 - invented[:, None]).prod(axis=0)
        now = if_wrong / (if_wrong + if_right)
        if np.abs(now - p_wrong).max() < 1e-9:
            break
        p_wrong = now
    agreement, rates = float((first == second).mean()), (tuple(missed.tolist()), tuple(invented.tolist()))
    return AnnotatorErrorRates(len(first), float(p_wrong.sum()), agreement, *rates)
