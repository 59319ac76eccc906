"""Galleries in a real Milvus server that lost its collection, rows of it, or files of their folder, are sound again."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.errors import GalleryDamagedError, GalleryError, InputError
from index.file_hash import hash_file
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.repair.repair import repair_gallery
from index.repair.rollback import rollback_gallery
from index.vectors.milvus.collection import Collection
from index.vectors.milvus.server import Server
from index.vectors.milvus.writer import name_start
from index.vectors.store_config import StoreConfig
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, update_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import SMALL, build, change_manifest, rows
from tests.index.repair.test_repair import flip
from tests.index.writing.test_milvus_gallery import answers, write_table
from tests.milvus_server import RunningMilvus

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("milvus_rights")]
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path, milvus_server: RunningMilvus) -> Path:
    """Fifteen images, with a twin whose vectors are in its folder."""
    table = write_table(draw_folder(tmp_path / "images"))
    build(table, tmp_path / "files", tiny_model)
    build(table, tmp_path / "milvus", tiny_model, store=StoreConfig("milvus", milvus_server.uri))
    return tmp_path / "milvus"


def collection_of(gallery: Path) -> Collection:
    opened = Gallery.open(gallery)
    assert opened.manifest.store is not None
    return Collection(Server(opened.manifest.store["uri"]), opened.index["collection"], opened.width)


def drop(gallery: Path) -> Collection:
    collection = collection_of(gallery)
    collection.drop()
    return collection


def check(gallery: Path) -> None:
    """It is sound, and answers as its twin."""
    assert verify_gallery(gallery, seed=0).problems == []
    assert answers(gallery) == answers(gallery.with_name("files"))


def test_a_collection_that_is_lost_is_made_again_though_the_server_is_killed_meanwhile(
    gallery: Path, milvus_server: RunningMilvus, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(gallery)
    with pytest.raises(
        GalleryDamagedError, match=r"the collection is missing; mend it with `retrieval index repair`"
    ):
        Gallery.open(gallery)
    with pytest.raises(GalleryDamagedError, match="the collection is missing"):
        add_to_gallery(gallery, [gallery.with_name("images")], config=SMALL)
    with monkeypatch.context() as patched:

        def kill(self: Collection) -> None:
            patched.undo()
            milvus_server.kill()
            self.flush()

        patched.setattr(Collection, "flush", kill)
        try:
            report = repair_gallery(gallery, config=SMALL)
        except GalleryError:  # it gave up before the server was there again
            milvus_server.wait()
            report = repair_gallery(gallery, config=SMALL)
    milvus_server.wait()
    assert (report.changed, report.catalog, report.kept, report.embedded) == (True, "current", 0, 15)
    assert any("the collection is missing" in problem for problem in report.damaged)
    check(gallery)
    alias = Server(milvus_server.uri).ask(
        lambda client: client.describe_alias(f"{name_start(gallery)}_kind"), doing=""
    )
    assert alias["collection_name"] == collection_of(gallery).name


def test_only_rows_that_are_lost_are_embedded_again(gallery: Path) -> None:
    collection, places = collection_of(gallery), {row.id: row.path for row in rows(gallery)}
    collection.delete(Gallery.open(gallery).ids[[2, 7]])
    with pytest.raises(GalleryDamagedError, match="has 13 vectors, expected 15"):
        Gallery.open(gallery)
    for key, path in places.items():
        if key not in (3, 8):
            (gallery.with_name("images") / path).unlink()
    report = repair_gallery(gallery, config=SMALL)
    assert (report.indexed, report.kept, report.embedded, report.gone) == (15, 13, 2, 0)
    assert answers(gallery) == answers(gallery.with_name("files"))
    assert Gallery.open(gallery).index["collection"] != collection.name
    assert repair_gallery(gallery, config=SMALL).changed is False


def test_nothing_is_taken_from_a_collection_of_another_model(gallery: Path) -> None:
    opened = Gallery.open(gallery)
    vectors, collection = opened.vectors(opened.ids), drop(gallery)
    noted = {"model_sha256": "f00", "output": "kind", "index": "flat", "version": "000001"}
    collection.make(noted, kind="FLAT", parameters={})
    collection.put(opened.ids, vectors, {}, is_again=False)
    with pytest.raises(GalleryDamagedError, match="the collection is of another model, f00"):
        Gallery.open(gallery)
    report = repair_gallery(gallery, config=SMALL)
    assert (report.kept, report.embedded) == (0, 15)
    check(gallery)


@pytest.mark.parametrize("name", ["catalog.sqlite", "ids/00000.npy"])
def test_vectors_are_kept_whatever_file_of_the_folder_is_damaged(gallery: Path, name: str) -> None:
    flip(find_version(gallery).folder / name)
    if name != "catalog.sqlite":  # whose rows are compared with the files
        gallery.with_name("images").rename(gallery.with_name("elsewhere"))
    report = repair_gallery(gallery, config=SMALL)
    assert (report.indexed, report.kept, report.embedded) == (15, 15, 0)
    if name != "catalog.sqlite":
        gallery.with_name("elsewhere").rename(gallery.with_name("images"))
    check(gallery)


def test_a_server_that_does_not_answer_is_named_and_one_that_moved_is_found(
    gallery: Path, milvus_server: RunningMilvus
) -> None:
    change_manifest(gallery, store={"type": "milvus", "uri": NOBODY})
    before = hash_file(gallery / "CURRENT")
    for options in ({}, {"uri": "http://127.0.0.1:7"}):
        with pytest.raises(GalleryError, match=r"no Milvus server answers there .* start it, or mend the address"):
            repair_gallery(gallery, config=SMALL, **options)
    assert hash_file(gallery / "CURRENT") == before
    with pytest.raises(InputError, match="nothing tells that this gallery's vectors are in Milvus"):
        repair_gallery(gallery.with_name("files"), uri=milvus_server.uri)
    gallery.with_name("images").rename(gallery.with_name("elsewhere"))
    report = repair_gallery(gallery, config=SMALL, uri=milvus_server.uri)
    assert (report.kept, report.embedded) == (15, 0)
    assert report.notes == [f"its vectors are in Milvus at {milvus_server.uri} now, no longer at {NOBODY}"]
    assert answers(gallery) == answers(gallery.with_name("files"))


def test_nobody_goes_back_to_a_version_whose_collection_is_lost(gallery: Path) -> None:
    first = drop(gallery)
    repair_gallery(gallery, config=SMALL)
    with pytest.raises(
        GalleryError, match=f"no version before the current one is sound .*{first.name}: .* missing"
    ):
        rollback_gallery(gallery)
    draw_image((9, 9, 99), seed=5).save(gallery.with_name("images") / "red" / "new.png")
    write_table(gallery.with_name("images"))
    update_gallery(gallery, config=SMALL)
    update_gallery(gallery.with_name("files"), config=SMALL)
    check(gallery)
    assert rollback_gallery(gallery).version == "000002"
