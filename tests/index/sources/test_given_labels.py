import csv
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyarrow import parquet

from index.errors import InputError
from index.sources.local_source import TableSource
from index.sources.registry import find_source, make_source
from index.sources.table_rows import USUAL, TableColumns, make_address, read_column, read_labels, split_address
from tests.conftest import draw_image


def test_paths_are_relative_to_the_csv_or_absolute_and_empty_labels_are_none(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(
        "\ufeffpath,label,note\na/1.jpg,cat,x\n"
        f"{tmp_path}/b.jpg, dog ,\n"
        '../c.jpg,"a, b",\nd.jpg,,\n"new\nline.jpg",owl,\n',
        encoding="utf-8",
    )
    assert read_labels(file) == {
        f"{tmp_path}/a/1.jpg": "cat",
        f"{tmp_path}/b.jpg": "dog",
        f"{tmp_path.parent}/c.jpg": "a, b",
        f"{tmp_path}/new\nline.jpg": "owl",
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"file,label\na,b\n", "expected a column path; found file, label"),
        (b"", "expected a column path and a column label; found none"),
        (b"path,label,label\n1,2,3\n", "the column label is there twice; found path, label, label"),
        (b"path,label\n,b\n", "line 2: the path is empty"),
        (b"path,label\na\0.jpg,b\n", "line 2: the path has a NUL in it"),
        (b"path,label\na.jpg,cat\n./a.jpg,dog\n", "line 3: ./a.jpg is labelled 'dog' here and 'cat' above"),
        (b"path,label\n\xff\xfe,b\n", "not a readable UTF-8 CSV"),
    ],
)
def test_a_label_file_that_cannot_be_right_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "labels.csv").write_bytes(content)
    with pytest.raises(InputError, match=problem):
        read_labels(tmp_path / "labels.csv")


def write_parquet(target: Path, /, **columns: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), target)
    return target


@pytest.mark.parametrize(
    ("labels", "texts"),
    [
        (pyarrow.array([3.0, math.nan, 0.5]), ["3", None, "0.5"]),
        (pyarrow.array([True, None, False]), ["True", None, "False"]),
        (pyarrow.array(["cat", None, "dog"]).dictionary_encode(), ["cat", None, "dog"]),
        (pyarrow.array([b"cat", None, b"\xff"]), ["cat", None, "\\xff"]),
    ],
)
def test_parquet_labels_become_text(tmp_path: Path, labels: pyarrow.Array, texts: list[str | None]) -> None:
    names = ["0.jpg", "1.jpg", "2.jpg"]
    file = write_parquet(tmp_path / "labels.parquet", path=names, label=labels)
    assert read_labels(file) == {str(tmp_path / n): text for n, text in zip(names, texts, strict=True) if text}


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"path": ["a", ""], "label": ["b", "b"]}, "row 2: the path is empty"),
        ({"path": [1], "label": ["b"]}, "row 1: expected a path as text, found int"),
        ({"path": ["a"], "label": [["b", "c"]]}, "expected labels that are text or numbers, found list"),
        ({"path": ["a", "./a"], "label": ["b", "c"]}, r"row 2: \./a is labelled 'c' here and 'b' above"),
    ],
)
def test_a_wrong_parquet_table_is_refused(tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_labels(write_parquet(tmp_path / "labels.parquet", **columns))


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "labels.parquet", path=[f"{i}.jpg" for i in range(500)], label=["a"] * 500)
    whole = file.read_bytes()
    text = whole.replace(b"499.jpg", b"\xff99.jpg")
    assert text != whole
    for content in (text, b"", whole[: len(whole) // 2], whole[:4] + bytes(200) + whole[204:]):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"labels\.parquet: not a readable Parquet file"):
            read_labels(file)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
TABLES = st.dictionaries(WORDS.filter(bool).map(os.path.normpath), WORDS, max_size=8)


@given(TABLES)
def test_tables_come_back_unchanged(tmp_path_factory: pytest.TempPathFactory, table: dict[str, str]) -> None:
    folder = tmp_path_factory.mktemp("tables")
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *table.items()])
    texts = pyarrow.string()
    write_parquet(
        folder / "labels.parquet", path=pyarrow.array(table.keys(), texts), label=pyarrow.array(table.values(), texts)
    )
    expected = {os.path.join(folder, path): label.strip() for path, label in table.items() if label.strip()}
    # a path that is absolute, or leads out of the folder, is normalised once more
    expected = {os.path.normpath(path): label for path, label in expected.items()}
    assert read_labels(folder / "labels.csv") == read_labels(folder / "labels.parquet") == expected


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
    "text", ["t.csv#image", "t.csv#path=", "t.csv#file=a", "t.csv#path=a,path=b", "t.csv#path=a,url=b"]
)
def test_an_address_that_is_not_understood_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        InputError, match=r"expected names of the columns path \(or url\) and label after #, as in photos\.csv#"
    ):
        split_address(text)


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
    address = Path(f"{table}#path=image,label=class")
    assert sorted(read_labels(address).values()) == ["cat", "cat", "dog", "dog"]
    assert sorted(read_column(address, "price").values()) == ["0", "1", "2", "3"]
    with pytest.raises(InputError, match="two columns of a table, got 'a' and 'a'"):
        TableColumns(path="a", label="a")
    table.write_text("path,label,split\na.png,a,train\n./a.png,a,val\n")
    with pytest.raises(InputError, match=r"line 3: ./a\.png has another value of 'split' above"):
        read_column(table, "split")


def test_a_file_whose_own_name_looks_like_an_address_is_that_file(tmp_path: Path) -> None:
    odd = tmp_path / "t.csv#path=a"
    odd.write_text("a\n")
    assert find_source(str(odd)).kind == "file"
