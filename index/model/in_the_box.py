"""The model that comes with the package, for whoever names none; docs/model-in-the-box.md says what it learnt from."""

from __future__ import annotations

from pathlib import Path

from index.errors import ModelFileError
from index.model.checksum import read_model_file
from index.model.contract import ModelContract, find_contract

BOX = Path(__file__).with_name("box.onnx")


def find_box(box: Path = BOX) -> Path:
    """The model in the box."""
    try:
        read_model_file(box)
    except ModelFileError as error:
        raise ModelFileError(
            error.path, f"{error.problem}; it comes with this package: install that again, or name another model"
        ) from error
    return box


def describe_box(box: Path = BOX) -> ModelContract:
    """What the model in the box says of itself; no runtime is needed."""
    contract = find_contract(find_box(box))
    if contract is None:
        raise ModelFileError(str(box), "it has no contract; install this package again")
    return contract
