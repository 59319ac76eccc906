"""Scanning tar and zip files for images; no member is extracted.

Sidecars have the image's name with another extension, as in WebDataset and img2dataset: `0001.jpg`, `0001.json`,
`0001.txt`, `0001.cls`.
"""

import io
import json
import logging
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from index.errors import ImageError
from index.images.image_files import check_size, open_file
from index.items import FoundItem
from index.limits import MAX_FILE_BYTES
from index.sources.archive_members import LOCAL_HEADER, is_zip_name, read_member, safe_name, unique_name, zip_problem
from index.sources.folder_walk import find_file
from index.sources.spool import Spooled, spool_local
from index.sources.table_rows import as_json_object, as_text, folder_label
from index.sources.unpacking import COMPRESSED_STARTS
from index.text import printable_path

ARCHIVE_SUFFIXES = (".tar", ".zip")
COMPRESSED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_SIDECAR_EXTENSIONS = ("json", "txt", "cls", "cls2", "npy", "xml", "csv")
_MAX_SIDECAR_BYTES = 1 << 20
_MAX_UNPACKING = 1032  # times the compressed bytes: deflate's limit
_GROUP_MEMBERS = 64  # a sample has a handful; a long series such as frame.0001.png need not be held whole
# Errors of the two modules on damaged archives. Anything else is a bug of ours and must surface.
_TAR_DAMAGE = (tarfile.TarError, ValueError, IndexError, OverflowError, RecursionError)
_ZIP_DAMAGE = (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError)
_SPECIAL = "not-a-file", "a link, device or other special member of the archive"
_SPARSE = "unreadable", "stored as a sparse file, in pieces"
logger = logging.getLogger(__name__)


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES + COMPRESSED_SUFFIXES)


def is_compressed(name: str) -> bool:
    """Whether the members of an archive are read from the spool; Parquet with images is one."""
    return name.lower().endswith((*COMPRESSED_SUFFIXES, ".parquet"))


def scan_archive(file: Path, *, archive: str) -> Iterator[FoundItem]:
    """Every member but folders and sidecars in order; damage is one item with a problem. `archive` is its path."""
    found = find_file(str(file), relative=archive)
    return scan_shard(found, lambda: spool_local(file) if is_compressed(file.name) else (file, None))


def scan_shard(found: FoundItem, spool: Callable[[], Spooled]) -> Iterator[FoundItem]:
    """Members of an archive that `spool` makes readable; see `scan_archive`."""
    archive = found.path
    folder = "" if archive.startswith("/") else archive[: archive.rfind("/") + 1]
    whole = FoundItem(archive, found.size_bytes, found.mtime_ns, label=folder_label(folder))
    counts: dict[str, int] = {}
    try:
        if found.problem is not None:
            raise found.problem
        file, damage = spool()
        is_told, is_zip = False, is_zip_name(file)
        find_members = _zip_members if is_zip else _tar_members
        with open_file(file) as raw, _HeaderReader(raw) as headers:
            for group in _groups(find_members(headers)):
                for member in _describe_group(group, file=headers.fileno(), is_zip=is_zip):
                    if not member.path and member.problem is not None:  # of the archive, or the rest of it
                        is_told, problem = True, member.problem
                        reason = "corrupt-archive" if damage else problem.reason
                        yield whole.with_problem(reason, damage or problem.detail)
                        continue
                    label = member.label or folder_label(folder + member.path)
                    item = member.at(f"{archive}/{unique_name(member.path, counts)}")
                    yield replace(item, mtime_ns=found.mtime_ns, archive=archive, label=label)
        if damage and not is_told:
            yield whole.with_problem("corrupt-archive", damage)
    except ImageError as error:
        yield whole.with_problem(error.reason, error.detail)


def _describe_group(group: list[FoundItem], *, file: int, is_zip: bool) -> Iterator[FoundItem]:
    """The images of a group, with label and metadata of their sidecars."""
    images = [member.path for member in group if _sidecar_kind(member) is None]
    sidecars: dict[int, tuple[str | None, dict[str, Any]]] = {}
    found = [n for n, m in enumerate(group) if _sidecar_kind(m) and any(_describes(m, image) for image in images)]
    for number in sorted(found, key=lambda number: _sidecar_kind(group[number]) != "json"):  # it goes first
        sidecars[number] = _read_sidecar(file, group[number], is_zip=is_zip)
    for number, member in enumerate(group):
        if number not in sidecars:
            said = [said for beside, said in sidecars.items() if _describes(group[beside], member.path)]
            label = next((label for label, _ in said if label), None)
            metadata = {key: value for _, values in reversed(said) for key, value in values.items()}
            yield replace(member, label=label, metadata=metadata or None)


def _stem(name: str) -> str:
    """A member's name up to the last dot."""
    folder, separator, base = name.rpartition("/")
    stem, dot, _ = base.rpartition(".")
    return f"{folder}{separator}{stem}" if dot and stem else name


def _sample_key(name: str) -> str:
    """The key of a WebDataset sample: a member's name up to the first dot that does not begin it."""
    folder, separator, base = name.rpartition("/")
    first = base.partition(".")[0]
    return f"{folder}{separator}{first}" if first else name


def _sidecar_kind(member: FoundItem) -> str | None:
    """The extension of a sidecar; None of others."""
    kind = member.path[len(_stem(member.path)) + 1 :].lower()
    return kind if kind in _SIDECAR_EXTENSIONS and member.problem is None else None


def _describes(sidecar: FoundItem, name: str) -> bool:
    """Whether a sidecar belongs to a member, as a.json to a.jpg and a.mask.png."""
    stem = _stem(sidecar.path)
    return name == stem or name.startswith(f"{stem}.")


def _groups(members: Iterator[FoundItem]) -> Iterator[list[FoundItem]]:
    """Group consecutive members of one sample; a long series is cut between names."""
    group: list[FoundItem] = []
    for member in members:
        if group:
            new_stem = _stem(member.path) != _stem(group[-1].path)
            full = len(group) >= (_GROUP_MEMBERS if new_stem else 2 * _GROUP_MEMBERS)
            if full or _sample_key(member.path) != _sample_key(group[-1].path):
                yield group
                group = []
        group.append(member)
    if group:
        yield group


def _read_sidecar(file: int, member: FoundItem, *, is_zip: bool) -> tuple[str | None, dict[str, Any]]:
    """The label and metadata of a sidecar; nothing for a broken sidecar, because the image may be intact."""
    kind = _sidecar_kind(member)
    if kind not in ("json", "txt", "cls"):
        return None, {}
    try:
        if member.size_bytes > _MAX_SIDECAR_BYTES:
            raise ValueError(f"{member.size_bytes} bytes, at most {_MAX_SIDECAR_BYTES} are read")
        data = read_member(file, member, is_zip=is_zip)
        if kind == "json":
            content = json.loads(data)
            if not isinstance(content, dict):
                raise ValueError(f"expected an object, found {type(content).__name__}")
            named, label = content.get("label"), None
            if isinstance(named, str | int | float) and not isinstance(named, bool):
                label = as_text(named).strip() or None
            others = {key: value for key, value in content.items() if label is None or key != "label"}
            return label, as_json_object(others)
        text = data.decode("utf-8-sig", "backslashreplace").strip()
        return (text or None, {}) if kind == "cls" else (None, {"caption": text} if text else {})
    except (ImageError, ValueError, RecursionError) as error:
        logger.debug("sidecar %s is ignored: %s", printable_path(member.path), error)
        return None, {}


class _HeaderReader(io.BufferedReader):
    """The file object of tarfile and zipfile; it refuses a header with a damaged, huge length."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and not -1 <= size <= MAX_FILE_BYTES:
            raise ValueError(f"a header of {size} bytes")
        return super().read(size)


def _tar_members(headers: _HeaderReader) -> Iterator[FoundItem]:
    """The members of a tar by their names; a problem of the archive itself has no name."""
    start = os.pread(headers.fileno(), 8, 0)
    for magic, kind in COMPRESSED_STARTS.items():
        if start.startswith(magic):
            detail = f"its name does not say that it is packed by {kind}"
            yield FoundItem("", 0, 0).with_problem("compressed-archive", detail)
            return
    size = os.fstat(headers.fileno()).st_size
    try:
        with tarfile.open(fileobj=headers, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            position = 0
            while (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep every member it ever read
                if info.size < 0 or tar.offset <= position:
                    raise tarfile.ReadError(f"a member of {info.size} bytes at byte {info.offset}")
                position = tar.offset
                if info.isreg() and not info.issparse() and info.offset_data + info.size > size:
                    raise tarfile.ReadError(f"it ends inside {printable_path(info.name)}")
                if not info.isdir():
                    odd = _SPARSE if info.issparse() else None if info.isreg() else _SPECIAL
                    # Only the sizes of regular files were checked against the archive.
                    member = FoundItem(safe_name(info.name), 0 if odd else info.size, 0, starts_at=info.offset_data)
                    yield member.with_problem(*odd) if odd else member
            if os.pread(headers.fileno(), tarfile.BLOCKSIZE, tar.offset) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError(f"neither a header nor the end mark at byte {tar.offset}")
    except _TAR_DAMAGE as error:
        yield FoundItem("", 0, 0).with_problem("corrupt-archive", str(error) or type(error).__name__)


def _zip_members(headers: _HeaderReader) -> Iterator[FoundItem]:
    size = os.fstat(headers.fileno()).st_size
    try:
        with zipfile.ZipFile(headers) as archive:
            infos = archive.infolist()
            order = sorted(range(len(infos)), key=lambda number: infos[number].header_offset)
            ends = {n: infos[n].header_offset + LOCAL_HEADER.size + infos[n].compress_size for n in order}
            # A zip bomb's trick: members that overlap the next one.
            crowded = {number for number, after in pairwise(order) if ends[number] > infos[after].header_offset}
            for number, info in enumerate(infos):
                if not info.filename.endswith("/"):
                    yield _zip_member(info, archive_bytes=size, overlaps=number in crowded)
    except _ZIP_DAMAGE as error:
        yield FoundItem("", 0, 0).with_problem("corrupt-archive", str(error) or type(error).__name__)


def _zip_member(info: zipfile.ZipInfo, *, archive_bytes: int, overlaps: bool) -> FoundItem:
    """A member by the archive's directory, whose offset and size are checked."""
    name, offset, size = info.filename, info.header_offset, info.file_size
    with suppress(UnicodeError):  # in UTF-8 where possible even without the flag, else in cp437
        name = name if info.flag_bits & 0x800 else name.encode("cp437").decode()
    member = FoundItem(safe_name(name), 0, 0, starts_at=0)
    kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system == 3 else 0  # 3: made on Unix
    if kind not in (0, stat.S_IFREG):
        return member.with_problem(*_SPECIAL)
    if not 0 <= offset <= archive_bytes - LOCAL_HEADER.size:
        return member.with_problem("corrupt", "it lies outside the archive")
    if (problem := zip_problem(flags=info.flag_bits, method=info.compress_type)) is not None:
        return member.with_problem(*problem)
    if overlaps:
        return member.with_problem("corrupt", "it overlaps another member of the archive")
    try:
        check_size(size, name=member.path)
    except ImageError as error:
        return member.with_problem(error.reason, error.detail)
    most = info.compress_size * _MAX_UNPACKING  # bounds all members together by the archive's size
    if size > most:
        detail = f"{size} bytes are announced, of {info.compress_size} in the archive at most {most} are unpacked"
        return member.with_problem("too-costly", detail)
    return replace(member, size_bytes=size, starts_at=offset)
