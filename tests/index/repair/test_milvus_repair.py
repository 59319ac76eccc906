"""Galleries in a real Milvus server that lost its collection, or files of their folder, are whole again."""

from pathlib import Path

import pytest

from index.durable import hash_file
from index.errors import GalleryDamagedError, GalleryError, InputError
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.gallery.verify import verify_gallery
from index.repair.repair import repair_gallery, rollback_gallery
from index.vectors.ann_config import StoreConfig
from index.vectors.milvus.collection import Collection, Server
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, remove_from_gallery, update_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import SMALL, build, change_manifest, flip
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
    return Collection(Server(opened.manifest.store["uri"]), opened.index["collection"], opened.width)


def check(gallery: Path) -> None:
    """It is sound, and answers as its twin."""
    assert verify_gallery(gallery, seed=0).problems == []
    assert answers(gallery) == answers(gallery.with_name("files"))


def test_a_collection_that_is_lost_is_made_again_though_the_server_is_killed_meanwhile(
    gallery: Path, milvus_server: RunningMilvus, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = collection_of(gallery)
    collection.drop()
    with pytest.raises(
        GalleryDamagedError, match=r"the collection is missing; .*; repair it with `retrieval index repair`"
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
    assert (report.action, report.indexed) == ("rebuilt", 15)
    assert any("the collection is missing" in problem for problem in report.damaged)
    check(gallery)
    with pytest.raises(GalleryError, match=f"no version before the current one is whole .*{collection.name}"):
        rollback_gallery(gallery)
    assert not repair_gallery(gallery, config=SMALL).damaged


def test_vectors_of_a_whole_collection_are_kept(gallery: Path) -> None:
    images = gallery.with_name("images")
    draw_image((9, 9, 99), seed=5).save(images / "red" / "new.png")
    write_table(images)
    for twin in (gallery, gallery.with_name("files")):
        update_gallery(twin, config=SMALL)
        remove_from_gallery(twin, selection=Selection(ids=(3,)))
    flip(find_version(gallery).folder / "deleted.npy")
    images.rename(gallery.with_name("elsewhere"))
    report = repair_gallery(gallery, config=SMALL)
    assert (report.action, report.indexed, report.embedded) == ("rebuilt", 15, 0)
    gallery.with_name("elsewhere").rename(images)
    check(gallery)


def test_a_silent_server_is_named_and_one_that_moved_is_found(gallery: Path, milvus_server: RunningMilvus) -> None:
    change_manifest(gallery, store={"type": "milvus", "uri": NOBODY})
    before = hash_file(gallery / "CURRENT")
    for options in ({}, {"uri": "http://127.0.0.1:7"}):
        with pytest.raises(GalleryError, match=r"no Milvus server answers there .* start it, or correct the address"):
            repair_gallery(gallery, config=SMALL, **options)
    assert hash_file(gallery / "CURRENT") == before
    with pytest.raises(InputError, match="the vectors of this gallery are not in Milvus"):
        repair_gallery(gallery.with_name("files"), uri=milvus_server.uri)
    report = repair_gallery(gallery, config=SMALL, uri=milvus_server.uri)
    assert (report.indexed, report.embedded) == (15, 0)
    check(gallery)
