"""HEIC, the photos of iPhones: read by pillow-heif where it is installed, named where it is not.

The package is an extra, since the HEVC coder in its wheels is under the GPL. Its plugin for Pillow is used without
being registered, so that no other part of the process takes files that it did not take before.
"""

from __future__ import annotations

import io
from functools import cache
from importlib.util import find_spec

from PIL import ImageFile

from index.errors import ImageError

HEIF = "HEIC"
_CODED = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")  # brands of what HEVC coded
_CONTAINERS = (b"mif1", b"msf1")  # brands of what AVIF or HEVC coded: the brands it is compatible with say which
_MAX_BRANDS_BYTES = 256


def is_heif(first: bytes) -> bool:
    """Whether a file that begins with these bytes, 12 or more, says that HEVC coded its pictures."""
    if first[4:8] != b"ftyp":
        return False
    if first[8:12] in _CODED:
        return True
    brands = first[16 : min(int.from_bytes(first[:4], "big"), _MAX_BRANDS_BYTES)]
    known = {brands[at : at + 4] for at in range(0, len(brands), 4)}
    return first[8:12] in _CONTAINERS and not known.isdisjoint(_CODED)


@cache
def has_decoder() -> bool:
    """Whether pillow-heif is installed."""
    return find_spec("pillow_heif") is not None


def decoder_version() -> str:
    """The version of pillow-heif, which tells that of its decoder; `nothing` where it is not installed."""
    if not has_decoder():
        return "nothing"
    from importlib.metadata import version  # loads what reads mail, which a search has no time for

    return version("pillow-heif")


def require_decoder(name: str) -> None:
    """Refuse a HEIC photo where nothing can decode it."""
    if not has_decoder():
        detail = "a HEIC photo, which needs pillow-heif: pip install pillow-heif"
        raise ImageError(path=name, reason="needs-package", detail=detail)


def open_heif(data: bytes, *, name: str) -> ImageFile.ImageFile:
    """A HEIC file's main picture, not yet decoded; upright, as the decoder turns it.

    Raises:
        ImageError: pillow-heif is not installed.
        SyntaxError: the file is damaged.
    """
    require_decoder(name)
    from pillow_heif import HeifImageFile, options

    options.DECODE_THREADS = 1  # each more would reserve memory of its own
    image: ImageFile.ImageFile = HeifImageFile(io.BytesIO(data))  # type: ignore[no-untyped-call]
    return image
