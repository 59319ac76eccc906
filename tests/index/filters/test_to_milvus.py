"""A real server keeps the rows of a condition that SQL keeps."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.catalog.filter_fields import read_fields
from index.filters.condition import Column, Condition, HasWord, Like, Or, equals
from index.filters.parser import parse_filter
from index.filters.to_milvus import FIELDS, MOST_BYTES, make_fields, write_milvus
from tests.deep import tries
from tests.index.filters.catalogs import fill_catalog
from tests.index.filters.compilers import CASES, any_conditions, some_rows, written_conditions
from tests.index.filters.on_row import Row, fulfils
from tests.milvus_server import ROOT_TOKEN, RunningMilvus

Ask = Callable[[str], list[int]]
_LARGE = [2**53, 2**53 + 1, str(2**53 + 1)]


def list_fields(rows: Sequence[Row]) -> dict[int, str | None]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        fill_catalog(connection, rows)
        return read_fields(connection, np.arange(1, len(rows) + 1))


class Rows:
    """Batches of rows in one collection, each of which is asked alone."""

    def __init__(self, uri: str) -> None:
        from pymilvus import DataType, MilvusClient

        self.client, self._name, self._batches = MilvusClient(uri, token=ROOT_TOKEN), "conditions", 0
        schema = self.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", DataType.INT64, is_primary=True)
        schema.add_field("batch", DataType.INT64)
        schema.add_field("id", DataType.INT64)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)
        schema.add_field(FIELDS, DataType.JSON)
        self.client.create_collection(self._name, schema=schema, num_shards=1)
        index = self.client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP", params={})
        self.client.create_index(self._name, index)
        self.client.load_collection(self._name)

    def fill(self, fields: dict[int, str | None]) -> Ask:
        self._batches += 1
        batch = self._batches
        one = {"batch": batch, "vector": [1.0, 0.0]}
        rows = [
            {**one, "row": 10_000 * batch + key, "id": key, FIELDS: json.loads(text)}
            for key, text in fields.items()
            if text is not None
        ]
        self.client.insert(self._name, rows)

        def ask(expression: str, consistency: str = "Bounded") -> list[int]:
            found = self.client.query(
                self._name, filter=f"batch == {batch} and ({expression})", output_fields=["id"],
                consistency_level=consistency,
            )  # fmt: skip
            return sorted(row["id"] for row in found)

        assert len(ask("id >= 0", "Strong")) == len(rows)
        return ask

    def close(self) -> None:
        self.client.drop_collection(self._name)
        self.client.close()


@pytest.fixture(scope="module")
def collection(milvus_server: RunningMilvus) -> Iterator[Rows]:
    with closing(Rows(milvus_server.uri)) as rows:
        yield rows


def draw_rows(*, seed: int, batches: int) -> list[Row]:
    """Many rows at once, for a collection takes a while to be made."""
    drawn: list[Row] = []

    @settings(max_examples=batches, database=None, derandomize=True)
    @given(some_rows)
    def draw(rows: list[Row]) -> None:
        drawn.extend(rows)

    draw()
    return [{**row, "id": number, "source": f"/{number}"} for number, row in enumerate(drawn, start=1)]


@pytest.fixture(scope="module")
def many(collection: Rows) -> tuple[list[Row], Ask]:
    rows = draw_rows(seed=1, batches=60)
    fields = list_fields(rows)
    held = [row for row in rows if fields[row["id"]] is not None]
    assert len(held) > 60
    return held, collection.fill(fields)


@pytest.mark.cluster
def test_a_server_keeps_what_every_compiler_must(collection: Rows) -> None:
    places: dict[str, list[tuple[Condition, Sequence[Row], list[int]]]] = {}
    for case in CASES:
        places.setdefault(repr(case[1]), []).append(case)
    said = 0
    for cases in places.values():
        fields = list_fields(cases[0][1])
        ask = collection.fill(fields)
        for condition, _, kept in cases:
            expression = write_milvus(condition)
            if expression is not None:
                expected = [place + 1 for place in kept if fields[place + 1] is not None]
                assert ask(expression) == expected, (condition, expression)
                said += 1
    assert said > 50


@pytest.mark.cluster
@settings(
    max_examples=tries(300, deep=3000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(condition=written_conditions)
def test_a_server_keeps_the_rows_that_sql_keeps(many: tuple[list[Row], Ask], condition: Condition) -> None:
    rows, ask = many
    expression = write_milvus(condition)
    if expression is not None:
        assert ask(expression) == [row["id"] for row in rows if fulfils(condition, row) is True]


def test_what_milvus_has_no_words_for_is_left_to_others() -> None:
    column = Column(("x",))
    for condition in (Like(column, "a%"), HasWord("a"), parse_filter("source = '/a'"), parse_filter("x < 1e999")):
        assert write_milvus(condition) is None
        assert write_milvus(Or((equals(column, "a"), condition))) is None


def test_what_milvus_cannot_hold_as_it_is_is_not_held() -> None:
    column = Column(("x",))
    assert [make_fields([(column, value)]) for value in (*_LARGE, float("inf"), "x" * MOST_BYTES)] == [None] * 5
    assert make_fields([(column, None)]) == "{}"


@given(any_conditions, st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_nothing_of_what_was_written_ends_its_literal(condition: Condition, text: str) -> None:
    expression = write_milvus(equals(Column((text,)), text))
    if expression is not None:
        assert json.loads(expression.partition(" == ")[2].removesuffix(")").split(" or ")[0]) == text
