"""Confidence bound on the number of wrong labels, from a random sample that a person looks at: a certificate.

An image is drawn with a probability d that grows with its probability of a label error. Let W labels be wrong, f of
them known before a draw, and Z = 1 / d if the drawn label is wrong, else 0: Z has the mean W - f. So for every number m
the product K(m) of the factors 1 + b (m - f - Z) over all draws is a nonnegative supermartingale if W is at least m,
with any bet b that is fixed before the draw. It ever reaches 1 / alpha with a probability of at most alpha (Ville), and
grows with m, so that W is below the least m whose K(m) has reached 1 / alpha: at any time, however the images were
sorted, and whatever the probabilities of label errors are worth. They only decide how many looks it takes.

Sources: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2024); Shekhar et al.,
"Risk-limiting financial audits via weighted sampling without replacement" (2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.arrays import Doubles, Ids, Mask

# The constants from here on were chosen on parts of cars, groceries and CIFAR-N that the benchmark does not report on.
EDGES = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9])
"""Probabilities of a label error between which images are of one group, and are drawn equally often."""
_STRENGTH = 20.0  # looks that the probability of a group weighs as many as
_LEAST, _MOST = 1e-3, 0.999  # probability of a label error that a group is taken to have
_LEAST_WEIGHT = 0.5  # of an image that is drawn, per share of labels that may be wrong
_BETS = np.geomspace(0.01, 0.99, 16)  # as shares of the greatest possible one
_TRIES, _MANY = 3, 20_000  # simulated samples that estimate how many looks it takes


@dataclass(frozen=True, slots=True)
class Look:
    """An image that a person looks at; without a `probability` they did so of their own accord."""

    place: int  # of the image
    probability: float | None = None  # with which it was drawn from those not looked at
    bet: float = 0.0  # of each wrong label more than expected, 1 / images


class LabelSample:
    """Looks at some of N labels, in their order, and what they say of all others.

    Args:
        p_error: (N,) probabilities of label errors, which decide how often images are drawn.
        looks: each of another image. A draw must not follow from answers to itself or later ones.
        answers: whether the label of each look was wrong, in the same order; None of those that are not answered.
    """

    def __init__(
        self, p_error: Doubles, looks: Sequence[Look] = (), answers: Sequence[bool | None] = (), *, alpha: float
    ) -> None:
        self.groups, self._p_error, self._alpha = np.searchsorted(EDGES, p_error, side="right"), p_error, alpha
        self.looks, self.answers = list(looks), list(answers)

    @property
    def found(self) -> int:
        """Number of labels that were found to be wrong."""
        return sum(answer is True for answer in self.answers)

    @property
    def pending(self) -> list[int]:
        """Places of the images that were drawn, and wait for an answer."""
        return [look.place for look, answer in zip(self.looks, self.answers, strict=True) if answer is None]

    def most_wrong(self, of: Mask | None = None) -> int:
        """Upper bound of the wrong labels without an answer, at the confidence 1 - alpha at any time.

        With (N,) `of`, of those labels alone; several such bounds do not hold together at that confidence.
        """
        within = np.ones(len(self._p_error), dtype=bool) if of is None else of
        unseen = int(within.sum()) - sum(bool(within[place]) for place, _ in self._answered())
        low, high = -1, unseen + 1  # all numbers from `high` on are impossible or refuted
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._refutes(middle, within) else (middle, high)
        return max(low, 0)

    def proves(self, most: int) -> bool:
        """Whether at most so many labels without an answer are wrong."""
        unseen = len(self._p_error) - len(self._answered())
        return most >= unseen or self._refutes(most + 1, np.ones(len(self._p_error), dtype=bool))

    def _refutes(self, wrong: int, within: Mask) -> bool:
        """Whether the draws refute that so many labels without an answer are wrong, or more."""
        place = np.array([look.place for look in self.looks], dtype=np.int64)
        is_wrong = np.array([answer is True for answer in self.answers], dtype=bool) & within[place]
        total, found = wrong + int(is_wrong.sum()), is_wrong.cumsum() - is_wrong.astype(np.int64)  # before each look
        cut = self.answers.index(None) if None in self.answers else len(place)  # later on it is not known
        chance = np.array([look.probability or np.inf for look in self.looks])
        bets = np.array([look.bet for look in self.looks])
        factors = (bets * (total - found - is_wrong / chance))[:cut]
        wealth = np.cumsum(np.log1p(factors)).max(initial=0.0)
        return bool(wealth >= -np.log(self._alpha))

    def _answered(self) -> list[tuple[int, bool]]:
        """(place, whether the label is wrong) of each look that has an answer."""
        pairs = zip(self.looks, self.answers, strict=True)
        return [(look.place, answer) for look, answer in pairs if answer is not None]

    def draw(self, count: int, *, most: int, random: np.random.Generator) -> list[Look]:
        """Draw images that nobody looked at, at most `count`; they are pending then. `most` labels may be wrong."""
        looked = np.zeros(len(self._p_error), dtype=bool)
        looked[[look.place for look in self.looks]] = True
        p_error, left = self._expect(), [random.permutation(rows).tolist() for rows in self._split(~looked)]
        images = np.array([len(rows) for rows in left], dtype=np.float64)
        share = most / max(len(self._p_error), 1)
        weights = np.maximum(p_error, max(_LEAST_WEIGHT * share, _LEAST))
        bet = _choose_bet(p_error, images, weights, most=most)
        drawn = list[Look]()
        for _ in range(min(count, int(images.sum()))):
            total = images @ weights
            group = int(random.choice(len(left), p=images * weights / total))
            greatest = bet * float(weights[images > 0].min() / total)
            drawn.append(Look(left[group].pop(), float(weights[group] / total), greatest))
            images[group] -= 1
        self.looks += drawn
        self.answers += [None] * len(drawn)
        return drawn

    def expect_looks(self, *, most: int, random: np.random.Generator, at_a_time: int) -> int:
        """About how many more looks it takes until at most `most` labels are wrong, if their probabilities are right.

        The median of simulated samples.
        """
        chances = self._expect()[self.groups]
        needed = list[int]()
        for _ in range(_TRIES if len(chances) <= _MANY else 1):
            wrong = random.random(len(chances)) < chances
            tried = LabelSample(self._p_error, self.looks, self.answers, alpha=self._alpha)
            tried.answer(wrong)
            while not tried.proves(most):
                tried.draw(max(at_a_time, len(tried.looks) // 20, len(chances) // 500), most=most, random=random)
                tried.answer(wrong)
            needed.append(len(tried.looks) - len(self.looks))
        return int(np.median(needed))

    def answer(self, wrong: Mask) -> None:
        """Answer all pending looks by the (N,) labels that are wrong."""
        for place, (look, answer) in enumerate(zip(self.looks, self.answers, strict=True)):
            if answer is None:
                self.answers[place] = bool(wrong[look.place])

    def _expect(self) -> Doubles:
        """(K,) probabilities that a label of each group is wrong, by its mean probability and by the answers."""
        count = len(EDGES) + 1
        images = np.bincount(self.groups, minlength=count)
        mean = np.bincount(self.groups, weights=self._p_error, minlength=count) / np.maximum(images, 1)
        answered = self._answered()
        groups = self.groups[[place for place, _ in answered]] if answered else np.empty(0, dtype=np.int64)
        seen = np.bincount(groups, minlength=count)
        wrong = np.bincount(groups, weights=[float(answer) for _, answer in answered], minlength=count)
        return ((_STRENGTH * mean + wrong) / (_STRENGTH + seen)).clip(_LEAST, _MOST)

    def _split(self, chosen: Mask) -> list[Ids]:
        """The chosen images of each group."""
        return [np.flatnonzero(chosen & (self.groups == group)) for group in range(len(EDGES) + 1)]


def _choose_bet(p_error: Doubles, images: Doubles, weights: Doubles, *, most: int) -> float:
    """The bet, as a share of the greatest one, whose wealth grows fastest if the probabilities of the groups are right.

    The hypothesis to refute has more than `most` wrong labels beside those that will be found.
    """
    there = images > 0
    if not there.any():
        return float(_BETS[-1])
    p_error, images, each = p_error[there], images[there], weights[there] / (images @ weights)
    bets = (_BETS * each.min())[:, None]
    surplus, mass = most + 1 + images @ p_error, images * each
    growth = mass * ((1 - p_error) * np.log1p(bets * surplus) + p_error * np.log1p(bets * (surplus - 1 / each)))
    return float(_BETS[int(growth.sum(axis=1).argmax())])
