from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.catalog import Catalog, CatalogRow, FileResult, read_catalog, write_catalog
from index.errors import GalleryError, ImageError
from index.images import FoundFile
from index.labels import folder_label


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with write_catalog(tmp_path / "catalog.sqlite") as catalog:
        catalog.prepare()
        yield catalog


def found(path: str, *, size: int = 10, mtime: int = 1, reason: str | None = None) -> FoundFile:
    problem = None if reason is None else ImageError(path=path, reason=reason, detail="seen")
    return FoundFile(path, size, mtime, problem)


def by_path(catalog: Catalog) -> dict[str, CatalogRow]:
    return {row.path: row for row in catalog.rows()}


def test_found_files_wait_with_rising_ids_and_labels(catalog: Catalog) -> None:
    catalog.record_found([found("b/2"), found("a"), found("b/1", reason="dangling-link")], label_of=folder_label)
    rows = list(catalog.rows())
    assert [(row.id, row.path, row.status, row.label) for row in rows] == [
        (1, "b/2", "pending", "b"),
        (2, "a", "pending", None),
        (3, "b/1", "skipped", "b"),
    ]
    assert (rows[2].reason, rows[2].detail) == ("dangling-link", "seen")
    assert catalog.next_id() == 4


def test_unchanged_files_keep_their_row_and_changed_ones_get_a_new_id(catalog: Catalog) -> None:
    catalog.record_found([found(name) for name in "abcd"], label_of=folder_label)
    results = [FileResult(1, sha256="x"), FileResult(2, sha256="y"), FileResult(3, reason="corrupt", detail="?")]
    catalog.record_results([*results, FileResult(4, sha256="z")], checkpoint="first")
    catalog.record_found(
        [found("a"), found("b", size=11), found("c"), found("e")],
        label_of=lambda path: "new" if path == "a" else None,
    )
    rows = by_path(catalog)
    assert {path: (row.id, row.status, row.label) for path, row in rows.items()} == {
        "a": (1, "indexed", "new"),
        "b": (5, "pending", None),
        "c": (3, "skipped", None),
        "e": (6, "pending", None),
    }
    assert rows["a"].sha256 == "x"
    assert catalog.indexed_ids() == [1]
    assert catalog.skipped_by_reason() == {"corrupt": 1}


def test_the_id_of_a_removed_file_is_never_given_again(catalog: Catalog) -> None:
    catalog.record_found([found("a"), found("b")], label_of=folder_label)
    catalog.record_found([found("a")], label_of=folder_label)
    catalog.record_found([found("a"), found("c")], label_of=folder_label)
    assert {path: row.id for path, row in by_path(catalog).items()} == {"a": 1, "c": 3}


def test_a_walk_that_fails_leaves_the_rows_as_they_were(catalog: Catalog) -> None:
    catalog.record_found([found("a"), found("b")], label_of=folder_label)

    def breaking_walk() -> Iterator[FoundFile]:
        yield found("c")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.record_found(breaking_walk(), label_of=folder_label)
    assert set(by_path(catalog)) == {"a", "b"}
    catalog.record_found([found("a")], label_of=folder_label)
    assert set(by_path(catalog)) == {"a"}


@settings(max_examples=30, deadline=None)
@given(st.sets(st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name), min_size=1))
def test_any_file_name_is_kept_byte_for_byte(tmp_path_factory: pytest.TempPathFactory, names: set[bytes]) -> None:
    paths = {os.fsdecode(name) for name in names}
    with write_catalog(tmp_path_factory.mktemp("names") / "catalog.sqlite") as catalog:
        catalog.prepare()
        catalog.record_found(map(found, sorted(paths)), label_of=folder_label)
        catalog.record_results([FileResult(key) for key in range(1, len(paths) + 1)], checkpoint=None)
        assert {row.path for row in catalog.rows()} == paths
        assert {row.path for row in catalog.find(range(1, len(paths) + 1)).values()} == paths


def test_find_gives_indexed_rows_only(catalog: Catalog) -> None:
    catalog.record_found(map(found, "abc"), label_of=folder_label)
    catalog.record_results([FileResult(1), FileResult(2, reason="corrupt")], checkpoint=None)
    assert set(catalog.find([1, 2, 3, 99])) == {1}


def test_rows_come_complete_over_many_pages(catalog: Catalog) -> None:
    catalog.record_found((found(f"{i:05d}") for i in range(9001)), label_of=folder_label)
    seen = []
    for row in catalog.rows(status="pending"):
        seen.append(row.id)
        if row.id % 1000 == 0:  # settling rows while they are read must lose none
            catalog.record_results([FileResult(row.id)], checkpoint=None)
    assert seen == list(range(1, 9002))
    assert catalog.count("indexed") == 9


def test_a_finished_catalogue_is_compared_by_files_outcomes_and_labels(catalog: Catalog, tmp_path: Path) -> None:
    catalog.record_found(map(found, "ab"), label_of=folder_label)
    catalog.record_results([FileResult(1), FileResult(2, reason="corrupt", detail="one")], checkpoint="c")
    finished = tmp_path / "odd?name#%20\n.sqlite"
    catalog.write_finished(finished)
    assert catalog.same_as(finished)
    catalog.record_results([FileResult(2, reason="corrupt", detail="worded differently")], checkpoint=None)
    assert catalog.same_as(finished)
    catalog.record_found(map(found, "ab"), label_of=lambda path: "x")
    assert not catalog.same_as(finished)
    with read_catalog(finished) as copy:
        assert [row.path for row in copy.rows()] == ["a", "b"]
        assert copy.next_id() == 3


def test_a_finished_catalogue_is_read_only(catalog: Catalog, tmp_path: Path) -> None:
    catalog.write_finished(tmp_path / "done.sqlite")
    with pytest.raises(GalleryError, match="readonly"), read_catalog(tmp_path / "done.sqlite") as copy:
        copy.record_found([found("a")], label_of=folder_label)


def test_continuing_from_a_finished_catalogue_retries_what_was_skipped(catalog: Catalog, tmp_path: Path) -> None:
    catalog.record_found(map(found, "ab"), label_of=folder_label)
    catalog.record_results([FileResult(1), FileResult(2, reason="corrupt")], checkpoint="c")
    catalog.write_finished(tmp_path / "next.sqlite")
    with write_catalog(tmp_path / "next.sqlite") as following:
        following.prepare()
        assert [(row.id, row.status, row.reason) for row in following.rows()] == [
            (1, "indexed", None),
            (2, "pending", None),
        ]
        assert following.checkpoints() == []


def test_a_damaged_catalogue_is_a_gallery_error(tmp_path: Path) -> None:
    (tmp_path / "junk.sqlite").write_bytes(b"no database at all" * 100)
    with (
        pytest.raises(GalleryError, match=r"junk.sqlite: the catalogue cannot be used"),
        read_catalog(tmp_path / "junk.sqlite") as catalog,
    ):
        catalog.indexed_ids()


def test_the_documented_columns_are_there_for_other_tools(catalog: Catalog, tmp_path: Path) -> None:
    catalog.write_finished(tmp_path / "done.sqlite")
    connection = sqlite3.connect(tmp_path / "done.sqlite")
    names = [row[1] for row in connection.execute("PRAGMA table_info(images)")]
    connection.close()
    expected = "id path size_bytes mtime_ns sha256 status reason detail label"
    assert names == expected.split()
