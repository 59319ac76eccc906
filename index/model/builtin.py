"""Built-in model: the ONNX file that comes with the package; docs/builtin-model.md describes it."""

from functools import cache
from pathlib import Path

from index.errors import ModelFileError
from index.model.checksum import read_model_file
from index.model.contract import ModelContract, find_contract

BUILTIN_MODEL = Path(__file__).with_name("builtin.onnx")


def find_builtin(model: Path = BUILTIN_MODEL) -> Path:
    """Path of the built-in model, verified by its checksum."""
    try:
        read_model_file(model)
    except ModelFileError as error:
        raise ModelFileError(
            error.path, f"{error.problem}; it comes with this package: install that again, or name another model"
        ) from error
    return model


def describe_builtin(model: Path = BUILTIN_MODEL) -> ModelContract:
    """Contract of the built-in model, read without a runtime."""
    contract = find_contract(find_builtin(model))
    if contract is None:
        raise ModelFileError(str(model), "it has no contract; install this package again")
    return contract


@cache
def builtin_sha256() -> str:
    """SHA-256 of the built-in model's file, as manifests of galleries name it."""
    return read_model_file(find_builtin()).sha256
