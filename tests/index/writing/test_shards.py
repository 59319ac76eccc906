"""Shards of a listing, made by any number of processes, and merged to the gallery that one build makes."""

import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.commands.index_group import index_group
from index.errors import GalleryError, GalleryMismatchError, ImageError, InputError, RetrievalError
from index.gallery.verify import verify_gallery
from index.items import EmbeddedItem
from index.measures import Measures
from index.versions.annotations import added_folder
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, build_gallery, update_gallery
from index.writing.build_config import BuildConfig
from index.writing.cluster_build import connected, embed_sent
from index.writing.shard_plan import Shard, find_outcome_files, read_outcomes, write_outcomes
from index.writing.sharding import ShardReport, SharedWork, embed_shard, merge_shards, open_listing, open_shards
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import ROOT, SMALL, content, count_seen, invoke, mixed_folder, run
from tests.models import write_tiny_model, write_two_output_model

COUNT = 3


def make(number: int, sources: list[Path], out: Path, model: Path, *, count: int = COUNT, **given: Any) -> ShardReport:
    work = open_shards(model_path=model, sources=sources, out=out, **{"config": SMALL, **given})  # type: ignore[arg-type]
    return embed_shard(work, Shard(number, count))


def make_all(sources: list[Path], out: Path, model: Path, **given: Any) -> list[ShardReport]:
    return [make(number, sources, out, model, **given) for number in range(1, COUNT + 1)]


def tables(gallery: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table of the catalogue, but for where the sources lie as seen from the gallery."""
    with sqlite3.connect(find_version(gallery).folder / "catalog.sqlite") as catalog:
        names = [name for (name,) in catalog.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: catalog.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in names}
    catalog.close()
    found["settings"] = [row for row in found["settings"] if row[0] != "places"]
    return found


def largest(folder: Path) -> Path:
    return max(find_outcome_files(folder), key=lambda path: path.stat().st_size)


def same(one: Path, other: Path) -> bool:
    assert verify_gallery(other).problems == []
    return content(one) == content(other) and tables(one) == tables(other)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty drawn images, and files that are none."""
    return mixed_folder(tmp_path / "images")


@given(total=st.integers(0, 5000), count=st.integers(1, 200))
def test_every_item_is_in_exactly_one_shard(total: int, count: int) -> None:
    parts = [Shard(number, count).positions(total) for number in range(1, count + 1)]
    assert [position for part in parts for position in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_wrong_shards_are_refused(tmp_path: Path, tiny_model: Path, folder: Path) -> None:
    words = ["build", tiny_model, folder, "--out", tmp_path / "g", "--batch-size", "4", "--shard"]
    for text in ("0/8", "9/8", "1/0", "3/", "a/b", "-1/8", "3/8/9"):
        result = invoke(index_group, *words, text)
        assert result.exit_code == 2
        assert "I in 1..N" in result.stderr or "is not I/N" in result.stderr
    assert "shard 1 of 2: 16 images" in run(index_group, *words, "1/2")[0]
    assert "16 images, 0 of them new" in run(index_group, *words, "1/2")[0]
    assert '"new_images": 17' in "\n".join(run(index_group, *words, "2/2", "--json"))
    assert invoke(index_group, "merge", tmp_path / "g", "--strict").exit_code == 1


@pytest.mark.parametrize(("outputs", "dedup"), [(1, "off"), (2, "near")])
def test_shards_give_one_build(tmp_path: Path, tiny_model: Path, folder: Path, outputs: int, dedup: str) -> None:
    model = tiny_model if outputs == 1 else write_two_output_model(tmp_path / "two.onnx")
    shutil.copy(folder / "red" / "0.jpg", folder / "red" / "again.jpg")
    more = draw_folder(tmp_path / "more", per_class=2)
    sources = [folder, more]
    whole = build_gallery(model_path=model, sources=sources, out=tmp_path / "whole", config=SMALL, dedup=dedup)
    reports = [make(n, sources, tmp_path / "g", model, dedup=dedup) for n in (2, 3, 1)]
    assert sum(report.new_images for report in reports) == sum(report.images for report in reports) == whole.found
    assert sum(report.skipped for report in reports) == whole.skipped > 0
    merged = merge_shards(tmp_path / "g")
    counts = ("found", "indexed", "duplicate", "skipped_by_reason", "new_images", "labels", "version")
    assert [getattr(merged, name) for name in counts] == [getattr(whole, name) for name in counts]
    assert same(tmp_path / "whole", tmp_path / "g")
    assert not (tmp_path / "g" / "shards").exists()


def test_a_shard_that_two_made_counts_once(tmp_path: Path, tiny_model: Path, folder: Path) -> None:
    shards = tmp_path / "g" / "shards"
    make_all([folder], tmp_path / "g", tiny_model)
    make(1, [folder], tmp_path / "g", tiny_model, count=2)  # and one of another split
    other = BuildConfig(batch_size=4, workers=1, checkpoint_images=3)  # files of other items beside the first's
    shutil.move(shards / Shard(3, COUNT).folder, tmp_path / "aside")
    make(3, [folder], tmp_path / "g", tiny_model, config=other)
    shutil.copytree(tmp_path / "aside", shards / Shard(3, COUNT).folder, dirs_exist_ok=True)
    build_gallery(model_path=tiny_model, sources=[folder], out=tmp_path / "whole", config=SMALL)
    merge_shards(tmp_path / "g")
    assert same(tmp_path / "whole", tmp_path / "g")


@pytest.mark.slow
def test_shards_may_begin_at_the_same_moment(tmp_path: Path, tiny_model: Path, folder: Path) -> None:
    out, model = tmp_path / "g", tiny_model
    words = [sys.executable, "-m", "retrieval_app", "index", "build", str(model), str(folder), "--out", str(out)]
    running = [
        subprocess.Popen([*words, "--batch-size", "4", "--shard", f"{number}/3"], cwd=ROOT, stdout=subprocess.DEVNULL)
        for number in (1, 2, 3)
    ]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    build_gallery(model_path=tiny_model, sources=[folder], out=tmp_path / "whole", config=SMALL)
    merge_shards(out)
    assert same(tmp_path / "whole", out)


@pytest.mark.slow
def test_a_killed_shard_goes_on(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = draw_folder(tmp_path / "images", per_class=40), tmp_path / "g"
    words = ["-m", "retrieval_app", "index", "build", tiny_model, folder, "--out", out, "--shard", "2/3"]
    slow = ["--batch-size", "4", "--workers", "1", "--checkpoint-images", "4"]
    shards = out / "shards" / Shard(2, COUNT).folder
    with subprocess.Popen([sys.executable, *map(str, words), *slow], cwd=ROOT) as process:
        until = time.monotonic() + 60
        while not find_outcome_files(shards) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    done = 4 * len(find_outcome_files(shards))
    assert 0 < done < 40
    with pytest.raises(GalleryError, match=r"are in no shard: run 1, 2, 3 of 3 again"):
        merge_shards(out)
    config = BuildConfig(batch_size=4, checkpoint_images=4)
    with count_seen(monkeypatch) as seen:
        assert make(2, [folder], out, tiny_model, config=config).new_images == 40 - done == sum(seen)
    for number in (1, 3):
        make(number, [folder], out, tiny_model, config=config)
    build_gallery(model_path=tiny_model, sources=[folder], out=tmp_path / "whole", config=config)
    merge_shards(out)
    assert same(tmp_path / "whole", out)


def test_a_merge_names_the_missing_shard(tmp_path: Path, tiny_model: Path, folder: Path) -> None:
    with pytest.raises(GalleryError, match="there are no shards"):
        merge_shards(tmp_path / "g")
    shards = tmp_path / "g" / "shards"
    make(1, [folder], tmp_path / "g", tiny_model)
    make(3, [folder], tmp_path / "g", tiny_model)
    with pytest.raises(GalleryError, match=r"11 of 33 images are in no shard: run 2 of 3 again"):
        merge_shards(tmp_path / "g")
    assert not (tmp_path / "g" / "CURRENT").exists()
    largest(shards / Shard(3, COUNT).folder).unlink()
    with pytest.raises(GalleryError, match=r"in no shard: run 2, 3 of 3 again"):
        merge_shards(tmp_path / "g")
    (shards / Shard(3, COUNT).folder).rename(shards / Shard(1, 2).folder)
    with pytest.raises(GalleryError, match=r"there are shards of 2 and 3; run all those of one number"):
        merge_shards(tmp_path / "g")


def test_shards_of_other_options_are_refused(tmp_path: Path, tiny_model: Path, folder: Path) -> None:
    make(1, [folder], tmp_path / "g", tiny_model)
    other = write_tiny_model(tmp_path / "other.onnx", seed=7)
    with pytest.raises(GalleryError, match=r"whose model \(SHA-256\) is \w+, where \w+ was given"):
        make(2, [folder], tmp_path / "g", other)
    with pytest.raises(GalleryError, match="whose batch_size is 4, where 8 was given"):
        make(2, [folder], tmp_path / "g", tiny_model, config=BuildConfig())
    with pytest.raises(GalleryError, match="whose dedup is off, where exact was given"):
        make(2, [folder], tmp_path / "g", tiny_model, dedup="exact")
    with pytest.raises(GalleryError, match="whose sources is"):
        make(2, [folder / "red"], tmp_path / "g", tiny_model)
    make_all([folder], tmp_path / "h", other)
    shutil.rmtree(tmp_path / "h" / "shards" / Shard(2, COUNT).folder)
    shutil.copytree(tmp_path / "g/shards" / Shard(1, COUNT).folder, tmp_path / "h/shards" / Shard(2, COUNT).folder)
    with pytest.raises(GalleryError, match="made by another model or with other options"):
        merge_shards(tmp_path / "h")


def test_sources_that_changed_are_named_and_what_stayed_is_kept(
    tmp_path: Path, tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_all([folder], tmp_path / "g", tiny_model)
    draw_image((1, 2, 3), seed=5).save(folder / "green" / "new.png")
    with pytest.raises(GalleryError, match=r"1 of 34 images are in no shard: run \d of 3 again"):
        merge_shards(tmp_path / "g")
    os.utime(folder / "green" / "0.jpg", ns=(1, 1))
    with pytest.raises(GalleryError, match=r"2 of 34 images "):
        merge_shards(tmp_path / "g")
    with count_seen(monkeypatch) as seen:
        make_all([folder], tmp_path / "g", tiny_model)
    assert 2 <= sum(seen) <= 4  # and one or two that are another shard's now
    build_gallery(model_path=tiny_model, sources=[folder], out=tmp_path / "whole", config=SMALL)
    merge_shards(tmp_path / "g")
    assert same(tmp_path / "whole", tmp_path / "g")


def test_a_damaged_file_is_named_and_made_again(tmp_path: Path, tiny_model: Path, folder: Path) -> None:
    make_all([folder], tmp_path / "g", tiny_model)
    file = largest(tmp_path / "g" / "shards")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(GalleryError, match=rf"{file.name}: damaged .*; delete it and run its shard again"):
        merge_shards(tmp_path / "g")
    middle = data.index(b"PK", len(data) // 2) - 20
    file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(GalleryError, match="damaged"):
        merge_shards(tmp_path / "g")
    file.unlink()
    assert sum(report.new_images for report in make_all([folder], tmp_path / "g", tiny_model)) == 8
    merge_shards(tmp_path / "g")


def test_shards_update_a_finished_gallery(tmp_path: Path, tiny_model: Path, folder: Path) -> None:
    for out in ("whole", "g"):
        build_gallery(model_path=tiny_model, sources=[folder], out=tmp_path / out, config=SMALL)
    draw_folder(folder / "more", per_class=3)
    reports = make_all([folder], tmp_path / "g", tiny_model)
    assert sum(report.new_images for report in reports) == 9 + 3  # what was skipped is tried once more
    merge_shards(tmp_path / "g")
    update_gallery(tmp_path / "whole", config=SMALL)
    assert same(tmp_path / "whole", tmp_path / "g")
    with pytest.raises(GalleryMismatchError, match="model"):
        make(1, [folder], tmp_path / "g", write_tiny_model(tmp_path / "other.onnx", seed=7))
    with pytest.raises(GalleryMismatchError, match="sources"):
        make(1, [folder / "red"], tmp_path / "g", tiny_model)


def test_shards_have_a_folder_of_their_own(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    make(1, [image_folder], tmp_path / "g", tiny_model)
    with pytest.raises(GalleryError, match=r"no gallery yet, but shards of one: .* `retrieval index merge`"):
        find_version(tmp_path / "g")
    (tmp_path / "g" / "shards" / "letter.txt").write_text("dear")
    make(2, [image_folder], tmp_path / "g", tiny_model)
    make(3, [image_folder], tmp_path / "g", tiny_model)
    merge_shards(tmp_path / "g")
    assert os.listdir(tmp_path / "g" / "shards") == ["letter.txt"]


def test_outcomes_come_back_as_they_were_written(tmp_path: Path) -> None:
    vector = np.linspace(-1, 1, 5, dtype=np.float32)
    problem = ImageError(path="caf\udce9.png", reason="not-an-image", detail="é \ud800\0")
    items = {
        "0": EmbeddedItem(7, problem=problem),
        "1": EmbeddedItem(3, vector=vector, sha256="ab" * 32, phash=-(1 << 63), measures=Measures(3, 4, border=0.1)),
        "2": EmbeddedItem(9, sha256="cd" * 32, problem=problem),
    }
    path = write_outcomes(tmp_path, items, made_by="x")
    assert write_outcomes(tmp_path, items, made_by="x") == path
    back = read_outcomes(path, made_by="x", width=5)
    assert back.keys() == items.keys()
    for key, one in items.items():
        assert (back[key].id, back[key].sha256, back[key].phash) == (0, one.sha256, one.phash)
        assert back[key].measures == one.measures
        assert str(back[key].problem) == str(one.problem)
    assert back["1"].vector.tobytes() == vector.tobytes()
    with pytest.raises(GalleryError, match="width of 6"):
        read_outcomes(path, made_by="x", width=6)


LISTING = ".retrieval-0123456789abcdef.tmp"


def open_work(model: Path, images: Path, out: Path, **options: Any) -> SharedWork:
    config = BuildConfig(batch_size=4)
    work = open_shards(model_path=model, sources=[images], out=out, config=config, **options)
    with open_listing(work) as catalog:
        catalog.write_finished(work.folder / LISTING, compact=False)
    return work


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, image_folder: Path) -> SharedWork:
    return open_work(tiny_model, image_folder, tmp_path / "g")


def send(work: SharedWork, shard: Shard) -> ShardReport | RetrievalError:
    told = work.gallery, work.folder / LISTING, work.config, shard
    return embed_sent(*pickle.loads(pickle.dumps(told)))


def test_tasks_make_the_shards_of_a_gallery(work: SharedWork) -> None:
    reports = [send(work, Shard(number, 2)) for number in (1, 2)]
    assert all(isinstance(report, ShardReport) for report in reports)
    report = merge_shards(work.gallery)
    assert report.new_images == sum(report.images - report.skipped for report in reports)


def test_a_node_needs_no_added_photos(work: SharedWork, tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    send(work, Shard(1, 1))
    merge_shards(work.gallery)
    uploads = added_folder(work.gallery)
    uploads.mkdir(parents=True)
    draw_image((9, 8, 7), seed=1).save(uploads / "1.png")
    add_to_gallery(work.gallery, [uploads], config=work.config)
    draw_image((7, 8, 9), seed=2).save(image_folder / "new.png")
    report = send(open_work(tiny_model, image_folder, work.gallery), Shard(1, 1))
    assert isinstance(report, ShardReport), report
    assert report.new_images == 1
    assert merge_shards(work.gallery).new_images == 1


def test_shards_go_with_what_a_killed_build_left(work: SharedWork) -> None:
    (work.folder / f"{LISTING}-journal").touch()
    send(work, Shard(1, 1))
    merge_shards(work.gallery)
    assert not work.folder.exists()


def test_a_node_that_sees_no_shared_folder_says_so(work: SharedWork, tmp_path: Path) -> None:
    answer = send(replace(work, gallery=tmp_path / "nowhere"), Shard(1, 2))
    assert isinstance(answer, GalleryError)
    assert "not visible on a node; give an --out that all machines share" in str(answer)


def test_a_node_that_sees_no_images_says_so_and_writes_nothing(work: SharedWork, image_folder: Path) -> None:
    image_folder.rename(image_folder.with_name("away"))
    answer = send(work, Shard(1, 2))
    assert isinstance(answer, InputError)
    assert f"{image_folder}: no such file or folder" in str(answer)
    assert not (work.folder / Shard(1, 2).folder).exists()


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "127.0.0.1:1"])
def test_an_address_without_a_cluster_is_named(address: str) -> None:
    said = "no Ray cluster answers there" if "127" in address else "the address of a Ray cluster's head as HOST:PORT"
    with pytest.raises(InputError, match=said), connected(address):
        pass
