from __future__ import annotations

import pytest

from index.filters.parser import parse_filter
from retrieval_app.serving.filter_shape import describe_shape


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("label = 'secret'", "label = ?"),
        ("label IN ('a', 'secret') AND price < 20", "label IN (2) AND price < ?"),
        ("(a = 1 OR b LIKE 'secret%') AND NOT c IS NULL", "(a = ? OR b LIKE ?) AND NOT (c IS NULL)"),
    ],
)
def test_the_shape_of_a_filter_has_columns_and_no_values(text: str, shape: str) -> None:
    assert describe_shape(parse_filter(text)) == shape
