"""Thousands of damaged model files: each is refused by name, and the runtime never sees one."""

import random
from pathlib import Path

import pytest

from index.errors import ModelFileError
from index.model.backends.onnxruntime import import_onnxruntime
from index.model.embedder import Embedder
from tests.deep import tries
from tests.fuzz.mutations import MUTATORS, Mutator
from tests.models import write_tiny_model

CASES_PER_DAMAGE = tries(25, deep=250)


@pytest.mark.deep
@pytest.mark.parametrize("damage", MUTATORS, ids=lambda damage: damage.__name__)
def test_a_damaged_model_is_refused_by_name_before_it_is_run(
    damage: Mutator, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, chance, path = (
        tiny_model.read_bytes(),
        random.Random(f"checksum {damage.__name__}"),
        tmp_path / "bent.onnx",
    )

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a damaged file reached the runtime")

    monkeypatch.setattr(import_onnxruntime(), "InferenceSession", refuse)
    made = 0
    while made < CASES_PER_DAMAGE:
        damaged = damage(content, chance)
        if damaged == content:
            continue
        made += 1
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=r"bent\.onnx: .*export"):
            Embedder(path)


def test_two_models_never_mix(tiny_model: Path, tmp_path: Path) -> None:
    first, second = tiny_model.read_bytes(), write_tiny_model(tmp_path / "b.onnx", seed=1).read_bytes()
    mixed = {first[:place] + second[place:] for place in range(0, len(first), 97)} - {first, second}
    assert len(mixed) > 50
    for content in mixed:
        (tmp_path / "mixed.onnx").write_bytes(content)
        with pytest.raises(ModelFileError, match=r"mixed\.onnx: damaged"):
            Embedder(tmp_path / "mixed.onnx")
