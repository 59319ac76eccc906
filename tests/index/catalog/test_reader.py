import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from index.catalog.reader import VERSION, Catalog, read_catalog
from index.catalog.rows import CatalogRow, read_metadata
from index.catalog.scans import archive_items, record_scan
from index.catalog.writer import CatalogWriter, write_catalog
from index.errors import GalleryError, ImageError, InputError
from index.filters.parser import find_words, parse_filter
from index.gallery.gallery import Gallery
from index.items import EmbeddedItem, FoundItem, Place
from index.sources.local_source import FolderSource
from index.sources.reading import read_indexed
from index.sources.table_rows import folder_label
from retrieval_app.insights.facet_filters import count_facets
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build, change_catalog


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
    record_scan(catalog, pairs, scanned=[1], restore=restore)
    catalog.confirm([(row, f"changed {row.path}") for row in catalog.changed()])
    catalog.drop_vanished()


def record(catalog: CatalogWriter, hashes: dict[int, str | None]) -> None:
    """Let rows be indexed with these hashes, or skipped where there is none."""
    outcomes = [
        EmbeddedItem(key, problem=ImageError(path="x", reason="corrupt", detail="seen"))
        if sha256 is None
        else EmbeddedItem(key, sha256=sha256, phash=key)
        for key, sha256 in hashes.items()
    ]
    catalog.record_outcomes(outcomes, checkpoints={})


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
    record(catalog, {1: "x", 2: "y", 3: None, 4: "z"})
    scan(catalog, [found("a", label="new"), found("b", size=11), "c", "e"])
    rows = by_path(catalog)
    statuses = [(path, rows[path].status, rows[path].label) for path in sorted(rows)]
    assert statuses[:2] == [("a", "indexed", "new"), ("b", "pending", None)]
    assert statuses[2:] == [("c", "skipped", None), ("e", "pending", None)]
    assert (rows["a"].id, rows["a"].sha256, rows["c"].id) == (1, "x", 3)
    assert {rows["b"].id, rows["e"].id} == {5, 6}
    assert catalog.indexed_ids().tolist() == [1]
    assert catalog.skipped_by_reason() == {"corrupt": 1}


def test_an_item_whose_time_but_not_whose_bytes_changed_keeps_its_id(catalog: CatalogWriter) -> None:
    scan(catalog, "ab")
    record(catalog, {1: "x", 2: "y"})
    record_scan(catalog, [(1, found("a", mtime=2)), (1, found("b"))], scanned=[1], restore=False)
    (changed,) = catalog.changed()
    assert (changed.id, changed.status, changed.sha256) == (1, "pending", "x")
    catalog.confirm([(changed, "x")])
    assert [(row.id, row.status, row.mtime_ns) for row in catalog.rows()] == [(1, "indexed", 2), (2, "indexed", 1)]


def test_a_moved_item_keeps_its_id_and_takes_the_label_of_the_new_place(catalog: CatalogWriter) -> None:
    scan(catalog, ["a/1", "a/2"])
    record(catalog, {1: "x", 2: "y"})
    new = found("b/3", mtime=9)
    record_scan(catalog, [(1, found("a/2")), (2, new)], scanned=[1, 2], restore=False)
    (candidate,) = catalog.moved_candidates()
    assert catalog.confirm_moved([(candidate, "something else"), (candidate, None)]) == 0
    assert catalog.confirm_moved([(candidate, "x")]) == 1
    assert catalog.drop_vanished() == 0
    moved = by_path(catalog)["b/3"]
    assert (moved.id, moved.source, moved.label, moved.status, moved.mtime_ns) == (1, 2, "b", "indexed", 9)


def test_only_sources_that_were_scanned_lose_items(catalog: CatalogWriter) -> None:
    record_scan(catalog, [(1, found("a")), (2, found("a"))], scanned=[1, 2], restore=False)
    record_scan(catalog, [], scanned=[2], restore=False)
    assert catalog.drop_vanished() == 1
    assert [(row.source, row.path) for row in catalog.rows()] == [(1, "a")]
    scan(catalog, "ac")  # the id of a removed item is never given again
    assert {path: row.id for path, row in by_path(catalog).items()} == {"a": 1, "c": 3}
    assert catalog.remove_source(1) == 2
    assert list(catalog.sources()) == [2]


def test_what_was_taken_out_stays_out_until_it_is_named_again(catalog: CatalogWriter) -> None:
    scan(catalog, "ab")
    record(catalog, {1: "x", 2: "y"})
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
    record(catalog, {1: "x", 2: "x", 3: "y"})
    assert catalog.repeated() == [("x", 1), ("x", 2)]
    catalog.set_duplicates([(2, 1)])
    duplicate = by_path(catalog)["b"]
    assert (duplicate.status, duplicate.kept_id, duplicate.sha256) == ("duplicate", 1, "x")
    assert (catalog.indexed_ids().tolist(), catalog.count("duplicate")) == ([1, 3], 1)
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


def test_an_unusable_item_of_an_unchanged_archive_keeps_its_hash(catalog: CatalogWriter) -> None:
    scan(catalog, [found("a.tar/1", archive="a.tar", starts_at=512)])
    problem = ImageError(path="x", reason="corrupt", detail="seen")
    catalog.record_outcomes([EmbeddedItem(1, sha256="x", problem=problem)], checkpoints={})
    known = archive_items(catalog, 1, "a.tar", mtime_ns=1)
    scan(catalog, known)
    assert [(row.status, row.reason, row.sha256) for row in catalog.rows()] == [("skipped", "corrupt", "x")]


def test_rows_come_complete_over_many_pages(catalog: CatalogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.catalog.reader._PAGE_ROWS", 1500)
    scan(catalog, (f"{i:05d}" for i in range(4001)))
    seen = []
    for row in catalog.rows(status="pending"):
        seen.append(row.id)
        if row.id % 1000 == 0:  # settling rows while they are read must lose none
            record(catalog, {row.id: "x"})
    assert seen == list(range(1, 4002))
    assert catalog.count("indexed") == 4
    assert [row.id for row in catalog.rows(after=2999, limit=3)] == [3000, 3001, 3002]
    assert [row.id for row in catalog.rows(status="indexed", after=2000, limit=2)] == [3000, 4000]


@pytest.mark.parametrize("compact", [True, False])
def test_finished_catalogues_are_compared(catalog: CatalogWriter, tmp_path: Path, compact: bool) -> None:
    scan(catalog, "ab")
    record(catalog, {1: "x", 2: None})
    finished = tmp_path / "odd?name#%20\n.sqlite"
    catalog.write_finished(finished, compact=compact)
    assert catalog.same_as(finished)
    problem = ImageError(path="x", reason="corrupt", detail="worded differently")
    catalog.record_outcomes([EmbeddedItem(2, problem=problem)], checkpoints={})
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
    record(catalog, {1: "x", 2: None})
    catalog.write_finished(tmp_path / "next.sqlite", compact=True)
    with write_catalog(tmp_path / "next.sqlite") as following:
        following.prepare()
        scan(following, "ab")
        assert [(row.status, row.reason) for row in following.rows()] == [("indexed", None), ("pending", None)]
        assert following.checkpoints() == {}
        record(following, {2: None})
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


SPOILED: Sequence[object] = (
    *("", "[1, 2]", "null", '{"x": NaN}', '{"x": 1', '{"a":' * 5000 + "1" + "}" * 5000, b"\xff\xfe", b"{}"),
    *('{"x": ' + "9" * 5000 + "}", '{"x": "' + "a" * (1 << 24) + '"}'),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Six images below a folder, and one beside it that is none of the gallery."""
    folder = tmp_path_factory.mktemp("foreign") / "home"
    images = draw_folder(folder / "images", per_class=2)
    draw_image((1, 2, 3), seed=9).save(folder / "secret.png")
    build(images, folder / "gallery", tiny_model)
    return folder


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Path:
    """A copy of the gallery and of its images, which a test may change."""
    home = shutil.copytree(built, tmp_path / "home")
    change_catalog(home / "gallery", "UPDATE sources SET location = ?", str(home / "images").encode())
    return home / "gallery"


def read(gallery: Path, image_id: int) -> bytes:
    return read_indexed(Gallery.open(gallery).place(image_id))


@pytest.mark.parametrize("way", ["up", "absolute", "up and down", "an archive", "no source"])
def test_a_row_leads_nowhere_outside_of_its_source(gallery: Path, way: str) -> None:
    secret = gallery.parent / "secret.png"
    path = {"absolute": str(secret), "up and down": "red/../../secret.png"}.get(way, "../secret.png").encode()
    change_catalog(
        gallery,
        "UPDATE images SET path = ?, sha256 = ? WHERE id = 1",
        path,
        hashlib.sha256(secret.read_bytes()).hexdigest(),
    )
    if way == "an archive":
        change_catalog(gallery, "UPDATE images SET archive = path, path = 'x/y.png', starts_at = 0 WHERE id = 1")
    if way == "no source":
        change_catalog(gallery, "UPDATE images SET source = 99, path = 'secret.png' WHERE id = 1")
    with pytest.raises(InputError, match="names a file outside of its source"):
        read(gallery, 1)
    assert read(gallery, 2)


def test_a_source_that_was_never_the_gallery_s_shows_no_file_that_was_not_indexed(gallery: Path) -> None:
    secret = gallery.parent / "secret.png"
    change_catalog(gallery, "UPDATE sources SET location = ?", str(gallery.parent).encode())
    change_catalog(gallery, "UPDATE images SET path = ? WHERE id = 1", secret.name.encode())
    with pytest.raises(ImageError, match="changed since it was indexed"):
        read(gallery, 1)


def test_a_link_that_the_scan_followed_is_followed(tmp_path: Path, tiny_model: Path) -> None:
    images = draw_folder(tmp_path / "images", per_class=2)
    draw_image((1, 2, 3), seed=9).save(tmp_path / "outside.png")
    (images / "red" / "link.png").symlink_to(tmp_path / "outside.png")
    build(images, tmp_path / "gallery", tiny_model)
    opened = Gallery.open(tmp_path / "gallery")
    [linked] = [row.id for row in opened.rows(opened.ids.tolist()) if row.path == "red/link.png"]
    assert read(tmp_path / "gallery", linked) == (tmp_path / "outside.png").read_bytes()


def test_a_file_that_changed_since_is_not_given(gallery: Path) -> None:
    opened = Gallery.open(gallery)
    place = opened.place(1)
    place.file.write_bytes((gallery.parent / "secret.png").read_bytes())
    with pytest.raises(ImageError, match="retrieval index update") as changed:
        read_indexed(place)
    assert changed.value.reason == "changed"


@pytest.mark.parametrize("metadata", SPOILED, ids=range(len(SPOILED)))
def test_spoiled_metadata_spoils_one_row_and_no_list(gallery: Path, metadata: object) -> None:
    change_catalog(gallery, "UPDATE images SET metadata = ?", '{"shop": "a", "price": 3}')
    change_catalog(gallery, "UPDATE images SET metadata = ? WHERE id = 1", metadata)
    opened = Gallery.open(gallery)
    rows = opened.rows(opened.ids.tolist())
    assert [dict(row.metadata) for row in rows] == [{}] + [{"shop": "a", "price": 3}] * 5
    assert opened.matching_ids(parse_filter("price < 4")).tolist() == [2, 3, 4, 5, 6]
    assert opened.matching_ids(find_words("a")).tolist() != []
    facets = {facet.name: facet for facet in count_facets(opened, None).facets}
    assert "shop" in facets
    with opened.catalog(asks_metadata=True) as catalog:
        told = catalog.connection.execute("SELECT count(*) FROM images, json_each(images.metadata) WHERE images.id > 1")
        assert told.fetchone() == (2 * 5,)
    assert [hit.metadata for hit in opened.search(opened.vector(1), k=1)] == [{}]


def test_a_label_that_is_no_text_spoils_one_row(gallery: Path) -> None:
    for label in (b"\xff\xfe", b"red"):
        change_catalog(gallery, "UPDATE images SET label = ? WHERE id = 1", label)
        opened = Gallery.open(gallery)
        labels = [row.label for row in opened.rows(opened.ids.tolist())]
        assert labels[0] is None
        assert all(labels[1:])
        assert count_facets(opened, None).total == 6
    change_catalog(gallery, "UPDATE images SET label = CAST(? AS TEXT) WHERE id = 1", b"re\xff")
    assert Gallery.open(gallery).rows([1])[0].label == "re\ufffd"


def test_sound_metadata_is_read_as_it_is() -> None:
    assert read_metadata('{"a": [1, {"b": "\\ud800"}], "c": 1e5}') == {"a": [1, {"b": "\ud800"}], "c": 1e5}
    assert read_metadata(None) == {}
