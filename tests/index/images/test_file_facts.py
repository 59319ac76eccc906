"""What a file says of itself is read from every format, and no damage to it harms the image."""

import io
import struct
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from index.images.decode import find_facts
from index.images.file_facts import FACTS, GPS, read_exif, read_facts
from index.images.image_files import decode_image
from tests.conftest import draw_image
from tests.described_photos import XMP, make_exif, make_iptc

PHOTO = draw_image((90, 60, 40), seed=1)
KNOWN = {"taken": "2024-05-01T10:11:12.34", "camera": "NIKON D750", "orientation": 6}
PLACE = dict(zip(GPS, (-48.0, 2.25), strict=True))
TEXTS = {"title": "A fair", "keywords": "beach, sun"}
PACKET = XMP.format(title="A fair", keyword="beach").encode()


def _write(kind: str = "JPEG", **given: Any) -> bytes:
    file = io.BytesIO()
    PHOTO.save(file, kind, **({"exif": make_exif("2024:05:01 10:11:12", place=(-48, 2.25)), "xmp": PACKET} | given))
    return file.getvalue()


def _facts(data: bytes) -> dict[str, Any]:
    return dict(find_facts(decode_image(data, name="x", target_side=8)))


def _read(**blocks: Any) -> dict[str, Any]:
    image = Image.new("RGB", (1, 1))
    image.info = dict(blocks)
    return read_facts(image, b"")


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF"])  # the last one is decoded in another process
def test_time_camera_place_and_words_are_read(kind: str) -> None:
    assert _facts(_write(kind)) == {**KNOWN, **PLACE, **TEXTS}


def test_iptc_is_read_unless_xmp_says_something_else() -> None:
    plain = _write(exif=b"", xmp=b"")
    with_iptc = plain[:2] + make_iptc(title="Ein Fest", caption="Köln,\x07 im \u202eMai", keywords="tent") + plain[2:]
    assert _facts(with_iptc) == {"title": "Ein Fest", "caption": "Köln, im Mai", "keywords": "tent"}
    with_both = _write(exif=b"")
    with_both = with_both[:2] + make_iptc(title="Ein Fest", caption="Köln") + with_both[2:]
    assert _facts(with_both) == {**TEXTS, "caption": "Köln"}


@given(data=st.data())
def test_any_damage_leaves_fields_out_and_nothing_else(data: st.DataObject) -> None:
    exif, xmp = bytearray(make_exif("2024:05:01 10:11:12", place=(-48, 2.25)).tobytes()), bytearray(PACKET)
    iptc = bytearray(make_iptc(title="A", keywords="b")[30:])
    for block in (exif, xmp, iptc):
        places = st.integers(0, len(block) - 1)
        for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
            block[place] = value
        del block[data.draw(st.integers(0, len(block))) if data.draw(st.booleans()) else len(block) :]
    facts = _read(exif=bytes(exif), xmp=bytes(xmp), photoshop={0x0404: bytes(iptc)})
    assert facts.keys() <= set(FACTS)
    assert all(value.isprintable() and value for value in facts.values() if isinstance(value, str))
    assert abs(facts.get(GPS[0], 0)) <= 90
    assert facts.get("orientation", 1) in range(1, 9)


@given(st.binary(max_size=300))
def test_any_bytes_may_be_exif(body: bytes) -> None:
    read_exif(b"MM\0*" + body)


@pytest.mark.parametrize("taken", ["0000:00:00 00:00:00", "2024:02:30 10:00:00", "    :  :     :  :  ", "2024", "\0"])
def test_an_invalid_time_is_left_out(taken: str) -> None:
    assert "taken" not in _facts(_write(exif=make_exif(taken)))


@pytest.mark.parametrize("place", [(91, 2.0), (48, 181.0)])
def test_a_place_beside_the_globe_is_left_out(place: tuple[float, float]) -> None:
    assert not {*_facts(_write(exif=make_exif(place=place)))} & set(GPS)


def _directory(*entries: tuple[int, int, int, int], start: int = 8) -> bytes:
    packed = b"".join(struct.pack("<HHLL", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<LH", start, len(entries)) + packed + struct.pack("<L", start)


DC = b"http://purl.org/dc/elements/1.1/"
BOMB = XMP.replace("{title}", "&c;").format(keyword="").encode()
ENTITIES = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;">]>'
HOSTILE = {
    "directories that lead to themselves": {"exif": _directory((0x8769, 4, 1, 8), (0x8825, 4, 1, 8))},
    "a value of 4 GB": {"exif": _directory((0x010F, 2, 0xFFFFFFFF, 8), (0x0110, 5, 0xFFFFFFFF, 8))},
    "an offset behind the end": {"exif": _directory((0x8769, 4, 1, 0xFFFFFFF0), (0x010F, 2, 40, 0xFFFFFFF0))},
    "entities": {"xmp": ENTITIES + BOMB},
    "deep elements": {"xmp": b"<a>" * 37_000 + DC + b"</a>" * 37_000},
    "too long a packet": {"xmp": PACKET + b" " * 300_000},
}


@pytest.mark.parametrize("blocks", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_block_has_no_fields_at_once(blocks: dict[str, bytes]) -> None:
    began = time.process_time()
    assert _read(**blocks).keys() <= {"camera", "orientation"}
    assert time.process_time() - began < 0.5
