"""How config fields are written down, and their checks; the command line makes its flags from them."""

from __future__ import annotations

import math
from dataclasses import field
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
