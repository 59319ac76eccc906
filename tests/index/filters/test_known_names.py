import sqlite3
from collections.abc import Sequence
from contextlib import closing

import pytest

from index.errors import InputError
from index.filters.parser import parse_filter
from tests.index.filters.catalogs import fill_catalog
from tests.index.filters.compilers import Flat, make_rows


def keep(rows: Sequence[Flat], text: str) -> list[int]:
    """Positions of the rows that a filter keeps."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        catalog, where = fill_catalog(connection, make_rows(rows)), parse_filter(text)
        found = catalog.matching_ids(where).tolist()
        assert [row.id for row in catalog.rows(where=where)] == found
        return [number - 1 for number in found]


def test_a_misspelt_column_is_named_with_those_that_there_are() -> None:
    rows: list[Flat] = [{"price": 1, "shop": 2, "exif": {"iso": 1, "focal length": 3}}, {"title": "a", "label": "b"}]
    for text, message in (
        ("shop = 1 OR pirce < 20", "metadata pirce; there are exif, .*, price, .*; did you mean price\\?$"),
        ("exif.izo = 1", 'metadata exif.izo; there are exif."focal length", exif.iso; did you mean exif.iso\\?$'),
        ("sharpnes < 3", "metadata sharpnes; there are exif, .*, sharpness, .*; did you mean sharpness\\?$"),
        ("exfi.iso IS NULL", "metadata exfi; there are exif, .*; did you mean exif\\?$"),
        ("price.amount = 1", "metadata price.amount; there is none within price$"),
        ('"\x1b" = 1', r'metadata "\\x1b"; there are '),
    ):
        with pytest.raises(InputError, match=f"^no item of the gallery has the {message}"):
            keep(rows, text)
    with pytest.raises(InputError) as caught:
        keep(rows, "x = 1")
    said = str(caught.value).partition("; there are ")[2].split(", ")
    assert said == ["exif", "id", "label", "metadata.label", "path", "price", "shop", "source", "tag", "title"]
    with pytest.raises(InputError, match=r"; there are column0, column1, .* and 43 more; did you mean column0\?$"):
        keep([{f"column{number}": 1 for number in range(50)}], "column = 1")


def test_metadata_of_rows_that_are_not_indexed_is_no_misspelt_column() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        catalog = fill_catalog(connection, make_rows([{"x": 1}, {"y": 1}, {"y": 1}]))
        connection.execute("UPDATE images SET status = 'skipped' WHERE id = 2")
        where = parse_filter("y = 1")
        assert catalog.matching_ids(where).tolist() == [3]
        assert catalog.matching_ids(where, status="skipped").tolist() == [2]
        assert catalog.matching_ids(where, status=None).tolist() == [2, 3]
        assert [row.id for row in catalog.rows(where=where, status="skipped")] == [2]
        assert [row.id for row in catalog.rows(where=where, after=2, limit=1)] == [3]
        assert [row.id for row in catalog.rows(where=where, limit=1)] == [2]
        connection.execute("DELETE FROM images WHERE id = 3")
        assert catalog.matching_ids(where).tolist() == []


def test_a_misspelt_label_is_named_with_those_that_there_are() -> None:
    rows: list[Flat] = [{"own label": "shoes"}, {"own label": "hat"}, {"own label": "042"}, {}]
    for text, message in (
        ("label = 'shoess'", r"label shoess; there are 042, hat, shoes; did you mean shoes\?$"),
        ("id > 2 OR NOT (label IN ('hat', 'Shoe'))", r"label Shoe; there are 042, .*; did you mean shoes\?$"),
        ("label = 43", "label 43; there are 042, "),
        ("label = 'SHOE'", r"label SHOE; there are 042, .*; did you mean shoes\?$"),
        ("label = '\x1b'", r"label \\x1b; there are "),
    ):
        with pytest.raises(InputError, match=f"^no item of the gallery has the {message}"):
            keep(rows, text)
    with pytest.raises(InputError, match=r"LIKE takes % for any characters .* not \*; write LIKE '%hat%'$"):
        keep(rows, "label LIKE '*hat*'")
    assert keep([*rows, {"own label": "h*t"}], "label LIKE 'H*T'") == [4]
    assert keep(rows, "label = 42 OR label = 'hat'") == [1, 2]
    assert keep(rows, "label LIKE 'x%' OR label > 'x' OR label IS NULL") == [3]
    with pytest.raises(InputError, match=r"^no item of the gallery has the label cat; there are none$"):
        keep([{}], "label = 'cat'")
