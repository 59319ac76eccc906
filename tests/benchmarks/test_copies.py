"""The benchmark of copies: who counts as found first, what a rule calls copies, and a small run to its record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import copies
from benchmarks.copies import EDITS, MORE_EDITS, PAIR_EDITS, Prints, count_pairs, find_first, list_rules, main
from index.outputs import KIND, PICTURE
from tests.benchmarks.small_datasets import write_dataset
from tests.models import write_two_output_model


def test_the_original_is_first_where_nothing_is_nearer_and_by_chance_among_equals() -> None:
    similarities = np.array([[0.9, 0.1, 0.2], [0.3, 0.2, 0.1], [0.5, 0.1, 0.5]], dtype=np.float32)
    assert find_first(similarities) == pytest.approx((1 + 0 + 0.5) / 3)


def make_prints(angles: list[float], hashes: list[int]) -> Prints:
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return Prints({PICTURE: rows, KIND: rows, copies._RAW: rows}, {}, np.array(hashes, dtype=np.int64))


def test_rules_call_copies_what_they_say() -> None:
    prints = make_prints([0.0, 0.1, 0.2, 2.0], [0, 0b111, 0b1111111, 0])
    rules = list_rules(float(np.cos(0.15)), [])
    by_picture, by_today = (count_pairs(prints, rule, np.array([0, 0, 1, 1])) for rule in rules.values())
    assert by_picture == {"pairs": 2, "within a class": 1}
    assert by_today == {"pairs": 2, "within a class": 1}, (
        "the hashes of the first and the third differ in seven bits"
    )


@pytest.mark.parametrize("edit", {**EDITS, **MORE_EDITS, **PAIR_EDITS}.values())
def test_an_edit_makes_another_picture_of_the_same_photo_and_always_the_same_one(edit: copies.Edit) -> None:
    random = np.random.default_rng(0)
    photo = Image.fromarray(random.integers(0, 256, (60, 80, 3), dtype=np.uint8))
    made, again = (edit(photo, np.random.default_rng(1)) for _ in range(2))
    assert made.mode == "RGB"
    assert made.tobytes() == again.tobytes() != photo.tobytes()


def test_a_small_run_writes_what_was_found_and_what_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = [write_dataset(tmp_path / str(seed), train=2, test=3, pictures=4, seed=seed) for seed in range(2)]
    monkeypatch.setattr(copies, "SEARCHED", tuple(datasets))
    model = write_two_output_model(tmp_path / "two.onnx")
    main(["--out", str(tmp_path / "out"), "--model", str(model), "--weights", "none", "--queries", "6"])
    table = capsys.readouterr().out
    assert "| cut to 70 % |" in table
    assert "| picture, 0.90 |" in table
    results = json.loads((tmp_path / "out" / "copies.json").read_text())["results"]
    assert results["found first"].keys() == {*EDITS, *MORE_EDITS}
    assert all(0 <= share <= 1 for found in results["called copies"].values() for share in found.values())
    main_error = ["--out", str(tmp_path / "out"), "--model", str(model), "--weights", "none", "--queries", "99"]
    with pytest.raises(SystemExit, match="--queries must be at most the 12 photos there are, got 99"):
        main(main_error)
