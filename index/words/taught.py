"""Words that a gallery teaches: a query's vector from the embeddings of the images whose texts have its words.

Ridge regression of a target on embeddings x, with mean m and covariance C, has the weights

    w = (C + lambda I)^-1 sum_i y_i (x_i - m) / N

The target y_i of an image is the share of the query's words that its text has, weighted by log(N / images with the
word), to the 8th power: images with all words count. The predictions p_i = (x_i - m) w rank all images, and so does w
as the vector of a search by cosine similarity. With image i left out, its prediction is (p_i - h_i t_i) / (1 - h_i),
where t_i is y_i without its mean, and h_i = ((x_i - m) (C + lambda I)^-1 (x_i - m) + 1) / N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from index.arrays import Doubles, Ids, Vectors
from index.errors import InputError
from index.progress import Progress, no_progress
from index.words.words import split_query, text_wanted
from index.words.written import FEWEST, WrittenWords

_SHARPNESS = 8
_RIDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # times the mean variance
_MOST_SAMPLED = 20_000  # images for mean and covariance
_MOST_COMPARED = 1000  # images with a word, and others, that its check compares
_MOST_WORDS = 100  # that choose the ridge
_FIRST = 2.0  # more than any cosine: those with a rare word, whose looks are those of another one, come first
UNWANTED_WEIGHT = 0.4  # as of an image that a query shall be less like
LooksBy: TypeAlias = Literal["taught", "text tower"]
_BEYOND_CHANCE = 3.0  # standard errors


@dataclass(frozen=True, slots=True)
class _Looks:
    """A direction, what gave it, the area under its ROC curve, and the means of inner products: middle and gap."""

    direction: Doubles
    by: LooksBy | None
    better: float = 0.5
    middle: float = -math.inf
    gap: float = 0.0


@dataclass(frozen=True)
class WordQuery:
    """What a gallery knows about the words of a query.

    Attributes:
        understood: for each word of the query the words of the texts that it stands for; empty for an unknown one.
        written: (n,) ids of the images whose texts have all of its words, best first (BM25).
        vector: (D,) float32, the direction of images that look as the words say. Its length makes scores vary as much
            as those of a photo.
        looks: what gave the direction; None: it finds images with the words, each left out, no better than chance.
        least_score: cosine similarity from which an image looks as the words say.
        written_bonus: added to the score of images whose texts have all words, to rank them: a quarter of the mean
            difference between images with the words and others. It costs .004 of average precision where all texts are
            right, and gains .09 where 30 % are wrong, against all images with the words first.
    """

    understood: dict[str, tuple[str, ...]]
    written: Ids
    vector: Vectors
    looks: LooksBy | None
    least_score: float
    written_bonus: float

    @property
    def is_known(self) -> bool:
        return self.looks is not None

    @cached_property
    def written_set(self) -> frozenset[int]:
        return frozenset(self.written.tolist())

    def means(self, word: str) -> bool:
        """Whether a word of a text is one that the query means, or begins with one of the query's."""
        return any(
            word == term
            or (len(asked) > 1 and word.startswith(asked))
            or (term.endswith("*") and word.startswith(term[:-1]))
            for asked, terms in self.understood.items()
            for term in (*terms, asked)
        )

    @property
    def unknown(self) -> list[str]:
        """Words of the query that no text has, nor a similar one."""
        return [word for word, terms in self.understood.items() if not terms]

    def explain(self) -> str:
        """A line about how the query was read and what answers it."""
        parts = [
            f"'{word}' is unknown" if not terms else f"'{word}' read as {', '.join(terms)}"
            for word, terms in self.understood.items()
            if (terms or self.looks != "text tower") and terms != (word,) and terms != (word + "*",)
        ]
        looks = (
            "and images that look like it are found too"
            if self.is_known
            else "what they look like is not known from so few"
        )
        return "; ".join([*parts, f"{len(self.written):,} images have these words in their texts, {looks}"])


class TaughtWords:
    """The words that a gallery teaches; safe among threads.

    Args:
        ids: (N,) rising ids of its images.
        gather: (n,) ids to their (n, D) float32 unit vectors.
    """

    def __init__(self, written: WrittenWords, *, ids: Ids, gather: Callable[[Ids], Vectors]) -> None:
        self.written, self._ids, self._gather = written, ids, gather

    def ask(self, text: str, *, embed: Callable[[str], Vectors] | None = None) -> WordQuery:
        """What is known about the words of a query.

        `embed` is a text tower, which gives a text its (D,) unit vector. It answers where it finds the images with the
        words better than what they teach does, each of these left out.

        Raises:
            InputError: no text has one of the words or a similar one, and there is no text tower.
        """
        words, unwanted = split_query(text)
        stands_for = {word: self.written.understand(word) for word in words}
        understood = {word: tuple(others) for word, others in stands_for.items()}
        written = self.written.find_all(words)
        is_read_otherwise = any(word in self.written.counts and word not in stands_for[word] for word in words)
        if not len(written):
            written = self.written.find_terms(understood.values())
        ids, targets = self._weigh([others for others in stands_for.values() if others])
        looks = self._learn(ids, targets) if len(ids) else None
        if embed is not None:
            tower = self._compare(ids, targets, embed(text_wanted(text)).astype(np.float64), by="text tower")
            looks = tower if looks is None or looks.by is None or tower.better > looks.better else looks
        if looks is None:
            raise InputError(self._explain_unknown(words))
        vector = self._scale(looks.direction)
        for word in unwanted:
            others, targets = self._weigh([self.written.understand(word)])
            written = written[~np.isin(written, others[targets > 0.5])]
            if embed is not None and looks.by == "text tower":
                vector -= UNWANTED_WEIGHT * self._scale(embed(word).astype(np.float64))
            elif len(others):
                vector -= UNWANTED_WEIGHT * self._scale(self._learn(others, targets).direction)
        norm = float(np.linalg.norm(looks.direction)) or 1.0
        least, bonus = looks.middle / norm, _FIRST if is_read_otherwise else looks.gap / 4 / norm
        return WordQuery(understood, written, vector.astype(np.float32), looks.by, least, bonus)

    def _scale(self, direction: Doubles) -> Doubles:
        """The direction with a length that makes its scores vary as much as those of a photo."""
        return np.asarray(direction * (self._spread_of_photos() / (self._spread(direction) or 1.0)))

    def _explain_unknown(self, words: Sequence[str]) -> str:
        named = ", ".join(f"'{word}'" for word in words)
        nearest = list(dict.fromkeys(other for word in words for other in self.written.similar(word, least=0.15)))
        advice = f"; nearest words: {', '.join(nearest[:5])}" if nearest else ""
        return f"nothing here is written or taught about {named}{advice}"

    def list_known(self, *, progress: Progress = no_progress) -> list[tuple[str, int]]:
        """The words of the texts that are found better than chance, with their images, the most frequent first."""
        counts = [item for item in self.written.counts.items() if FEWEST <= item[1] <= len(self._ids) - FEWEST]
        known = list[tuple[str, int]]()
        for done, (word, count) in enumerate(sorted(counts, key=lambda item: (-item[1], item[0])), start=1):
            ids, targets = self._weigh([{word: 1.0}])
            if len(ids) and self._learn(ids, targets).by is not None:
                known.append((word, count))
            progress(done, len(counts))
        return known

    def _weigh(self, known: Sequence[dict[str, float]]) -> tuple[Ids, Doubles]:
        """Ids of images with a target y above 0, and the targets."""
        share, total = np.zeros(len(self._ids)), 0.0
        for others in known:
            of_word = np.zeros(len(self._ids))
            for similarity in sorted(set(others.values())):  # the most similar word of an image counts
                ids = self.written.find(word for word, one in others.items() if one == similarity)
                of_word[np.searchsorted(self._ids, ids)] = similarity
            weight = math.log(len(self._ids) / max(int(np.count_nonzero(of_word)), 1)) + 1e-3
            share += weight * of_word
            total += weight
        targets = (share / (total or 1.0)) ** _SHARPNESS
        rows = np.flatnonzero(targets > 1e-6)
        return self._ids[rows], targets[rows]

    def _learn(self, ids: Ids, targets: Doubles) -> _Looks:
        """What images with a target look like, by regression."""
        summed = np.zeros(len(self._mean))
        for start in range(0, len(ids), _MOST_SAMPLED):
            part = slice(start, start + _MOST_SAMPLED)
            summed += targets[part] @ self._gather_centred(ids[part])
        return self._compare(ids, targets, self._inverse @ summed / len(self._ids), by="taught")

    def _compare(self, ids: Ids, targets: Doubles, direction: Doubles, *, by: LooksBy) -> _Looks:
        """How well a direction finds images with a target among others; each is left out of what is learnt from it."""
        inside = np.flatnonzero(targets >= 0.5 * targets.max(initial=0))
        inside = np.random.default_rng(0).permutation(inside)[:_MOST_COMPARED]
        others: Ids = np.setdiff1d(self._some, ids, assume_unique=True)
        if len(inside) < FEWEST or len(others) < FEWEST:
            return _Looks(direction, None if by == "taught" else by)
        if by == "taught":
            offset = targets.sum() / len(self._ids)
            found = self._leave_out(ids[inside], targets[inside] - offset, direction)
            rest = self._leave_out(others, np.full(len(others), -offset), direction)
        else:
            found, rest = (self._gather_centred(some) @ direction for some in (ids[inside], others))
        better = float(np.searchsorted(np.sort(rest), found).mean() / len(rest))
        chance = math.sqrt((len(found) + len(rest) + 1) / (12 * len(found) * len(rest)))
        mean, other_mean = np.average(found, weights=targets[inside]), rest.mean()
        middle = (mean + other_mean) / 2 + self._mean @ direction
        is_known = by != "taught" or better > 0.5 + _BEYOND_CHANCE * chance
        return _Looks(direction, by if is_known else None, better, float(middle), float(mean - other_mean))

    def _leave_out(self, ids: Ids, targets: Doubles, direction: Doubles) -> Doubles:
        """(n,) predictions of some images, each left out."""
        centred = self._gather_centred(ids)
        leverage = (np.einsum("ij,ij->i", centred @ self._inverse, centred) + 1) / len(self._ids)
        return np.asarray((centred @ direction - leverage * targets) / np.maximum(1 - leverage, 1e-6))

    def _gather_centred(self, ids: Ids) -> Doubles:
        return self._gather(ids).astype(np.float64) - self._mean

    @cached_property
    def _sample(self) -> Ids:
        chosen = np.random.default_rng(0).permutation(len(self._ids))[:_MOST_SAMPLED]
        return self._ids[np.sort(chosen)]

    @cached_property
    def _some(self) -> Ids:
        """Images that those with a word are compared with."""
        chosen = np.random.default_rng(1).permutation(len(self._ids))[: 2 * _MOST_COMPARED]
        return self._ids[np.sort(chosen)]

    @cached_property
    def _mean(self) -> Doubles:
        return np.asarray(self._gather(self._sample).mean(axis=0, dtype=np.float64))

    @cached_property
    def _covariance(self) -> Doubles:
        centred = self._gather(self._sample) - self._mean.astype(np.float32)
        return np.asarray((centred.T @ centred).astype(np.float64) / len(centred))

    @cached_property
    def _inverse(self) -> Doubles:
        """(C + lambda I)^-1, with the lambda that ranks images left out best by frequent words."""
        values, axes = np.linalg.eigh(self._covariance)
        values, ridges = values.clip(min=0), np.array(_RIDGES) * max(values.mean(), 1e-12)
        best = ridges[np.argmax([self._rank_left_out(values, axes, ridge) for ridge in ridges])]
        return np.asarray(axes @ (axes.T / (values + best)[:, None]))

    @cached_property
    def _choosing(self) -> tuple[Doubles, Doubles]:
        """Centred vectors of a quarter of the sample, and 0 or 1 for each frequent word."""
        ids = self._sample[:: 1 + len(self._sample) // 5000]
        counts = sorted((count, word) for word, count in self.written.counts.items())
        words = [word for count, word in counts if 2 * FEWEST <= count <= len(self._ids) / 2][-_MOST_WORDS:]
        targets = [np.isin(ids, self.written.find([word])) for word in words]
        has_word = np.array(targets, dtype=np.float64).reshape(len(words), len(ids)).T
        told = has_word.any(axis=1)  # an image without text says nothing
        return self._gather_centred(ids[told]), has_word[told]

    def _rank_left_out(self, values: Doubles, axes: Doubles, ridge: float) -> float:
        """Average precision of the ranking of images left out, the mean over frequent words; 0 without such words."""
        centred, targets = self._choosing
        turned, count = centred @ axes, len(centred)
        offset = targets.mean(axis=0)
        predicted = turned @ ((turned.T @ targets) / (count * (values + ridge))[:, None])
        leverage = ((turned**2 / (values + ridge)).sum(axis=1) + 1)[:, None] / count
        left_out = (predicted - leverage * (targets - offset)) / np.maximum(1 - leverage, 1e-6)
        hits = np.take_along_axis(targets, np.argsort(-left_out, axis=0), axis=0)
        precision = hits.cumsum(axis=0) / np.arange(1, count + 1)[:, None]
        return float(((precision * hits).sum(axis=0) / hits.sum(axis=0).clip(min=1)).mean()) if hits.size else 0.0

    def _spread(self, direction: Doubles) -> float:
        """Standard deviation over the images of their inner products with a vector."""
        return math.sqrt(max(float(direction @ self._covariance @ direction), 0.0))

    def _spread_of_photos(self) -> float:
        """Standard deviation of the inner products with a photo, on average: E[x C x] = trace(C C) + m C m."""
        covariance = self._covariance
        return math.sqrt(float((covariance**2).sum()) + self._spread(self._mean) ** 2)
