"""Finding the files of a damaged gallery that are still sound, by the checksums in its manifests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.catalog.reader import read_catalog
from index.errors import GalleryError
from index.file_hash import hash_file
from index.marks import PART_MARK, read_part
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.text import printable_path
from index.vectors.files import find_stored_members, list_shard_files, read_stored_ids
from index.vectors.shards import HeldVectors
from index.vectors.store import Salvage, SalvagedPart
from index.vectors.stores import STORES
from index.versions.manifest import CATALOG_NAME, MANIFEST_NAME, MODEL_NAME, Manifest, Version, find_manifest
from index.versions.versions import list_versions, read_current

_SHA256 = re.compile(rb"[0-9a-f]{64}")
_NEXT_ID = re.compile(rb'"next_id": (\d{1,18})[,\s}]')


@dataclass(frozen=True, slots=True)
class SalvagedVersion:
    """A version, and which of its files are as they were written.

    Attributes:
        manifest: its manifest, where the file, or the copy in its mark, is what was written.
        is_current: whether CURRENT names it.
        is_left: whether a rollback went from it to an earlier one.
        sound: names of files whose SHA-256 a manifest has.
        problems: what is wrong with it, in words.
        remembered: sources and settings, as its mark has them.
    """

    folder: Path
    manifest: Manifest | None
    manifest_text: bytes
    is_current: bool
    is_left: bool
    sound: frozenset[str]
    problems: tuple[str, ...]
    remembered: dict[str, Any]


def survey_versions(gallery: Path, *, identity: str, progress: Progress = no_progress) -> list[SalvagedVersion]:
    """Every version of a gallery with what is sound of it, the newest first; all its bytes are read."""
    try:
        current = read_current(gallery)
    except GalleryError:
        current = None
    folders = [folder for folder in list_versions(gallery) if _is_own(folder, identity=identity, current=current)]
    texts = {folder: _read_texts(folder) for folder in folders}
    known = {match for some in texts.values() for text in some for match in _SHA256.findall(text)}
    hashes = _Hashes()
    versions = []
    for done, folder in enumerate(folders, start=1):
        named = current.manifest_sha256 if current is not None and current.folder.name == folder.name else None
        versions.append(_survey(folder, texts[folder], identity=identity, named=named, known=known, hashes=hashes))
        progress(done, len(folders))
    return versions


def highest_next_id(gallery: Path) -> int:
    """The first id that no version has given or will give to a new item, as far as manifests tell."""
    texts = (text for folder in list_versions(gallery) for text in _read_texts(folder))
    return max((int(number) for text in texts for number in _NEXT_ID.findall(text)), default=1)


def first_free_id(gallery: Path, versions: Sequence[SalvagedVersion]) -> int:
    """As `highest_next_id`, by catalogues and stored ids too."""
    return max([highest_next_id(gallery), *(number for version in versions for number in _next_ids(version))])


def sound_vectors(
    versions: Sequence[SalvagedVersion],
    *,
    output: str,
    width: int,
    model_sha256: str,
    uri: str = "",
    begin_step: BeginStep = no_steps,
) -> list[HeldVectors]:
    """An output's vectors that are sound, of this width and of norm 1, those of the newest version last.

    What versions share is given once.

    Args:
        model_sha256: of the model that made them.
        uri: where the server answers now that has them; empty: where a version says.

    Raises:
        GalleryError: a server that has some does not answer.
    """
    parts = [SalvagedPart(v.folder, v.manifest, v.sound, partial(_read_indexed, v)) for v in versions]
    task = Salvage(parts, output, width, model_sha256, uri, begin_step)
    return [held for store in STORES.values() for held in store.salvage(task)]


def _read_indexed(version: SalvagedVersion) -> Ids:
    if CATALOG_NAME not in version.sound or version.manifest is None:
        return np.empty(0, np.int64)
    with read_catalog(version.folder / CATALOG_NAME) as catalog:
        return np.array(catalog.indexed_ids(), dtype=np.int64)


def find_members(version: SalvagedVersion) -> Ids | None:
    """(n,) int64 rising ids of a version's members by its stored ids; None where these are not all sound."""
    if version.manifest is None:
        return None
    return find_stored_members(version.folder, version.manifest, sound=version.sound)


def _is_own(folder: Path, *, identity: str, current: Version | None) -> bool:
    """Whether a version is the gallery's: by its mark, or else by CURRENT or, unmarked, its manifest."""
    part, manifest = read_part(folder), folder / MANIFEST_NAME
    named = current.manifest_sha256 if current is not None and current.folder.name == folder.name else None
    if part is None:
        return named is not None or find_manifest(_read_texts(folder)[0]) is not None
    return part["gallery"] == identity or (manifest.is_file() and hash_file(manifest) == named)


def is_mark_sound(folder: Path, *, of: str) -> bool:
    """Whether a version's mark is its gallery's, and the copy of the manifest in it is as it was written."""
    part = read_part(folder)
    if part is None or part["gallery"] != of:
        return False
    copy, digest = part.get("manifest"), part.get("manifest_sha256")
    if not isinstance(copy, str):
        return copy is None
    return hashlib.sha256(copy.encode("utf-8", "surrogatepass")).hexdigest() == digest


def _read_texts(folder: Path) -> list[bytes]:
    """The manifest of a version as the file and as its mark have it, sound or not."""
    texts = []
    try:
        texts.append((folder / MANIFEST_NAME).read_bytes())
    except OSError:
        texts.append(b"")
    part = read_part(folder)
    copy = None if part is None else part.get("manifest")
    return [*texts, *([copy.encode("utf-8", "surrogatepass")] if isinstance(copy, str) else [])]


def _survey(
    folder: Path, texts: Sequence[bytes], *, identity: str, named: str | None, known: set[bytes], hashes: _Hashes
) -> SalvagedVersion:
    shown, part = printable_path(str(folder)), read_part(folder) or {}
    recorded = {named, part.get("manifest_sha256")} - {None}
    manifest, chosen, problems = None, b"", []
    for text in texts:
        digest = hashlib.sha256(text).hexdigest()
        if digest in recorded and (manifest := find_manifest(text)) is not None:
            chosen = text
            break
    if chosen != texts[0] or manifest is None:
        problems.append(f"{shown}/{MANIFEST_NAME}: damaged or missing")
    if not is_mark_sound(folder, of=identity):
        problems.append(f"{shown}/{PART_MARK}: damaged or missing")
    sound = set()
    names = manifest.files if manifest is not None else [CATALOG_NAME, MODEL_NAME, *list_shard_files(folder)]
    for name in names:
        seen = hashes.read(folder / name)
        expected = manifest.files[name].get("sha256") if manifest is not None else None
        if seen is not None and (seen == expected if expected else seen.encode() in known):
            sound.add(name)
        else:
            problems.append(f"{shown}/{printable_path(name)}: {'damaged' if seen else 'missing'}")
    remembered = {name: part[name] for name in ("sources", "settings") if name in part}
    return SalvagedVersion(
        folder, manifest, chosen, named is not None, bool(part.get("left")), frozenset(sound), tuple(problems),
        remembered,
    )  # fmt: skip


def _next_ids(version: SalvagedVersion) -> Iterator[int]:
    try:
        with read_catalog(version.folder / CATALOG_NAME) as catalog:
            yield catalog.next_id()
    except GalleryError:
        pass  # what it gave is in the ids and manifests, as far as anything tells
    yield from (int(ids[-1]) + 1 for ids in read_stored_ids(version.folder, version.sound) if len(ids))


class _Hashes:
    """The SHA-256 of files, each read once although versions share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str] = {}

    def read(self, path: Path) -> str | None:
        """That of a file; None where it cannot be read."""
        try:
            status = path.stat()
            key = status.st_dev, status.st_ino
            if key not in self._known:
                self._known[key] = hash_file(path)
            return self._known[key]
        except OSError:
            return None
