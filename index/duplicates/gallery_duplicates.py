"""Near-duplicates of a gallery, including those that its build left out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.catalog.reader import Catalog
from index.duplicates.duplicate_config import LIMITS_SETTING, DuplicateConfig
from index.duplicates.near_duplicates import PAIRS_AT_ONCE, KeptImages, ReadVectors, measure_pairs, raise_threshold
from index.errors import GalleryDamagedError
from index.images.preprocess import hamming_distances
from index.progress import Progress, no_progress
from index.versions.manifest import CATALOG_NAME

_STREAM_ROWS = 4096  # between two reports of progress


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes of an image, by which near-duplicates are found.

    Attributes:
        phash: perceptual hash; None where the image was never decoded.
        kept_id: the indexed image of which the build left this one out as a near-duplicate; it then has no vector.
    """

    id: int
    sha256: str
    phash: int | None
    labelled: bool = True
    kept_id: int | None = None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A near-duplicate of the image `kept_id`, which is kept.

    Attributes:
        similarity: cosine to the kept image; None where one of the two has no vector.
        hash_distance: bits in which the perceptual hashes differ; None where one of the two has none.
    """

    id: int
    kept_id: int
    similarity: float | None
    hash_distance: int | None
    same_bytes: bool


def resolve_limits(
    config: DuplicateConfig, *, copy_threshold: float | None, catalog: Catalog, read: ReadVectors
) -> DuplicateConfig:
    """The config with defaults filled in, the model's copy threshold raised for the catalogue's indexed images.

    A threshold that the gallery's build raised never falls, so that a comparison that goes on finds nothing more.
    """
    if copy_threshold is not None and config.min_similarity is None:
        raised = raise_threshold(copy_threshold, np.array(catalog.indexed_ids(), dtype=np.int64), read)
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
) -> list[Duplicate]:
    """Near-duplicates of a gallery, by rising ids.

    The first image of a group is kept, as in a build: indexed images come first, then labelled ones, then smaller ids.
    An image that the build left out stays in the group of its kept image.

    Args:
        images: all images of the gallery.
        read: reads vectors of the indexed ones.
        config: thresholds; None finds equal files only.
        progress: called with (done, total) images compared.

    Raises:
        GalleryDamagedError: the kept image of a left-out one is not indexed, or a compared image has no vector.
    """
    _check_kept_images(images)
    ordered = sorted(images, key=lambda image: (image.kept_id is not None, not image.labelled, image.id))
    first: dict[str, int] = {}
    for image in ordered:
        first.setdefault(image.sha256, image.id)
    kept = {image.id: first[image.sha256] for image in ordered}
    if config is not None:
        compared = [image for image in ordered if image.kept_id is None and kept[image.id] == image.id]
        alike = _assign_all(compared, read, config=config, progress=progress)
        for image in ordered:
            kept[image.id] = alike[kept[image.id]] if image.kept_id is None else kept[image.kept_id]
    by_id = {image.id: image for image in images}
    pairs = [(by_id[number], by_id[kept_image]) for number, kept_image in sorted(kept.items()) if number != kept_image]
    return _describe_pairs(pairs, read)


def _check_kept_images(images: Sequence[Fingerprint]) -> None:
    indexed = {image.id for image in images if image.kept_id is None}
    for image in images:
        if image.kept_id is not None and image.kept_id not in indexed:
            detail = f"image {image.id} was left out for image {image.kept_id}, which is not indexed"
            raise GalleryDamagedError(CATALOG_NAME, f"damaged: {detail} (`retrieval index verify` says what else is)")


def _assign_all(
    images: Sequence[Fingerprint], read: ReadVectors, *, config: DuplicateConfig, progress: Progress
) -> dict[int, int]:
    """Kept image of every image, by id; an image without a near-duplicate is its own."""
    assigned = {image.id: image.id for image in images}
    hashed = [(image.id, image.phash) for image in images if image.phash is not None]
    kept = KeptImages(read, config)
    for start in range(0, len(hashed), _STREAM_ROWS):
        ids, hashes = np.array(hashed[start : start + _STREAM_ROWS], dtype=np.int64).T
        found = kept.assign(ids, hashes)
        assigned.update(zip(ids.tolist(), found.tolist(), strict=True))
        progress(start + len(ids), len(hashed))
    return assigned


def _describe_pairs(pairs: Sequence[tuple[Fingerprint, Fingerprint]], read: ReadVectors) -> list[Duplicate]:
    measured = [
        (image.id, kept_image.id) for image, kept_image in pairs if image.kept_id is None and kept_image.kept_id is None
    ]
    similarities: dict[int, float] = {}
    for start in range(0, len(measured), PAIRS_AT_ONCE):
        ids, kept = np.array(measured[start : start + PAIRS_AT_ONCE], dtype=np.int64).T
        found = measure_pairs(ids, kept, read)
        similarities.update(zip(ids.tolist(), found.tolist(), strict=True))
    return [
        Duplicate(
            id=image.id,
            kept_id=kept_image.id,
            similarity=similarities.get(image.id),
            hash_distance=None
            if image.phash is None or kept_image.phash is None
            else int(hamming_distances(np.array(image.phash, dtype=np.int64), kept_image.phash)),
            same_bytes=image.sha256 == kept_image.sha256,
        )
        for image, kept_image in pairs
    ]
