"""Rollback of a gallery to an earlier version, after every byte of that one was checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from index.errors import GalleryError, InputError
from index.progress import Progress, no_progress
from index.repair.checking import check_version, find_current, list_own_versions, use_version
from index.text import printable_path, valid_text
from index.versions.gallery_identity import claim_gallery, require_own_folder
from index.versions.gallery_lock import lock_gallery
from index.versions.versions import highest_next_id


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
        GalleryError: no version before is whole, or another process writes the gallery.
    """
    start, shown = time.perf_counter(), printable_path(str(gallery))
    require_own_folder(gallery)
    with lock_gallery(gallery):
        identity, current = claim_gallery(gallery.resolve()), find_current(gallery)
        left = None if current is None else current.name
        passed: list[str] = []
        for folder in _find_candidates(gallery, identity=identity, left=left, to=to):
            version = check_version(folder, identity=identity, current=current, progress=progress)
            if not version.is_whole:
                passed += version.problems
                continue
            assert version.manifest is not None
            use_version(gallery, version, identity=identity)
            return RollbackReport(
                gallery=valid_text(str(gallery.resolve())),
                left=left,
                version=folder.name,
                indexed=int(version.manifest.counts["indexed"]),
                next_id=highest_next_id(gallery),
                passed_over=passed,
                seconds=time.perf_counter() - start,
            )
    wanted = "no version before the current one is whole" if to is None else f"version {to} is not whole"
    listed = f" ({'; '.join(passed)})" if passed else ""
    raise GalleryError(shown, f"{wanted}{listed}; mend the gallery with `retrieval index repair`")


def _find_candidates(gallery: Path, *, identity: str, left: str | None, to: str | None) -> Iterator[Path]:
    folders = [folder for folder in list_own_versions(gallery, identity=identity) if folder.name != left]
    if to is None:
        yield from (folder for folder in folders if left is None or int(folder.name) < int(left))
        return
    named = [folder for folder in folders if to.isdigit() and int(folder.name) == int(to)]
    if not named:
        others = ", ".join(folder.name for folder in folders) or "none"
        shown, wanted = printable_path(str(gallery)), printable_path(to)
        raise InputError(f"{shown}: there is no version {wanted} to go back to; there is: {others}")
    yield named[0]
