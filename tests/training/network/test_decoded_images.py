"""Decoded images: what the features were made of, decoded once, whatever interrupts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.errors import ImageError, InputError
from index.images.image_files import read_image
from index.images.preprocess import PreprocessConfig, resize_image
from training.network import decoded_images
from training.network.decoded_images import DecodingPlan, decode_images

SIZES = PreprocessConfig(resize=24, crop=20)


@pytest.fixture
def paths(pictures: Path) -> list[Path]:
    return sorted(pictures.rglob("*.jpg"))[:10]


def _plan(paths: list[Path], cache: Path, sizes: PreprocessConfig = SIZES) -> DecodingPlan:
    return DecodingPlan.of([path.name for path in paths], sizes, cache=cache)


def _resized(paths: list[Path]) -> np.ndarray:
    return np.stack([resize_image(read_image(path, target_side=24).image, SIZES) for path in paths])


def test_images_lie_in_the_file_as_they_are_resized_and_take_the_bytes_that_were_told(paths, tmp_path) -> None:
    plan = _plan(paths, tmp_path)
    pixels = decode_images(paths, plan, SIZES, workers=2)
    np.testing.assert_array_equal(pixels, _resized(paths))
    assert plan.bytes == 10 * 24 * 24 * 3 == plan.file.stat().st_size
    assert list(plan.file.parent.iterdir()) == [plan.file]
    with pytest.raises(ValueError, match="read-only"):
        pixels[0] = 0


def test_a_second_call_reads_the_file_and_no_image(paths, tmp_path) -> None:
    plan = _plan(paths, tmp_path)
    first = decode_images(paths, plan, SIZES, workers=1)
    again = decode_images([tmp_path / "gone"] * 10, plan, SIZES, workers=1)
    np.testing.assert_array_equal(first, again)


def test_what_an_interrupted_call_has_decoded_is_not_decoded_again(paths, tmp_path, monkeypatch) -> None:
    plan = _plan(paths, tmp_path)
    with pytest.raises(ImageError):
        decode_images([*paths[:6], tmp_path / "gone", *paths[7:]], plan, SIZES, workers=1)
    assert not plan.file.exists()
    seen: list[Path] = []

    def read(path: Path, **others):
        seen.append(path)
        return read_image(path, **others)

    monkeypatch.setattr(decoded_images, "read_image", read)
    np.testing.assert_array_equal(decode_images(paths, plan, SIZES, workers=1), _resized(paths))
    assert seen == paths[6:]


@pytest.mark.parametrize("note", ["", "x", "[]", None])
def test_where_the_note_of_an_interrupted_call_tells_nothing_all_is_decoded_again(paths, tmp_path, note) -> None:
    plan = _plan(paths, tmp_path)
    plan.require_space()
    plan.file.with_suffix(".part").write_bytes(bytes(plan.bytes))
    if note is not None:
        plan.file.with_suffix(".json").write_text(note)
    np.testing.assert_array_equal(decode_images(paths, plan, SIZES, workers=1), _resized(paths))


def test_other_images_another_order_and_another_size_are_other_files(paths, tmp_path) -> None:
    other = PreprocessConfig(resize=28, crop=20)
    plans = [_plan(paths, tmp_path), _plan(paths[:9], tmp_path), _plan(paths[::-1], tmp_path)]
    assert len({plan.file for plan in [*plans, _plan(paths, tmp_path, other)]}) == 4
    assert _plan(paths, tmp_path, PreprocessConfig(resize=24, crop=8)).file == plans[0].file, (
        "only cropped otherwise"
    )


def test_images_that_the_disk_cannot_take_are_refused_with_both_sizes(tmp_path) -> None:
    plan = DecodingPlan(tmp_path / "decoded" / "x.pixels", images=10**9, side=4096)
    with pytest.raises(
        InputError, match=r"1,000,000,000 decoded images .* take 50331648.0 GB, and .* GB are free"
    ):
        plan.require_space()
