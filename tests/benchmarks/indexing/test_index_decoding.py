"""The ways of decoding that are compared, and the steps of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.indexing.index_decoding import WAYS, decode_in_full, run_steps, run_ways
from benchmarks.indexing.index_tables import format_decoding
from index.images.preprocess import PreprocessConfig
from tests.conftest import draw_image
from tests.index.hostile import encode

SETTINGS = PreprocessConfig(resize=64, crop=56)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("photos")
    found = [folder / f"{number}.jpg" for number in range(3)]
    for number, path in enumerate(found):
        path.write_bytes(encode(draw_image((200, 90, 40), seed=number, size=(120, 90)), "JPEG"))
    return list(map(str, found))


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_make_the_same_input_of_a_photo_that_is_decoded_at_its_size(way: str, paths: list[str]) -> None:
    for data in map(Path.read_bytes, map(Path, paths)):
        assert np.array_equal(WAYS[way](data, SETTINGS), decode_in_full(data, SETTINGS))


def test_every_way_has_a_rate_and_every_step_a_time_in_the_tables(paths: list[str]) -> None:
    given = {"paths": paths, "preprocess": SETTINGS.to_json(), "rounds": 2}
    row = {"what": "drawn", **run_ways(**given, threads=2), "steps": run_steps(**given)}
    pools = {"threads": {"median": 2.0, "least": 1.0, "most": 3.0}}
    text = format_decoding({"datasets": [row], "workers": 2, "rates": pools})
    for way in WAYS:
        assert len(row["rates"][way]["threads"]) == 2
        assert f"\n| {way} | " in text
    assert all(f"\n| {step} | " in text for step in row["steps"])
    assert "| 3 drawn | one thread |" in text
