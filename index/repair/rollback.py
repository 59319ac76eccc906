"""Going back to an earlier version of a gallery, after every byte of it was checked."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from index.catalog.reader import read_catalog
from index.errors import DAMAGE_ADVICE, GalleryError, InputError
from index.gallery.salvage import SalvagedVersion, first_free_id, survey_versions
from index.progress import Progress, no_progress
from index.text import printable_path, valid_text
from index.vectors.stores import open_store, store_of
from index.versions.gallery_identity import claim_gallery, require_own_folder
from index.versions.gallery_lock import lock_gallery
from index.versions.gallery_parts import remove_part
from index.versions.manifest import CATALOG_NAME
from index.versions.versions import mark_left, read_current, set_current
from index.versions.work_plan import BUILDING

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """What a rollback did.

    Attributes:
        left: the version that was current before; None where CURRENT named none.
        version: the one that is current now, of `indexed` images.
        next_id: no new image gets an id below, for the version that was left may have given them.
        passed_over: what is wrong with the versions between.
    """

    gallery: str
    left: str | None
    version: str
    indexed: int
    next_id: int
    passed_over: list[str]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The document that the command prints with `--json`."""
        return asdict(self)


def rollback_gallery(gallery: Path, *, to: str | None = None, progress: Progress = no_progress) -> RollbackReport:
    """Make an earlier version, the one before or the one named, the current one again.

    The version that is left stays on the disk until the next change; unfinished work is thrown away, for it started
    from that version. Ids and version numbers are never given twice.

    Raises:
        InputError: there is no such version.
        GalleryError: no version before is sound, or another process writes the gallery.
    """
    start, shown = time.perf_counter(), printable_path(str(gallery))
    require_own_folder(gallery)
    with lock_gallery(gallery):
        identity = claim_gallery(gallery.resolve())
        versions = survey_versions(gallery, identity=identity, progress=progress)
        left = _find_current(gallery)
        passed: list[str] = []
        for version in _candidates(versions, left=left, to=to, shown=shown):
            problems = version.problems or tuple(chain(_check_catalog(version), _check_vectors(version)))
            if problems:
                passed += problems
                continue
            report = _go_back(gallery, version, versions, left=left, passed=passed, identity=identity, start=start)
            _tell_store(gallery, version)
            return report
    wanted = "no version before the current one is sound" if to is None else f"version {to} is not sound"
    listed = f" ({'; '.join(passed)})" if passed else ""
    raise GalleryError(shown, f"{wanted}{listed}; mend the gallery with `retrieval index repair`")


def _find_current(gallery: Path) -> str | None:
    try:
        version = read_current(gallery)
    except GalleryError:
        return None
    return None if version is None else version.name


def _candidates(
    versions: Sequence[SalvagedVersion], *, left: str | None, to: str | None, shown: str
) -> Iterator[SalvagedVersion]:
    if to is None:
        yield from (v for v in versions if not v.is_left and (left is None or int(v.folder.name) < int(left)))
        return
    named = [version for version in versions if to.isdigit() and int(version.folder.name) == int(to)]
    if not named or named[0].folder.name == left:
        others = ", ".join(version.folder.name for version in versions if version.folder.name != left) or "none"
        raise InputError(f"{shown}: there is no version {printable_path(to)} to go back to; there is: {others}")
    yield named[0]


def _check_catalog(version: SalvagedVersion) -> Iterator[str]:
    """What is wrong with a catalogue of the right checksum: an earlier program may have written it."""
    try:
        with read_catalog(version.folder / CATALOG_NAME) as catalog:
            catalog.check()
    except GalleryError as error:
        yield f"{error.path}: {error.problem.partition(';')[0]}"


def _check_vectors(version: SalvagedVersion) -> Iterator[str]:
    """What is wrong with the vectors where no file's checksum tells, as in a server."""
    assert version.manifest is not None
    try:
        for output in version.manifest.outputs:
            open_store(version.folder, version.manifest, output)
    except GalleryError as error:
        yield str(error).removesuffix(DAMAGE_ADVICE)


def _tell_store(gallery: Path, version: SalvagedVersion) -> None:
    assert version.manifest is not None
    try:
        store_of(version.manifest).tidy(gallery, version.manifest)
    except GalleryError as error:
        logger.warning("%s: the version is in use, but its store was not told: %s", gallery, error)


def _go_back(
    gallery: Path,
    version: SalvagedVersion,
    versions: Sequence[SalvagedVersion],
    *,
    left: str | None,
    passed: list[str],
    identity: str,
    start: float,
) -> RollbackReport:
    manifest, next_id = version.manifest, first_free_id(gallery, versions)
    assert manifest is not None
    remove_part(
        gallery / BUILDING, of=identity
    )  # before, so that nobody publishes what started from another version
    for other in versions:
        mark_left(other.folder, left=int(other.folder.name) > int(version.folder.name))
    set_current(gallery, version.folder)
    found = read_current(gallery)
    assert found is not None
    assert found.manifest_sha256 == hashlib.sha256(version.manifest_text).hexdigest()
    return RollbackReport(
        gallery=valid_text(str(gallery.resolve())),
        left=left,
        version=version.folder.name,
        indexed=int(manifest.counts["indexed"]),
        next_id=next_id,
        passed_over=passed,
        seconds=time.perf_counter() - start,
    )
