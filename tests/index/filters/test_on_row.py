from __future__ import annotations

from collections.abc import Sequence

from index.filters.condition import Condition
from index.filters.parser import parse_filter
from tests.index.filters.compilers import check_compiler
from tests.index.filters.on_row import Row, fulfils


def keep(condition: Condition, rows: Sequence[Row]) -> list[int]:
    return [number for number, row in enumerate(rows) if fulfils(condition, row) is True]


def test_rows_fulfil_conditions_as_every_compiler_must_have_it() -> None:
    check_compiler(keep)


def test_what_lacks_in_a_row_is_null() -> None:
    assert fulfils(parse_filter("label = 'a'"), {}) is None
    assert fulfils(parse_filter("x IS NULL AND path IS NULL"), {"metadata": None}) is True
