"""The condition of a request: what its `where` and its `text` ask for, together."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from index.errors import InputError
from index.filters.condition import SOURCE, Condition, join, list_columns
from index.filters.parser import find_words, parse_filter
from retrieval_app.api.errors import ApiError


@lru_cache(maxsize=256)
def read_condition(where: str | None, text: str | None, *, folders: bool) -> Condition | None:
    """The filter of a condition and of words, both to be fulfilled; None without any.

    Args:
        where: the condition.
        text: the words.
        folders: whether who asks may know of the folders of the machine; else no condition may try them out.
    """
    filters: list[Condition] = []
    if where is not None and where.strip():
        condition = _read(parse_filter, where, field="where")
        if not folders and SOURCE in list_columns(condition):
            message = "source is a folder of the machine: only those with its token can ask for it"
            raise ApiError(message, status=422, field="where")
        filters.append(condition)
    if text is not None and text.strip():
        filters.append(_read(find_words, text, field="text"))
    return join(filters) if filters else None


def _read(read: Callable[[str], Condition], text: str, *, field: str) -> Condition:
    try:
        return read(text)
    except InputError as error:
        raise ApiError(str(error), status=422, field=field) from error
