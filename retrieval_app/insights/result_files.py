"""Computed results on disk as JSON: dataclasses of plain values, other dataclasses and arrays, and back again."""

from __future__ import annotations

import base64
import hashlib
import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from index.durable import replacing

_FORMAT = 3  # of the file, and of what is computed: a change of either makes all files of before unreadable
Result = TypeVar("Result")


def write_result(path: Path, result: Any, *, of: str) -> None:
    """Write a dataclass, durably and in one step; `of` names what it was computed from.

    Raises:
        OSError: the file cannot be written.
    """
    content = json.dumps(_to_values(result), separators=(",", ":")).encode()
    header = {"format": _FORMAT, "of": of, "sha256": hashlib.sha256(content).hexdigest()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(json.dumps(header).encode() + b"\n" + content)


def read_result(path: Path, kind: type[Result], *, of: str) -> Result | None:
    """A result that was written for the same `of`; None where there is none that can be read."""
    try:
        header, _, content = path.read_bytes().partition(b"\n")
        wanted = {"format": _FORMAT, "of": of, "sha256": hashlib.sha256(content).hexdigest()}
        if json.loads(header) != wanted:
            return None
        result: Result = _restore(kind, json.loads(content))
        return result
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # damaged, or another program's: made anew
        return None


def _to_values(result: Any) -> Any:
    if is_dataclass(result):
        return {field.name: _to_values(getattr(result, field.name)) for field in fields(result) if field.init}
    if isinstance(result, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(result).tobytes()).decode("ascii")
        return {"dtype": result.dtype.str, "shape": list(result.shape), "data": data}
    if isinstance(result, Mapping):
        return {str(key): _to_values(value) for key, value in result.items()}
    if isinstance(result, tuple | list):
        return [_to_values(value) for value in result]
    return result


def _restore(kind: Any, values: Any) -> Any:
    """A value of a type from what `_to_values` made of it.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    origin: Any = get_origin(kind) or kind
    inner = get_args(kind)
    if is_dataclass(origin):
        kinds_of = get_type_hints(origin)
        hints = {field.name: kinds_of[field.name] for field in fields(origin) if field.init}
        if set(values) != set(hints):
            raise ValueError(f"expected {sorted(hints)}, got {sorted(values)}")
        restored = {name: _restore(hint, values[name]) for name, hint in hints.items()}
        return kind(**restored)
    if origin is np.ndarray:
        return _restore_array(inner, values)
    if origin in (Union, types.UnionType):
        return None if values is None else _restore(next(one for one in inner if one is not type(None)), values)
    if origin in (tuple, dict) and type(values) is not (list if origin is tuple else dict):
        raise ValueError(f"expected {kind}, got {type(values).__name__}")
    if origin is tuple:
        kinds = [inner[0]] * len(values) if inner[-1] is Ellipsis else inner
        return tuple(_restore(one, value) for one, value in zip(kinds, values, strict=True))
    if origin is dict:
        return {inner[0](key): _restore(inner[1], value) for key, value in values.items()}
    if origin is Literal and values in inner:
        return values
    if origin is Any or type(values) is origin or (origin is float and type(values) is int):
        return values
    raise ValueError(f"expected {kind}, got {type(values).__name__}")


def _restore_array(inner: tuple[Any, ...], values: Mapping[str, Any]) -> Any:
    dtype = np.dtype(values["dtype"])
    if dtype != np.dtype(get_args(inner[1])[0]):  # never objects: no result has an array of them
        raise ValueError(f"expected {inner[1]}, got {dtype}")
    flat = np.frombuffer(base64.b64decode(values["data"], validate=True), dtype=dtype)
    return flat.reshape(values["shape"])
