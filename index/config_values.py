"""Config classes filled with plain values by name, for the command line and Python alike; each value has its type."""

from __future__ import annotations

import os
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from index.errors import InputError

Config = TypeVar("Config")


def make_config(config: type[Config], values: Mapping[str, Any]) -> Config:
    """The config whose fields, and those of the configs in it, are found in the values; others keep their defaults.

    Raises:
        InputError: a value is of another type, or out of range (from the class's own check).
    """
    hints = get_type_hints(config)
    made: dict[str, Any] = {}
    for field in fields(config):  # type: ignore[arg-type]
        hint = hints[field.name]
        if is_dataclass(hint):
            made[field.name] = make_config(hint, values)  # type: ignore[arg-type]
        elif field.name in values:
            made[field.name] = _check_type(field.name, values[field.name], hint)
    return config(**made)


def option_names(*configs: type) -> Iterator[str]:
    """The names of all fields of the configs, and of the configs in them."""
    for config in configs:
        hints = get_type_hints(config)
        for field in fields(config):
            hint = hints[field.name]
            if is_dataclass(hint):
                yield from option_names(hint)  # type: ignore[arg-type]
            else:
                yield field.name


def refuse_unknown(values: Mapping[str, Any], *configs: type) -> None:
    """Refuse a misspelt option.

    Raises:
        InputError: a name is of none of the configs; it says which one may be meant.
    """
    known = list(option_names(*configs))
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(known))}"
            raise InputError(f"{name}: no such option; {hint}")


def as_path(value: str | Path, name: str) -> Path:
    """A path that was given as text or as a `Path`.

    Raises:
        InputError: it is something else; `name` is what it was given as.
    """
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name}: expected a path as str or Path, got {value!r}")
    return Path(value)


def _check_type(name: str, value: Any, hint: Any) -> Any:
    allowed = get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
    kinds = tuple(get_origin(kind) or kind for kind in allowed)
    if isinstance(value, bool) and bool not in kinds:
        fits = False  # True is no number here, though Python has it as 1
    else:
        fits = isinstance(value, kinds) or (isinstance(value, int) and float in kinds)
    if not fits:
        expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise InputError(f"{name}: expected {expected}, got {value!r}")
    return value
