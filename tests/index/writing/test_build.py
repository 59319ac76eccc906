"""A folder becomes a gallery: every file settled, nothing lost to a kill, clear refusals."""

import csv
import errno
import importlib
import itertools
import json
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from index.arrays import Vectors
from index.catalog.reader import read_catalog
from index.commands.index_group import index_group
from index.errors import GalleryError, GalleryMismatchError, InputError, ModelFileError
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.images.preprocess import Pixels
from index.model.embedder import Embedder
from index.progress import Progress
from index.versions.gallery_identity import lock_gallery
from index.versions.versions import find_version
from index.writing.build import build_gallery, update_gallery
from index.writing.build_config import BuildConfig
from index.writing.copying import cluster_gallery, name_clusters
from tests.conftest import draw_folder, draw_image, mostly_slow
from tests.forked import run
from tests.index.galleries import (
    SMALL,
    build,
    build_ann,
    content,
    count_seen,
    few_for_an_index,
    flip,
    invoke,
    mixed_folder,
    rows,
    vectors,
)
from tests.models import read_pixels, write_tiny_model, write_two_output_model

Stopped = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    """Lets the model fail on a batch that is not full, which the last one of fifteen images is."""

    @contextmanager
    def stop() -> Iterator[None]:
        embed = Embedder.embed_padded

        def fail(self: Embedder, pixels: Pixels, *, batch_size: int) -> Vectors:
            if len(pixels) < batch_size:
                raise ModelFileError(str(self.path), "the model failed")
            return embed(self, pixels, batch_size=batch_size)

        with monkeypatch.context() as patched:
            patched.setattr(Embedder, "embed_padded", fail)
            with pytest.raises(ModelFileError, match="the model failed"):
                yield

    return stop


def test_labels_come_from_a_file_and_are_refreshed(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label\nimages/red/0.jpg,apple\nimages/blue/1.png,plum\nnone.jpg,x\n")
    build(image_folder, tmp_path / "g", tiny_model, labels_file=labels)
    assert {row.path: row.label for row in rows(tmp_path / "g") if row.label} == {
        "red/0.jpg": "apple",
        "blue/1.png": "plum",
    }
    ids = {row.path: row.id for row in rows(tmp_path / "g")}
    report = build(image_folder, tmp_path / "g", tiny_model)
    assert (report.version, report.new_images) == ("000002", 0)
    assert {row.label for row in rows(tmp_path / "g")} == {"blue", "green", "red"}
    assert {row.path: row.id for row in rows(tmp_path / "g")} == ids
    labels.write_text("path,label\nother/0.jpg,apple\n")
    with pytest.raises(InputError, match=r"labels.csv: none of its 1 labelled paths"):
        build(image_folder, tmp_path / "g", tiny_model, labels_file=labels)
    assert find_version(tmp_path / "g").name == "000002"


def build_with_few_open_files() -> None:
    """Build a gallery with a checkpoint after every image; all is told in `sys.argv`."""
    model, folder, out = map(Path, sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[4]), int(sys.argv[4])))
    config = BuildConfig(batch_size=1, workers=1, checkpoint_images=1)
    sys.stdout.write(f"{build_gallery(model_path=model, sources=[folder], out=out, config=config).indexed}\n")


@pytest.mark.slow
def test_a_build_of_many_checkpoints_needs_few_open_files(tmp_path: Path, tiny_model: Path) -> None:
    folder = draw_folder(tmp_path / "images", per_class=30)
    ran = run([tiny_model, folder, tmp_path / "g", 60], function=build_with_few_open_files)
    assert (ran.stdout, ran.stderr) == ("90\n", "")
    assert verify_gallery(tmp_path / "g").problems == []
    embedder = Embedder(tiny_model, threads=1)
    stored = vectors(tmp_path / "g")
    for row in rows(tmp_path / "g")[::7]:
        pixels = read_pixels(embedder, folder / row.path)
        vector = np.frombuffer(stored[row.id], np.float32)
        assert np.allclose(vector, embedder.embed_batch(pixels[None])[0], atol=1e-6)


def test_a_used_up_limit_of_open_files_is_never_called_damage(
    tmp_path: Path, image_folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (errno.EMFILE, errno.ENFILE):
        out = tmp_path / f"g{number}"

        def refuse(*args: object, number: int = number, **options: object) -> object:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr("index.images.image_files._open_without_waiting", refuse)
            with pytest.raises(InputError, match=r"open files.*ulimit"):  # and no image is skipped for it
                build(image_folder, out, tiny_model)
        with monkeypatch.context() as patched:
            patched.setattr("index.vectors.shards.np.load", refuse)
            with pytest.raises(GalleryError, match=r"cannot be read: .*open files.*ulimit") as caught:
                build(image_folder, out, tiny_model)
        assert "damaged" not in str(caught.value)
        assert build(image_folder, out, tiny_model).skipped == 0


def test_gallery_and_images_lie_beside_each_other(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (tmp_path / "link").symlink_to(image_folder)
    for out in (image_folder, image_folder / "g", tmp_path, tmp_path / "link" / "g"):
        with pytest.raises(InputError, match="must lie beside each other"):
            build(image_folder, out, tiny_model)
    assert not (image_folder / "g").exists()


def test_a_folder_of_other_files_is_no_gallery(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    with pytest.raises(GalleryError, match="is not a gallery"):
        build(image_folder, tmp_path / "thesis", tiny_model)
    with pytest.raises(InputError, match="found a file"):
        build(image_folder, tmp_path / "thesis" / "chapter.txt", tiny_model)
    assert os.listdir(tmp_path / "thesis") == ["chapter.txt"]


def test_a_folder_without_usable_images_lists_why_and_leaves_no_gallery(tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    with pytest.raises(InputError, match="no usable image in its sources: there are no files"):
        build(folder, tmp_path / "g", tiny_model)
    (folder / "a.jpg").write_bytes(b"")
    (folder / "b.jpg").write_bytes(b"text")
    (folder / "c.jpg").write_bytes(b"text")
    with pytest.raises(InputError, match="no usable image in its sources: 1 empty-file, 2 not-an-image"):
        build(folder, tmp_path / "g", tiny_model)
    assert not (tmp_path / "g").exists()
    (tmp_path / "g").mkdir()  # which was there before stays
    with pytest.raises(InputError, match="no usable image"):
        build(folder, tmp_path / "g", tiny_model)
    assert (tmp_path / "g").is_dir()
    draw_image((1, 2, 3), seed=0).save(folder / "d.png")
    assert build(folder, tmp_path / "g", tiny_model).indexed == 1


def test_an_image_without_a_finite_unit_vector_is_skipped(tmp_path: Path, image_folder: Path) -> None:
    model = write_tiny_model(tmp_path / "blind.onnx", blind_to_black=True)
    Image.new("RGB", (40, 40), "black").save(image_folder / "black.png")
    report = build(image_folder, tmp_path / "g", model)
    assert (report.indexed, report.skipped_by_reason) == (15, {"bad-embedding": 1})
    (row,) = [row for row in rows(tmp_path / "g") if row.status == "skipped"]
    assert (row.path, row.detail) == ("black.png", "the model gave no finite unit vector")


def test_a_failed_batch_loses_nothing(tmp_path: Path, image_folder: Path, tiny_model: Path, stopped: Stopped) -> None:
    with stopped():  # 15 images are 4 + 4 + 4 + 3
        build(image_folder, tmp_path / "g", tiny_model)
    with pytest.raises(GalleryError, match="run the same build again, or `retrieval index update`"):
        Gallery.open(tmp_path / "g")
    done = []
    moved = image_folder.rename(tmp_path / "moved")
    with pytest.raises(GalleryMismatchError, match="--root"):
        build(moved, tmp_path / "g", tiny_model)
    draw_image((5, 5, 5), seed=5).save(moved / "sixteenth.png")
    tell = {"progress": lambda n, total: done.append((n, total))}
    report = update_gallery(tmp_path / "g", roots={None: moved}, config=SMALL, **tell)
    assert report.indexed == 16
    assert done == [(4, 8), (8, 8)]  # the checkpoint of the first eight was kept


def test_damaged_checkpoints(tmp_path: Path, image_folder: Path, tiny_model: Path, stopped: Stopped) -> None:
    with stopped():
        build(image_folder, tmp_path / "g", tiny_model)
    (checkpoint,) = (tmp_path / "g" / "building" / "checkpoints").glob("*.npy")
    flip(checkpoint)
    told = rf"{checkpoint.name}: the unfinished work is damaged: its SHA-256.*`retrieval index repair`"
    with pytest.raises(GalleryError, match=told):
        build(image_folder, tmp_path / "g", tiny_model)


def die_in_a_build() -> None:
    """Build a gallery, and be killed before or after the n-th call of a function; all is told in `sys.argv`."""
    place, name, call, before, model, folder, out = sys.argv[1:]
    module, _, owner = place.partition(":")
    holder = importlib.import_module(module)
    holder = getattr(holder, owner) if owner else holder
    real, calls = getattr(holder, name), itertools.count(1)

    def dying(*args: Any, **kwargs: Any) -> Any:
        is_it = next(calls) == int(call)
        if is_it and before == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, name, dying)
    with few_for_an_index():
        build(Path(folder), Path(out), Path(model), index={"index_type": "hnsw"})


CATALOG, VERSIONS = "index.catalog.writer:CatalogWriter", "index.versions.versions"
MOMENTS = {
    "after the second checkpoint": (CATALOG, "record_outcomes", 2, "after"),
    "between a checkpoint's vectors and its rows": (CATALOG, "record_outcomes", 3, "before"),
    "in the first batch": ("index.model.embedder:Embedder", "embed_batch", 1, "before"),
    "before the scan is recorded": ("index.writing.build", "record_scan", 1, "before"),
    "before what vanished is dropped": (CATALOG, "drop_vanished", 1, "before"),
    "while the vectors are written": ("index.vectors.files", "write_shards", 1, "before"),
    "before the index is written": ("index.vectors.ann_building", "write_ann", 1, "before"),
    "after the index is written": ("index.vectors.ann_building", "write_ann", 1, "after"),
    "before the manifest is written": ("index.writing.publishing", "_describe", 1, "before"),
    "before the version is renamed": ("index.writing.publishing", "publish_version", 1, "before"),
    "before CURRENT is replaced": (VERSIONS, "set_current", 1, "before"),
    "before the work in progress is removed": (VERSIONS, "set_current", 1, "after"),
}


@pytest.mark.parametrize(
    "moment", mostly_slow(MOMENTS, fast=("after the second checkpoint", "before CURRENT is replaced"))
)
def test_a_killed_build_ends_as_the_same_gallery(tmp_path: Path, tiny_model: Path, moment: str) -> None:
    folder = mixed_folder(tmp_path / "images")
    build_ann(folder, tmp_path / "whole", tiny_model)
    killed = run([*MOMENTS[moment], tiny_model, folder, tmp_path / "g"], function=die_in_a_build)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    decoded: list[int] = []
    report = build_ann(folder, tmp_path / "g", tiny_model, progress=lambda done, total: decoded.append(total))
    if "checkpoint" in moment:
        assert decoded[0] == 33 - 16  # two checkpoints of eight files are not done again
    assert report.changed != ("removed" in moment)
    assert report.version == ("000002" if "CURRENT" in moment else "000001")
    assert rows(tmp_path / "g") == rows(tmp_path / "whole")
    assert vectors(tmp_path / "g") == vectors(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path / "g")) == [".lock", "CURRENT", "gallery.json", "versions"]


def test_work_of_another_model(tmp_path: Path, image_folder: Path, tiny_model: Path, stopped: Stopped) -> None:
    with stopped():
        build(image_folder, tmp_path / "g", tiny_model)
    other = write_tiny_model(tmp_path / "other.onnx", seed=1)
    with pytest.raises(GalleryMismatchError, match="model"):
        build(image_folder, tmp_path / "g", other)


def test_checkpoints_by_time(tmp_path: Path, image_folder: Path, tiny_model: Path, stopped: Stopped) -> None:
    config = BuildConfig(batch_size=4, workers=2, checkpoint_images=1000, checkpoint_seconds=0)
    with stopped():
        build_gallery(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g", config=config)
    assert build(image_folder, tmp_path / "g", tiny_model).new_images == 3


def test_who_waits_for_the_lock_of_a_folder_that_goes_is_told(tmp_path: Path) -> None:
    gallery = tmp_path / "gallery"
    gallery.mkdir()
    told: list[Exception] = []
    begun = threading.Event()

    def begin(_: str) -> Progress:
        begun.set()
        return lambda done, total: None

    def wait() -> None:
        try:
            with lock_gallery(gallery, wait_s=60, begin_step=begin):
                pass
        except GalleryError as error:
            told.append(error)

    with lock_gallery(gallery):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert begun.wait(60)
        (gallery / ".lock").unlink()
        gallery.rmdir()
    waiting.join()
    assert "run this again" in str(told[0])


def catalog(gallery: Path) -> list[tuple[object, ...]]:
    with read_catalog(find_version(gallery).folder / "catalog.sqlite") as opened:
        return [(r.id, r.path, r.status, r.sha256, r.phash, r.measures, r.label) for r in opened.rows()]


@pytest.mark.parametrize("outputs", [1, 2])
def test_caches_change_nothing(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, outputs: int) -> None:
    folder = mixed_folder(tmp_path / "images")
    model = tiny_model if outputs == 1 else write_two_output_model(tmp_path / "two.onnx")
    cached = replace(SMALL, cache=tmp_path / "cache")
    plain = build_gallery(model_path=model, sources=[folder], out=tmp_path / "plain", config=SMALL)
    build_gallery(model_path=model, sources=[folder / "red"], out=tmp_path / "part", config=cached)
    with count_seen(monkeypatch) as seen:
        mixed = build_gallery(model_path=model, sources=[folder], out=tmp_path / "mixed", config=cached)
        assert (sum(seen), mixed.from_cache, mixed.new_images) == (20, 10, 30)
        seen.clear()
        known = build_gallery(model_path=model, sources=[folder], out=tmp_path / "known", config=cached)
        assert (seen, known.from_cache, known.skipped) == ([], 30, plain.skipped)
    assert content(tmp_path / "plain") == content(tmp_path / "mixed") == content(tmp_path / "known")
    assert catalog(tmp_path / "plain") == catalog(tmp_path / "mixed") == catalog(tmp_path / "known")


def test_the_command_uses_the_users_cache_folder_unless_told_not_to(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))

    def run(out: str, *words: str) -> dict[str, object]:
        result = invoke(index_group, "build", tiny_model, image_folder, "--out", tmp_path / out, "--json", *words)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    assert run("none", "--no-cache")["from_cache"] == 0
    assert not (tmp_path / "home").exists()
    assert run("first")["from_cache"] == 0
    assert (tmp_path / "home/retrieval-app/vectors.sqlite").exists()
    assert run("second")["from_cache"] == 15
    assert run("third", "--no-cache")["from_cache"] == 0
    text = invoke(index_group, "build", tiny_model, image_folder, "--out", tmp_path / "fourth").stdout
    assert "15 of these came from the cache" in text


def read_clusters(gallery: Path) -> dict[str, str | None]:
    with Gallery.open(gallery).catalog() as catalog:
        return {row.path: row.metadata.get("cluster") for row in catalog.rows(status="indexed")}


def test_images_get_the_names_of_their_clusters_which_an_update_keeps(tmp_path: Path, tiny_model: Path) -> None:
    images, out = draw_folder(tmp_path / "images", per_class=6), tmp_path / "gallery"
    build_gallery(model_path=tiny_model, sources=[images], out=out)
    report, sizes = cluster_gallery(out, count=3)
    assert (report.changed, report.new_images) == (True, 0)
    found = read_clusters(out)
    assert {path.partition("/")[0] for path, name in found.items() if name == "red"} == {"red"}
    assert sizes == {"blue": 6, "green": 6, "red": 6}
    opened = Gallery.open(out)
    with opened.catalog() as catalog:
        assert len(catalog.matching_ids(parse_filter("cluster = 'red'"))) == 6
    draw_image((200, 30, 40), seed=77).save(images / "red" / "later.png")
    update_gallery(out)
    assert read_clusters(out) == {**found, "red/later.png": None}
    more, sizes = cluster_gallery(out, count=1)
    assert more.changed
    assert sum(sizes.values()) == 19
    same, _ = cluster_gallery(out, count=1)
    assert not same.changed


def test_a_column_of_that_name_is_never_replaced(tmp_path: Path, tiny_model: Path) -> None:
    draw_folder(tmp_path / "images", per_class=2)
    table = tmp_path / "images" / "images.csv"
    with table.open("w", newline="") as file:
        paths = sorted((tmp_path / "images").glob("*/*.*"))
        csv.writer(file).writerows([("path", "cluster"), *((path.relative_to(table.parent), "mine") for path in paths)])
    build_gallery(model_path=tiny_model, sources=[table], out=tmp_path / "gallery")
    with pytest.raises(InputError, match="metadata called cluster of their own; rename that column"):
        cluster_gallery(tmp_path / "gallery")
    assert set(read_clusters(tmp_path / "gallery").values()) == {"mine"}


def test_names_are_labels_numbered_where_they_repeat_and_never_another_label() -> None:
    clusters = np.array([0, 0, 0, 1, 1, 2])
    assert name_clusters(clusters, ["a", "a", "a 2", "a", None, None]) == {0: "a", 1: "a 3", 2: "cluster 3"}
