"""Options: config classes whose fields define name, default, bounds and help.

`index.commands.console.config_options` generates the flags; Python passes the fields as keywords.
"""

import math
import os
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from index.errors import InputError

Config = TypeVar("Config")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path as str or Path"}
_KINDS: dict[type, type] = {int: Integral, float: Real}


def option(default: Any = MISSING, text: str = "", **meta: Any) -> Any:
    """A config field: its default or a function that makes it, help, bounds, and more for `console.config_options`."""
    if callable(default):
        return field(default_factory=default, metadata={"help": text, **meta})
    return field(default=default, metadata={"help": text, **meta})


def flag_of(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")


def check_fields(config: Any) -> None:
    """Check every field's type, choices and bounds."""
    hints = get_type_hints(type(config))
    for own in fields(config):
        if "help" in own.metadata:
            _check(flag_of(own.name), getattr(config, own.name), hint=hints[own.name], meta=own.metadata)


def _check(flag: str, value: Any, *, hint: Any, meta: Any) -> None:
    if value is None and get_origin(hint) is types.UnionType:
        return
    hint = _without_none(hint)
    if "choices" in meta:
        if value not in meta["choices"]:
            raise InputError(f"{flag} must be one of {', '.join(meta['choices'])}, got {value!r}")
        return
    if not isinstance(value, _KINDS.get(hint, hint)) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{flag} must be {_WORDS[hint]}, got {value!r}")
    if hint in _KINDS:
        _check_bounds(flag, value, meta=meta)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) is not types.UnionType:
        return hint
    return next(kind for kind in get_args(hint) if kind is not types.NoneType)


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


def make_config(config: type[Config], values: Mapping[str, Any]) -> Config:
    """A config from values by name, nested ones too; None, where a field cannot be None, means the default."""
    hints = get_type_hints(config)
    made: dict[str, Any] = {}
    for own in fields(config):  # type: ignore[arg-type]
        hint = hints[own.name]
        if is_dataclass(hint):
            made[own.name] = make_config(hint, values)  # type: ignore[arg-type]
        elif own.name in values and (values[own.name] is not None or hint is not _without_none(hint)):
            made[own.name] = _as_builtin(values[own.name], _without_none(hint))
    return config(**made)


def _as_builtin(value: Any, kind: Any) -> Any:
    """Convert NumPy's numbers to Python's, and text to a path."""
    if kind is Path and isinstance(value, str | os.PathLike):
        return Path(value)
    is_foreign = kind in _KINDS and isinstance(value, _KINDS[kind]) and not isinstance(value, int | float)
    return kind(value) if is_foreign else value


def as_config(kind: type[Config], config: Config | None, options: Mapping[str, Any]) -> Config:
    """The given config, or one of the keywords: public functions take either."""
    if config is None:
        refuse_unknown(options, kind)
        return make_config(kind, options)
    if options:
        raise InputError(f"{next(iter(options))}: belongs into the {kind.__name__} that is given")
    return config


def refuse_given(config: Any, *names: str, needs: str) -> None:
    """Refuse options that would have no effect, unless they have their default."""
    for own in fields(config):
        if own.name in names and getattr(config, own.name) != own.default:
            raise InputError(f"{flag_of(own.name)} goes with {needs}")


def option_names(*configs: type) -> Iterator[str]:
    """Names of all options of the configs, nested ones included."""
    for config in configs:
        hints = get_type_hints(config)
        for own in fields(config):
            hint = hints[own.name]
            if is_dataclass(hint):
                yield from option_names(hint)  # type: ignore[arg-type]
            elif "help" in own.metadata:
                yield own.name


def refuse_unknown(values: Mapping[str, Any], *configs: type) -> None:
    """Refuse unknown options, and suggest a similar one."""
    known = list(option_names(*configs))
    for name in values:
        if name not in known:
            raise InputError(f"{name}: no such option; {suggest(name, known)}")


def suggest(name: str, known: list[str]) -> str:
    """Suggestion of a known name."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(known))}"


def as_path(value: str | Path, name: str) -> Path:
    """A `Path` from text or a `Path`; `name` is for the error."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name}: expected a path as str or Path, got {value!r}")
    return Path(value)
