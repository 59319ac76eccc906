"""Thousands of damaged model files: each is refused by name, and the runtime never sees one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from index.embedder import Embedder
from index.errors import ModelFileError
from index.telemetry import import_onnxruntime
from tests.models import write_tiny_model

CASES_PER_DAMAGE = 400


def _flip_bytes(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        changed[chance.randrange(len(changed))] ^= chance.randrange(1, 256)
    return bytes(changed)


def _cut(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] if chance.random() < 0.8 else content[place + 1 :]


def _insert(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.randbytes(chance.randint(1, 40)) + content[place:]


def _swap_blocks(content: bytes, chance: random.Random) -> bytes:
    a, b, c, d = sorted(chance.sample(range(len(content) + 1), 4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def _clear(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content))
    count = min(chance.choice((1, 16, 512, 4096)), len(content) - start)
    return content[:start] + bytes(count) + content[start + count :]


def _repeat(content: bytes, chance: random.Random) -> bytes:
    start, end = sorted(chance.sample(range(len(content) + 1), 2))
    return content[:end] + content[start:end] + content[end:]


DAMAGES = (_flip_bytes, _cut, _insert, _swap_blocks, _clear, _repeat)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_damaged_model_is_refused_by_name_before_it_is_run(
    damage: Callable[[bytes, random.Random], bytes],
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content, chance, path = (
        tiny_model.read_bytes(),
        random.Random(f"seal {damage.__name__}"),
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
        with pytest.raises(ModelFileError, match=r"bent\.onnx: .*export the model"):
            Embedder(path)


def test_two_models_never_mix(tiny_model: Path, tmp_path: Path) -> None:
    first, second = tiny_model.read_bytes(), write_tiny_model(tmp_path / "b.onnx", seed=1).read_bytes()
    mixed = {first[:place] + second[place:] for place in range(0, len(first), 97)} - {first, second}
    assert len(mixed) > 50
    for content in mixed:
        (tmp_path / "mixed.onnx").write_bytes(content)
        with pytest.raises(ModelFileError, match=r"mixed\.onnx: damaged"):
            Embedder(tmp_path / "mixed.onnx")
