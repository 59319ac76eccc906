"""No command removes or changes what the gallery did not make, whatever a folder given to it holds."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.errors import CancelledError, GalleryError
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.markers import is_part, read_mark
from index.progress import Progress
from index.sources.registry import find_source
from index.versions.annotations import added_folder
from index.versions.gallery_identity import lock_gallery
from index.versions.gallery_parts import make_mark, make_part, remove_part
from index.versions.versions import versions_folder
from index.writing.build import update_gallery
from retrieval_app.commands.index_commands import index
from tests.conftest import draw_folder, draw_image, tries
from tests.index.galleries import ROOT, SMALL, build, invoke, rows

EXAMPLES = tries(8, deep=40)
Shot = dict[str, tuple[object, ...]]
OWN = (
    *("CURRENT", ".lock", "gallery.json", "part.json", "building", "versions", "000001", "000002", "added"),
    *("incoming", "insights", "annotations", "review.sqlite", "review.sqlite-journal", "plan.json"),
    *("manifest.json", "catalog.sqlite", "model.onnx", "checkpoints", "version", "vectors", "00000.npy"),
    *("photo.jpg", "CURRENT.tmp"),
)
CONTENTS = (
    b"",
    b"photo",
    b"{}",
    b"000001 " + b"0" * 64 + b"\n",
    b'{"kind": "retrieval gallery", "id": ""}',
    json.dumps({"kind": "part of a retrieval gallery", "gallery": "0" * 32}).encode(),
    json.dumps({"format_version": 1, "base": None}).encode(),
)
names = st.lists(st.sampled_from(OWN), min_size=1, max_size=3).map("/".join)
things = st.sampled_from([*CONTENTS, "folder", "outside", "nowhere", "."]) | st.binary(max_size=40)
trees = st.dictionaries(names, things, min_size=1, max_size=8)


def shoot(folder: Path, *, but: Callable[[str], bool] = lambda name: False) -> Shot:
    """Every name below a folder with its kind, time and content, links unfollowed."""
    found: Shot = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            key = str(path.relative_to(folder))
            status = path.lstat()
            if but(key):
                continue
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            is_folder = path.is_dir() and not path.is_symlink()
            found[key] = (status.st_mode, None if is_folder else status.st_mtime_ns, content)
    return found


def plant(tree: dict[str, object], folder: Path, *, outside: Path) -> None:
    """Make what a tree says below a folder, as far as nothing is in the way."""
    for name, thing in tree.items():
        path = folder / name
        with suppress(FileExistsError, NotADirectoryError):
            if os.path.lexists(path) or path.parent.resolve() != folder.resolve() / Path(name).parent:
                continue  # something has the name, or a link leads elsewhere
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(thing, bytes):
                path.write_bytes(thing)
            elif thing == "folder":
                path.mkdir()
            else:
                path.symlink_to(outside if thing == "outside" else str(thing))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Images, a model, somebody's folder, and a gallery of two versions."""
    return furnish(tmp_path_factory.mktemp("identity"), tiny_model)


def furnish(folder: Path, model: Path) -> Path:
    """The folder, with what the properties need."""
    images = draw_folder(folder / "images", per_class=2)
    build(images, folder / "gallery", model)
    draw_image((9, 9, 9), seed=1).save(images / "late.png")
    update_gallery(folder / "gallery", config=SMALL)
    (folder / "outside").mkdir()
    (folder / "outside" / "photo.jpg").write_bytes(b"photo")
    shutil.copy(model, folder / "model.onnx")
    return folder


def commands(place: Path, target: Path) -> Iterator[tuple[object, ...]]:
    """Every command that takes a gallery."""
    images = place / "images"
    yield ("build", place / "model.onnx", images, "--out", target)
    yield ("add", target, images / "late.png")
    yield ("update", target)
    yield ("remove", target, "*")
    for name in ("tune", "repair", "rollback", "info", "list", "verify"):
        yield (name, target)
    yield ("repair", target, "--model", place / "model.onnx")
    yield ("rollback", target, "--to", "1")


def start_server(target: Path) -> None:
    """Do to a folder what `retrieval serve --writable` does when it starts and ends."""
    from retrieval_app.review.database import ReviewError
    from retrieval_app.review.jobs import Jobs

    with suppress(GalleryError, ReviewError):
        jobs = Jobs(target, on_change=lambda: None, open_gallery=lambda: Gallery.open(target))
        try:
            jobs.resume()
        finally:
            jobs.close()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees)
def test_no_command_changes_a_folder_that_is_no_gallery(place: Path, tree: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        target, outside = Path(folder) / "vic", place / "outside"
        target.mkdir()
        plant(tree, target, outside=outside)
        others = shoot(outside), shoot(place / "images")
        for words in commands(place, target):
            before = shoot(target)
            result = invoke(index, *words)
            assert not isinstance(result.exception, Exception) or result.exit_code != 0
            after = shoot(target)
            assert {name: after.get(name) for name in before} == before, words
            may_build = words[0] == "build" and not set(before) - {".lock"}
            assert may_build or read_mark(target) is not None or after.keys() == before.keys(), words
            if may_build and read_mark(target) is not None:
                break  # it is a gallery now, which other commands may change
        start_server(target)
        assert {name: shoot(target).get(name) for name in before} == before
        assert (shoot(outside), shoot(place / "images")) == others


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees, seed=st.integers(0, 99))
def test_what_somebody_put_into_a_gallery_stays_as_it_is(place: Path, tree: dict[str, object], seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        target, outside = Path(folder) / "g", place / "outside"
        shutil.copytree(place / "gallery", target, symlinks=True)
        own = set(shoot(target)) | {"building"}
        parts = tuple(f"versions/{version}" for version in os.listdir(versions_folder(target)))
        plant(tree, target, outside=outside)

        def is_own(name: str) -> bool:
            return name in own or name.startswith(parts)

        before, others = shoot(target, but=is_own), shoot(outside)
        draw_image((seed, 9, 200), seed=seed).save(place / "images" / "late.png")
        for words in commands(place, target):
            if words[0] != "remove":
                invoke(index, *words)
            after = shoot(target)
            assert {name: after.get(name) for name in before} == before, words
        start_server(target)
        after = shoot(target)
        assert {name: after.get(name) for name in before} == before
        assert shoot(outside) == others


@pytest.mark.parametrize("name", ["building", "versions/000001"])
def test_photos_in_a_gallery_stay(tmp_path: Path, tiny_model: Path, image_folder: Path, name: str) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    if name != "building":  # in the place of an old version
        for number in range(2):
            draw_image((9, 9, 9), seed=number).save(image_folder / f"late{number}.png")
            update_gallery(tmp_path / "g", config=SMALL)
    shutil.copytree(image_folder, tmp_path / "g" / name)
    before = shoot(tmp_path / "g" / name)
    draw_image((8, 8, 8), seed=8).save(image_folder / "more.png")
    if name == "building":
        with pytest.raises(GalleryError, match=r"building: the gallery needs this name, but did not make this folder"):
            update_gallery(tmp_path / "g", config=SMALL)
    else:
        assert update_gallery(tmp_path / "g", config=SMALL).changed
    assert shoot(tmp_path / "g" / name) == before


def test_locks_and_galleries_are_no_images(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (image_folder / ".lock").touch()
    build(image_folder, tmp_path / "g", tiny_model)
    added_folder(tmp_path / "g").mkdir(parents=True)
    draw_image((1, 2, 3), seed=1).save(added_folder(tmp_path / "g") / "upload.png")
    found = [item.path for item in find_source(str(tmp_path)).scan()]
    assert {path.split("/")[0] for path in found} == {"images"}
    assert not [path for path in found if ".lock" in path]
    assert {row.status for row in rows(tmp_path / "g")} == {"indexed"}


def test_only_a_part_of_the_same_gallery_is_removed(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    identity = make_mark(tmp_path / "g")
    assert make_mark(tmp_path / "g") == identity
    part = make_part(tmp_path / "g", "building")
    (part / "model.onnx").write_bytes(b"half")
    (tmp_path / "link").symlink_to(part)
    assert not remove_part(part, of="0" * 32)
    assert not remove_part(tmp_path / "link", of=identity)
    assert (part / "model.onnx").exists()
    assert remove_part(part, of=identity)
    assert not part.exists()


def test_foreign_files_outlive_versions_and_work(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    gallery = tmp_path / "g"
    build(image_folder, gallery, tiny_model)
    version, building = gallery / "versions" / "000001", make_part(gallery, "building")
    mine = [version / "photos", version / "vectors/photos", building / "photos", building / "checkpoints/mine"]
    for folder in mine:
        shutil.copytree(image_folder, folder)
    (version / "notes.txt").write_text("mine")
    (building / "plan.json").write_text("{}")
    before = [shoot(folder) for folder in mine]
    for number in range(3):
        draw_image((9, 9, 9), seed=number).save(image_folder / f"late{number}.png")
        with suppress(GalleryError):
            update_gallery(gallery, config=SMALL)
        if number == 0:
            assert not is_part(building, of=read_mark(gallery))
            building.rename(tmp_path / "building")
    mine[2:] = [tmp_path / "building" / folder.relative_to(building) for folder in mine[2:]]
    assert [shoot(folder) for folder in mine] == before
    assert (version / "notes.txt").read_text() == "mine"
    assert not (version / "catalog.sqlite").exists()
    assert verify_gallery(gallery).problems == []


PATIENCE_S = 120


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path) -> Path:
    images = draw_folder(tmp_path / "images", per_class=2)
    build(images, tmp_path / "gallery", tiny_model)
    draw_image((9, 9, 9), seed=1).save(images / "red" / "new.png")
    return tmp_path / "gallery"


@contextmanager
def command(*words: object) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-m", "retrieval_app", "index", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_command_that_waits_is_interrupted_and_another_one_has_its_turn(gallery: Path) -> None:
    with command("update", gallery) as patient:
        with lock_gallery(gallery), command("update", gallery) as interrupted:
            told = "another process is writing this gallery; waiting for it, 3600 seconds at most"
            assert told in interrupted.stderr.readline()
            assert "waiting for it" in patient.stderr.readline()
            interrupted.send_signal(signal.SIGINT)
            assert interrupted.wait(PATIENCE_S) == 130
        out, _ = patient.communicate(timeout=PATIENCE_S)
    assert patient.returncode == 0
    assert "7 images" in out


def test_a_wait_tells_how_it_goes_and_is_called_off_from_there(gallery: Path) -> None:
    steps: list[str] = []

    def begin(name: str) -> Progress:
        steps.append(name)

        def tell(done: int, total: int) -> None:
            if len(steps) > 3:
                raise CancelledError("called off")
            steps.append("waiting")

        return tell

    with lock_gallery(gallery), pytest.raises(CancelledError), lock_gallery(gallery, begin_step=begin):
        pass
    assert steps[0] == "Waiting for another process that writes this gallery"


def test_without_patience_the_lock_is_tried_once(gallery: Path) -> None:
    refused = pytest.raises(GalleryError, match="wait for it or stop it")
    with lock_gallery(gallery), refused, lock_gallery(gallery, wait_s=0):
        pass
