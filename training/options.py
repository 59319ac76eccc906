"""How config fields are written down, and their checks; the command line makes its flags from them."""

from __future__ import annotations

import math
from dataclasses import field, fields
from typing import Any

from index.errors import InputError


def option(default: Any, text: str, **meta: Any) -> Any:
    """A config field with its help text; `flag`, `choices` and `metavar` as in `index.console.config_options`."""
    return field(default=default, metadata={"help": text, **meta})


def check_at_least(config: Any, bound: float, *names: str, strict: bool = False) -> None:
    """Refuse values of the named fields below (or, strict, at) the bound, and infinite ones.

    Raises:
        InputError: naming the flag, the bound and the value.
    """
    for name in names:
        value = getattr(config, name)
        if not (value > bound if strict else value >= bound) or math.isinf(value):
            relation = "greater than" if strict else "at least"
            flag = "--" + name.rstrip("_").replace("_", "-")
            raise InputError(f"{flag} must be {relation} {bound:g}, got {value}")


def check_choices(config: Any) -> None:
    """Refuse values that are not among a field's `choices`; the command line does so before, Python code may not.

    Raises:
        InputError: naming the flag, the choices and the value.
    """
    for own in fields(config):
        choices, value = own.metadata.get("choices"), getattr(config, own.name)
        if choices is not None and value not in choices:
            flag = "--" + own.name.replace("_", "-")
            raise InputError(f"{flag} must be one of {', '.join(choices)}, got {value!r}")
