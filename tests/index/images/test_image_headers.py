import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from index.images.image_headers import is_cheap
from tests.conftest import draw_image, tries
from tests.index.costly import COSTLY, png_of_chunks, tiff_of_many_tags
from tests.index.hostile import PHOTO, encode, with_orientation

ORDINARY = {
    "baseline": encode(PHOTO, "JPEG"),
    "progressive": encode(PHOTO, "JPEG", progressive=True),
    "grey": encode(PHOTO.convert("L"), "JPEG"),
    "CMYK": encode(PHOTO.convert("CMYK"), "JPEG"),
    "turned": with_orientation(PHOTO, 6),
    "PNG": encode(PHOTO, "PNG"),
    "palette": encode(PHOTO.convert("P"), "PNG"),
    "WebP": encode(PHOTO, "WEBP"),
    "WebP with EXIF": encode(PHOTO, "WEBP", exif=Image.Exif()),
}


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<L", len(body)) + body


def test_ordinary_images_are_proven_cheap() -> None:
    assert {name: is_cheap(data) for name, data in ORDINARY.items()} == dict.fromkeys(ORDINARY, True)
    buffer = io.BytesIO()
    draw_image((90, 120, 30), seed=1, size=(600, 400)).resize((4000, 3000)).save(buffer, "JPEG")
    assert is_cheap(buffer.getvalue())


@pytest.mark.parametrize("name", COSTLY)
def test_no_costly_file_is_proven_cheap(name: str) -> None:
    assert is_cheap(COSTLY[name]()) == (name == "padded_end.jpg")  # read through once, which is no work


def test_what_its_headers_do_not_bound_is_not_proven_cheap() -> None:
    turned = {"save_all": True, "append_images": [PHOTO.rotate(9)]}
    unbounded = {
        **{kind: encode(PHOTO, kind) for kind in ("TIFF", "AVIF", "BMP", "GIF")},
        **{f"animated {kind}": encode(PHOTO, kind, **turned) for kind in ("WEBP", "PNG")},
        "lossless": encode(PHOTO, "WEBP", lossless=True),
        "see-through": encode(PHOTO.convert("RGBA").rotate(9), "WEBP"),
        "many pixels": encode(Image.new("1", (5001, 5000)), "PNG"),
        "a second header": png_of_chunks(1, name=b"IHDR", body=struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)),
    }
    assert {name: is_cheap(data) for name, data in unbounded.items()} == dict.fromkeys(unbounded, False)


def test_exif_hidden_in_the_text_of_a_png_is_not_proven_cheap() -> None:
    assert is_cheap(png_of_chunks(3, name=b"tEXt", body=b"Comment\0drawn"))
    assert not is_cheap(png_of_chunks(1, name=b"zTXt", body=b"Raw profile type exif\0\0"))


def test_exif_in_two_pieces_is_not_proven_cheap() -> None:
    data = with_orientation(PHOTO, 6)
    start = data.index(b"\xff\xe1")
    segment = data[start : start + 2 + struct.unpack_from(">H", data, start + 2)[0]]
    assert segment[4:8] == b"Exif"
    assert not is_cheap(data[:start] + segment + data[start:])


def test_webp_metadata_counts() -> None:
    exif = tiff_of_many_tags(3000, 1000)
    body = b"WEBP" + chunk(b"VP8X", bytes(4) + bytes(6)) + encode(PHOTO, "WEBP")[12:]
    assert is_cheap(b"RIFF" + struct.pack("<L", len(body)) + body)
    body += chunk(b"EXIF", exif)
    assert not is_cheap(b"RIFF" + struct.pack("<L", len(body)) + body)


@pytest.mark.deep
@settings(max_examples=tries(75, deep=300), deadline=None)
@given(
    data=st.sampled_from(list(ORDINARY.values())),
    flips=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=6),
    keep=st.floats(0, 1),
)
def test_damaged_headers_never_raise(data: bytes, flips: list[tuple[int, int]], keep: float) -> None:
    damaged = bytearray(data[: int(len(data) * keep)])
    for position, value in flips:
        if damaged:
            damaged[position % len(damaged)] = value
    assert is_cheap(bytes(damaged)) in (True, False)
