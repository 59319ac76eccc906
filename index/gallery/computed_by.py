"""Which runtime computed a gallery's vectors, and whether another one's stand beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from index.errors import GalleryError, GalleryMismatchError
from index.model.backends.names import USUAL_BACKEND, VARIABLE
from index.model.backends.registry import LEAST_AGREEMENT, installed_backends
from index.model.embedder import Embedder
from index.text import printable_path
from index.versions.manifest import Manifest
from index.versions.versions import read_current

Runtime = Mapping[str, Any]
"""As the manifest has it: `backend`, `precision`, and `agreement` with the usual runtime."""


def usual_runtime_of(recorded: Runtime | None) -> str | None:
    """The runtime that a gallery is asked with where nobody names one: its own, if that is installed."""
    if recorded is None or os.environ.get(VARIABLE) or recorded["backend"] not in installed_backends():
        return None
    return str(recorded["backend"])


def usual_runtime_in(gallery: Path) -> str | None:
    """That of the gallery in a folder; None where there is none yet, or it cannot be read, which others tell."""
    try:
        version = read_current(gallery)
        return None if version is None else usual_runtime_of(Manifest.read(version).runtime)
    except GalleryError:
        return None


def describe_runtime(embedder: Embedder) -> dict[str, Any] | None:
    """What a manifest says of vectors that were computed now; None of those of the usual runtime."""
    if embedder.backend == USUAL_BACKEND:
        return None
    return {"backend": embedder.backend, "precision": embedder.precision, "agreement": embedder.agreement}


def join_runtimes(recorded: Runtime | None, new: Runtime | None) -> dict[str, Any] | None:
    """What a manifest says of vectors of two runtimes, that of less agreement with the usual one."""
    told = [one for one in (recorded, new) if one is not None]
    return dict(min(told, key=lambda one: one["agreement"])) if told else None


def require_same_output(recorded: Runtime | None, embedder: Embedder, *, gallery: Path) -> None:
    """See that vectors computed now may stand beside a gallery's, or ask for them.

    Those of one runtime and precision may, and those of two that agree with the usual one, both as measured with this
    model, to `LEAST_AGREEMENT`.
    """
    if is_same_runtime(recorded, embedder):
        return
    agreements = (1.0 if recorded is None else recorded["agreement"], embedder.agreement)
    if all(one >= LEAST_AGREEMENT for one in agreements):  # which NaN is not
        return
    name, precision = (USUAL_BACKEND, "") if recorded is None else (recorded["backend"], recorded["precision"])
    raise GalleryMismatchError(
        printable_path(str(gallery)),
        what="runtime",
        expected=f"{name} {precision}".strip(),
        seen=f"{embedder.backend} {embedder.precision}, whose embeddings differ (a cosine of {min(agreements):.3f} "
        f"less the mean, at least {LEAST_AGREEMENT:g} is needed)",
        advice=f"use --backend {name}, or build the gallery again",
    )


def is_same_runtime(recorded: Runtime | None, embedder: Embedder) -> bool:
    """Whether vectors are computed now as a gallery's were."""
    if recorded is None:
        return embedder.backend == USUAL_BACKEND
    return (recorded["backend"], recorded["precision"]) == (embedder.backend, embedder.precision)
