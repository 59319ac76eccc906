"""EXIF, IPTC and XMP of an image file: a few fields, read in bounded time and memory.

Pillow's readers make an object of each value of each tag; these look at nothing but the wanted tags of three
directories of EXIF, at records of IPTC and at elements of XMP, all within limits. What cannot be read is left out.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

from PIL import Image, TiffImagePlugin

from index.text import clean_line

FACTS_VERSION = 1  # of the values; raising it invalidates caches
TAKEN = "taken"
GPS = ("gps_latitude", "gps_longitude")
"""Facts that are kept only where a gallery was asked for them."""
FACTS = (TAKEN, "camera", "orientation", *GPS, "title", "caption", "keywords")

_MAKE, _MODEL, _ORIENTATION, _XMP, _IPTC, _EXIF, _GPS = 0x010F, 0x0110, 0x0112, 0x02BC, 0x83BB, 0x8769, 0x8825
_ORIGINAL_TIME, _ORIGINAL_FRACTION = 0x9003, 0x9291
_WANTED = frozenset(
    (_MAKE, _MODEL, _ORIENTATION, _XMP, _IPTC, _EXIF, _GPS, _ORIGINAL_TIME, _ORIGINAL_FRACTION, *range(1, 5))
)
_VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 7: 1}  # by type
_MAX_TAGS = 4096  # of a directory
_MAX_BLOCK_BYTES = 1 << 18  # of IPTC or XMP
_MAX_RECORDS = 512
_MAX_KEYWORDS = 100
_MAX_CHARACTERS = {"camera": 100, "title": 300, "caption": 2000, "keywords": 2000}
_TIME = re.compile(rb"(\d{4})[:-](\d\d)[:-](\d\d)[ T](\d\d):(\d\d):(\d\d)")
_COMPANY = re.compile(
    r"[\s,]+(corporation|corp|company|co|inc|ltd|ag|imaging|optical|camera|electronics|technologies)\b.*", re.IGNORECASE
)
_PHOTOSHOP_IPTC = 0x0404  # the resource of a JPEG
_IPTC_FIELDS = {5: "title", 25: "keywords", 120: "caption"}  # of record 2
_DC, _LI = "http://purl.org/dc/elements/1.1/", "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}li"
_XMP_FIELDS = {"title": "title", "description": "caption", "subject": "keywords"}

_Directory = dict[int, bytes]
"""The bytes of the wanted tags of a directory."""


def read_facts(image: Image.Image, data: bytes) -> dict[str, Any]:
    """The facts of an open image of the file `data`: texts and numbers by names of `FACTS`, without unknown ones.

    `taken` is ISO 8601 by the camera's clock, with fractions of a second but without an offset, so that texts order by
    time. Where a title, caption or keywords are in both, those of XMP win over those of IPTC.
    """
    body = data if isinstance(image, TiffImagePlugin.TiffImageFile) else image.info.get("exif")
    found, first = read_exif(body) if isinstance(body, bytes) else ({}, {})
    photoshop = image.info.get("photoshop")
    iptc = photoshop.get(_PHOTOSHOP_IPTC) if isinstance(photoshop, Mapping) else first.get(_IPTC)
    xmp = image.info.get("xmp", first.get(_XMP))
    texts = dict[str, list[str]]()
    for block, read in ((iptc, _read_iptc), (xmp, _read_xmp)):
        if isinstance(block, bytes) and len(block) <= _MAX_BLOCK_BYTES:
            texts |= read(block)
    for name, parts in texts.items():
        lines = list(dict.fromkeys(filter(None, map(clean_line, parts))))[: _MAX_KEYWORDS if name == "keywords" else 1]
        if text := ", ".join(lines)[: _MAX_CHARACTERS[name]].rstrip():
            found[name] = text
    return found


def read_exif(body: bytes) -> tuple[dict[str, Any], _Directory]:
    """The facts of a block of EXIF or the bytes of a TIFF, and its first directory."""
    body = body.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(body[:4])
    if order is None or len(body) < 8:
        return {}, {}
    first = _read_directory(body, struct.unpack_from(order + "L", body, 4)[0], order)
    exif, gps = (_read_directory(body, _read_number(first.get(tag), order), order) for tag in (_EXIF, _GPS))
    place = _read_place(gps, order)
    found = {
        TAKEN: _read_time(exif.get(_ORIGINAL_TIME, b""), exif.get(_ORIGINAL_FRACTION, b"")),
        "camera": _name_camera(_read_text(first.get(_MAKE, b"")), _read_text(first.get(_MODEL, b""))),
        "orientation": number if 1 <= (number := _read_number(first.get(_ORIENTATION), order)) <= 8 else None,
        **(dict(zip(GPS, place, strict=True)) if place else {}),
    }
    return {name: value for name, value in found.items() if value is not None}, first


def _read_directory(body: bytes, start: int, order: str) -> _Directory:
    """A directory at an offset, without those that follow it, which may lead in a circle."""
    if not 8 <= start <= len(body) - 2:
        return {}
    count = min(struct.unpack_from(order + "H", body, start)[0], _MAX_TAGS, (len(body) - start - 2) // 12)
    found = _Directory()
    for number, entry in enumerate(struct.iter_unpack(order + "HHLL", body[start + 2 : start + 2 + 12 * count])):
        tag, kind, values, offset = entry
        if tag in _WANTED:
            size = _VALUE_BYTES.get(kind, 0) * values
            at = start + 10 + 12 * number if size <= 4 else offset
            found.setdefault(tag, body[at : at + min(size, _MAX_BLOCK_BYTES + 1)])
    return found


def _read_number(value: bytes | None, order: str) -> int:
    """A whole number of 16 or 32 bits; 0 for anything else."""
    form = {2: "H", 4: "L"}.get(len(value or b""))
    return 0 if form is None or value is None else int(struct.unpack(order + form, value)[0])


def _read_text(value: bytes) -> str:
    return clean_line(value[:1024].partition(b"\0")[0].decode("utf-8", "replace"))


def _read_time(value: bytes, fraction: bytes) -> str | None:
    if (match := _TIME.match(value)) is None:
        return None
    with suppress(ValueError):  # no day of a calendar, such as 0000:00:00
        time = datetime(*map(int, match.groups())).isoformat()  # type: ignore[arg-type]
        digits = fraction[:6].partition(b"\0")[0].strip()
        return f"{time}.{digits.decode()}" if digits.isdigit() and digits.strip(b"0") else time
    return None


def _name_camera(make: str, model: str) -> str | None:
    """Make and model, without what both say and how companies call themselves.

    >>> _name_camera("NIKON CORPORATION", "NIKON D750"), _name_camera("SONY", "ILCE-7M3"), _name_camera("", "")
    ('NIKON D750', 'SONY ILCE-7M3', None)
    """
    is_said = model and model.split()[0].casefold() in make.casefold().split()
    return (
        " ".join(filter(None, ("" if is_said else _COMPANY.sub("", make), model)))[: _MAX_CHARACTERS["camera"]] or None
    )


def _read_place(gps: _Directory, order: str) -> tuple[float, float] | None:
    """Degrees north and east, of a place on the globe."""
    found = []
    for sign_tag, signs, most in ((1, b"NS", 90), (3, b"EW", 180)):
        sign, value = gps.get(sign_tag, b"")[:1], gps.get(sign_tag + 1, b"")
        if len(value) != 24 or not sign or sign not in signs:
            return None
        numbers = struct.unpack(order + "6L", value)
        if not all(numbers[1::2]):
            return None
        degrees = sum(numbers[at] / numbers[at + 1] / 60 ** (at // 2) for at in (0, 2, 4))
        if degrees > most:
            return None
        found.append(round(-degrees if sign in b"SW" else degrees, 6))
    return found[0], found[1]


def _read_iptc(block: bytes) -> dict[str, list[str]]:
    found, encoding = dict[str, list[str]](), "latin-1"
    for record, kind, value in _list_records(block):
        if (record, kind) == (1, 90) and value == b"\x1b%G":
            encoding = "utf-8"
        elif record == 2 and kind in _IPTC_FIELDS:
            try:
                text = value.decode("utf-8")  # which many programs write without saying so
            except UnicodeDecodeError:
                text = value.decode(encoding, "replace")
            found.setdefault(_IPTC_FIELDS[kind], []).append(text)
    return found


def _list_records(block: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    for _ in range(_MAX_RECORDS):
        if block[at : at + 1] != b"\x1c" or at + 5 > len(block):
            return
        record, kind, size = struct.unpack_from(">BBH", block, at + 1)
        if size & 0x8000:  # of so many bytes no field is read
            return
        yield record, kind, block[at + 5 : at + 5 + size]
        at += 5 + size


def _read_xmp(packet: bytes) -> dict[str, list[str]]:
    """Title, description and subject of Dublin Core; a packet with a document type, and so with entities, has none."""
    if _DC.encode() not in packet or b"<!DOCTYPE" in packet:
        return {}
    try:
        root = ElementTree.fromstring(packet.rstrip(b"\0 "))
    except (ElementTree.ParseError, ValueError, LookupError):  # damaged, or of an unknown encoding
        return {}
    found = {name: root.findall(f".//{{{_DC}}}{field}/*/{_LI}") for field, name in _XMP_FIELDS.items()}
    return {name: [element.text or "" for element in elements] for name, elements in found.items() if elements}
