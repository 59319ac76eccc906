import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from index.catalog.reader import VERSION, Catalog, read_catalog
from index.catalog.rows import CatalogRow
from index.catalog.writer import CatalogWriter, write_catalog
from index.errors import GalleryError, ImageError, InputError
from index.sources.items import EmbeddedItem, FoundItem, Place
from index.sources.local_source import FolderSource
from index.sources.table_rows import folder_label


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[CatalogWriter]:
    with new_catalog(tmp_path / "catalog.sqlite") as catalog:
        yield catalog


@contextmanager
def new_catalog(path: Path) -> Iterator[CatalogWriter]:
    with write_catalog(path) as catalog:
        catalog.prepare()
        catalog.add_sources([FolderSource("/photos"), FolderSource("/more")])
        yield catalog


def found(path: str, *, size: int = 10, mtime: int = 1, reason: str | None = None, **more: Any) -> FoundItem:
    problem = None if reason is None else ImageError(path=path, reason=reason, detail="seen")
    return FoundItem(path, size, mtime, problem=problem, **{"label": folder_label(path), **more})


def scan(catalog: CatalogWriter, items: Iterable[FoundItem | str], *, restore: bool = False) -> None:
    """Record a scan of the first source, with nothing else to confirm."""
    pairs = ((1, found(item) if isinstance(item, str) else item) for item in items)
    catalog.record_scan(pairs, scanned=[1], restore=restore)
    catalog.confirm([(row, f"changed {row.path}") for row in catalog.changed()])
    catalog.drop_vanished()


def settle(catalog: CatalogWriter, hashes: dict[int, str | None]) -> None:
    """Let rows be indexed with these hashes, or skipped where there is none."""
    outcomes = [
        EmbeddedItem(key, problem=ImageError(path="x", reason="corrupt", detail="seen"))
        if sha256 is None
        else EmbeddedItem(key, sha256=sha256, phash=key)
        for key, sha256 in hashes.items()
    ]
    catalog.record_outcomes(outcomes, checkpoint=None)


def by_path(catalog: Catalog) -> dict[str, CatalogRow]:
    return {row.path: row for row in catalog.rows()}


def test_found_items_wait_with_rising_ids_and_labels(catalog: CatalogWriter) -> None:
    scan(catalog, ["b/2", "a", found("b/1", reason="dangling-link")])
    rows = list(catalog.rows())
    assert [(row.id, row.path, row.status, row.label) for row in rows] == [
        (1, "b/2", "pending", "b"),
        (2, "a", "pending", None),
        (3, "b/1", "skipped", "b"),
    ]
    assert (rows[2].reason, rows[2].detail) == ("dangling-link", "seen")
    assert catalog.next_id() == 4


def test_unchanged_items_keep_their_row_and_changed_ones_get_a_new_id(catalog: CatalogWriter) -> None:
    scan(catalog, "abcd")
    settle(catalog, {1: "x", 2: "y", 3: None, 4: "z"})
    scan(catalog, [found("a", label="new"), found("b", size=11), "c", "e"])
    rows = by_path(catalog)
    statuses = [(path, rows[path].status, rows[path].label) for path in sorted(rows)]
    assert statuses[:2] == [("a", "indexed", "new"), ("b", "pending", None)]
    assert statuses[2:] == [("c", "skipped", None), ("e", "pending", None)]
    assert (rows["a"].id, rows["a"].sha256, rows["c"].id) == (1, "x", 3)
    assert {rows["b"].id, rows["e"].id} == {5, 6}
    assert catalog.indexed_ids() == [1]
    assert catalog.skipped_by_reason() == {"corrupt": 1}


def test_an_item_whose_time_but_not_whose_bytes_changed_keeps_its_id(catalog: CatalogWriter) -> None:
    scan(catalog, "ab")
    settle(catalog, {1: "x", 2: "y"})
    catalog.record_scan([(1, found("a", mtime=2)), (1, found("b"))], scanned=[1], restore=False)
    (changed,) = catalog.changed()
    assert (changed.id, changed.status, changed.sha256) == (1, "pending", "x")
    catalog.confirm([(changed, "x")])
    assert [(row.id, row.status, row.mtime_ns) for row in catalog.rows()] == [(1, "indexed", 2), (2, "indexed", 1)]


def test_a_moved_item_keeps_its_id_and_takes_the_label_of_the_new_place(catalog: CatalogWriter) -> None:
    scan(catalog, ["a/1", "a/2"])
    settle(catalog, {1: "x", 2: "y"})
    new = found("b/3", mtime=9)
    catalog.record_scan([(1, found("a/2")), (2, new)], scanned=[1, 2], restore=False)
    (candidate,) = catalog.moved_candidates()
    assert catalog.confirm_moved([(candidate, "something else"), (candidate, None)]) == 0
    assert catalog.confirm_moved([(candidate, "x")]) == 1
    assert catalog.drop_vanished() == 0
    moved = by_path(catalog)["b/3"]
    assert (moved.id, moved.source, moved.label, moved.status, moved.mtime_ns) == (1, 2, "b", "indexed", 9)


def test_only_sources_that_were_scanned_lose_items(catalog: CatalogWriter) -> None:
    catalog.record_scan([(1, found("a")), (2, found("a"))], scanned=[1, 2], restore=False)
    catalog.record_scan([], scanned=[2], restore=False)
    assert catalog.drop_vanished() == 1
    assert [(row.source, row.path) for row in catalog.rows()] == [(1, "a")]
    scan(catalog, "ac")  # the id of a removed item is never given again
    assert {path: row.id for path, row in by_path(catalog).items()} == {"a": 1, "c": 3}
    assert catalog.remove_source(1) == 2
    assert list(catalog.sources()) == [2]


def test_what_was_taken_out_stays_out_until_it_is_named_again(catalog: CatalogWriter) -> None:
    scan(catalog, "ab")
    settle(catalog, {1: "x", 2: "y"})
    catalog.take_out([by_path(catalog)["a"]])
    assert catalog.skipped_by_reason() == {"removed": 1}
    catalog.prepare()
    scan(catalog, [found("a", size=99), "b"])
    assert by_path(catalog)["a"].reason == "removed"
    scan(catalog, "ab", restore=True)
    back = by_path(catalog)["a"]
    assert (back.status, back.reason) == ("pending", None)
    assert back.id > 2


def test_duplicates_wait_again_when_their_kept_image_goes(catalog: CatalogWriter) -> None:
    scan(catalog, "abc")
    settle(catalog, {1: "x", 2: "x", 3: "y"})
    assert catalog.repeated() == [("x", 1), ("x", 2)]
    catalog.set_duplicates([(2, 1)])
    duplicate = by_path(catalog)["b"]
    assert (duplicate.status, duplicate.kept_id, duplicate.sha256) == ("duplicate", 1, "x")
    assert (catalog.indexed_ids(), catalog.count("duplicate")) == ([1, 3], 1)
    scan(catalog, "bc")
    assert by_path(catalog)["b"].status == "pending"


def test_a_scan_that_fails_leaves_the_rows_as_they_were(catalog: CatalogWriter) -> None:
    scan(catalog, "ab")

    def breaking() -> Iterator[FoundItem]:
        yield found("c")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan(catalog, breaking())
    assert set(by_path(catalog)) == {"a", "b"}
    scan(catalog, "a")
    assert set(by_path(catalog)) == {"a"}


def test_metadata_and_the_place_in_an_archive_are_kept(catalog: CatalogWriter) -> None:
    packed = found("s.tar/1.jpg", archive="s.tar", starts_at=512, metadata={"price": 3, "shop": "é"})
    scan(catalog, [packed, "plain"])
    member, plain = list(catalog.rows())
    assert (member.metadata, plain.metadata) == ({"price": 3, "shop": "é"}, {})
    place = FolderSource("/photos").locate(member)
    assert (place.file, place.offset, place.size_bytes, place.mtime_ns) == (Path("/photos/s.tar"), 512, 10, 1)
    assert FolderSource("/photos").locate(plain) == Place(Path("/photos/plain"), "/photos/plain")


def test_rows_come_complete_over_many_pages(catalog: CatalogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.catalog.reader._PAGE_ROWS", 1500)
    scan(catalog, (f"{i:05d}" for i in range(4001)))
    seen = []
    for row in catalog.rows(status="pending"):
        seen.append(row.id)
        if row.id % 1000 == 0:  # settling rows while they are read must lose none
            settle(catalog, {row.id: "x"})
    assert seen == list(range(1, 4002))
    assert catalog.count("indexed") == 4
    assert [row.id for row in catalog.rows(after=2999, limit=3)] == [3000, 3001, 3002]
    assert [row.id for row in catalog.rows(status="indexed", after=2000, limit=2)] == [3000, 4000]


@pytest.mark.parametrize("compact", [True, False])
def test_finished_catalogues_are_compared(catalog: CatalogWriter, tmp_path: Path, compact: bool) -> None:
    scan(catalog, "ab")
    settle(catalog, {1: "x", 2: None})
    finished = tmp_path / "odd?name#%20\n.sqlite"
    catalog.write_finished(finished, compact=compact)
    assert catalog.same_as(finished)
    problem = ImageError(path="x", reason="corrupt", detail="worded differently")
    catalog.record_outcomes([EmbeddedItem(2, problem=problem)], checkpoint=None)
    assert catalog.same_as(finished)
    catalog.set({"dedup": "exact"})
    assert not catalog.same_as(finished)
    catalog.set({"dedup": None})
    assert catalog.same_as(finished)
    catalog.move_source(2, "/elsewhere")
    assert not catalog.same_as(finished)
    catalog.move_source(2, "/more")
    scan(catalog, [found("a", label="x"), "b"])
    assert not catalog.same_as(finished)
    with read_catalog(finished) as copy:
        assert [row.path for row in copy.rows()] == ["a", "b"]
        assert copy.next_id() == 3
    assert os.listdir(tmp_path).count(finished.name + "-wal") == 0


def test_a_finished_catalogue_is_read_only(catalog: CatalogWriter, tmp_path: Path) -> None:
    catalog.write_finished(tmp_path / "done.sqlite", compact=True)
    with pytest.raises(GalleryError, match="readonly"), read_catalog(tmp_path / "done.sqlite") as copy:
        copy._connection.execute("DELETE FROM images")


def test_a_continued_catalogue_retries_skipped_items(catalog: CatalogWriter, tmp_path: Path) -> None:
    scan(catalog, "ab")
    settle(catalog, {1: "x", 2: None})
    catalog.write_finished(tmp_path / "next.sqlite", compact=True)
    with write_catalog(tmp_path / "next.sqlite") as following:
        following.prepare()
        scan(following, "ab")
        assert [(row.status, row.reason) for row in following.rows()] == [("indexed", None), ("pending", None)]
        assert following.checkpoints() == []
        settle(following, {2: None})
        scan(following, "ab")  # a second scan on the way to the same version does not try it again
        assert following.count("pending") == 0


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_a_catalogue_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "c.sqlite"
    with write_catalog(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    for opened in (read_catalog(path), write_catalog(path)):
        with pytest.raises(GalleryError, match="build the gallery again"), opened:
            pass


def test_a_catalogue_without_the_columns_of_measures_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    with write_catalog(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE images DROP COLUMN sharpness")
    for opened in (read_catalog(path), write_catalog(path)):
        with pytest.raises(GalleryError, match=r"lack sharpness: a pre-release .* build the gallery again"), opened:
            pass


def test_a_damaged_catalogue_is_a_gallery_error(tmp_path: Path) -> None:
    (tmp_path / "junk.sqlite").write_bytes(b"no database at all" * 100)
    with (
        pytest.raises(GalleryError, match=r"junk.sqlite: the catalogue cannot be used"),
        read_catalog(tmp_path / "junk.sqlite", limit_s=60) as catalog,
    ):
        catalog.indexed_ids()


def test_a_statement_that_takes_too_long_is_ended_and_said_to_be(tmp_path: Path) -> None:
    with write_catalog(tmp_path / "c.sqlite") as writer:
        assert writer.count("indexed") == 0
    slow = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1000000000) SELECT count(*) FROM n"
    with (
        pytest.raises(InputError, match="use fewer comparisons"),
        read_catalog(tmp_path / "c.sqlite", limit_s=0.01) as catalog,
    ):
        catalog.connection.execute(slow).fetchone()
