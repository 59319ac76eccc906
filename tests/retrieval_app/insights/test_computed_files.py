"""Results on disk."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from index.arrays import Floats, Ids
from retrieval_app.insights.computed_files import Listed, read_result, write_result


@dataclass(frozen=True, slots=True)
class Inner:
    """Some values."""

    name: str
    path: str
    share: float
    more: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Outer:
    """Values of all kinds."""

    inner: tuple[Inner, ...]
    one: Inner | None
    by_number: dict[int, float]
    ids: Annotated[Ids, Listed(int, np.int64)]
    places: Annotated[Floats, Listed(float, np.float32)]
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", len(self.inner))


def make() -> Outer:
    ids, places = np.array([3, 2**40]), np.array([0.5, np.inf], dtype=np.float32)
    return Outer((Inner("café", "caf\udce9", 1, (("a", 1),)),), None, {3: 0.1}, ids, places)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, made = tmp_path / "new" / "result.json", make()
    write_result(path, made, of="this")
    read = read_result(path, Outer, of="this")
    assert read is not None
    assert (read.inner, read.one, read.by_number, read.size) == (made.inner, made.one, made.by_number, 1)
    for name in ("ids", "places"):
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
        assert getattr(read, name).dtype == getattr(made, name).dtype
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]


def test_what_is_of_something_else_is_not_read(tmp_path: Path) -> None:
    write_result(tmp_path / "result.json", make(), of="this")
    assert read_result(tmp_path / "result.json", Outer, of="that") is None
    assert read_result(tmp_path / "result.json", Inner, of="this") is None
    assert read_result(tmp_path / "none.json", Outer, of="this") is None
    assert read_result(tmp_path, Outer, of="this") is None


def test_values_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(path, make(), of="this")
    header, _, content = path.read_bytes().partition(b"\n")
    right = [("one", None), ("by_number", {}), ("places", [2**70])]
    for name, value in itertools.product(
        ("inner", "one", "by_number", "ids", "places"), (None, 7, {}, [None], [2**70])
    ):
        forged = json.dumps({**json.loads(content), name: value}).encode()
        checked = {**json.loads(header), "sha256": hashlib.sha256(forged).hexdigest()}
        path.write_bytes(json.dumps(checked).encode() + b"\n" + forged)
        assert (read_result(path, Outer, of="this") is None) is ((name, value) not in right), (name, value)
