"""A flat list of options in a TOML file: `batch-size = 9`, without tables."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from index.errors import InputError
from index.text import printable_path


def read_toml_options(path: Path, *, example: str) -> dict[str, Any]:
    """What stands in the file, by the names in it, which have - or _ alike; `example` is a line to show.

    Raises:
        InputError: it cannot be read, is no TOML, or an option is a table, or stands there twice.
    """
    shown = printable_path(str(path))
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise InputError(f"{shown}: expected TOML such as {example}: {error}") from error
    seen = set[str]()
    for key, value in document.items():
        if isinstance(value, dict):
            raise InputError(f"{shown}: [{key}] is a table; write options without one, such as {example}")
        if key.replace("-", "_") in seen:
            raise InputError(f"{shown}: {key} stands there twice, once with - and once with _")
        seen.add(key.replace("-", "_"))
    return document
