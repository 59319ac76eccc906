"""The model that comes with the package: small, of two outputs, and told where it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.errors import ModelFileError
from index.model.embedder import Embedder
from index.model.in_the_box import BOX, find_box
from index.outputs import KIND, PICTURE


def test_it_answers_by_kind_and_by_picture_in_a_few_megabytes() -> None:
    model = Embedder(find_box())
    assert list(model.contract.widths) == [KIND, PICTURE]
    assert 0 < model.contract.picture_threshold < 1
    assert BOX.stat().st_size <= 6_000_000


@pytest.mark.parametrize("damage", ["missing", "one bit"])
def test_where_it_is_damaged_the_package_is_to_be_installed_again(tmp_path: Path, damage: str) -> None:
    box, data = tmp_path / "box.onnx", bytearray(BOX.read_bytes())
    if damage == "one bit":
        data[len(data) // 2] ^= 1
        box.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"box\.onnx: .*install that again, or name another model"):
        find_box(box)
