"""Damage anywhere in a gallery: the file is named and nothing is answered from it, thousands of times."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index.build import add_to_gallery, remove_from_gallery
from index.errors import RetrievalError
from index.gallery import Gallery, find_version
from index.selection import Selection
from index.versions import describe_file, set_current
from tests.conftest import draw_folder
from tests.index.galleries import ROOT, build

MUTATIONS = 400  # of every file
FILES = (
    "CURRENT", "manifest.json", "catalog.sqlite", "vectors/00000.npy", "ids/00000.npy", "deleted.npy", "index.faiss",
    "model.onnx",
)  # fmt: skip
FORGED = ("catalog.sqlite", "vectors/00000.npy", "ids/00000.npy", "index.faiss", "deleted.npy")


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of some images with some beside its index and some deleted."""
    folder = tmp_path_factory.mktemp("fuzzed")
    build(draw_folder(folder / "images", per_class=3), folder / "gallery", tiny_model)
    add_to_gallery(folder / "gallery", [draw_folder(folder / "more", per_class=1)])
    gone = Selection(patterns=(f"{folder}/images/red/0.jpg", f"{folder}/more/red/0.jpg"))
    remove_from_gallery(folder / "gallery", selection=gone)
    return folder / "gallery"


def locate(gallery: Path, name: str) -> Path:
    return gallery / name if name == "CURRENT" else find_version(gallery).folder / name


def answer(gallery: Path) -> list[object]:
    """Everything that a reader asks of a gallery."""
    opened = Gallery.open(gallery)
    vector = opened.vector(int(opened.ids[2]))
    pixels = opened.embedder.preprocess(opened.read_image_bytes(int(opened.ids[2])), name="image")
    embedded = opened.embedder.embed_batch(pixels[None])
    hits = opened.search(vector, k=5)
    return [opened.manifest.to_json(), hits, embedded.tobytes(), opened.labelled_vectors()[0].tobytes()]


def overwrite(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + chance.randbytes(chance.randint(1, 8)) + content[place + chance.randint(1, 8) :]


def flip_bit(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def extend(content: bytes, chance: random.Random) -> bytes:
    return content + chance.randbytes(chance.randint(1, 64))


def swap(content: bytes, chance: random.Random) -> bytes:
    size = chance.randint(1, max(1, len(content) // 4))
    first, second = (chance.randrange(len(content)) for _ in range(2))
    part = content[first : first + size]
    return content[:second] + part + content[second + len(part) :]


def blank(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content))
    size = chance.randint(1, len(content) - start)
    return content[:start] + bytes(size) + content[start + size :]


MUTATORS: tuple[Callable[[bytes, random.Random], bytes], ...] = (overwrite, flip_bit, cut, extend, swap, blank)


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
    assert refused > 0.9 * MUTATIONS
    assert answer(gallery) == expected


FORGER = """
    import json, random, resource, sys
    from pathlib import Path
    from index.errors import RetrievalError
    from index.versions import describe_file, set_current
    from tests.index.test_gallery_fuzz import MUTATORS, answer, locate

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    gallery, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    path, manifest = locate(gallery, name), locate(gallery, "manifest.json")
    content, version, chance = path.read_bytes(), manifest.parent, random.Random(name)
    values = json.loads(manifest.read_text())
    refused = 0
    for number in range(count):
        path.write_bytes(MUTATORS[number % len(MUTATORS)](content, chance))
        values["files"][name] = describe_file(path)
        manifest.write_text(json.dumps(values))
        set_current(gallery, version)
        try:
            answer(gallery)
        except (RetrievalError, ValueError, TypeError, KeyError, OverflowError, IndexError):
            refused += 1
    print(refused)
"""


@pytest.mark.parametrize("name", FORGED)
def test_damage_under_a_matching_checksum_ends_in_an_error_or_an_answer_but_never_in_a_crash(
    gallery: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(gallery, tmp_path / "forged")
    code = "\n".join(line.removeprefix("    ") for line in FORGER.splitlines())
    words = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "forged"), name, str(MUTATIONS // 2)]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) > 0


def test_a_faiss_file_that_announces_more_than_it_holds_is_refused(gallery: Path, tmp_path: Path) -> None:
    shutil.copytree(gallery, tmp_path / "forged")
    path = locate(tmp_path / "forged", "index.faiss")
    content = bytearray(path.read_bytes())
    content[4:8] = np.int32(1 << 30).tobytes()  # its width
    path.write_bytes(content)
    manifest = path.with_name("manifest.json")
    values = json.loads(manifest.read_text())
    values["files"]["index.faiss"] = describe_file(path)
    manifest.write_text(json.dumps(values))
    set_current(tmp_path / "forged", path.parent)
    with pytest.raises(RetrievalError, match=r"index\.faiss"):
        answer(tmp_path / "forged")
