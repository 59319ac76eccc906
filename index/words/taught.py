"""Words that a gallery teaches: a query's vector from the embeddings of the images whose texts have its words.

Ridge regression of a target on embeddings x, with mean m and covariance C, has the weights

    w = (C + lambda I)^-1 sum_i y_i (x_i - m) / N

The target y_i of an image is the share of the query's words that its text has, weighted by log(N / images with the
word), to the 8th power: images with all words count. Where no image has all, words weigh alike, or those with the
rarest one would be all that counts. The predictions p_i = (x_i - m) w rank all images, and so does w as the vector of
a search by cosine similarity. With image i left out, its prediction is (p_i - h_i t_i) / (1 - h_i), where t_i is y_i
without its mean, and h_i = ((x_i - m) (C + lambda I)^-1 (x_i - m) + 1) / N; m, C and lambda stay, and above 20,000
images m and C are of a sample. The constants were chosen on the groceries and
Tiny-ImageNet of `benchmarks.words`; its clothes were used for no choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from index.arrays import Doubles, Ids, Vectors
from index.errors import InputError
from index.progress import Progress, no_progress
from index.threads import single_threaded_blas
from index.words.words import split_query
from index.words.written import WrittenWords

_SHARPNESS = 8
_RIDGES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # times the mean variance
_MOST_SAMPLED = 20_000  # images for mean and covariance
_MOST_COMPARED = 1000  # images with a word, and others, that its check compares
_MOST_WORDS = 100  # that choose the ridge
_FEWEST = 5  # images with a word, and others, from which it can be found better than chance
# Standard deviations above 0.5 that the AUC of a known word needs. They are those of independent scores; AUCs of random
# words vary 1.3 to 1.5 times as much, so that some five of a thousand random words pass.
_MIN_DEVIATIONS = 3.7
_NEARLY_ALL = 0.99  # the AUC that is enough among few images
_EVIDENCE = 4.0  # log-odds that an image with all of the words in its text shows them
_WRITTEN_FIRST_BONUS = 2.0  # more than any cosine
UNWANTED_WEIGHT = 0.4  # as of an image that a query shall be less like
Source: TypeAlias = Literal["taught", "text tower"]


@dataclass(frozen=True, slots=True)
class _Direction:
    """A (D,) direction in which images are like a query, and how well it finds those with the words.

    Attributes:
        source: what gave it; None: it finds them no better than chance.
        auc: area under its ROC curve; images with the words are left out of what is learnt from them.
        auc_deviation: standard deviation of the AUC of random scores.
        threshold: inner product halfway between the means of images with the words and of others.
        difference: between these means.
        variance: of the inner products of others.
    """

    vector: Doubles
    source: Source | None
    auc: float = 0.5
    auc_deviation: float = math.inf
    threshold: float = -math.inf
    difference: float = 0.0
    variance: float = 0.0


@dataclass(frozen=True)
class WordQuery:
    """What a gallery knows about the words of a query.

    Attributes:
        understood: for each word of the query the terms of the texts that it stands for; empty for an unknown one.
        written: (n,) ids of the images whose texts have all of its words, best first (BM25).
        vector: (D,) float32, the direction of images that look as the words say. Its length makes scores vary as much
            as those of a photo.
        looks: what gave the direction; None: it finds images with the words, each left out, no better than chance.
        least_score: cosine similarity from which an image looks as the words say.
        written_bonus: added to the score of images whose texts have all words, to rank them: where scores of images
            with the words and of others are normal with one variance, so much score has the log-odds `_EVIDENCE`.
    """

    understood: dict[str, tuple[str, ...]]
    written: Ids
    vector: Vectors
    looks: Source | None
    least_score: float
    written_bonus: float

    @property
    def is_known(self) -> bool:
        return self.looks is not None

    @cached_property
    def written_set(self) -> frozenset[int]:
        return frozenset(self.written.tolist())

    def means(self, word: str) -> bool:
        """Whether a word of a text is one that the query wants."""
        return any(
            word == term or (term.endswith("*") and word.startswith(term[:-1]))
            for asked, terms in self.understood.items()
            if not asked.startswith("-")
            for term in (*terms, asked)
        )

    def explain(self) -> str:
        """A line about how the query was read and what answers it."""
        parts = [
            f"'{word}' read as {', '.join(terms)}" if terms else f"'{word}' is unknown"
            for word, terms in self.understood.items()
            if (terms or self.looks != "text tower") and terms not in ((word.removeprefix("-"),), (f"{word}*",))
        ]
        count = "1 image has" if len(self.written) == 1 else f"{len(self.written):,} images have"
        looks = "others look like it" if self.is_known else "what they look like could not be learnt"
        return "; ".join([*parts, f"{count} these words in the text, {looks}"])


class TaughtWords:
    """The words that a gallery teaches; safe among threads.

    Args:
        ids: (N,) ascending ids of its images.
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
        wanted, unwanted, wanted_text = split_query(text)
        terms = {word: self.written.understand(word) for word in wanted}
        known = {word: [word] if word in self.written.counts else list(some) for word, some in terms.items() if some}
        written = self.written.find(known.values()) if known else np.empty(0, dtype=np.int64)
        is_read_otherwise = any(word in self.written.counts and word not in some for word, some in terms.items())
        ids, targets = self._make_targets(list(filter(None, terms.values())))
        found = self._learn_beyond_chance(ids, targets) if len(ids) else None
        if embed is not None:
            tower = self._measure(ids, targets, embed(wanted_text).astype(np.float64), source="text tower")
            found = tower if found is None or found.source is None or tower.auc > found.auc else found
        if found is None and not len(written):
            raise InputError(self._explain_unknown(wanted))
        found = found or _Direction(np.zeros(len(self._mean)), None)
        vector, understood = self._scale(found.vector), {word: tuple(some) for word, some in terms.items()}
        for word in unwanted:
            some = self.written.understand(word)
            understood[f"-{word}"] = tuple(some)
            written = written[~np.isin(written, self.written.find([some]))]
            if embed is not None and found.source == "text tower":
                vector -= UNWANTED_WEIGHT * self._scale(embed(word).astype(np.float64))
            elif (away := self._learn_beyond_chance(*self._make_targets([some]))).source is not None:
                vector -= UNWANTED_WEIGHT * self._scale(away.vector)
        if unwanted and found.source is not None:
            found = self._measure(ids, targets, vector, source=found.source)
        norm = float(np.linalg.norm(vector))
        if not norm:  # any vector will do: what they look like is unknown
            vector, norm = self._mean, float(np.linalg.norm(self._mean)) or 1.0
        is_first = is_read_otherwise or found.difference <= 0
        length = norm if unwanted else float(np.linalg.norm(found.vector)) or 1.0
        bonus = _WRITTEN_FIRST_BONUS if is_first else _EVIDENCE * found.variance / found.difference / length
        return WordQuery(understood, written, vector.astype(np.float32), found.source, found.threshold / length, bonus)

    def _scale(self, direction: Doubles) -> Doubles:
        """The direction with a length that makes its scores vary as much as those of a photo."""
        spread = self._spread(direction)
        is_noise = spread <= 1e-9 * float(np.linalg.norm(direction))
        return np.zeros_like(direction) if is_noise else direction * (self._spread_of_photos / spread)

    def _explain_unknown(self, words: Sequence[str]) -> str:
        named = ", ".join(f"'{word}'" for word in words)
        nearest = list(dict.fromkeys(other for word in words for other in self.written.similar(word, least=0.15)))
        frequent = sorted(self.written.counts, key=lambda word: (-self.written.counts[word], word))
        advice = f"nearest words: {', '.join(nearest[:5])}" if nearest else f"words here: {', '.join(frequent[:8])}"
        return f"nothing here is written or taught about {named}" + (f"; {advice}" if frequent else "")

    def list_known(self, *, progress: Progress = no_progress) -> list[tuple[str, int]]:
        """The words of the texts that are found better than chance, with their images, the most frequent first."""
        counts = [item for item in self.written.counts.items() if _FEWEST <= item[1] <= len(self._ids) - _FEWEST]
        known = list[tuple[str, int]]()
        for done, (word, count) in enumerate(sorted(counts, key=lambda item: (-item[1], item[0])), start=1):
            if self._learn_beyond_chance(*self._make_targets([{word: 1.0}])).source is not None:
                known.append((word, count))
            progress(done, len(counts))
        return known

    def _make_targets(self, terms: Sequence[dict[str, float]]) -> tuple[Ids, Doubles]:
        """Ids of images with a target y above 0, and the targets, of some words with their terms."""
        by_rarity, alike, total = np.zeros(len(self._ids)), np.zeros(len(self._ids)), 0.0
        has_all = np.ones(len(self._ids), dtype=bool)
        for some in terms:
            of_word = np.zeros(len(self._ids))
            for similarity in sorted(set(some.values())):  # the most similar word of an image counts
                ids = self.written.find_some(term for term, one in some.items() if one == similarity)
                of_word[np.searchsorted(self._ids, ids)] = similarity
            weight = math.log(len(self._ids) / max(int(np.count_nonzero(of_word)), 1)) + 1e-3
            by_rarity += weight * of_word
            alike += of_word
            has_all &= of_word > 0
            total += weight
        targets = (by_rarity / (total or 1.0) if has_all.any() else alike / len(terms)) ** _SHARPNESS
        rows = np.flatnonzero(targets > 1e-6 * targets.max(initial=0))
        return self._ids[rows], targets[rows]

    def _learn(self, ids: Ids, targets: Doubles) -> _Direction:
        """What images with a target look like, by regression."""
        summed = np.zeros(len(self._mean))
        for start in range(0, len(ids), _MOST_SAMPLED):
            part = slice(start, start + _MOST_SAMPLED)
            summed += targets[part] @ self._gather_centred(ids[part])
        return self._measure(ids, targets, self._inverse @ summed / len(self._ids), source="taught", is_learnt=True)

    def _learn_beyond_chance(self, ids: Ids, targets: Doubles) -> _Direction:
        """The direction of `_learn`, without a source where it finds these images no better than random ones."""
        found = self._learn(ids, targets)
        is_known = found.auc > min(0.5 + _MIN_DEVIATIONS * found.auc_deviation, _NEARLY_ALL)
        return found if is_known else replace(found, source=None)

    def _measure(
        self, ids: Ids, targets: Doubles, vector: Doubles, *, source: Source, is_learnt: bool = False
    ) -> _Direction:
        """The direction with its AUC and threshold, on images with a target and others; left out if it `is_learnt`."""
        inside = np.flatnonzero(targets >= 0.5 * targets.max(initial=0))
        others: Ids = np.setdiff1d(self._background, ids[inside], assume_unique=True)
        inside = np.random.default_rng(0).permutation(inside)[:_MOST_COMPARED]
        if len(inside) < _FEWEST or len(others) < _FEWEST:
            return _Direction(vector, source)
        if is_learnt:
            offset, of_others = targets.sum() / len(self._ids), np.zeros(len(self._ids))
            of_others[np.searchsorted(self._ids, ids)] = targets
            found = self._leave_out(ids[inside], targets[inside] - offset, vector)
            rest = self._leave_out(others, of_others[np.searchsorted(self._ids, others)] - offset, vector)
        else:
            found, rest = (self._gather_centred(some) @ vector for some in (ids[inside], others))
        auc = float(np.searchsorted(np.sort(rest), found).mean() / len(rest))
        mean, other_mean = float(np.average(found, weights=targets[inside])), float(rest.mean())
        threshold = (mean + other_mean) / 2 + float(self._mean @ vector)
        deviation = math.sqrt((len(found) + len(rest) + 1) / (12 * len(found) * len(rest)))  # Mann and Whitney 1947
        return _Direction(vector, source, auc, deviation, threshold, mean - other_mean, float(rest.var()))

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
    def _background(self) -> Ids:
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
        with single_threaded_blas():  # a hundred times as fast as threads that wait for each other
            values, axes = np.linalg.eigh(self._covariance)
        values, ridges = values.clip(min=0), np.array(_RIDGES) * max(values.mean(), 1e-12)
        centred, has_word = self._choose_words()
        turned = centred @ axes
        best = ridges[np.argmax([_rank_left_out(turned, has_word, values + ridge) for ridge in ridges])]
        return np.asarray(axes @ (axes.T / (values + best)[:, None]))

    def _choose_words(self) -> tuple[Doubles, Doubles]:
        """Centred vectors of a quarter of the sample, and 0 or 1 for each frequent word."""
        ids = self._sample[:: 1 + len(self._sample) // 2500]
        counts = sorted((count, word) for word, count in self.written.counts.items())
        words = [word for count, word in counts if 6 <= count <= len(self._ids) / 2][-_MOST_WORDS:]
        targets = [np.isin(ids, self.written.find_some([word])) for word in words]
        has_word = np.array(targets, dtype=np.float64).reshape(len(words), len(ids)).T
        has_text = has_word.any(axis=1)
        return self._gather_centred(ids[has_text]), has_word[has_text]

    def _spread(self, direction: Doubles) -> float:
        """Standard deviation over the images of their inner products with a vector."""
        return math.sqrt(max(float(direction @ self._covariance @ direction), 0.0))

    @cached_property
    def _spread_of_photos(self) -> float:
        """Standard deviation of the inner products with a photo, on average: E[x C x] = trace(C C) + m C m."""
        covariance = self._covariance
        return math.sqrt(float((covariance**2).sum()) + self._spread(self._mean) ** 2)


def _rank_left_out(turned: Doubles, targets: Doubles, variances: Doubles) -> float:
    """Average precision of the ranking of images left out, the mean over words; 0 without words.

    Args:
        turned: (n, D) centred vectors along the axes of the covariance.
        targets: (n, W), 1 where an image has a word.
        variances: (D,) along the axes, with the ridge.
    """
    if not targets.size:
        return 0.0
    count, offset = len(turned), targets.mean(axis=0)
    predicted = turned @ ((turned.T @ targets) / (count * variances)[:, None])
    leverage = ((turned**2 / variances).sum(axis=1) + 1)[:, None] / count
    left_out = (predicted - leverage * (targets - offset)) / np.maximum(1 - leverage, 1e-6)
    hits = np.take_along_axis(targets, np.argsort(-left_out, axis=0), axis=0)
    precision = hits.cumsum(axis=0) / np.arange(1, count + 1)[:, None]
    return float(((precision * hits).sum(axis=0) / hits.sum(axis=0).clip(min=1)).mean())
