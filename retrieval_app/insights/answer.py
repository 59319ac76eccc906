"""Base classes of the API's bodies and answers, and answers that are computed once for a version of a gallery."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict

from index.gallery.gallery import Gallery

Value = TypeVar("Value")


class Body(BaseModel):
    """A JSON body, or a part of one."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Answer(BaseModel):
    """A JSON answer, or a part of one."""

    model_config = ConfigDict(extra="forbid")


class ScoredImage(Answer):
    """An image near another one, with its label where it is asked for."""

    id: int
    score: float
    label: str | None = None


def once_per_gallery(compute: Callable[[Gallery], Value]) -> Callable[[Gallery], Value]:
    """A function of an opened version with its decisions that computes once, and forgets the value with the version.

    Callers that wait share a failure; the next one computes again.
    """
    found: WeakKeyDictionary[Gallery, Future[Value]] = WeakKeyDictionary()
    lock = threading.Lock()

    @wraps(compute)
    def compute_once(gallery: Gallery) -> Value:
        with lock:
            begun = found.get(gallery)
            future = found.setdefault(gallery, begun or Future())
        try:
            if begun is None:
                future.set_result(compute(gallery))
            return future.result()
        except BaseException as error:
            if begun is None:
                del found[gallery]
                future.set_exception(error)
            raise
        finally:
            del future  # a failure refers to this frame, which must not keep the version open

    return compute_once
