"""Members of tar and zip files, read by offset without a list of the others and without a lock."""

import io
import os
import struct
import zipfile
import zlib
from pathlib import Path

from index.errors import ImageError
from index.images.decode import FIRST_BYTES
from index.images.image_files import CheckContent, take_any_content
from index.items import FoundItem

LOCAL_HEADER = struct.Struct("<6xHH4xL8xHH")
"""Header of a zip member: flags, method, CRC, length of the name, length of the extra field."""

_CHUNK_BYTES = 1 << 18
_ENCRYPTED, _CRC_FOLLOWS = 1, 8  # flags of a zip member


def unique_name(name: str, counts: dict[str, int]) -> str:
    """The name of an archive's member, numbered where it comes again; `counts` has the names so far."""
    count = counts.get(name, 0) + 1
    while count > 1 and f"{name}#{count}" in counts:
        count += 1
    counts[name] = count
    if count == 1:
        return name
    counts[f"{name}#{count}"] = 1
    return f"{name}#{count}"


def safe_name(name: str) -> str:
    """A non-empty relative path without `.` and `..`."""
    parts = [part for part in name.replace("\0", "\\0").split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "unnamed"


def is_zip_name(file: Path) -> bool:
    return file.suffix.lower() == ".zip"


def zip_problem(*, flags: int, method: int) -> tuple[str, str] | None:
    """Why a zip member cannot be read: (reason, detail), or None."""
    if flags & _ENCRYPTED:
        return "encrypted", "the member needs a password"
    if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "unreadable", f"zip compression method {method}, which cannot be read; pack it by deflate"
    return None


def read_member(file: int, member: FoundItem, *, is_zip: bool, check: CheckContent = take_any_content) -> bytes:
    """The bytes of a member of an open archive; `check` may refuse its first bytes."""
    start = member.starts_at or 0
    if is_zip:
        return _read_zip_member(file, member, start, check)
    check(os.pread(file, min(FIRST_BYTES, member.size_bytes), start), name=member.path)
    data = os.pread(file, member.size_bytes, start)
    if len(data) != member.size_bytes:
        raise _corrupt(member, f"the archive ends after {len(data)} of {member.size_bytes} bytes")
    return data


def _read_zip_member(file: int, member: FoundItem, start: int, check: CheckContent) -> bytes:
    header = os.pread(file, LOCAL_HEADER.size, start)
    if len(header) != LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
        raise _corrupt(member, f"no member begins at byte {start} of the archive")
    flags, method, crc, name_bytes, extra_bytes = LOCAL_HEADER.unpack(header)
    if (problem := zip_problem(flags=flags, method=method)) is not None:
        raise ImageError(path=member.path, reason=problem[0], detail=problem[1])
    start += LOCAL_HEADER.size + name_bytes + extra_bytes
    if method == zipfile.ZIP_STORED:
        check(os.pread(file, min(FIRST_BYTES, member.size_bytes), start), name=member.path)
        data = os.pread(file, member.size_bytes, start)
        end = start + len(data)
    else:
        data, end = _inflate(file, member, start, check)
    if len(data) != member.size_bytes:
        found = "more" if len(data) > member.size_bytes else f"only {len(data)}"
        raise _corrupt(member, f"{member.size_bytes} bytes were announced, there are {found}")
    if flags & _CRC_FOLLOWS:
        follows = os.pread(file, 8, end)
        crc = int.from_bytes(follows[4:] if follows.startswith(b"PK\7\x08") else follows[:4], "little")
    if zlib.crc32(data) != crc:
        raise _corrupt(member, "its CRC-32 is not the one in the archive")
    return data


def _inflate(file: int, member: FoundItem, start: int, check: CheckContent) -> tuple[bytes, int]:
    """At most one byte more than announced, and the end of the compressed bytes."""
    unpacker, packed, whole, is_checked = zlib.decompressobj(-zlib.MAX_WBITS), b"", io.BytesIO(), False
    wanted = min(FIRST_BYTES, member.size_bytes + 1)
    while wanted > 0 and not unpacker.eof:
        if not packed:
            packed = os.pread(file, _CHUNK_BYTES, start)
            start += len(packed)
            if not packed:
                raise _corrupt(member, "the archive ends inside it")
        try:
            whole.write(unpacker.decompress(packed, wanted))
        except zlib.error as error:
            raise _corrupt(member, str(error)) from error
        packed = unpacker.unconsumed_tail
        if not is_checked and (whole.tell() >= FIRST_BYTES or unpacker.eof):
            check(whole.getvalue(), name=member.path)
            is_checked = True
        wanted = min(_CHUNK_BYTES, member.size_bytes + 1 - whole.tell())
    return whole.getvalue(), start - len(unpacker.unused_data)


def _corrupt(member: FoundItem, detail: str) -> ImageError:
    return ImageError(path=member.path, reason="corrupt", detail=detail)
