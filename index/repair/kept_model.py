"""The model of a damaged gallery, which whatever is embedded again must be embedded with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from index.errors import GalleryError, GalleryMismatchError, ModelFileError
from index.file_hash import hash_file
from index.gallery.computed_by import join_runtimes, usual_runtime_of
from index.gallery.salvage import SalvagedVersion
from index.model.embedder import Embedder
from index.text import printable_path
from index.versions.manifest import MODEL_NAME
from index.versions.work_plan import BUILDING, read_plan


def find_model(gallery: Path, versions: Sequence[SalvagedVersion], *, given: Path | None) -> Embedder:
    """The given model, or a sound copy of it in a version or in unfinished work, in the gallery's own runtime.

    Raises:
        GalleryMismatchError: another one was given.
        GalleryError: none is sound.
    """
    manifests = [version.manifest for version in versions if version.manifest is not None]
    expected = manifests[0].model_sha256 if manifests else (read_plan(gallery) or {}).get("model_sha256")
    backend = usual_runtime_of(find_runtime(versions))
    if given is not None:
        embedder = Embedder(given, threads=1, backend=backend)
        if expected not in (None, embedder.sha256):
            raise GalleryMismatchError(
                printable_path(str(gallery)), what="model (SHA-256)", expected=str(expected), seen=embedder.sha256,
                advice="give the --model that it was built with",
            )  # fmt: skip
        return embedder
    for path in (*(version.folder / MODEL_NAME for version in versions), gallery / BUILDING / MODEL_NAME):
        if path.is_file() and expected in (None, hash_file(path)):
            try:
                return Embedder(path, threads=1, backend=backend)
            except ModelFileError:
                continue
    raise GalleryError(
        printable_path(str(gallery)),
        "its model is damaged or missing in every version; run this again with --model and the file that it was built "
        f"with{'' if expected is None else f' (SHA-256 {expected})'}",
    )


def find_runtime(versions: Sequence[SalvagedVersion]) -> dict[str, Any] | None:
    """Which runtime computed what is kept of the versions, as their manifests say."""
    told = (version.manifest.runtime for version in versions if version.manifest is not None)
    return reduce(join_runtimes, told, None)
