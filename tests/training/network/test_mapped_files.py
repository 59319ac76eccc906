"""Arrays in mapped files: filled once whatever interrupts it, and refused before any work where they have no room."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from index.errors import ImageError, InputError
from index.images.image_files import read_image
from index.images.preprocess import PreprocessConfig, resize_image
from training.network import decoded_images
from training.network.decoded_images import MappedArray, decode_images, place_decoded, require_room, require_space

ROWS = np.arange(1300 * 2, dtype=np.float16).reshape(1300, 2)


def _array(folder: Path) -> MappedArray:
    return MappedArray(folder / "new" / "x.rows", ROWS.shape, "float16")


def _produce(start: int, *, asked: list[int], until: int = len(ROWS)) -> Iterator[np.ndarray]:
    asked.append(start)
    for place in range(start, len(ROWS), 100):
        if place >= until:
            raise KeyboardInterrupt
        yield ROWS[place : place + 100]


def test_rows_are_produced_once_and_an_interrupted_call_is_taken_up_where_it_was(tmp_path: Path) -> None:
    array, asked = _array(tmp_path), []
    seen: list[tuple[int, int]] = []
    with pytest.raises(KeyboardInterrupt):
        array.fill(lambda start: _produce(start, asked=asked, until=700))
    assert not array.file.exists()
    array.fill(lambda start: _produce(start, asked=asked), progress=lambda *done: seen.append(done))
    array.fill(lambda start: pytest.fail("it is filled"))
    assert asked == [0, 700]
    assert seen[0] == (800, 1300)
    assert seen[-1] == (1300, 1300)
    np.testing.assert_array_equal(array.open(), ROWS)
    assert array.bytes == array.file.stat().st_size == 1300 * 2 * 2
    assert list(array.file.parent.iterdir()) == [array.file]


def test_of_two_writers_one_fills_and_the_other_waits_for_it(tmp_path: Path) -> None:
    array, begun, go = _array(tmp_path), threading.Event(), threading.Event()

    def slowly(start: int) -> Iterator[np.ndarray]:
        for rows in _produce(start, asked=[]):
            yield rows
            begun.set()
            go.wait()

    asked: list[int] = []
    first = threading.Thread(target=lambda: array.fill(slowly))
    second = threading.Thread(target=lambda: array.fill(lambda start: _produce(start, asked=asked)))
    first.start()
    begun.wait()
    second.start()
    second.join(timeout=0.3)  # it would begin by then
    go.set()
    first.join()
    second.join()
    assert asked == []
    np.testing.assert_array_equal(array.open(), ROWS)
    assert list(array.file.parent.iterdir()) == [array.file]


def test_arrays_of_a_folder_have_to_fit_together_but_those_that_are_filled(tmp_path: Path) -> None:
    array = _array(tmp_path)
    array.fill(lambda start: _produce(start, asked=[]))
    rest = {"what": "rows", "instead": "do without"}
    huge = [MappedArray(tmp_path / f"{name}.rows", (10**15, 4), "float16") for name in "ab"]
    require_space([array], **rest)
    with pytest.raises(InputError, match=r"rows take 16000000.0 GB, and .* GB are free; do without"):
        require_space([array, *huge], **rest)


SIZES = PreprocessConfig(resize=24, crop=20)


@pytest.fixture
def paths(pictures: Path) -> list[Path]:
    return sorted(pictures.rglob("*.jpg"))[:10]


def _plan(paths: list[Path], cache: Path, sizes: PreprocessConfig = SIZES) -> MappedArray:
    return place_decoded([path.name for path in paths], sizes, cache=cache)


def _resized(paths: list[Path]) -> np.ndarray:
    return np.stack([resize_image(read_image(path, target_side=24), SIZES) for path in paths])


def test_images_are_decoded_once_as_they_are_resized_in_the_bytes_that_were_told(paths, tmp_path) -> None:
    plan = _plan(paths, tmp_path)
    pixels = decode_images(paths, plan, SIZES, workers=2)
    np.testing.assert_array_equal(pixels, _resized(paths))
    assert plan.bytes == 10 * 24 * 24 * 3 == plan.file.stat().st_size
    assert list(plan.file.parent.iterdir()) == [plan.file]
    with pytest.raises(ValueError, match="read-only"):
        pixels[0] = 0
    again = decode_images([tmp_path / "gone"] * 10, plan, SIZES, workers=1)
    np.testing.assert_array_equal(pixels, again)


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


@pytest.mark.parametrize("note", ["", "[]", None])
def test_where_the_note_of_an_interrupted_call_tells_nothing_all_is_decoded_again(paths, tmp_path, note) -> None:
    plan = _plan(paths, tmp_path)
    plan.file.parent.mkdir()
    plan.file.with_suffix(".part").write_bytes(bytes(plan.bytes))
    if note is not None:
        plan.file.with_suffix(".json").write_text(note)
    np.testing.assert_array_equal(decode_images(paths, plan, SIZES, workers=1), _resized(paths))


def test_other_images_another_order_and_another_size_are_other_files(paths, tmp_path) -> None:
    other = PreprocessConfig(resize=28, crop=20)
    plans = [_plan(paths, tmp_path), _plan(paths[:9], tmp_path), _plan(paths[::-1], tmp_path)]
    assert len({plan.file for plan in [*plans, _plan(paths, tmp_path, other)]}) == 4
    cropped = _plan(paths, tmp_path, PreprocessConfig(resize=24, crop=8))
    assert cropped.file == plans[0].file, "only cropped otherwise"


def test_images_that_the_disk_cannot_take_are_refused_with_both_sizes(tmp_path) -> None:
    plan = MappedArray(tmp_path / "decoded" / "x.pixels", (10**9, 4096, 4096, 3), "uint8")
    with pytest.raises(InputError, match=r"1,000,000,000 decoded images .* take 50331648.0 GB, and .* are free"):
        require_room(plan)
