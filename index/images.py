"""Folders of web images: a sorted walk, and a decode that is safe against what the web contains.

A file's content decides whether it is an image, never its name. Every file met ends as a decoded RGB image or
as an `ImageError` with one of `REASONS`.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from index.errors import ImageError, InputError
from index.limits import MAX_FILE_BYTES
from index.limits import MAX_PIXELS as MAX_PIXELS

# Stereo pictures (MPO) come through Pillow's JPEG reader and may not be named here.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF")
REASONS = {
    "empty-file": "the file has no bytes",
    "not-an-image": f"the content is none of {', '.join(FORMATS)}",
    "corrupt": "an image that is truncated or damaged",
    "too-many-pixels": "the header announces more pixels than the cap",
    "file-too-large": "more bytes than any sensible image",
    "unsupported-pixels": "a pixel type with no agreed brightness range (floating point)",
    "permission-denied": "the file or folder may not be read",
    "dangling-link": "a link to nothing",
    "link-loop": "a link that leads back to itself, to a folder above it, or to one already walked",
    "not-a-file": "a socket, pipe or device",
    "unreadable": "reading failed or the file vanished",
    "corrupt-archive": "a tar or zip file that is truncated, damaged or none; the members before the damage are used",
    "compressed-archive": "members of a compressed tar cannot be read in place: decompress it once",
    "encrypted": "a member of a zip file that needs a password",
    "bad-embedding": "the model gave no finite unit vector",
    "removed": "taken out with `retrieval index remove`; `index add` brings it back",
}
_MAX_INT64 = (1 << 63) - 1
_STRIP_PIXELS = 1 << 22  # what is converted at once, so that no second whole image is held
_EXIF_ORIENTATION = 0x0112
_ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# What Pillow's parsers raise on damaged input: the first five are seen when its formats are fuzzed, the others are
# what it catches itself where a file ends early. Anything else is a bug of ours and must surface.
_DAMAGE = (OSError, SyntaxError, ValueError, TypeError, RuntimeError, EOFError, IndexError, struct.error)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file of a walked folder. `problem` is set where it cannot even be opened as a regular file."""

    relative_path: str
    size_bytes: int
    mtime_ns: int
    problem: ImageError | None = None


@dataclass(frozen=True, slots=True)
class LoadedImage:
    """A decoded image: RGB, upright, opaque, with the SHA-256 of the bytes it came from."""

    image: Image.Image
    sha256: str


def printable_path(path: str) -> str:
    """A path that is safe to print: control characters and undecodable bytes are shown as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in path)


def valid_text(path: str) -> str:
    r"""A path as Unicode that every encoder takes: undecodable bytes are shown as escapes, all else is kept.

    >>> valid_text(os.fsdecode(b"caf\xe9/1.jpg"))
    'caf\\xe9/1.jpg'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def check_folder(folder: Path) -> Path:
    """The folder's absolute path.

    Raises:
        InputError: it does not exist, is no folder, or may not be listed.
    """
    if not folder.exists():
        raise InputError(f"{printable_path(str(folder))}: no such folder")
    if not folder.is_dir():
        raise InputError(f"{printable_path(str(folder))}: expected a folder of images, found a file")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(f"{printable_path(str(folder))}: permission denied; the folder cannot be listed")
    return folder.resolve()


def walk_folder(folder: Path) -> Iterator[FoundFile]:
    """Every file below `folder`, depth first in sorted order, with `/`-separated relative paths.

    Links are followed; one that leads back to a folder it lies in, or to a folder that was walked before, is
    reported, not entered. So every folder is entered at most once by its own path and once by links.

    Raises:
        InputError: `folder` is not a readable folder.
    """
    root = str(check_folder(folder))
    walk = _Walk()
    yield from walk.enter(root, relative="", status=os.stat(root), linked=False)
    while walk.open_folders:
        here = walk.open_folders[-1]
        name = next(here.names, None)
        if name is None:
            walk.open_folders.pop()
            continue
        path, relative = os.path.join(here.path, name), here.prefix + name
        try:
            status = os.stat(path)
        except OSError as error:
            yield _unusable(relative, reason=_link_reason(path, error), detail=str(error.strerror))
            continue
        if stat.S_ISDIR(status.st_mode):
            linked = here.linked or os.path.islink(path)
            yield from walk.enter(path, relative=relative, status=status, linked=linked)
        else:
            yield _as_found(relative, status)


def find_file(path: str, *, relative: str) -> FoundFile:
    """One file as `walk_folder` gives it, by its path; `relative` is what it is called."""
    try:
        return _as_found(relative, os.stat(path))
    except OSError as error:
        return _unusable(relative, reason=_link_reason(path, error), detail=str(error.strerror))


@dataclass(frozen=True, slots=True)
class _OpenFolder:
    """A folder being walked: what is left of its names, and whether a link was followed on the way to it."""

    identity: tuple[int, int]
    path: str
    prefix: str
    names: Iterator[str]
    linked: bool


@dataclass(frozen=True, slots=True)
class _Walk:
    """The folders from the root to the present one, and where each folder was entered first."""

    open_folders: list[_OpenFolder] = field(default_factory=list)
    entered: dict[tuple[int, int], str] = field(default_factory=dict)

    def enter(self, path: str, *, relative: str, status: os.stat_result, linked: bool) -> Iterator[FoundFile]:
        """Open a folder, or give the one problem why not."""
        identity = status.st_dev, status.st_ino
        if any(folder.identity == identity for folder in self.open_folders):
            yield _unusable(relative, reason="link-loop", detail="leads to a folder above it")
            return
        if linked and identity in self.entered:
            detail = f"this folder was already walked as {printable_path(self.entered[identity])}"
            yield _unusable(relative, reason="link-loop", detail=detail)
            return
        self.entered.setdefault(identity, relative)
        try:
            names = sorted(os.listdir(path), key=os.fsencode)
        except OSError as error:
            yield _unusable(relative, reason=_reason_of(error), detail=str(error.strerror))
            return
        prefix = relative + "/" if relative else ""
        self.open_folders.append(_OpenFolder(identity, path, prefix, iter(names), linked))


def _as_found(relative: str, status: os.stat_result) -> FoundFile:
    if not stat.S_ISREG(status.st_mode):
        return _unusable(relative, reason="not-a-file", detail="not a regular file")
    return FoundFile(relative, status.st_size, modified_ns(status))


def modified_ns(status: os.stat_result) -> int:
    """When a file was changed, within the 64 bits that a catalogue has for it: a file system may say any year."""
    return min(max(status.st_mtime_ns, -_MAX_INT64), _MAX_INT64)


def _unusable(relative: str, *, reason: str, detail: str) -> FoundFile:
    return FoundFile(relative, 0, 0, ImageError(path=printable_path(relative), reason=reason, detail=detail))


def _link_reason(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return "dangling-link"
    if error.errno == errno.ELOOP:
        return "link-loop"
    return _reason_of(error)


def _reason_of(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):  # says nothing of the file, so no file is skipped for it
        raise InputError(f"{error.strerror}; raise the limit (ulimit -n) and run it again") from error
    return "permission-denied" if isinstance(error, PermissionError) else "unreadable"


@contextmanager
def open_file(path: Path) -> Iterator[io.FileIO]:
    """A regular file open for reading, unbuffered; an `OSError` while it is open becomes an `ImageError`.

    Raises:
        ImageError: it cannot be read, or is no regular file.
    """
    shown = printable_path(str(path))
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ImageError(path=shown, reason="not-a-file", detail="not a regular file")
            yield file
    except OSError as error:
        raise ImageError(path=shown, reason=_reason_of(error), detail=str(error.strerror or error)) from error


def read_bytes(path: Path) -> bytes:
    """The whole of a regular file.

    Raises:
        ImageError: it cannot be read, is no regular file, or is larger than `MAX_FILE_BYTES`.
    """
    with open_file(path) as file:
        check_size(os.fstat(file.fileno()).st_size, name=printable_path(str(path)))
        return file.readall()


def check_size(size_bytes: int, *, name: str) -> None:
    """Refuse what is larger than any sensible image.

    Raises:
        ImageError: more than `MAX_FILE_BYTES`.
    """
    if size_bytes > MAX_FILE_BYTES:
        detail = f"{size_bytes} bytes, at most {MAX_FILE_BYTES} are read"
        raise ImageError(path=name, reason="file-too-large", detail=detail)


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for a writer for ever


def read_image(path: Path, *, target_side: int, max_pixels: int = MAX_PIXELS) -> LoadedImage:
    """Read and decode one file.

    Args:
        path: the file.
        target_side: pixels of the side it will be resized to; the image given back is reduced by a whole factor
            where both its sides stay at least twice as long.
        max_pixels: width x height allowed, checked on the header before any pixel is decoded.

    Raises:
        ImageError: the file cannot be used; its `reason` is one of `REASONS`.
    """
    name = printable_path(str(path))
    return load_image(read_bytes(path), name=name, target_side=target_side, max_pixels=max_pixels)


def load_image(data: bytes, *, name: str, target_side: int, max_pixels: int = MAX_PIXELS) -> LoadedImage:
    """Decode one image and hash its bytes, wherever they came from; arguments and errors as in `decode_image`."""
    image = decode_image(data, name=name, target_side=target_side, max_pixels=max_pixels)
    return LoadedImage(image, hashlib.sha256(data).hexdigest())


def decode_image(data: bytes, *, name: str, target_side: int, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode one image to upright, opaque RGB.

    EXIF orientation is applied, alpha is laid on white, 16-bit grey keeps its range, animations give their first
    frame. `name` is used in messages only. Other arguments and errors as in `read_image`.
    """
    if not data:
        raise ImageError(path=name, reason="empty-file", detail="0 bytes")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                detail = f"{width} x {height} pixels, at most {max_pixels} are decoded"
                raise ImageError(path=name, reason="too-many-pixels", detail=detail)
            image.draft(None, (2 * target_side, 2 * target_side))
            image.load()
            rgb, orientation = _to_rgb(image, name=name, target_side=target_side), _orientation(image)
        del image  # before the turned copy is made
        return _turn_upright(rgb, orientation)
    except UnidentifiedImageError as error:
        raise ImageError(path=name, reason="not-an-image", detail=f"none of {', '.join(FORMATS)}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(path=name, reason="too-many-pixels", detail=str(error)) from error
    except _DAMAGE as error:
        raise ImageError(path=name, reason="corrupt", detail=str(error) or type(error).__name__) from error


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    except _DAMAGE:
        return 1  # damaged EXIF beside sound pixels: the image is used as it is stored


def _turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    transpose = _ORIENTATIONS.get(orientation)
    return image if transpose is None else image.transpose(transpose)


def _to_rgb(image: Image.Image, *, name: str, target_side: int) -> Image.Image:
    """An opaque RGB copy, reduced by the largest whole factor that leaves both sides twice the target."""
    if image.mode == "F":
        raise ImageError(path=name, reason="unsupported-pixels", detail="32-bit floating point")
    wide = image.mode.startswith("I;") or (image.mode == "I" and _greatest(image) > 255)
    width, height = image.size
    factor = max(1, min(width, height) // (2 * target_side))
    rows = max(1, _STRIP_PIXELS // max(1, width) // factor) * factor
    if rows >= height:
        return _reduce(_convert(image, wide=wide), factor)
    result = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    for top in range(0, height, rows):  # reducing last would hold the whole image in several modes at once
        strip = image.crop((0, top, width, min(top + rows, height)))
        result.paste(_reduce(_convert(strip, wide=wide), factor), (0, top // factor))
    return result


def _greatest(image: Image.Image) -> float:
    extrema = image.getextrema()
    return float(np.max(extrema))


def _reduce(image: Image.Image, factor: int) -> Image.Image:
    return image if factor == 1 else image.reduce(factor)


def _convert(image: Image.Image, *, wide: bool) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip to white
        values = np.asarray(image)
        grey = (values >> 8 if wide else values).clip(0, 255).astype(np.uint8)
        return Image.fromarray(grey, mode="L").convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")
