"""Reading and decoding image files at a bounded cost: each ends as an RGB image or as an `ImageError` of `REASONS`."""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from PIL import Image

from index.errors import ImageError, InputError
from index.images.decode import FIRST_BYTES, HEIF, READABLE, decode_here, find_format, require_decoder
from index.images.image_headers import is_cheap
from index.limits import MAX_FILE_BYTES, MAX_PIXELS
from index.threads import raise_if_abandoned

REASONS = {
    "empty-file": "the file has no bytes",
    "not-an-image": f"the content is none of {', '.join(READABLE)}",
    "unsupported-file": "its images are not read: unpack a .tar.zst, write an .arrow as Parquet (`to_parquet`)",
    "needs-package": "a HEIC photo, and the extra `heic` that reads it is not installed",
    "corrupt": "an image that is truncated or damaged",
    "too-many-pixels": "the header announces more pixels than the cap",
    "file-too-large": "more bytes than any sensible image",
    "too-costly": "decoding it takes more memory or processor time than any sensible image",
    "unsupported-pixels": "a pixel type with no agreed brightness range (floating point)",
    "permission-denied": "the file or folder may not be read",
    "dangling-link": "a link to nothing",
    "link-loop": "a link that leads back to itself, to a folder above it, or to one already walked",
    "not-a-file": "a socket, pipe or device",
    "unreadable": "reading failed or the file vanished",
    "corrupt-archive": "a tar or zip file that is truncated, damaged or none; the members before the damage are used",
    "compressed-archive": "a tar that is compressed, and whose name does not say so: call it .tar.gz or alike",
    "not-found": "nothing is at its address any more",
    "unreachable": "its address gives no answer, or an error, also at a second try",
    "refused-address": "its address is not a public one of http or https, or redirects to one that is not",
    "oversized-row": "a row of a table with far more text than a description has",
    "encrypted": "a member of a zip file that needs a password",
    "bad-embedding": "the model gave no finite unit vector",
    "skip-if": "it matches the condition of `--skip-if`; `index build` without it takes the image in",
    "removed": "taken out with `retrieval index remove`; `index add` brings it back",
}
_SUFFIXES = "jpg jpeg jpe jfif png gif webp bmp tif tiff avif heic heif"
IMAGE_SUFFIXES = tuple(f".{suffix}" for suffix in _SUFFIXES.split())
"""Suffixes of image files whose content cannot be read first."""
_ADVICE = {".tar.zst": "unpack it", ".tzst": "unpack it", ".arrow": "write it as Parquet (`to_parquet`)"}
_MAX_INT64 = (1 << 63) - 1


class CheckContent(Protocol):
    """Raises an `ImageError` for unwanted first bytes of a file."""

    def __call__(self, first: bytes, *, name: str) -> None: ...


def modified_ns(status: os.stat_result) -> int:
    """The modification time, clipped to the catalogue's 64 bits."""
    return min(max(status.st_mtime_ns, -_MAX_INT64), _MAX_INT64)


def reason_of(error: OSError) -> str:
    """The reason to skip a file that cannot be opened or read."""
    if error.errno in (errno.EMFILE, errno.ENFILE):  # a limit of the process, for which no file is skipped
        raise InputError(f"{error.strerror}; raise the limit (ulimit -n) and run it again") from error
    return "permission-denied" if isinstance(error, PermissionError) else "unreadable"


@contextmanager
def open_file(path: Path) -> Iterator[io.FileIO]:
    """A regular file open for reading, unbuffered; an `OSError` while it is open becomes an `ImageError`."""
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ImageError(path=path, reason="not-a-file", detail="not a regular file")
            yield file
    except OSError as error:
        raise ImageError(path=path, reason=reason_of(error), detail=str(error.strerror or error)) from error


def check_content(first: bytes, *, name: str) -> None:
    """Refuse content that does not begin like an image, with advice where the name tells that it has some."""
    if not first:
        raise ImageError(path=name, reason="empty-file", detail="0 bytes")
    kind = find_format(first)
    for suffix, advice in _ADVICE.items():
        if kind is None and name.lower().endswith(suffix):
            raise ImageError(name, "unsupported-file", f"{suffix} is not read: {advice}")
    if kind is None:
        raise ImageError(path=name, reason="not-an-image", detail=f"none of {', '.join(READABLE)}")
    if kind == HEIF:
        require_decoder(name)


def take_any_content(first: bytes, *, name: str) -> None:
    """Accept any content."""


def read_bytes(path: Path, *, check: CheckContent = check_content) -> bytes:
    """The content of a regular file, whose first bytes the check may refuse."""
    with open_file(path) as file:
        check_size(os.fstat(file.fileno()).st_size, name=str(path))
        check(os.pread(file.fileno(), FIRST_BYTES, 0), name=str(path))
        return file.readall()


def check_size(size_bytes: int, *, name: str) -> None:
    """Refuse a file that is too large for an image."""
    if size_bytes > MAX_FILE_BYTES:
        raise ImageError(name, "file-too-large", f"{size_bytes} bytes, at most {MAX_FILE_BYTES} are read")


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for a writer


def read_image(path: Path, *, target_side: int, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read and decode one file; see `decode_image`."""
    return decode_image(read_bytes(path), name=str(path), target_side=target_side, max_pixels=max_pixels)


def decode_image(data: bytes, *, name: str, target_side: int, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode one image to upright, opaque RGB.

    EXIF orientation is applied, alpha is laid on white, 16-bit grey keeps its range, animations give their first frame.
    A file that is not proven cheap by its headers is decoded in another process, which is killed beyond its limits.
    `target_side` is the side in pixels that it will be resized to: it is reduced by a whole factor where both sides
    stay at least twice as long. `max_pixels` limits width x height before decoding. `name` is for messages.
    """
    raise_if_abandoned()
    if is_cheap(data):
        return decode_here(data, name=name, target_side=target_side, max_pixels=max_pixels)
    check_content(data, name=name)
    from index.images.decoding_pool import shared_pool  # with what starts processes: few images need it

    return shared_pool().decode(data, name=name, target_side=target_side, max_pixels=max_pixels)
