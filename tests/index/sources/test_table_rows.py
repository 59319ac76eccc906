import csv
import json
import math
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from index.errors import InputError
from index.sources.table_rows import as_json, read_table_rows
from tests.index.sources.test_given_labels import write_parquet


def write_csv(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def metadata(file: Path) -> list[dict[str, Any]]:
    return [dict(row.metadata) for _, row in read_table_rows(file)]


def test_rows_come_in_the_tables_order_with_where_they_stand(tmp_path: Path) -> None:
    text = 'note,label,path\nx, cat ,b.jpg\n"two\nlines",,a.jpg\n\n,dog, spaces .jpg\n'
    rows = list(read_table_rows(write_csv(tmp_path / "t.csv", text)))
    assert [(where, row.path, row.label, dict(row.metadata)) for where, row in rows] == [
        ("line 2", "b.jpg", "cat", {"note": "x"}),
        ("line 4", "a.jpg", "", {"note": "two\nlines"}),
        ("line 6", " spaces .jpg", "dog", {}),
    ]
    file = write_parquet(tmp_path / "t.parquet", label=["cat ", None], path=["b.jpg", "a.jpg"], note=["x", None])
    rows = list(read_table_rows(file))
    assert [(where, row.path, row.label, dict(row.metadata)) for where, row in rows] == [
        ("row 1", "b.jpg", "cat", {"note": "x"}),
        ("row 2", "a.jpg", "", {}),
    ]
    write_parquet(file, path=[f"{i}.jpg" for i in range(9001)], x=range(9001))  # several batches
    assert [(where, row.metadata["x"]) for where, row in read_table_rows(file)][-1] == ("row 9001", 9000)
    with pytest.raises(InputError, match=r"none.parquet: .*(No such file|not a readable)"):
        metadata(tmp_path / "none.parquet")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("-3", -3), ("0", 0), ("-0.25", -0.25), ("2E-2", 0.02), (str(2**63 - 1), 2**63 - 1)),
        *((text, text) for text in (str(2**63), "9" * 5000, "007", "+1", ".5", "5.", "1e999", "nan", "Infinity")),
        *((text, text) for text in ("1_000", "١٢", " 1", "true", "12 kg")),
    ],
)
def test_a_csv_value_is_a_number_where_it_is_one_in_json(tmp_path: Path, text: str, value: object) -> None:
    (found,) = metadata(write_csv(tmp_path / "t.csv", f"path,x\na,{text}\n"))
    assert found == {"x": value}
    assert type(found["x"]) is type(value)


def test_a_csv_with_ragged_rows_and_nameless_columns_is_read(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "t.csv", ",path,x,y\n0,a.jpg,1\n1,b.jpg,1,2,3,4\n2\n")
    with pytest.raises(InputError, match=r"t\.csv, line 4: the path is empty"):
        metadata(file)
    write_csv(file, ",path,x,y\n0,a.jpg,1\n1,b.jpg,1,2,3,4\n")
    assert metadata(file) == [{"x": 1}, {"x": 1, "y": 2}]


UTC2 = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pyarrow.array([2**64 - 1, None], pyarrow.uint64()), [2**64 - 1, None]),
        (pyarrow.array([math.inf, math.nan]), [None, None]),
        (pyarrow.array([Decimal("19.99"), None]), [19.99, None]),
        (pyarrow.array([b"caf\xe9", b"x"]), ["caf\\xe9", "x"]),
        (pyarrow.array([1_577_934_245_000_000_001, None], pyarrow.timestamp("ns")), ["2020-01-02T03:04:05", None]),
        (
            pyarrow.array([datetime(2020, 1, 2, tzinfo=UTC2), None], pyarrow.timestamp("ms", "+02:00")),
            ["2020-01-02T00:00:00+02:00", None],
        ),
        (pyarrow.array([-(2**62), 0], pyarrow.timestamp("ms")), [None, "1970-01-01T00:00:00"]),
        (pyarrow.array([3_723_000_000_001, None], pyarrow.time64("ns")), ["01:02:03", None]),
        (pyarrow.array([1_500_000_001, None], pyarrow.duration("ns")), [1.5, None]),
        (pyarrow.array([{"a": [b"\xff"], "b": None}, None]), [{"a": ["\\xff"], "b": None}, None]),
        (pyarrow.array([[("k", 1.5)], None], pyarrow.map_(pyarrow.string(), pyarrow.float64())), [[["k", 1.5]], None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pyarrow.Array) else "",
)
def test_parquet_values_become_json(tmp_path: Path, column: pyarrow.Array, values: list[Any]) -> None:
    found = metadata(write_parquet(tmp_path / "t.parquet", path=["a", "b"], x=column))
    assert found == [{} if value is None else {"x": value} for value in values]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@given(st.recursive(st.floats() | st.text(st.characters()), lambda inner: st.lists(inner, max_size=3)))
def test_whatever_comes_can_be_written_as_json(value: Any) -> None:
    json.dumps(as_json(value), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("kind", ["text", "repeated", "list"])
def test_a_huge_cell_of_parquet_is_a_problem_of_its_row_and_never_a_value(tmp_path: Path, kind: str) -> None:
    huge = "x" * 20_000_000
    cells: list[Any] = [huge, "short", "short"] if kind == "text" else [huge] * 2000 + ["short"]
    if kind == "list":
        cells = [["x" * 2_000_000] * 3, ["short"], None]
    file = tmp_path / "t.parquet"
    paths = [f"{n}.jpg" for n in range(len(cells))]
    column = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * (len(cells) - 1) + [1], pyarrow.int32()), pyarrow.array([huge, "short"])
    )
    columns = {"path": paths, "label": ["cat"] * len(cells), "note": column if kind == "repeated" else cells}
    parquet.write_table(pyarrow.table(columns), file, compression="zstd")
    assert file.stat().st_size < 1_000_000
    rows = [row for _, row in read_table_rows(file)]
    assert [row.problem is None for row in rows] == [len(str(cell)) < 100 for cell in cells]
    assert all(row.metadata == {} for row in rows if row.problem is not None)
    assert rows[0].problem.detail == "row 1 of the table has more than 1048576 characters beside the path"
    assert rows[-1].label == "cat"


def test_a_huge_cell_of_a_csv_is_a_problem_of_its_row(tmp_path: Path) -> None:
    usual = csv.field_size_limit()
    file = write_csv(tmp_path / "t.csv", f"path,note\na.jpg,{'x' * 2_000_000}\nb.jpg,{'y' * 900_000}\nc.jpg,z\n")
    first, second, third = (row for _, row in read_table_rows(file))
    assert (first.problem.detail, dict(first.metadata)) == (
        "line 2 of the table has more than 1048576 characters beside the path",
        {},
    )
    assert (second.problem, third.problem) == (None, None)
    assert len(second.metadata["note"]) == 900_000
    assert csv.field_size_limit() == usual
    far = "x" * 2_000_000
    for table in (write_csv(file, f"path\n{far}\n"), write_parquet(tmp_path / "t.parquet", path=[far])):
        with pytest.raises(InputError, match="the path is far too long"):
            list(read_table_rows(table))
