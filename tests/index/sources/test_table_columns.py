"""What the columns of a table are called, and how its address says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from index.errors import InputError
from index.sources.given_labels import read_column, read_labels
from index.sources.registry import find_source, make_source
from index.sources.table import TableSource
from index.sources.table_columns import USUAL, TableColumns, make_address, split_address
from tests.conftest import draw_image

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


@given(NAMES, NAMES, st.sampled_from(["t.csv", "a#b.csv", "odd name.PARQUET", "x=1,y.csv"]))
def test_an_address_says_what_it_was_made_of(path: str, label: str, table: str) -> None:
    assume(path != label)
    columns = TableColumns(path=path, label=label)
    address = make_address(table, columns)
    read, said = split_address(address)
    assert (read, replace(USUAL, **said)) == (table, columns)
    assert "/" not in address.removeprefix(table)  # or it would be taken for a folder's name


@pytest.mark.parametrize(
    "text", ["t.csv#", "t.csv#image", "t.csv#path=", "t.csv#file=a", "t.csv#path=a,path=b", "t.csv#path=a,url=b"]
)
def test_an_address_that_is_not_understood_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        InputError, match=r"after # the columns of path \(or url\) and label are expected, as in photos\.csv#"
    ):
        split_address(text)


def test_path_and_label_are_two_columns() -> None:
    with pytest.raises(InputError, match="two columns of a table, got 'a' and 'a'"):
        TableColumns(path="a", label="a")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for n in range(4):
        draw_image((40 * n, 90, 200), seed=n).save(tmp_path / f"{n}.png")
    rows = [f"{n}.png,{'cat' if n % 2 else 'dog'},{n},elsewhere" for n in range(4)]
    file = tmp_path / "products.csv"
    file.write_text("\n".join(["image,class,price,path", *rows]) + "\n")
    return file


def test_the_named_columns_give_path_and_label_and_the_others_metadata(table: Path) -> None:
    source = find_source(f"{table}#path=image,label=class")
    assert isinstance(source, TableSource)
    items = list(source.scan())
    assert [item.label for item in items] == ["dog", "cat", "dog", "cat"]
    assert [dict(item.metadata or {}) for item in items] == [{"price": n, "path": "elsewhere"} for n in range(4)]
    assert all(item.problem is None for item in items)
    assert list(make_source(source.kind, source.location).scan()) == items


def test_labels_and_columns_are_read_by_the_same_address(table: Path) -> None:
    address = Path(f"{table}#path=image,label=class")
    assert sorted(read_labels(address).values()) == ["cat", "cat", "dog", "dog"]
    assert sorted(read_column(address, "price").values()) == ["0", "1", "2", "3"]


def test_a_column_that_is_not_there_is_named_beside_those_that_are(table: Path) -> None:
    with pytest.raises(
        InputError, match=r"expected a column kind; found image, class, price, path\. Say what"
    ) as caught:
        list(find_source(f"{table}#path=image,label=kind").scan())
    assert "--label-column" in str(caught.value)


def test_a_file_whose_own_name_looks_like_an_address_is_that_file(tmp_path: Path) -> None:
    odd = tmp_path / "t.csv#path=a"
    odd.write_text("a\n")
    assert find_source(str(odd)).kind == "file"


def test_an_image_with_two_values_in_a_column_is_refused(table: Path) -> None:
    table.write_text("path,label,split\na.png,a,train\n./a.png,a,val\n")
    with pytest.raises(InputError, match=r"line 3: ./a\.png has another value of 'split' above"):
        read_column(table, "split")
