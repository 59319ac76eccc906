"""Damage anywhere in a gallery: the file is named and nothing is answered from it, thousands of times."""

import json
import random
import re
import resource
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from index.errors import RetrievalError
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.sources.reading import read_place
from index.vectors.ann_index import map_ann
from index.versions.manifest import describe_file
from index.versions.versions import find_version, set_current
from index.writing.build import add_to_gallery, remove_from_gallery
from tests.conftest import draw_folder, tries
from tests.forked import run
from tests.index.galleries import build_ann, change_manifest
from tests.mutations import MUTATORS

MUTATIONS = tries(100, deep=140)  # of every file
CUTS = tries(300, deep=750)
FILES = (
    *("CURRENT", "manifest.json", "catalog.sqlite", "vectors/00000.npy", "ids/00000.npy", "deleted.npy"),
    *("index.faiss", "model.onnx"),
)
ANN_TYPES = ("hnsw", "ivf")
FORGED = ("catalog.sqlite", "vectors/00000.npy", "ids/00000.npy", "index.faiss", "deleted.npy")


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of some images, whose index is a graph, with some beside its index and some deleted."""
    folder = tmp_path_factory.mktemp("fuzzed")
    build_ann(draw_folder(folder / "images", per_class=10), folder / "gallery", tiny_model)
    add_to_gallery(folder / "gallery", [draw_folder(folder / "more", per_class=1)])
    gone = Selection(patterns=(f"{folder}/images/red/0.jpg", f"{folder}/more/red/0.jpg"))
    remove_from_gallery(folder / "gallery", selection=gone)
    return folder / "gallery"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Path]:
    """Galleries of the same 300 images, of every type of index that has a file, with nothing beside it or deleted."""
    folder = tmp_path_factory.mktemp("whole")
    draw_folder(folder / "images", per_class=100)
    for index_type in ANN_TYPES:
        build_ann(folder / "images", folder / index_type, tiny_model, index_type=index_type)
    return {index_type: folder / index_type for index_type in ANN_TYPES}


def locate(gallery: Path, name: str) -> Path:
    return gallery / name if name == "CURRENT" else find_version(gallery).folder / name


def answer(gallery: Path) -> list[object]:
    """Everything that a reader asks of a gallery."""
    opened = Gallery.open(gallery)
    vector = opened.vector(int(opened.ids[2]))
    pixels = opened.embedder.preprocess(read_place(opened.place(int(opened.ids[2]))), name="image")
    embedded = opened.embedder.embed_batch(pixels[None])
    hits = opened.search(vector, k=5)
    return [opened.manifest.to_json(), hits, embedded.tobytes(), opened.labelled_vectors()[0].tobytes()]


@pytest.mark.deep
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_never_answered_from(gallery: Path, name: str) -> None:
    path, chance = locate(gallery, name), random.Random(name)
    content, expected = path.read_bytes(), answer(gallery)
    named = gallery.name if name == "CURRENT" else Path(name).name
    refused = 0
    try:
        for number in range(MUTATIONS):
            damaged = MUTATORS[number % len(MUTATORS)](content, chance)
            path.write_bytes(damaged)
            if damaged != content:
                with pytest.raises(RetrievalError, match=re.escape(named)):
                    answer(gallery)
                refused += 1
    finally:
        path.write_bytes(content)
    assert refused > 0.8 * MUTATIONS  # some change nothing: a small catalogue has pages of zeros
    assert answer(gallery) == expected


def forge_files() -> None:
    """Damage a file and sign it again, many times; all is told in `sys.argv`."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    gallery, name = Path(sys.argv[1]), sys.argv[2]
    path, manifest = locate(gallery, name), locate(gallery, "manifest.json")
    content, version, chance = path.read_bytes(), manifest.parent, random.Random(name)
    values = json.loads(manifest.read_text())
    refused = 0
    for number in range(MUTATIONS // 2):
        path.write_bytes(MUTATORS[number % len(MUTATORS)](content, chance))
        values["files"][name] = describe_file(path)
        manifest.write_text(json.dumps(values))
        set_current(gallery, version)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer(gallery)
        except (RetrievalError, ValueError, TypeError, KeyError, OverflowError, IndexError, MemoryError):
            refused += 1
    sys.stdout.write(f"{refused}\n")


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("name", FORGED)
def test_damage_under_a_right_checksum_never_crashes(gallery: Path, tmp_path: Path, name: str) -> None:
    forge(gallery, name, copy=tmp_path / "forged")


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("index_type", ANN_TYPES)
def test_no_damage_of_an_index_crashes(whole: dict[str, Path], tmp_path: Path, index_type: str) -> None:
    forge(whole[index_type], "index.faiss", copy=tmp_path / "forged")


def forge(gallery: Path, name: str, *, copy: Path) -> None:
    """Damage a file of a copy, and sign it again, many times in another process."""
    shutil.copytree(gallery, copy)
    ran = run([copy, name], function=forge_files)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) > 0


def read_cut_files() -> None:
    """Read an index file cut at many places, the first ones above all; the gallery is told in `sys.argv`."""
    gallery = Gallery.open(Path(sys.argv[1]))
    path, described = locate(gallery.path, "index.faiss"), gallery.manifest.index
    content = path.read_bytes()
    later = random.Random(0).sample(range(1000, len(content)), CUTS // 3)
    for size in [*range(0, 1000, 1500 // CUTS), *later]:
        path.write_bytes(content[:size])
        try:
            map_ann(path, described=described, width=16, rows=gallery.ids)
            sys.stdout.write(f"read {len(content) - size}\n")
        except RetrievalError:
            sys.stdout.write("refused\n")


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("index_type", ANN_TYPES)
def test_a_cut_or_wrong_faiss_file_is_refused(whole: dict[str, Path], tmp_path: Path, index_type: str) -> None:
    shutil.copytree(whole[index_type], tmp_path / "g")
    ran = run([tmp_path / "g"], function=read_cut_files)
    assert ran.returncode == 0, ran.stderr[-2000:]
    said = ran.stdout.splitlines()
    assert len(said) == CUTS
    missing = [int(line.split()[1]) for line in said if line != "refused"]
    assert max(missing, default=0) < 8  # bytes of the last number, of which faiss needs no more
    other = whole["ivf" if index_type == "hnsw" else "hnsw"]  # of another type than the manifest says
    shutil.copyfile(locate(other, "index.faiss"), locate(tmp_path / "g", "index.faiss"))
    change_manifest(tmp_path / "g")
    with pytest.raises(RetrievalError, match=r"index\.faiss"):
        answer(tmp_path / "g")


def test_a_manifest_that_names_an_index_without_its_file_is_refused(gallery: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(gallery, copy)
    locate(copy, "index.faiss").unlink()
    manifest = locate(copy, "manifest.json")
    values = json.loads(manifest.read_text())
    del values["files"]["index.faiss"]
    manifest.write_text(json.dumps(values))
    change_manifest(copy)
    with pytest.raises(RetrievalError, match=r"index\.faiss"):
        answer(copy)


def test_a_faiss_file_that_announces_more_than_it_holds_is_refused(gallery: Path, tmp_path: Path) -> None:
    shutil.copytree(gallery, tmp_path / "forged")
    path = locate(tmp_path / "forged", "index.faiss")
    content = bytearray(path.read_bytes())
    content[4:8] = np.int32(1 << 30).tobytes()  # its width
    path.write_bytes(content)
    change_manifest(tmp_path / "forged")
    with pytest.raises(RetrievalError, match=r"index\.faiss"):
        answer(tmp_path / "forged")
