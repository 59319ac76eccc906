"""Certificate: confidence bound on the number of wrong labels, from a random sample that a person reviews.

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
"""Probabilities of a label error between strata; the images of one stratum are drawn equally often."""
_STRENGTH = 20.0  # answers that the prior error rate of a stratum counts as
_MIN_RATE, _MAX_RATE = 1e-3, 0.999  # limits of the error rate of a stratum
_LEAST_WEIGHT = 0.5  # least sampling weight, as a multiple of the share of labels that may be wrong
_BETS = np.geomspace(0.01, 0.99, 16)  # candidate bets, as shares of the greatest possible bet
_TRIES, _MANY = 3, 20_000  # simulated samples that estimate how many looks it takes


@dataclass(frozen=True, slots=True)
class Draw:
    """An image to review: drawn at random, or without a `probability` chosen by the reviewer."""

    position: int  # index of the image among the N labels
    probability: float | None = None  # chance of this draw among the images without a review
    bet: float = 0.0  # on each wrong label more than expected, in 1 / images


class LabelSample:
    """Sample of N labels that a person reviews, and the bound that follows for all other labels.

    Args:
        p_error: (N,) probabilities of label errors, which decide how often images are drawn.
        draws: different images, in order. A draw must not depend on answers to itself or to later ones.
        answers: for each draw whether the label was wrong; None without an answer.
    """

    def __init__(
        self, p_error: Doubles, draws: Sequence[Draw] = (), answers: Sequence[bool | None] = (), *, alpha: float
    ) -> None:
        self.strata, self._p_error, self._alpha = np.searchsorted(EDGES, p_error, side="right"), p_error, alpha
        self.draws, self.answers = list(draws), list(answers)

    @property
    def found(self) -> int:
        """Number of labels that were found to be wrong."""
        return sum(answer is True for answer in self.answers)

    @property
    def pending(self) -> list[int]:
        """Positions of the images that were drawn, and wait for an answer."""
        return [draw.position for draw, answer in zip(self.draws, self.answers, strict=True) if answer is None]

    def most_wrong(self, of: Mask | None = None) -> int:
        """Upper bound of the wrong labels without an answer, at the confidence 1 - alpha at any time.

        With (N,) `of`, of those labels alone; several such bounds do not hold together at that confidence.
        """
        within = np.ones(len(self._p_error), dtype=bool) if of is None else of
        unseen = int(within.sum()) - sum(bool(within[position]) for position, _ in self._answered())
        low, high = -1, unseen + 1  # all numbers from `high` on are impossible or refuted
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._refutes(middle, within) else (middle, high)
        return max(low, 0)

    def proves(self, most: int) -> bool:
        """Whether the answers prove that at most `most` labels without an answer are wrong."""
        unseen = len(self._p_error) - len(self._answered())
        return most >= unseen or self._refutes(most + 1, np.ones(len(self._p_error), dtype=bool))

    def _refutes(self, wrong: int, within: Mask) -> bool:
        """Whether the draws refute that `wrong` or more labels without an answer are wrong."""
        positions = np.array([draw.position for draw in self.draws], dtype=np.int64)
        is_wrong = np.array([answer is True for answer in self.answers], dtype=bool) & within[positions]
        total, found = wrong + int(is_wrong.sum()), is_wrong.cumsum() - is_wrong.astype(np.int64)  # before each draw
        cut = self.answers.index(None) if None in self.answers else len(positions)  # later on it is not known
        chance = np.array([draw.probability or np.inf for draw in self.draws])
        bets = np.array([draw.bet for draw in self.draws])
        factors = (bets * (total - found - is_wrong / chance))[:cut]
        wealth = np.cumsum(np.log1p(factors)).max(initial=0.0)
        return bool(wealth >= -np.log(self._alpha))

    def _answered(self) -> list[tuple[int, bool]]:
        """(position, whether the label is wrong) of each draw that has an answer."""
        pairs = zip(self.draws, self.answers, strict=True)
        return [(draw.position, answer) for draw, answer in pairs if answer is not None]

    def draw(self, count: int, *, most: int, random: np.random.Generator) -> list[Draw]:
        """Draw images that were not reviewed, at most `count`; they are pending then. `most` labels may be wrong."""
        looked = np.zeros(len(self._p_error), dtype=bool)
        looked[[draw.position for draw in self.draws]] = True
        p_error, left = self._expect(), [random.permutation(rows).tolist() for rows in self._split(~looked)]
        images = np.array([len(rows) for rows in left], dtype=np.float64)
        share = most / max(len(self._p_error), 1)
        weights = np.maximum(p_error, max(_LEAST_WEIGHT * share, _MIN_RATE))
        bet = _choose_bet(p_error, images, weights, most=most)
        drawn = list[Draw]()
        for _ in range(min(count, int(images.sum()))):
            total = images @ weights
            stratum = int(random.choice(len(left), p=images * weights / total))
            greatest = bet * float(weights[images > 0].min() / total)
            drawn.append(Draw(left[stratum].pop(), float(weights[stratum] / total), greatest))
            images[stratum] -= 1
        self.draws += drawn
        self.answers += [None] * len(drawn)
        return drawn

    def expect_looks(self, *, most: int, random: np.random.Generator, at_a_time: int) -> int:
        """Estimated number of further draws until at most `most` labels are wrong, if their probabilities are right.

        The median of simulated samples.
        """
        chances = self._expect()[self.strata]
        needed = list[int]()
        for _ in range(_TRIES if len(chances) <= _MANY else 1):
            wrong = random.random(len(chances)) < chances
            tried = LabelSample(self._p_error, self.draws, self.answers, alpha=self._alpha)
            tried.answer(wrong)
            while not tried.proves(most):
                tried.draw(max(at_a_time, len(tried.draws) // 20, len(chances) // 500), most=most, random=random)
                tried.answer(wrong)
            needed.append(len(tried.draws) - len(self.draws))
        return int(np.median(needed))

    def answer(self, wrong: Mask) -> None:
        """Answer all pending draws by the (N,) labels that are wrong."""
        for row, (draw, answer) in enumerate(zip(self.draws, self.answers, strict=True)):
            if answer is None:
                self.answers[row] = bool(wrong[draw.position])

    def _expect(self) -> Doubles:
        """(K,) probabilities that a label of each stratum is wrong, by its mean probability and by the answers."""
        count = len(EDGES) + 1
        images = np.bincount(self.strata, minlength=count)
        mean = np.bincount(self.strata, weights=self._p_error, minlength=count) / np.maximum(images, 1)
        answered = self._answered()
        strata = self.strata[[position for position, _ in answered]] if answered else np.empty(0, dtype=np.int64)
        seen = np.bincount(strata, minlength=count)
        wrong = np.bincount(strata, weights=[float(answer) for _, answer in answered], minlength=count)
        return ((_STRENGTH * mean + wrong) / (_STRENGTH + seen)).clip(_MIN_RATE, _MAX_RATE)

    def _split(self, chosen: Mask) -> list[Ids]:
        """The chosen images of each stratum."""
        return [np.flatnonzero(chosen & (self.strata == stratum)) for stratum in range(len(EDGES) + 1)]


def _choose_bet(p_error: Doubles, images: Doubles, weights: Doubles, *, most: int) -> float:
    """The bet, as a share of the greatest one, whose wealth grows fastest if the rates of the strata are right.

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
