"""What every kind of source promises; a further kind passes the same tests once it has a line in `CASES`."""

import io
import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from index.errors import ImageError
from index.images.image_files import decode_image
from index.items import FoundItem
from index.network.remote_store import is_address
from index.sources.reading import read_place
from index.sources.registry import SOURCES, find_source, make_source
from index.sources.source import ImageSource, Reach, stays_inside
from tests.conftest import draw_image
from tests.index.hostile import encode
from tests.remote_servers import FileServer

IMAGES = {
    name: encode(draw_image((9, 90, 20 * number), seed=number), "PNG")
    for number, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png"))
}
BROKEN = "dog/broken.png"


def _fill(folder: Path) -> Path:
    for name, data in {**IMAGES, BROKEN: b"no image"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _make_folder(home: Path) -> str:
    return str(_fill(home / "photos"))


def _make_glob(home: Path) -> str:
    return f"{_fill(home / 'photos')}/*/*.png"


def _make_archive(home: Path) -> str:
    with tarfile.open(home / "photos.tar", "w") as archive:
        for name, data in {**IMAGES, BROKEN: b"no image"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return str(home / "photos.tar")


def _make_list(home: Path) -> str:
    _fill(home)
    (home / "photos.txt").write_text("\n".join([*IMAGES, BROKEN, "gone.png"]))
    return str(home / "photos.txt")


def _make_table(home: Path) -> str:
    _fill(home)
    rows = "".join(f"{name},{name.split('/')[0]}\n" for name in (*IMAGES, BROKEN, "gone.png"))
    (home / "photos.csv").write_text(f"path,label\n{rows}")
    return str(home / "photos.csv")


def _make_cells(home: Path) -> str:
    cells = [{"bytes": data, "path": name} for name, data in {**IMAGES, BROKEN: b"no image"}.items()]
    labels = [cell["path"].split("/")[0] for cell in cells]
    pyarrow.parquet.write_table(pyarrow.table({"image": cells, "label": labels}), home / "photos.parquet")
    return str(home / "photos.parquet")


def _make_coco(home: Path) -> str:
    names = [*IMAGES, BROKEN, "gone.png"]
    _fill(home)
    content = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
        "categories": [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}],
        "annotations": [
            {"image_id": number, "category_id": 7 if name.startswith("cat") else 9, "bbox": [0, 0, 4, 4]}
            for number, name in enumerate(names)
        ],
    }
    (home / "photos.json").write_text(json.dumps(content))
    return str(home / "photos.json")


def _make_file(home: Path) -> str:
    return str(_fill(home) / "cat/1.png")


class _Remote:
    """Servers that have the same images, under the address of each kind."""

    def __init__(self, web: FileServer, buckets: FileServer) -> None:
        self._web, self._buckets = web, buckets
        for name, data in {**IMAGES, BROKEN: b"no image"}.items():
            web.files[f"/{name}"] = data
            buckets.files[f"/bucket/photos/{name}"] = data

    def make_list(self, home: Path) -> str:
        rows = "".join(f"{self._web.address}/{name},{name.split('/')[0]}\n" for name in (*IMAGES, BROKEN))
        (home / "urls.csv").write_text(f"url,label\n{rows}")
        return str(home / "urls.csv")

    def make_archive(self, home: Path) -> str:
        self._buckets.files["/bucket/photos.tar"] = Path(_make_archive(home)).read_bytes()
        return "s3://bucket/photos.tar"


REMOTE: dict[str, Callable[[_Remote, Path], str]] = {
    "urls": lambda remote, home: remote.make_list(home),
    "remote": lambda *_: "s3://bucket/photos",
    "remote pattern": lambda *_: "s3://bucket/photos/*/*.png",
    "remote-file archive": lambda remote, home: remote.make_archive(home),
    "remote-file": lambda *_: "s3://bucket/photos/cat/1.png",
}
CASES: dict[str, Callable[[Path], str]] = {
    "folder": _make_folder,
    "glob": _make_glob,
    "file archive": _make_archive,
    "list": _make_list,
    "table": _make_table,
    "cells": _make_cells,
    "coco": _make_coco,
    "file": _make_file,
}
"""By kind, and perhaps another word: what makes a source in a folder, and gives the text that names it."""


def _make(kind: str, request: pytest.FixtureRequest, home: Path) -> ImageSource:
    home.mkdir()
    if kind in REMOTE:
        servers = _Remote(request.getfixturevalue("web"), request.getfixturevalue("buckets"))
        source = find_source(REMOTE[kind](servers, home))
    else:
        source = find_source(CASES[kind](home))
    assert source.kind == kind.partition(" ")[0]
    return source


def test_every_kind_has_a_case() -> None:
    assert {kind.partition(" ")[0] for kind in (*CASES, *REMOTE)} == {source.kind for source in SOURCES}


@pytest.fixture(params=[*CASES, *REMOTE])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> ImageSource:
    return _make(request.param, request, tmp_path / "home")


@pytest.fixture(params=[*CASES, "urls"])
def made_here(request: pytest.FixtureRequest, tmp_path: Path) -> ImageSource:
    """One that a file or folder of this machine is."""
    return _make(request.param, request, tmp_path / "home")


def _usable(source: ImageSource) -> list[FoundItem]:
    return [item for item in source.scan() if item.problem is None]


def test_what_a_catalogue_records_is_the_same_source(made: ImageSource) -> None:
    assert make_source(made.kind, made.location) == made
    assert made.at(made.location) == made
    assert pickle.loads(pickle.dumps(made)) == made
    assert os.path.isabs(made.root) or is_address(made.root) or made.kind == "urls"
    assert made.is_there()


def test_every_item_comes_once_and_in_the_same_order(made: ImageSource) -> None:
    first, again = ([replace(item, problem=None) for item in made.scan()] for _ in range(2))
    assert first == again
    assert len({item.path for item in first}) == len(first) >= 1


def test_every_item_is_read_by_its_place_or_ends_with_a_reason(made: ImageSource) -> None:
    read = []
    for item in made.scan():
        if item.problem is not None:
            assert item.problem.reason
            continue
        place = made.locate(item)
        try:
            data = read_place(place)
            decode_image(data, name=place.name, target_side=8)
        except ImageError:
            assert item.path.endswith(BROKEN)
            continue
        assert data == read_place(pickle.loads(pickle.dumps(place)))
        assert item.size_bytes == (0 if made.kind == "urls" else len(data))  # which are not asked before they are read
        read.append(data)
    assert read == list(IMAGES.values())[: len(read)]
    assert len(read) == (1 if made.is_one_item else len(IMAGES))


def test_the_first_bytes_are_shown_to_the_check_which_may_refuse(made: ImageSource) -> None:
    item = _usable(made)[0]

    def refuse(start: bytes, *, name: str) -> None:
        raise ImageError(path=name, reason="unwanted", detail=start[:4].decode("latin-1"))

    with pytest.raises(ImageError, match=r"unwanted: .PNG"):
        read_place(made.locate(item), check=refuse)


def test_labels_come_from_what_names_the_images_or_the_first_folder(made: ImageSource) -> None:
    labels = {item.label for item in _usable(made)}
    assert labels == ({None} if made.is_one_item else {"cat", "dog"})


def test_paths_stay_inside_the_source(made: ImageSource) -> None:
    assert all(stays_inside(made, item.path) for item in made.scan())
    assert not stays_inside(made, "../elsewhere.png")
    assert stays_inside(made, "/elsewhere.png") is (made.reach is Reach.ANYWHERE)


def test_a_moved_source_has_the_same_items(made_here: ImageSource, tmp_path: Path) -> None:
    before = [(item.path, read_place(made_here.locate(item))) for item in _usable(made_here) if BROKEN not in item.path]
    shutil.move(tmp_path / "home", tmp_path / "moved")
    assert not made_here.is_there()
    now = made_here.at(made_here.location.replace(f"{tmp_path}/home", f"{tmp_path}/moved"))
    assert now.is_there()
    assert [(i.path, read_place(now.locate(i))) for i in _usable(now) if BROKEN not in i.path] == before


def test_links_in_the_folders_of_a_location_are_resolved(made_here: ImageSource, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("home")
    linked = made_here.location.replace(f"{tmp_path}/home", f"{tmp_path}/link")
    assert find_source(linked) == made_here
