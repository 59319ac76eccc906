"""Checking the versions of a gallery, byte by byte, for those that can be used or rebuilt."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from index.catalog.reader import read_catalog
from index.durable import write_durably
from index.errors import DAMAGE_ADVICE, GalleryDamagedError, GalleryError, InputError
from index.marks import PART_MARK, read_part
from index.progress import Progress, no_progress
from index.text import printable_path, valid_text
from index.vectors.shards import HeldVectors
from index.vectors.stores import open_store, store_of
from index.versions.gallery_identity import claim_gallery, lock_gallery, require_own_folder
from index.versions.gallery_parts import BUILDING, find_announced, read_plan, remove_part
from index.versions.manifest import (
    CATALOG_NAME,
    MANIFEST_NAME,
    Manifest,
    OtherFormatError,
    Version,
    check_file,
    part_folder,
    part_start,
)
from index.versions.versions import highest_next_id, list_versions, mark_version, read_current, set_current

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckedVersion:
    """A version of a gallery, and which of its files are as they were written.

    Attributes:
        manifest: from its file or from the copy in its mark; None where neither is as it was written.
        manifest_text: its bytes.
        intact: names of files whose size and SHA-256 are those of the manifest.
        is_whole: whether all are, and its store has the vectors.
        problems: what is wrong with it; a whole version may lack its mark, or the file of its manifest.
    """

    folder: Path
    manifest: Manifest | None
    manifest_text: bytes
    intact: frozenset[str]
    is_whole: bool
    problems: Sequence[str]

    @property
    def catalog(self) -> Path | None:
        """Its catalogue; None where that is damaged."""
        return self.folder / CATALOG_NAME if CATALOG_NAME in self.intact else None

    def hold(self, output: str) -> Sequence[HeldVectors]:
        """The vectors of an output that can still be trusted."""
        assert self.manifest is not None
        start = part_start(output)
        names = {name.removeprefix(start) for name in self.intact if name.startswith(start)}
        return store_of(self.manifest).hold_intact(
            part_folder(self.folder, output), self.manifest.part(output), names
        )


def find_current(gallery: Path) -> Version | None:
    """The version that CURRENT names; None where it is missing or damaged."""
    with suppress(GalleryError):
        return read_current(gallery)
    return None


def list_own_versions(gallery: Path, *, identity: str) -> list[Path]:
    """The version folders that carry a gallery's identity, or that CURRENT names; the newest first."""
    current = find_current(gallery)
    named = None if current is None else current.name
    return [
        folder
        for folder in list_versions(gallery)
        if folder.name == named or (read_part(folder) or {}).get("gallery") == identity
    ]


def check_version(
    folder: Path,
    *,
    identity: str,
    current: Version | None,
    uri: str | None = None,
    progress: Progress = no_progress,
) -> CheckedVersion:
    """Compare every file of a version with its manifest.

    Args:
        identity: of the gallery.
        current: the version that CURRENT names.
        uri: where the Milvus server with its vectors answers now; None: where it did.

    Raises:
        InputError: `uri` is given, and its vectors are not in Milvus.
        GalleryError: its server does not answer, or another version of the program made it.
    """
    part, path = read_part(folder) or {}, folder / MANIFEST_NAME
    recorded = {
        part.get("manifest_sha256"),
        current.manifest_sha256 if current and current.folder == folder else None,
    }
    copy = part.get("manifest")
    texts = [path.read_bytes() if path.is_file() else b""]
    texts += [copy.encode("utf-8", "surrogatepass")] if isinstance(copy, str) else []
    text = next((text for text in texts if hashlib.sha256(text).hexdigest() in recorded), b"")
    manifest, problems = _parse(text, path), []
    if manifest is None or text != texts[0]:
        problems.append(f"{printable_path(str(path))}: damaged or missing")
    if part.get("gallery") != identity or (text and copy != text.decode("utf-8", "surrogateescape")):
        problems.append(f"{printable_path(str(folder / PART_MARK))}: damaged or missing")
    if manifest is None:
        return CheckedVersion(folder, None, b"", frozenset(), False, problems)
    intact = set()
    for done, name in enumerate(manifest.files, start=1):
        try:
            check_file(folder, name, manifest, contents=True)
            intact.add(name)
        except GalleryError as error:
            problems.append(str(error).removesuffix(DAMAGE_ADVICE))
        progress(done, len(manifest.files))
    is_whole = len(intact) == len(manifest.files)
    if uri is not None:
        if manifest.store is None:
            raise InputError(f"--uri {uri}: the vectors of this gallery are not in Milvus; leave it out")
        if uri != manifest.store["uri"]:
            problems.append(f"{printable_path(str(path))}: its vectors are in Milvus at {manifest.store['uri']}")
            manifest, is_whole = replace(manifest, store={**manifest.store, "uri": uri}), False
    if is_whole:
        try:
            for output in manifest.outputs:
                open_store(folder, manifest, output)
        except GalleryDamagedError as error:
            problems.append(str(error).removesuffix(DAMAGE_ADVICE))
            is_whole = False
    return CheckedVersion(folder, manifest, text, frozenset(intact), is_whole, problems)


def _parse(text: bytes, path: Path) -> Manifest | None:
    try:
        return Manifest.parse(text)
    except OtherFormatError as error:
        raise GalleryError(printable_path(str(path)), str(error)) from error
    except (ValueError, InputError):
        return None


def use_version(gallery: Path, version: CheckedVersion, *, identity: str) -> None:
    """Let CURRENT name a whole version, and write what it lacks of its mark and manifest.

    Unfinished work that started from another version is thrown away first, so that nobody publishes it; what started
    from this one is gone on with.
    """
    assert version.manifest is not None
    current, path = find_current(gallery), version.folder / MANIFEST_NAME
    plan, is_moved = read_plan(gallery) or {}, current is None or current.folder != version.folder
    is_of_another = (
        plan.get("base") != version.folder.name or find_announced(gallery, identity=identity) is not None
    )
    if "repair" in plan or (is_moved and is_of_another):
        remove_part(gallery / BUILDING, of=identity)
    if version.problems:
        write_durably(path, version.manifest_text)
        with read_catalog(version.folder / CATALOG_NAME) as catalog:
            mark_version(version.folder, of=identity, remembered=catalog.remembered())
    if current == Version(version.folder, hashlib.sha256(version.manifest_text).hexdigest()):
        return
    set_current(gallery, version.folder)
    try:
        store_of(version.manifest).tidy(gallery, version.manifest)
    except GalleryError as error:
        logger.warning("version %s is in use, but what is left over stays: %s", version.folder.name, error)


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
