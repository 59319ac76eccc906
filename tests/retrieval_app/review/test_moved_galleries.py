"""A gallery that is moved, copied or linked knows its images again: none comes twice, none that was removed is back."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from index.catalog.reader import read_catalog
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.versions.annotations import added_folder
from index.versions.versions import find_version
from index.writing.build import build_gallery, update_gallery
from index.writing.copying import copy_gallery
from retrieval_app.review.jobs import Jobs
from tests.conftest import draw_folder
from tests.index.galleries import rows
from tests.retrieval_app.review.test_jobs import WAIT_SECONDS, picture


class Home:
    """A folder with photos, and a gallery of them and of what was sent."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.gallery = folder, folder / "shop"


@contextmanager
def served(gallery: Path) -> Iterator[Jobs]:
    """The jobs of a server that starts on the gallery, and ends."""
    jobs = Jobs(gallery, on_change=lambda: None, open_gallery=lambda: Gallery.open(gallery))
    try:
        yield jobs
        jobs._writer.submit(lambda: None).result(WAIT_SECONDS)
    finally:
        jobs.close()


def send(jobs: Jobs, seed: int, label: str | None = None) -> None:
    job = jobs.add(picture(seed), name="x", label=label)
    jobs._writer.submit(lambda: None).result(WAIT_SECONDS)
    assert jobs.get(job.id).state == "done", jobs.get(job.id).message


def state_of(gallery: Path) -> dict[int, tuple[str | None, str, str | None, str]]:
    return {row.id: (row.sha256, row.status, row.label, row.path) for row in rows(gallery)}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Home:
    home = Home(tmp_path_factory.mktemp("first"))
    draw_folder(home.folder / "photos", per_class=2)
    build_gallery(model_path=tiny_model, sources=[home.folder / "photos"], out=home.gallery)
    with served(home.gallery) as jobs:
        for seed, label in ((1, None), (2, "boot"), (3, "boot"), (4, None)):
            send(jobs, seed, label)
        jobs.remove([next(row.id for row in rows(home.gallery) if row.label == "boot")])
    return home


@pytest.fixture
def home(first: Home, tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    shutil.copytree(first.folder, home.folder, symlinks=True)
    update_gallery(home.gallery, roots={str(first.folder / "photos"): home.folder / "photos"})
    return home


def check_known_again(gallery: Path, before: dict[int, tuple[str | None, str, str | None, str]]) -> None:
    """A server that starts adds nothing, an update finds nothing new, and what is sent next is one image more."""
    with served(gallery) as jobs:
        assert jobs.resume() == []
    assert state_of(gallery) == before
    report = update_gallery(gallery)
    assert (report.new_images, report.vanished) == (0, 0)
    assert state_of(gallery) == before
    with served(gallery) as jobs:
        assert jobs.resume() == []
        send(jobs, 77)
        send(jobs, 1)  # is there already
    assert len(state_of(gallery)) == len(before) + 1
    assert state_of(gallery).items() >= before.items()
    opened = Gallery.open(gallery)
    assert all(opened.place(int(image_id)).file.is_file() for image_id in opened.ids)
    assert verify_gallery(gallery).notes == []


def copy_alone(home: Home, to: Path) -> Path:
    return shutil.copytree(home.gallery, to / "copied", symlinks=True)


def copy_by_index(home: Home, to: Path) -> Path:
    copy_gallery(home.gallery, to / "copied")
    return to / "copied"


def move_all(home: Home, to: Path) -> Path:
    return home.folder.rename(to / "everything") / "shop"


def link_home(home: Home, to: Path) -> Path:
    (to / "link").symlink_to(home.folder)
    return Path(f"{to}/link/photos/../shop/versions/.././")


@pytest.mark.parametrize("way", [copy_alone, copy_by_index, move_all, link_home])
def test_a_moved_gallery_knows_its_images(home: Home, tmp_path: Path, way: Callable[[Home, Path], Path]) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    before = state_of(home.gallery)
    check_known_again(way(home, tmp_path / "deep" / "er"), before)


@pytest.mark.slow
@pytest.mark.parametrize(("relative", "moved"), [(True, True), (False, True), (False, False)])
def test_linked_uploads_are_known_again(home: Home, tmp_path: Path, relative: bool, moved: bool) -> None:
    before = state_of(home.gallery)
    added, target = added_folder(home.gallery), home.folder / "uploads"
    added.rename(target)
    added.symlink_to(os.path.relpath(target, added.parent) if relative else target)
    gallery = home.gallery
    if moved:
        gallery = home.folder.rename(tmp_path / "everything") / "shop"
        if not relative:
            (tmp_path / "home").mkdir()
            (gallery.parent / "uploads").rename(target)
    check_known_again(gallery, before)


def test_uploads_of_two_galleries_are_kept_apart(home: Home, tmp_path: Path, tiny_model: Path) -> None:
    sent = shutil.copytree(added_folder(home.gallery), tmp_path / "other" / "added")
    gallery = tmp_path / "second"
    build_gallery(model_path=tiny_model, sources=[sent], out=gallery)
    with served(gallery) as jobs:
        assert jobs.resume() == []
        send(jobs, 1)
    assert added_folder(gallery).is_dir()
    assert len(state_of(gallery)) == 4 + 1
    before = state_of(gallery)
    moved = gallery.rename(tmp_path / "third")
    with served(moved) as jobs:
        assert jobs.resume() == []
    assert state_of(moved) == before


def test_a_moved_gallery_finds_its_photos(home: Home, tmp_path: Path, tiny_model: Path) -> None:
    before, gallery = state_of(home.gallery), move_all(home, tmp_path)
    opened = Gallery.open(gallery)
    assert all(opened.place(int(image_id)).file.is_relative_to(tmp_path / "everything") for image_id in opened.ids)
    assert verify_gallery(gallery).notes == []
    report = build_gallery(model_path=tiny_model, sources=[tmp_path / "everything" / "photos"], out=gallery)
    assert (report.new_images, report.vanished) == (0, 0)
    assert state_of(gallery) == before
    with read_catalog(find_version(gallery).folder / "catalog.sqlite") as catalog:
        assert str(tmp_path / "everything" / "photos") in {s.location for s in catalog.recorded_sources().values()}
        assert catalog.moved_sources() == ()


def test_another_folder_in_the_same_place_is_not_taken_for_the_photos(home: Home, tmp_path: Path) -> None:
    gallery = move_all(home, tmp_path)
    shutil.rmtree(gallery.parent / "photos")
    draw_folder(gallery.parent / "photos" / "others")
    with pytest.raises(InputError, match="no such folder"):
        update_gallery(gallery)


@pytest.mark.slow
def test_builds_while_images_are_sent_lose_none_and_double_none(home: Home, tiny_model: Path) -> None:
    before = state_of(home.gallery)
    with served(home.gallery) as jobs:
        sent = [jobs.add(picture(300 + number), name="x", label=f"label {number % 2}") for number in range(12)]
        for _ in range(4):
            build_gallery(model_path=tiny_model, sources=[home.folder / "photos"], out=home.gallery)
        update_gallery(home.gallery)
        jobs._writer.submit(lambda: None).result(WAIT_SECONDS)
        assert {jobs.get(job.id).state for job in sent} == {"done"}
    assert len(state_of(home.gallery)) == len(before) + 12
    assert state_of(home.gallery).items() >= before.items()
    with served(home.gallery) as jobs:
        assert jobs.resume() == []
