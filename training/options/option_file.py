"""Training options in a TOML file, as `retrieval train --config` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from index.errors import InputError
from index.text import printable_path
from index.toml_options import read_toml_options
from training.options.resolve import FILES, WEIGHTS

_OF_THE_COMMAND = (
    "out",
    "val",
    "cache",
    "device",
    "precision",
    "workers",
    "resume",
    "rank_timeout",
    "json",
    "log",
)


def read_options(path: Path) -> dict[str, Any]:
    """Options by their names in Python, from `embedding-dim = 128` or `embedding_dim = 128`.

    Files that they name are looked for beside the file, unless their paths are absolute. What an option takes is left
    to `resolve`.

    Raises:
        InputError: it cannot be read, is no TOML, or an option is a table, or stands there twice.
    """
    options: dict[str, Any] = {}
    for key, value in read_toml_options(path, example="embedding-dim = 128").items():
        name = _name_of(key)
        if name in _OF_THE_COMMAND:
            raise InputError(
                f"{printable_path(str(path))}: {key} is of the run, not of its training: give --{key} on the command "
                "line"
            )
        is_file = name in FILES and isinstance(value, str) and value not in WEIGHTS
        options[name] = str(path.parent / value) if is_file else value
    return options


def _name_of(key: str) -> str:
    name = key.replace("-", "_")
    return "lambda_" if name == "lambda" else name
