"""Built-in model: the ONNX file that comes with the package; docs/builtin-model.md describes it."""

import logging
from functools import cache
from pathlib import Path

from index.errors import ModelFileError
from index.model.checksum import read_model_file
from index.model.contract import ModelContract, find_contract

logger = logging.getLogger(__name__)
BUILTIN = "builtin"
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


def find_named_model(given: str | Path) -> Path:
    """Path of a model that a user named: `builtin` is the built-in model, unless there is a file of that name."""
    path = Path(given)
    return find_builtin() if str(given) == BUILTIN and not path.exists() else path


def describe_builtin() -> ModelContract:
    """Contract of the built-in model, read without a runtime."""
    contract = find_contract(find_builtin())
    if contract is None:
        raise ModelFileError(BUILTIN_MODEL, "it has no contract; install this package again")
    return contract


@cache
def builtin_sha256(model: Path = BUILTIN_MODEL) -> str | None:
    """SHA-256 of the built-in model, as manifests of galleries name it; None, with a warning, where it is damaged."""
    try:
        return read_model_file(find_builtin(model)).sha256
    except ModelFileError as error:  # galleries have their own model, and go on
        logger.warning("%s", error)
        return None
