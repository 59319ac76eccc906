"""Near-duplicate search. Images are compared in order, with kept images only.

So there are no chains: every image of a group is a near-duplicate of the group's kept image.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Floats, Ids, Vectors
from index.catalog.reader import Catalog
from index.duplicates.duplicate_config import HASH_BITS, LIMITS_SETTING, DuplicateConfig
from index.errors import GalleryDamagedError
from index.images.preprocess import hamming_distances
from index.progress import Progress, no_progress
from index.vectors.exact import limit_cosines, multiply_pairs
from index.versions.manifest import CATALOG_NAME

ReadVectors = Callable[[Ids], Vectors]
"""The (n, D) float32 unit rows of (n,) int64 ids, in their order; called with ascending ids."""

Rows = npt.NDArray[np.intp]
_STREAM_ROWS = 4096  # between two reports of progress
PAIRS_AT_ONCE = 1024  # whose vectors are in memory: 40 MB with those of 1,280 numbers
_BLOCK_ROWS = 1024  # images looked up at once, at most `_TILE_PLACES`
_TILE_ROWS, _TILE_PLACES = 64, 8192  # hashes compared at once: long rows, in the processor's cache
_SLACK = 1e-4  # of a cosine of float32, which is measured again
_SAMPLED = 4096  # images whose pairs are counted: 64 MB
_RING = 1.25  # outer by inner distance
_FEWEST_PAIRS = 30
_WRONG_PAIRS = 0.02  # an image
_MOST_RAISED = 2.5  # times nearer than the model's threshold


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes by which near-duplicates are found; one left out by the build, for `kept_id`, has no vector."""

    id: int
    sha256: str
    phash: int | None  # None where the image was never decoded
    labelled: bool = True
    kept_id: int | None = None


def raise_threshold(threshold: float, ids: Ids, read: ReadVectors) -> float:
    """Copy threshold for a gallery of (n,) int64 ids: the model's, or a higher one where different images are alike.

    Pairs of different images grow as a power of the distance (1 - cosine), the correlation dimension (Grassberger and
    Procaccia 1983). Two rings of pairs around the threshold give the power, and so the wrong pairs within any distance.
    Where all images are alike, pairs grow no further there, so rings from once and from twice the threshold's distance
    on are measured; those that raise it less decide.
    """
    ids = np.unique(ids)
    sample = np.sort(np.random.default_rng(0).choice(ids, min(len(ids), _SAMPLED), replace=False))
    vectors = np.unique(read(sample), axis=0)  # sorted, without equal images
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -np.inf)
    limit, distances = 1 - threshold, []
    for first in (limit, 2 * limit):
        edges = 1 - first * _RING ** np.arange(3)
        inner, outer = (np.count_nonzero((similar < high) & (similar >= low)) / 2 for high, low in pairwise(edges))
        if inner < _FEWEST_PAIRS:
            return threshold
        if outer > inner:  # else most pairs lie nearer, or are copies
            power = math.log(outer / inner) / math.log(_RING)
            within = inner / (outer / inner - 1) / len(vectors) * len(ids) / len(sample)  # pairs an image
            distances.append(first * (_WRONG_PAIRS / within) ** (1 / power))
    nearer = max(limit / _MOST_RAISED, min(limit, max(distances, default=limit)))
    return max(threshold, round(float(1 - nearer), 4))


class KeptImages:
    """Kept images, with which later ones are compared.

    An image is a near-duplicate from a cosine of `min_similarity` on, if its hash differs in at most
    `max_hash_distance` bits. Hashes are compared first; if they may differ in all bits, vectors of all kept images are
    read for every thousand images. On one core an image takes 0.05 ms against 100,000 kept images; by vectors of 1,280
    numbers 32 ms.
    """

    def __init__(self, read: ReadVectors, config: DuplicateConfig | None = None) -> None:
        limits = (config or DuplicateConfig()).resolve(None)
        self._min_similarity, self._max_distance = limits.limits
        self._read = read
        self._ids: Ids = np.empty(0, dtype=np.int64)
        self._hashes: Ids = np.empty(0, dtype=np.int64)

    def hold(self, ids: Ids, hashes: Ids) -> None:
        """Add kept images: (n,) int64 ids and (n,) int64 perceptual hashes."""
        self._ids = np.concatenate([self._ids, ids])
        self._hashes = np.concatenate([self._hashes, hashes])

    def assign(self, ids: Ids, hashes: Ids) -> Ids:
        """(n,) int64 kept image of every image, by (n,) ids and hashes; the same however a stream is cut into calls.

        It is the most similar one, ties by smaller id. An image without one gets its own id, and becomes a kept image.
        """
        kept = np.empty(len(ids), dtype=np.int64)
        for start in range(0, len(ids), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            kept[rows] = self._assign_block(ids[rows], hashes[rows])
        return kept

    def find_pairs(self, ids: Ids, hashes: Ids) -> Iterator[tuple[int, int]]:
        """All pairs (image, kept image) of near-duplicates, of (n,) int64 ids and hashes; nothing is added."""
        near = self._near(ids, hashes, self._ids, self._hashes)
        for rows, positions, _ in self._similar(near, ids, self._ids):
            yield from zip(ids[rows].tolist(), self._ids[positions].tolist(), strict=True)

    def _assign_block(self, ids: Ids, hashes: Ids) -> Ids:
        nearest = _Nearest(len(ids))
        held = self._near(ids, hashes, self._ids, self._hashes)
        for rows, positions, similarities in self._similar(held, ids, self._ids):
            nearest.update(rows, self._ids[positions], similarities)
        alike = self._near(ids, hashes, ids, hashes)
        within = ((left[left < right], right[left < right]) for left, right in alike)
        for earlier, rows, similarities in self._similar(within, ids, ids):
            ends = [*(np.flatnonzero(np.diff(earlier)) + 1).tolist(), len(earlier)]
            for start, end in zip([0, *ends], ends, strict=False):  # where the earlier one is the same
                run = slice(start, end)
                # A kept image, because all before it are assigned.
                if start < end and nearest.ids[earlier[start]] == NO_ID:
                    nearest.update(rows[run], ids[earlier[run]], similarities[run])
        is_new = nearest.ids == NO_ID
        self.hold(ids[is_new], hashes[is_new])
        return np.where(is_new, ids, nearest.ids)

    def _similar(self, near: Iterable[tuple[Rows, Rows]], ids: Ids, others: Ids) -> Iterator[tuple[Rows, Rows, Floats]]:
        """Pairs (row of `ids`, row of `others`) that are similar enough, with their similarity."""
        for rows, positions in _cut_evenly(near):
            similarities = measure_pairs(ids[rows], others[positions], self._read)
            similar = similarities >= self._min_similarity
            yield rows[similar], positions[similar], similarities[similar]

    def _near(self, ids: Ids, hashes: Ids, other_ids: Ids, other_hashes: Ids) -> Iterator[tuple[Rows, Rows]]:
        """Candidate pairs (row of `ids`, row of `other_ids`)."""
        if self._max_distance < HASH_BITS:
            return find_near_hashes(hashes, other_hashes, max_distance=self._max_distance)
        return self._near_vectors(ids, other_ids)

    def _near_vectors(self, ids: Ids, others: Ids) -> Iterator[tuple[Rows, Rows]]:
        """Candidate pairs by float32 products of the vectors of (n,) ids and (m,) others."""
        for first in range(0, len(ids) if len(others) else 0, PAIRS_AT_ONCE):
            vectors = self._read_any(ids[first : first + PAIRS_AT_ONCE])
            found = []
            for start in range(0, len(others), PAIRS_AT_ONCE):
                products = vectors @ self._read_any(others[start : start + PAIRS_AT_ONCE]).T
                rows, positions = np.nonzero(products >= self._min_similarity - _SLACK)
                found.append((rows + first, positions + start))
            rows, positions = (np.concatenate(side) for side in zip(*found, strict=True))
            order = np.argsort(rows, kind="stable")
            yield rows[order], positions[order]

    def _read_any(self, ids: Ids) -> Vectors:
        """The vectors of ids in any order."""
        ascending, positions = np.unique(ids, return_inverse=True)
        return self._read(ascending)[positions]


class _Nearest:
    """Nearest kept image found so far, for each row: (n,) int64 `ids`, or `NO_ID`; ties by smaller id."""

    def __init__(self, count: int) -> None:
        self.ids = np.full(count, NO_ID, dtype=np.int64)
        self._best = np.full(count, -np.inf, dtype=np.float32)

    def update(self, rows: Rows, kept: Ids, similarities: Floats) -> None:
        order = np.lexsort((kept, -similarities, rows))
        first = order[np.unique(rows[order], return_index=True)[1]]  # the best of every row
        row, found, similarity = rows[first], kept[first], similarities[first]
        best = self._best[row]
        better = (similarity > best) | ((similarity == best) & (found < self.ids[row]))
        self.ids[row[better]], self._best[row[better]] = found[better], similarity[better]


def _cut_evenly(pairs: Iterable[tuple[Rows, Rows]]) -> Iterator[tuple[Rows, Rows]]:
    rows = positions = np.empty(0, dtype=np.intp)
    for more_rows, more_places in pairs:
        if len(more_rows):
            rows, positions = np.concatenate([rows, more_rows]), np.concatenate([positions, more_places])
        while len(rows) >= PAIRS_AT_ONCE:
            yield rows[:PAIRS_AT_ONCE], positions[:PAIRS_AT_ONCE]
            rows, positions = rows[PAIRS_AT_ONCE:], positions[PAIRS_AT_ONCE:]
    if len(rows):
        yield rows, positions


def find_near_hashes(hashes: Ids, others: Ids, *, max_distance: int) -> Iterator[tuple[Rows, Rows]]:
    """Pairs of (n,) and (m,) perceptual hashes that differ in few bits, as blocks of (P,) rows and sorted positions."""
    for start in range(0, len(others), _TILE_PLACES):
        tile = others[start : start + _TILE_PLACES]
        for first in range(0, len(hashes), _TILE_ROWS):
            near = hamming_distances(hashes[first : first + _TILE_ROWS, None], tile) <= max_distance
            rows, positions = np.divmod(np.flatnonzero(near), len(tile))  # `nonzero` takes five times as long
            yield rows + first, positions + start


def measure_pairs(ids: Ids, others: Ids, read: ReadVectors) -> Floats:
    """Cosines of (P,) images with (P,) others: (P,) float32, summed in float64 and rounded once, as in a search."""
    cosines = np.empty(len(ids), dtype=np.float32)
    for start in range(0, len(ids), PAIRS_AT_ONCE):
        part, sides = slice(start, start + PAIRS_AT_ONCE), []
        for side in (ids[part], others[part]):
            ascending, positions = np.unique(side, return_inverse=True)
            sides.append((read(ascending), positions))
        (left, rows), (right, other_rows) = sides
        cosines[part] = limit_cosines(multiply_pairs(left, right, rows, other_rows))
    return cosines


def resolve_limits(
    config: DuplicateConfig, *, copy_threshold: float | None, catalog: Catalog, read: ReadVectors
) -> DuplicateConfig:
    """The config with defaults filled in, the model's copy threshold raised for the catalogue's indexed images.

    A threshold that the gallery's build raised never falls, so that a comparison that goes on finds nothing more.
    """
    if copy_threshold is not None and config.min_similarity is None:
        raised = raise_threshold(copy_threshold, catalog.indexed_ids(), read)
        limits = catalog.setting(LIMITS_SETTING)
        is_given = catalog.setting("min_similarity") != "null"
        copy_threshold = raised if limits is None or is_given else max(raised, json.loads(limits)["min_similarity"])
    return config.resolve(copy_threshold)


def find_gallery_duplicates(
    images: Sequence[Fingerprint],
    read: ReadVectors,
    *,
    config: DuplicateConfig | None,
    progress: Progress = no_progress,
) -> dict[int, int]:
    """The kept image of every near-duplicate of a gallery, by ascending id; without `config` of equal files only.

    The first of a group is kept: indexed images come first, then labelled ones, then smaller ids. An image that the
    build left out stays in the group of its kept image.
    """
    indexed = {image.id for image in images if image.kept_id is None}
    for image in images:
        if image.kept_id is not None and image.kept_id not in indexed:
            detail = f"image {image.id} was left out for image {image.kept_id}, which is not indexed"
            raise GalleryDamagedError(CATALOG_NAME, f"damaged: {detail} (`retrieval index verify` says what else is)")
    ordered = sorted(images, key=lambda image: (image.kept_id is not None, not image.labelled, image.id))
    first: dict[str, int] = {}
    for image in ordered:
        first.setdefault(image.sha256, image.id)
    kept = {image.id: first[image.sha256] for image in ordered}
    if config is not None:
        compared = [image for image in ordered if image.kept_id is None and kept[image.id] == image.id]
        alike = {image.id: image.id for image in compared}
        hashed = [(image.id, image.phash) for image in compared if image.phash is not None]
        keeping = KeptImages(read, config)
        for start in range(0, len(hashed), _STREAM_ROWS):
            ids, hashes = np.array(hashed[start : start + _STREAM_ROWS], dtype=np.int64).T
            alike.update(zip(ids.tolist(), keeping.assign(ids, hashes).tolist(), strict=True))
            progress(start + len(ids), len(hashed))
        for image in ordered:
            kept[image.id] = alike[kept[image.id]] if image.kept_id is None else kept[image.kept_id]
    return {number: kept[number] for number in sorted(kept) if kept[number] != number}
