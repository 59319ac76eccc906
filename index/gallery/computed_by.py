"""Runtimes of a gallery's vectors: the recorded one, and the check that another one agrees."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from index.errors import GalleryError, GalleryMismatchError
from index.model.backends.backend import USUAL_BACKEND, VARIABLE
from index.model.backends.registry import LEAST_AGREEMENT, installed_backends
from index.model.embedder import Embedder
from index.versions.manifest import Manifest
from index.versions.versions import read_current

Runtime = Mapping[str, Any]
"""Runtime recorded in a manifest: `backend`, `precision`, and `agreement` with the usual runtime."""


def usual_runtime_of(recorded: Runtime | None) -> str | None:
    """The default runtime of queries: the gallery's own, if it is installed."""
    if recorded is None or os.environ.get(VARIABLE) or recorded["backend"] not in installed_backends():
        return None
    return str(recorded["backend"])


def usual_runtime_in(gallery: Path) -> str | None:
    """The default runtime of queries to a gallery folder; None without a readable gallery."""
    try:
        version = read_current(gallery)
        return None if version is None else usual_runtime_of(Manifest.read(version).runtime)
    except GalleryError:
        return None


def describe_runtime(embedder: Embedder) -> dict[str, Any] | None:
    """The manifest's entry of an embedder's runtime; None of the usual one."""
    if embedder.backend == USUAL_BACKEND:
        return None
    return {"backend": embedder.backend, "precision": embedder.precision, "agreement": embedder.agreement}


def join_runtimes(recorded: Runtime | None, new: Runtime | None) -> dict[str, Any] | None:
    """The manifest's entry of vectors of two runtimes: the one that agrees less with the usual one."""
    known = [one for one in (recorded, new) if one is not None]
    return dict(min(known, key=lambda one: one["agreement"])) if known else None


def require_same_output(recorded: Runtime | None, embedder: Embedder, *, gallery: Path) -> None:
    """Refuse an embedder of another runtime or precision, unless both agree with the usual one to `LEAST_AGREEMENT`."""
    if is_same_runtime(recorded, embedder):
        return
    agreements = (1.0 if recorded is None else recorded["agreement"], embedder.agreement)
    if all(one >= LEAST_AGREEMENT for one in agreements):  # which NaN is not
        return
    name, precision = (USUAL_BACKEND, "") if recorded is None else (recorded["backend"], recorded["precision"])
    raise GalleryMismatchError(
        gallery,
        what="runtime",
        expected=f"{name} {precision}".strip(),
        seen=f"{embedder.backend} {embedder.precision}, whose embeddings differ (a cosine of {min(agreements):.3f} "
        f"less the mean, at least {LEAST_AGREEMENT:g} is needed)",
        advice=f"use --backend {name}, or build the gallery again",
    )


def is_same_runtime(recorded: Runtime | None, embedder: Embedder) -> bool:
    """Whether runtime and precision are those of a gallery."""
    if recorded is None:
        return embedder.backend == USUAL_BACKEND
    return (recorded["backend"], recorded["precision"]) == (embedder.backend, embedder.precision)
