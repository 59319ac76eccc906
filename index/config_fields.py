"""How config fields are written down, and their checks; the command line makes its flags from them."""

from __future__ import annotations

import math
import types
from dataclasses import MISSING, field, fields
from numbers import Integral, Real
from typing import Any, get_args, get_origin, get_type_hints

from index.errors import InputError

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_KINDS: dict[type, type] = {int: Integral, float: Real}


def option(default: Any = MISSING, text: str = "", **meta: Any) -> Any:
    """A config field with its help text.

    `choices`, `metavar` and `flag` are as in `console.config_options`; `above`, `at_least`, `at_most` and `below` bound
    its value.
    """
    return field(default=default, metadata={"help": text, **meta})


def flag_of(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.rstrip("_").replace("_", "-")


def check_fields(config: Any) -> None:
    """Refuse values of another type than their field's, that are none of its choices, or outside its bounds.

    Raises:
        InputError: naming the flag, what it takes and the value.
    """
    hints = get_type_hints(type(config))
    for own in fields(config):
        if "help" in own.metadata:
            _check(flag_of(own.name), getattr(config, own.name), hint=hints[own.name], meta=own.metadata)


def _check(flag: str, value: Any, *, hint: Any, meta: Any) -> None:
    if get_origin(hint) is types.UnionType:
        if value is None:
            return
        hint = next(kind for kind in get_args(hint) if kind is not types.NoneType)
    if "choices" in meta:
        if value not in meta["choices"]:
            raise InputError(f"{flag} must be one of {', '.join(meta['choices'])}, got {value!r}")
        return
    if not isinstance(value, _KINDS.get(hint, hint)) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{flag} must be {_WORDS[hint]}, got {value!r}")
    if hint in _KINDS:
        _check_bounds(flag, value, meta=meta)


def _check_bounds(flag: str, value: float, *, meta: Any) -> None:
    at_least, at_most = meta.get("at_least"), meta.get("at_most")
    above, below = meta.get("above"), meta.get("below")
    low = above is None or value > above
    low = low and (at_least is None or value >= at_least)
    high = (at_most is None or value <= at_most) and (below is None or value < below)
    if low and high and math.isfinite(value):
        return
    if at_least is not None and at_most is not None:
        bounds = f"in {at_least:.12g}..{at_most:.12g}"
    else:
        words = {"greater than": above, "at least": at_least, "less than": below, "at most": at_most}
        told = [f"{word} {bound:.12g}" for word, bound in words.items() if bound is not None]
        bounds = " and ".join(told) or "a finite number"
    raise InputError(f"{flag} must be {bounds}, got {value}")
