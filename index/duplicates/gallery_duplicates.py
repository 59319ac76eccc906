"""Near-duplicates of a gallery, including those that its build left out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.catalog.reader import Catalog
from index.duplicates.duplicate_config import LIMITS_SETTING, DuplicateConfig
from index.duplicates.near_duplicates import KeptImages, ReadVectors, raise_threshold
from index.errors import GalleryDamagedError
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
) -> dict[int, int]:
    """The kept image of every near-duplicate of a gallery, by rising id.

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
