"""Arrays in mapped files: filled once whatever interrupts it, and refused before any work where they have no room."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from index.errors import InputError
from training.network.mapped_files import MappedArray, require_space

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
