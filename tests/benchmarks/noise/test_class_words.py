"""How alike classes are by the words of their names."""

from __future__ import annotations

import doctest
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.noise import class_words
from benchmarks.noise.class_words import compare_names, compare_words, main
from training.losses.guidance import load_guidance

CARS = ["001_BMW_M3_Coupe_2012", "002_BMW_X5_SUV_2007", "003_Audi_TT_Coupe_2012", "004_Audi_R8_Coupe_2012"]


def test_cars_are_alike_by_the_share_of_rare_words_in_their_names() -> None:
    found = compare_names("cars", CARS)
    weights = [{word: math.log(4 / count) for word, count in words.items()} for words in (
        {"bmw": 2, "m3": 1, "coupe": 3, "2012": 3}, {"bmw": 2, "x5": 1, "suv": 1, "2007": 1},
        {"audi": 2, "tt": 1, "coupe": 3, "2012": 3}, {"audi": 2, "r8": 1, "coupe": 3, "2012": 3},
    )]  # fmt: skip
    for (i, one), (j, two) in ((a, b) for a in enumerate(weights) for b in enumerate(weights)):
        product = sum(one[word] * two[word] for word in one.keys() & two.keys())
        lengths = [math.sqrt(sum(value**2 for value in each.values())) for each in (one, two)]
        assert found[i, j] == pytest.approx(product / math.prod(lengths), abs=1e-6)
    assert found[2, 3] > found[0, 2] > found[1, 2] == 0


def test_a_class_whose_words_all_have_is_like_itself_alone() -> None:
    assert np.array_equal(compare_words([frozenset({"a"}), frozenset({"a"})]), np.eye(2))


def test_a_file_of_guidance_is_read_by_training(tmp_path: Path) -> None:
    for part, names in (("train", CARS[:2]), ("test", CARS[2:])):
        for name in names:
            (tmp_path / part / name).mkdir(parents=True)
            (tmp_path / part / name / "1.jpg").touch()
    main([f"folder:{tmp_path / 'train'}:{tmp_path / 'test'}", "--out", str(tmp_path / "words.npz")])
    guidance = load_guidance(tmp_path / "words.npz", classes=CARS[1::-1], sha256=[])
    assert guidance.matrix.numpy() == pytest.approx(compare_names("cars", CARS[:2])[::-1, ::-1])


def test_the_examples_in_the_docstrings_are_right() -> None:
    result = doctest.testmod(class_words)
    assert result.attempted > 0
    assert result.failed == 0
