"""Computed results as JSON on disk, and back again, each with a checksum and what it was computed from."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from index.durable import replacing
from index.file_lock import try_lock

_FORMAT = 8  # of the file, and of what is computed: a change of either makes all files of before unreadable
_LOOK_S = 0.3
Result = TypeVar("Result")

logger = logging.getLogger(__name__)


class Listed:
    """Says, in `Annotated`, that an (n,) array is kept as the list of its numbers."""

    def __init__(self, number: type[int] | type[float], dtype: npt.DTypeLike) -> None:
        self._number, self._dtype = number, dtype

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda numbers: np.array(numbers, dtype=self._dtype),
            handler.generate_schema(list[self._number]),  # type: ignore[name-defined]
            serialization=core_schema.plain_serializer_function_ser_schema(np.ndarray.tolist),
        )


@contextmanager
def computing_alone(folder: Path, name: str, *, look: Callable[[], object]) -> Iterator[None]:
    """Let one process at a time compute what is of a name, the others then read it; alone where nothing can be written.

    `look` is called again and again while another process computes, and may raise.
    """
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((folder / f".{name}.lock").open("ab"))
            while not try_lock(file):
                look()
                time.sleep(_LOOK_S)
        except OSError as error:
            logger.debug("%s: computed without a lock: %s", folder, error)
        yield


def write_result(path: Path, result: Any, *, of: str) -> None:
    """Write a dataclass or model, durably and in one step; `of` names what it was computed from.

    Raises:
        OSError: the file cannot be written.
    """
    values = TypeAdapter(type(result)).dump_python(result)
    content = json.dumps(values, separators=(",", ":")).encode()
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
        return TypeAdapter(kind).validate_python(
            json.loads(content)
        )  # whose text may be halves of surrogate pairs
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):  # damaged, or another program's
        return None
