"""JPEG by simplejpeg: the pixels of Pillow, the refusals of Pillow, and Pillow itself where the two would differ."""

import io
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from index.errors import ImageError
from index.images.decode import decode_here, has_turbo, read_turbo
from index.images.image_headers import is_cheap
from tests.conftest import draw_image, tries
from tests.index.hostile import contents, encode, with_orientation

SIZES = ((9, 9), (64, 48), (101, 67), (333, 250))


def outcome(data: bytes, *, target_side: int, by_turbo: bool) -> tuple[object, ...]:
    """What a decode gives, be it an image or a refusal."""
    try:
        image = decode_here(data, name="x", target_side=target_side, max_pixels=1_000_000, turbo=by_turbo)
    except ImageError as error:
        return (str(error),)
    return image.mode, image.size, image.tobytes()


def assert_alike(data: bytes) -> None:
    for target_side in (1, 3, 8, 16, 60):
        found = (outcome(data, target_side=target_side, by_turbo=by_turbo) for by_turbo in (True, False))
        assert next(found) == next(found), target_side


def kinds() -> Iterator[tuple[str, Callable[[Image.Image], bytes]]]:
    for subsampling in (0, 1, 2):
        for progressive in (False, True):
            options = {"subsampling": subsampling, "progressive": progressive, "quality": 60}
            yield f"subsampling {subsampling}, progressive {progressive}", partial(encode, kind="JPEG", **options)
    yield "restarts", partial(encode, kind="JPEG", restart_marker_blocks=2)
    yield "RGB, not YCbCr", partial(encode, kind="JPEG", keep_rgb=True)
    yield "turned", partial(with_orientation, orientation=6)
    yield "grey", lambda image: encode(image.convert("L"), "JPEG")
    yield "stereo", partial(encode, kind="MPO", save_all=True, append_images=[Image.new("RGB", (20, 20))])
    for subsampling_name in ("440", "411"):
        coded = partial(simplejpeg.encode_jpeg, colorsubsampling=subsampling_name)
        yield subsampling_name, lambda image, coded=coded: coded(np.asarray(image).copy())


KINDS = dict(kinds())
SOUND = [encode_as(draw_image((90, 160, 40), seed=1, size=size)) for encode_as in KINDS.values() for size in SIZES]


@pytest.mark.parametrize("kind", KINDS)
def test_the_pixels_are_those_of_pillow_at_every_scale(kind: str) -> None:
    for number, size in enumerate(SIZES):
        data = KINDS[kind](draw_image((200, 90, 40), seed=number, size=size))
        with Image.open(io.BytesIO(data)) as opened:
            assert read_turbo(data, opened) is not None
        assert_alike(data)


@pytest.mark.parametrize("name", ["CMYK", "PNG", "a few pixels"])
def test_what_it_would_read_otherwise_is_left_to_pillow(name: str) -> None:
    image = draw_image((200, 90, 40), seed=3)
    data = {
        "CMYK": encode(image.convert("CMYK"), "JPEG"),
        "PNG": encode(image, "PNG"),
        "a few pixels": encode(image.resize((5, 3)), "JPEG"),
    }[name]
    with Image.open(io.BytesIO(data)) as opened:
        assert read_turbo(data, opened) is None
    assert_alike(data)


def test_every_hostile_file_has_the_same_outcome_by_both() -> None:
    for name, (data, _) in contents().items():
        if is_cheap(data):
            found = [outcome(data, target_side=64, by_turbo=by_turbo) for by_turbo in (True, False)]
            assert found[0] == found[1], name


@pytest.mark.deep
@settings(max_examples=tries(150, deep=1500), deadline=None)
@given(
    data=st.sampled_from(SOUND),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=12),
    keep=st.floats(0.01, 1),
    target_side=st.sampled_from([1, 8, 64]),
)
def test_damage_is_as_in_pillow(data: bytes, flips: list[tuple[int, int]], keep: float, target_side: int) -> None:
    damaged = bytearray(data[: round(len(data) * keep)] if keep < 0.9 else data)
    for position, value in flips:
        damaged[position % len(damaged)] = value
    found = [outcome(bytes(damaged), target_side=target_side, by_turbo=by_turbo) for by_turbo in (True, False)]
    assert found[0] == found[1]


def test_a_decoder_that_gives_other_pixels_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    roughly = partial(simplejpeg.decode_jpeg, fastdct=True, fastupsample=True)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", roughly)
    has_turbo.cache_clear()
    assert not has_turbo()
    monkeypatch.undo()
    has_turbo.cache_clear()
    assert has_turbo()


def test_without_it_pillow_reads_all(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(data: bytes, size: tuple[int, int]) -> None:
        raise ImportError("numpy.core.multiarray failed to import")

    monkeypatch.setattr("index.images.decode._read", fail)
    assert not has_turbo.__wrapped__()
    assert "cannot be loaded" in caplog.text
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert not has_turbo.__wrapped__()
