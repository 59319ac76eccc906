"""The file of a backup: a ZIP of uncompressed members, each with its checksum in the manifest, which is the last.

decisions.jsonl    a line for every step of decisions, in their order
images.jsonl       a line for every image that is decided about: by what it is known in another gallery
removed.jsonl      a line for every other photo that was taken out; earlier programs wrote none
log.jsonl          the log of who did what; earlier programs wrote none
added/...          the images that were sent, under their own names; other/N those with names no archive takes
manifest.json      what the file is, what it was made from, size and SHA-256 of every other member

A reader takes nothing from it before all of it is checked; then nothing but these members, of these sizes.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from index.durable import replacing
from index.errors import InputError
from index.progress import Progress, no_progress
from index.text import printable_path

Value = TypeVar("Value")
DECISIONS_NAME = "decisions.jsonl"
IMAGES_NAME = "images.jsonl"
REMOVED_NAME = "removed.jsonl"
LOG_NAME = "log.jsonl"
MANIFEST_NAME = "manifest.json"
FORMAT, FORMAT_VERSION = "retrieval-backup", 1
_BLOCK_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 1 << 28
_MAX_MEMBERS = 5_000_000
_MAX_LINE_BYTES = 1 << 28
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)


class BackupError(InputError):
    """A file that is no backup, or a damaged one; nothing was taken from it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{printable_path(str(path))}: {problem}; nothing was changed")
        self.path = path
        self.problem = problem


@dataclass(frozen=True, slots=True)
class SentImage:
    """An image that was sent, as a backup has it.

    Attributes:
        member: its name in the file.
        path: below the gallery's folder of such images.
        mtime_ns: of the file.
        image_id: that it had; None where it was not added yet, or nobody knows.
        removed: whether it was taken out of the gallery again.
    """

    member: str
    path: str
    mtime_ns: int
    image_id: int | None
    removed: bool


@dataclass(slots=True)
class BackupWriter:
    """Writes the members of a backup; get one from `write_backup`."""

    archive: zipfile.ZipFile
    members: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write a member of these blocks."""
        digest, size = hashlib.sha256(), 0
        with self.archive.open(zipfile.ZipInfo(name, _EARLIEST_TIME), "w", force_zip64=True) as member:
            for block in blocks:
                member.write(block)
                digest.update(block)
                size += len(block)
        self.members[name] = {"bytes": size, "sha256": digest.hexdigest()}

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, with what was written before; nothing comes after it."""
        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        text = json.dumps({**head, **manifest, "members": self.members}, indent=1)
        self.archive.writestr(zipfile.ZipInfo(MANIFEST_NAME, _EARLIEST_TIME), text + "\n")


@contextmanager
def write_backup(out: Path, *, overwrite: bool) -> Iterator[BackupWriter]:
    """A backup to be written; at the end it is at `out`, durably, and after an error nothing of it is anywhere.

    Raises:
        InputError: there is a file already and it is not to be overwritten, or it cannot be written.
    """
    shown = printable_path(str(out))
    try:
        with (
            replacing(out.absolute(), only_new=not overwrite) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
        ):
            yield BackupWriter(archive)
    except FileExistsError as error:
        raise InputError(f"{shown}: there is such a file already; name another, or give --overwrite") from error
    except OSError as error:
        advice = "nothing was left there, mend the cause and run it again"
        raise InputError(f"{shown}: the backup cannot be written: {error}; {advice}") from error


class BackupReader:
    """A backup of which every byte was checked; get one from `open_backup`.

    Attributes:
        path: of the file.
        manifest: what it says of itself.
        sent: the images that were sent.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        self.manifest = self._read_manifest()
        self._members: dict[str, Any] = self.manifest["members"]
        self._check_members()
        self.sent = tuple(self._read_sent())

    def check(self, progress: Progress) -> None:
        """Read every member and compare it with its checksum; `progress` is told of (done, total) members.

        Raises:
            BackupError: one differs.
        """
        for done, name in enumerate(self._members, start=1):
            for _ in self.blocks(name):
                pass
            progress(done, len(self._members))

    def blocks(self, name: str) -> Iterator[bytes]:
        """The content of a member; that it is what was written is known at the end.

        Raises:
            BackupError: it differs.
        """
        expected, digest, size = self._members[name], hashlib.sha256(), 0
        with self._errors_named(), self._archive.open(name) as member:
            while block := member.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
                yield block
        if (size, digest.hexdigest()) != (expected["bytes"], expected["sha256"]):
            raise BackupError(self.path, f"damaged: {printable_path(name)} is not what was written")

    def read(self, name: str, parse: Callable[[dict[str, Any]], Value]) -> Iterator[Value]:
        """What the JSON objects of a member stand for, one a line; nothing without such a member.

        Raises:
            BackupError: a line is no JSON object, or `parse` finds it unsound.
        """
        if name not in self._members:
            return
        with self._errors_named(), self._archive.open(name) as member:
            while line := member.readline(_MAX_LINE_BYTES):
                values = self._parse(line, name)
                try:
                    yield parse(values)
                except InputError as error:
                    raise self.fail(str(error)) from error

    def sha256_of(self, name: str) -> str:
        """The SHA-256 of a member."""
        return str(self._members[name]["sha256"])

    def fail(self, problem: str) -> BackupError:
        """The error that something in it is not as a backup has it."""
        return BackupError(self.path, f"no sound backup: {problem}")

    def _read_manifest(self) -> dict[str, Any]:
        infos = {info.filename: info for info in self._archive.infolist()}
        if MANIFEST_NAME not in infos or infos[MANIFEST_NAME].file_size > _MAX_MANIFEST_BYTES:
            raise BackupError(
                self.path, "no backup: it has no manifest; give a file that `retrieval backup` wrote"
            )
        _check_plain(self, infos[MANIFEST_NAME])
        with self._errors_named(), self._archive.open(MANIFEST_NAME) as member:
            manifest = self._parse(member.read(_MAX_MANIFEST_BYTES + 1), MANIFEST_NAME)
        if manifest.get("format") != FORMAT:
            raise BackupError(self.path, "no backup: its manifest is another's")
        if manifest.get("format_version") != FORMAT_VERSION:
            seen = manifest.get("format_version")
            raise BackupError(
                self.path,
                f"of format version {seen!r}, this program reads {FORMAT_VERSION}; use the one that wrote it",
            )
        if not isinstance(manifest.get("members"), dict) or not isinstance(manifest.get("sent"), list):
            raise self.fail("its manifest lists no members")
        return manifest

    def _check_members(self) -> None:
        """Nothing is in it that the manifest does not name, of another size or packed, or twice."""
        infos = self._archive.infolist()
        names = [info.filename for info in infos]
        if len(set(names)) < len(names) or set(names) != {*self._members, MANIFEST_NAME}:
            raise self.fail("its members are not those of its manifest")
        if not {DECISIONS_NAME, IMAGES_NAME} <= self._members.keys():
            raise self.fail("it lacks the list of decisions or of images")
        for info in infos:
            _check_plain(self, info)
            said = self._members.get(info.filename)
            if said is not None and (not isinstance(said, dict) or said.get("bytes") != info.file_size):
                raise self.fail(f"{printable_path(info.filename)} has another size than its manifest says")
            if said is not None and not isinstance(said.get("sha256"), str):
                raise self.fail(f"{printable_path(info.filename)} has no checksum in its manifest")

    def _read_sent(self) -> Iterator[SentImage]:
        paths: set[str] = set()
        for entry in self.manifest["sent"]:
            values = entry if isinstance(entry, dict) else {}
            member, path, mtime_ns = (values.get(name) for name in ("member", "path", "mtime_ns"))
            image_id, removed = values.get("image_id"), values.get("removed")
            sound = isinstance(member, str) and isinstance(path, str) and is_plain_path(path)
            sound = sound and isinstance(mtime_ns, int) and abs(mtime_ns) < 1 << 62 and isinstance(removed, bool)
            sound = sound and (image_id is None or isinstance(image_id, int))
            if not sound or member not in self._members or path in paths:
                raise self.fail(f"an image has a place that no image has: {printable_path(str(path))}")
            paths.add(str(path))
            yield SentImage(str(member), str(path), int(mtime_ns or 0), image_id, bool(removed))

    def _parse(self, data: bytes, name: str) -> dict[str, Any]:
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self.fail(f"{name} is no JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise self.fail(f"{name} has another thing than a JSON object")
        return parsed

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            raise BackupError(self.path, f"damaged: {error}") from error
        except OSError as error:
            raise BackupError(self.path, f"cannot be read: {error.strerror or error}") from error


def _check_plain(reader: BackupReader, info: zipfile.ZipInfo) -> None:
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
        raise reader.fail(f"{printable_path(info.filename)} is packed, which a backup never is")


@contextmanager
def open_backup(path: Path, *, progress: Progress = no_progress) -> Iterator[BackupReader]:
    """A backup whose every byte was compared with its checksums.

    Raises:
        BackupError: it is no backup, or damaged, cut off or made to do harm.
    """
    if not path.is_file():
        raise BackupError(path, "a folder, not a file" if path.is_dir() else "no such file")
    try:
        file = path.open("rb")
    except OSError as error:
        raise BackupError(path, f"cannot be read: {error.strerror}") from error
    with file:
        reader = BackupReader(path, _open_archive(path, file))
        reader.check(progress)
        yield reader


def _open_archive(path: Path, file: IO[bytes]) -> zipfile.ZipFile:
    total = os.fstat(file.fileno()).st_size
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        problem = f"no backup, or cut off: {error}; give a whole file that `retrieval backup` wrote"
        raise BackupError(path, problem) from error
    infos = archive.infolist()
    if len(infos) > _MAX_MEMBERS or sum(info.file_size for info in infos) > total:
        raise BackupError(path, "no sound backup: its members are more than the file")
    return archive


def is_plain_path(path: str) -> bool:
    """Whether a path leads to a file below where it starts, on any system."""
    try:
        parts = os.fsencode(path).split(b"/")
    except UnicodeEncodeError:  # half a surrogate pair, which stands for no byte
        return False
    return len(parts) <= 16 and all(
        part not in (b"", b".", b"..") and b"\0" not in part and len(part) <= 255 for part in parts
    )


def name_member(path: str, number: int) -> str:
    """What an image that was sent is called in a backup."""
    is_usual = path.isprintable() and "\\" not in path and len(path.encode("utf-8", "replace")) < 1000
    return f"added/{path}" if is_usual else f"other/{number:06d}"
