"""A gallery whose vectors are in a real Milvus server, beside its twin whose vectors are in its folder."""

import csv
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index.duplicates.duplicate_config import DuplicateConfig
from index.errors import GalleryDamagedError, GalleryError, GalleryMismatchError, InputError
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.gallery.info import read_info
from index.gallery.selection import Selection
from index.gallery.verify import verify_gallery
from index.public import evaluate
from index.repair.repair import rollback_gallery
from index.vectors.ann_config import StoreConfig
from index.vectors.milvus.collection import TOKEN, Server
from index.vectors.milvus.store import ChosenIds, name_start
from index.writing.build import add_to_gallery, remove_from_gallery, update_gallery
from index.writing.copying import copy_gallery, tune_gallery
from index.writing.upgrading import upgrade_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import ROOT, SMALL, build, few_for_an_index
from tests.milvus_server import ROOT_TOKEN, RunningMilvus
from tests.models import write_tiny_model, write_two_output_model

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("milvus_rights")]
FILTERS = (
    *("label = 'red'", "label != 'red'", "NOT (price < 20)", "price IS NULL", "price = 7 OR shop = 'x'"),
    *("shop != 'x' AND label IN ('red', 'blue')", "path LIKE '%1%'", "id > 5"),
)
SLOW_BUILD = """  # which writes a few vectors at a time, and says so
import sys
from pathlib import Path
from index.vectors.milvus.collection import Collection
from index.vectors.ann_config import StoreConfig
from tests.index.galleries import build

put = Collection.put
Collection.put = lambda *given, **named: (put(*given, **named), print("put", flush=True))
Collection.rows_at_once = 10
model, folder, gallery = map(Path, sys.argv[1:4])
build(folder, gallery, model, store=StoreConfig("milvus", sys.argv[4]))
"""


def write_table(folder: Path) -> Path:
    """The images of a folder with metadata, of which some lacks; every call says something else."""
    table = folder / "table.csv"
    turn = 1 + (len(table.read_text()) if table.exists() else 0)
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "price", "shop"])
        for number, path in enumerate(sorted(folder.glob("*/*.*"))):
            values = ["7", "n/a", "", str(turn % 40)], ["x", "", "y"]
            row = [values[0][(number + turn) % 4], values[1][number % 3]]
            writer.writerow([path.relative_to(folder), path.parent.name, *row])
    return table


def answers(gallery: Path) -> list[object]:
    opened = Gallery.open(gallery)
    everyone = opened.vectors(opened.ids)
    conditions = [parse_filter(text) for text in FILTERS]
    ranked = [opened.rank_many(everyone, k=4)]
    ranked += [opened.rank_many(everyone[:3], k=4, where=where) for where in conditions]
    ranked += [opened.rank_many(everyone[:3], k=None, min_score=0.5, where=where) for where in (None, conditions[0])]
    return [
        opened.ids.tolist(),
        everyone.tobytes(),
        [[(scores.tolist(), ids.tolist()) for scores, ids in some] for some in ranked],
        evaluate(opened, k=(1, 4)).to_json()["recall"],
    ]


@pytest.fixture
def server(milvus_server: RunningMilvus) -> StoreConfig:
    return StoreConfig("milvus", milvus_server.uri)


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, milvus_server: RunningMilvus
) -> Iterator[tuple[Path, Path, Path]]:
    """A table of images, and the twins that were made of them."""
    folder = tmp_path_factory.mktemp("twins")
    table = write_table(draw_folder(folder / "images"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(TOKEN, ROOT_TOKEN)
        build(table, folder / "files", tiny_model)
        build(table, folder / "milvus", tiny_model, store=StoreConfig("milvus", milvus_server.uri))
        yield table, folder / "files", folder / "milvus"


def test_it_answers_as_its_twin(made: tuple[Path, Path, Path]) -> None:
    _, files, milvus = made
    assert answers(milvus) == answers(files)
    report = verify_gallery(milvus, seed=0)
    assert (report.problems, report.compared) == ([], 15)
    assert read_info(milvus)["index"]["collection"].startswith("retrieval_")
    assert not (Gallery.open(milvus)._root / "vectors").exists()


def test_long_lists_of_ids_keep_the_same(made: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, files, milvus = made
    monkeypatch.setattr("index.vectors.milvus.store._EXPRESSED", 3)
    chosen = Gallery.open(milvus).select(parse_filter(FILTERS[1]))
    assert isinstance(chosen, ChosenIds)
    assert chosen.expression is None
    assert answers(milvus) == answers(files)


def test_it_changes_as_its_twin(tmp_path: Path, tiny_model: Path, server: StoreConfig) -> None:
    table = write_table(draw_folder(tmp_path / "images"))
    twins = {name: tmp_path / name for name in ("files", "milvus")}
    for name, gallery in twins.items():
        build(table, gallery, tiny_model, store=server if name == "milvus" else None)
    draw_image((9, 9, 99), seed=5).save(tmp_path / "images" / "red" / "new.png")
    (tmp_path / "images" / "blue" / "1.png").unlink()
    write_table(tmp_path / "images")  # other values for those that stay
    more = tmp_path / "more.png"
    draw_image((200, 9, 99), seed=6).save(more)
    for gallery in twins.values():
        update_gallery(gallery, config=SMALL)
        add_to_gallery(gallery, [more], config=SMALL)
        remove_from_gallery(gallery, selection=Selection(ids=(3, 8)))
    assert answers(twins["milvus"]) == answers(twins["files"])
    for gallery in twins.values():
        rollback_gallery(gallery)
        remove_from_gallery(gallery, selection=Selection(ids=(4,)))
        tune_gallery(gallery)
    assert answers(twins["milvus"]) == answers(twins["files"])
    assert verify_gallery(twins["milvus"], seed=0).problems == []
    client = Server(server.uri)
    names = client.ask(lambda each: each.list_collections(), doing="")
    own = sorted(name for name in names if name.startswith(name_start(twins["milvus"])))
    assert len(own) == 2  # of the version in use, and of the one before


def test_both_outputs_and_near_duplicates_are_those_of_its_twin(tmp_path: Path, server: StoreConfig) -> None:
    model, images = write_two_output_model(tmp_path / "two.onnx"), draw_folder(tmp_path / "images")
    alike = DuplicateConfig(min_similarity=0.99, max_hash_distance=8)
    seen, copies = list[object](), list[bytes]()
    for name, store in {"files": None, "milvus": server}.items():
        report = build(images, tmp_path / name, model, store=store, dedup="near", duplicates=alike)
        assert (report.indexed, report.duplicate) == (15, 0)
    with Image.open(images / "blue" / "3.png") as image:
        image.save(images / "blue" / "late.jpg", quality=90)  # repeats a row that the server has
    for name in ("files", "milvus"):
        assert update_gallery(tmp_path / name, config=SMALL).duplicate == 1
        views = [Gallery.open(tmp_path / name).view(output) for output in ("semantic", "copy")]
        found = [view.rank_many(view.vectors(view.ids), k=4) for view in views]
        seen.append([[(scores.tolist(), ids.tolist()) for scores, ids in some] for some in found])
        copies.append(views[1].vectors(views[1].ids).tobytes())
    assert seen[0] == seen[1]
    assert copies[0] == copies[1]


def test_it_is_copied_there_and_back(made: tuple[Path, Path, Path], tmp_path: Path, server: StoreConfig) -> None:
    _, files, milvus = made
    copy_gallery(files, tmp_path / "there", store=server)
    copy_gallery(tmp_path / "there", tmp_path / "back")
    assert answers(tmp_path / "there") == answers(tmp_path / "back") == answers(files)
    with pytest.raises(InputError, match="has something in it"):
        copy_gallery(milvus, tmp_path / "back")


def test_it_is_upgraded_to_another_width_and_back(tmp_path: Path, tiny_model: Path, server: StoreConfig) -> None:
    gallery, model = tmp_path / "g", write_tiny_model(tmp_path / "wide.onnx", seed=5, width=24)
    build(write_table(draw_folder(tmp_path / "images")), gallery, tiny_model, store=server)
    before = answers(gallery)
    upgrade_gallery(gallery, model, config=SMALL)
    assert (Gallery.open(gallery).width, verify_gallery(gallery).problems) == (24, [])
    draw_image((9, 9, 99), seed=5).save(tmp_path / "images" / "red" / "new.png")
    write_table(tmp_path / "images")
    update_gallery(gallery, config=SMALL)  # which drops collections that no version has
    rollback_gallery(gallery, to="000001")
    assert answers(gallery) == before


def test_an_index_is_measured_with_unseen_vectors(tmp_path: Path, tiny_model: Path, server: StoreConfig) -> None:
    folder = draw_folder(tmp_path / "images", per_class=10)
    with few_for_an_index():
        build(folder, tmp_path / "gallery", tiny_model, store=server, index={"index_type": "hnsw"})
    index = Gallery.open(tmp_path / "gallery").index
    assert (index["type"], index["factory"]) == ("hnsw", "HNSW of Milvus")
    assert index["recall_at_10"] > 0.9
    assert verify_gallery(tmp_path / "gallery", seed=0).problems == []


def test_a_collection_of_another_version_is_refused(tmp_path: Path, tiny_model: Path, server: StoreConfig) -> None:
    gallery = tmp_path / "gallery"
    build(draw_folder(tmp_path / "images"), gallery, tiny_model, store=server)
    opened, client = Gallery.open(gallery), Server(server.uri)
    collection = opened.store._collection  # type: ignore[attr-defined]
    with pytest.raises(GalleryError, match="expected vectors of 16 numbers, of the model f00"):
        collection.check(model_sha256="f00", last=15, count=15)
    collection.delete(opened.ids[:1])
    with pytest.raises(GalleryError, match="has 14 vectors, expected 15"):
        Gallery.open(gallery)
    for step in ("release_collection", "drop_index"):
        words = {"index_name": "vector"} if step == "drop_index" else {}
        client.ask(lambda each, step=step, words=words: getattr(each, step)(collection.name, **words), doing="")
    with pytest.raises(GalleryDamagedError, match="a collection has lost its index; repair it with"):
        Gallery.open(gallery)
    collection.drop()
    with pytest.raises(GalleryError, match="the collection is missing"):
        Gallery.open(gallery)


def test_a_build_killed_with_its_server_goes_on(tmp_path: Path, tiny_model: Path, milvus_server: RunningMilvus) -> None:
    folder = draw_folder(tmp_path / "images", per_class=30)
    for number in range(60):
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(
            folder / "red" / f"n{number}.png"
        )
    table = write_table(folder)
    build(table, tmp_path / "files", tiny_model)
    gallery = tmp_path / "milvus"
    words = [sys.executable, "-c", SLOW_BUILD, tiny_model, table, gallery, milvus_server.uri]
    environment = {**os.environ, TOKEN: ROOT_TOKEN}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as killed:
        assert [killed.stdout.readline() for _ in range(3)] == ["put\n"] * 3
        killed.send_signal(signal.SIGKILL)
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "put\n"
        milvus_server.kill()
        running.stdout.read()
    if running.returncode:  # it gave up before the server was there again
        assert subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode == 0
    assert answers(gallery) == answers(tmp_path / "files")
    assert verify_gallery(gallery, seed=0).problems == []
    shutil.rmtree(gallery)


def test_what_is_wrong_is_told_in_a_line(
    made: tuple[Path, Path, Path],
    tmp_path: Path,
    tiny_model: Path,
    server: StoreConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, _, milvus = made
    with pytest.raises(GalleryError, match="no Milvus server answers there"):
        build(table, tmp_path / "nowhere", tiny_model, store=StoreConfig("milvus", "http://127.0.0.1:9"))
    with pytest.raises(GalleryMismatchError, match=r"store is milvus .* but files was given"):
        build(table, milvus, tiny_model, store=StoreConfig())
    with monkeypatch.context() as patched:
        patched.setattr("index.vectors.milvus.collection.OLDEST", (2, 9))
        with pytest.raises(GalleryError, match=r"Milvus v2\.3\.5-lite, expected"):
            Gallery.open(milvus)
        patched.delenv(TOKEN)
        with pytest.raises(GalleryError, match=f"no right for connecting; set {TOKEN}"):
            Gallery.open(milvus)
