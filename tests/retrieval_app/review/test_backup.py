import os
import shutil
import sqlite3
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from index.errors import InputError
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.labels.decided_labels import read_current_catalog
from index.labels.decisions import PRESENT, DuplicateDecision, ImageRef, LabelDecision, Mark
from index.labels.steps import SavedSearch
from index.markers import GALLERY_MARK
from index.versions.annotations import added_folder, decisions_file
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, build_gallery, remove_from_gallery, update_gallery
from retrieval_app.api.security.access import Access
from retrieval_app.review.backup import back_up, restore
from retrieval_app.review.database import ReviewError
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_decided_ids, read_all_subjects
from tests.conftest import draw_folder
from tests.forked import run
from tests.index.galleries import rows
from tests.retrieval_app.api.conftest import serve
from tests.retrieval_app.review.test_jobs import picture
from tests.retrieval_app.review.test_moved_galleries import send, served, state_of


def restore_and_die() -> None:
    """Restore until so many files are made; the backup, the gallery and the number are told in `sys.argv`."""
    left = int(sys.argv[3])

    def count(event: str, _: object) -> None:
        nonlocal left
        if event in ("os.rename", "os.mkdir", "os.link", "sqlite3.connect", "os.utime"):
            left -= 1
            if left < 0:
                os._exit(9)

    sys.addaudithook(count)
    restore(Path(sys.argv[1]), Path(sys.argv[2]))


@dataclass(frozen=True)
class Made:
    gallery: Path
    photos: Path
    backup: Path


def subjects_of(gallery: Path) -> dict[str, ImageRef]:
    return {
        os.path.basename(os.path.dirname(s.path)) + "/" + os.path.basename(s.path): s
        for s in read_all_subjects(Gallery.open(gallery))
    }


def decided_about(gallery: Path) -> dict[str, str]:
    store, opened = ReviewStore.of_gallery(gallery), Gallery.open(gallery)
    decisions = store.label_decisions()
    ids = find_decided_ids(opened, decisions.values())
    names = {subject.image_id: name for name, subject in subjects_of(gallery).items()}
    return {names[number]: decisions[key].new_label or decisions[key].decision for key, number in ids.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Made:
    folder = tmp_path_factory.mktemp("made")
    photos = draw_folder(folder / "photos", per_class=3)
    shutil.copy(photos / "red" / "0.jpg", photos / "red" / "copy.jpg")
    gallery = folder / "shop"
    build_gallery(model_path=tiny_model, sources=[photos], out=gallery)
    with served(gallery) as jobs:
        send(jobs, 1)
        send(jobs, 2, "boot")
        send(jobs, 3, "taken out")
        jobs.remove([row.id for row in rows(gallery) if row.label == "taken out"])
    store, now = ReviewStore.of_gallery(gallery), subjects_of(gallery)
    boot = next(subject for subject in now.values() if subject.label == "boot")
    store.decide([now["red/1.png"].decide("change", new_label="blue"), now["green/0.jpg"].decide("drop")])
    store.decide([boot.decide("keep")])
    pair = (now["red/0.jpg"], now["red/copy.jpg"])
    store.decide([DuplicateDecision(pair, "duplicates", (pair[1].image_id,))])
    store.decide([Mark(now["red/1.png"].sha256, "tag:best", PRESENT), Mark(now["green/0.jpg"].sha256, "split", "test")])
    store.decide([SavedSearch("best ones", "where=tag%20%3D%20'best'")])
    store.close()
    report = back_up(gallery, folder / "made.zip")
    assert report.decisions == {"labels": 3, "duplicates": 1, "marks": 2, "searches": 1}
    assert (report.images, report.removed, report.notes) == (3, 1, [])
    return Made(gallery, photos, folder / "made.zip")


@pytest.fixture
def fresh(made: Made, tmp_path: Path, tiny_model: Path) -> Path:
    """A gallery built from nothing of the same photos elsewhere, in which ids are others."""
    photos = shutil.copytree(made.photos, tmp_path / "elsewhere" / "photos")
    return build_anew(photos, tmp_path / "elsewhere" / "new shop", tiny_model)


def check_restored(gallery: Path, made: Made) -> None:
    assert decided_about(gallery) == decided_about(made.gallery)
    assert len(decided_about(gallery)) == 3
    [group] = ReviewStore.of_gallery(gallery).duplicate_decisions().values()
    now = subjects_of(gallery)
    pair = [now["red/0.jpg"], now["red/copy.jpg"]]
    assert group.find_kept(pair) == (pair[1].image_id,)
    assert Gallery.open(gallery).image(now["red/1.png"].image_id).tags == ("best",)
    assert list(ReviewStore.of_gallery(gallery).saved_searches()) == ["best ones"]
    with served(gallery) as jobs:
        assert jobs.resume() == []
    sent, here = (
        {
            (row.path, row.sha256, row.label)
            for row in rows(path)
            if row.status == "indexed" and len(os.path.basename(row.path)) > 60
        }
        for path in (made.gallery, gallery)
    )
    assert here == sent
    assert len(sent) == 2


def test_a_gallery_built_from_nothing_gets_decisions_and_images_back_once(made: Made, fresh: Path) -> None:
    report = restore(made.backup, fresh)
    assert report.images == {"restored": 2, "present": 0, "removed": 1, "in_the_way": 0}
    assert (report.indexed, report.not_attached) == (2, [])
    assert report.decisions == {"restored": 7, "present": 0, "older": 0}
    check_restored(fresh, made)
    before, version = state_of(fresh), find_version(fresh)
    again = restore(made.backup, fresh)
    assert again.images == {"restored": 0, "present": 2, "removed": 1, "in_the_way": 0}
    assert again.decisions == {"restored": 0, "present": 7, "older": 0}
    assert (again.indexed, state_of(fresh), find_version(fresh)) == (0, before, version)


def test_removed_images_stay_out_of_a_rebuilt_gallery(made: Made, tmp_path: Path, tiny_model: Path) -> None:
    gallery = tmp_path / "shop"
    shutil.copytree(made.gallery / "annotations", gallery / "annotations")
    shutil.copyfile(made.gallery / GALLERY_MARK, gallery / GALLERY_MARK)
    (gallery / "annotations" / "review.sqlite").unlink()
    build_gallery(model_path=tiny_model, sources=[made.photos], out=gallery)
    report = restore(made.backup, gallery)
    assert (report.images["present"], report.indexed) == (3, 2)
    check_restored(gallery, made)


def test_decisions_about_missing_images_are_kept(made: Made, tmp_path: Path, tiny_model: Path) -> None:
    photos = shutil.copytree(made.photos, tmp_path / "photos")
    (photos / "green" / "0.jpg").unlink()
    (photos / "red" / "copy.jpg").unlink()
    gallery = tmp_path / "shop"
    build_gallery(model_path=tiny_model, sources=[photos], out=gallery)
    report = restore(made.backup, gallery)
    assert [lost.path for lost in report.not_attached] == [str(made.photos / "green" / "0.jpg")]
    assert len(ReviewStore.of_gallery(gallery).label_decisions()) == 3
    assert len(ReviewStore.of_gallery(gallery).duplicate_decisions()) == 1
    assert back_up(gallery, tmp_path / "again.zip").decisions["labels"] == 3


def test_decisions_that_are_none_are_refused_by_the_name_of_their_file(made: Made, tmp_path: Path) -> None:
    gallery = shutil.copytree(made.gallery, tmp_path / "shop")
    with closing(sqlite3.connect(decisions_file(gallery), isolation_level=None)) as connection:
        connection.execute("UPDATE steps SET decided_at = 'yesterday'")
    with pytest.raises(ReviewError, match=r"review\.sqlite"):
        back_up(gallery, tmp_path / "saved.zip")
    assert not (tmp_path / "saved.zip").exists()


def test_a_damaged_gallery_can_be_backed_up(made: Made, tmp_path: Path, fresh: Path) -> None:
    gallery = shutil.copytree(made.gallery, tmp_path / "shop")
    shutil.rmtree(gallery / "versions")
    report = back_up(gallery, tmp_path / "saved.zip")
    assert (report.decisions["labels"], report.images) == (3, 3)
    assert "its removed images are not in the backup" in report.notes[0]
    assert restore(tmp_path / "saved.zip", fresh).decisions["restored"] == 7


@pytest.mark.slow
def test_decisions_that_are_made_meanwhile_are_whole_steps(made: Made, tmp_path: Path) -> None:
    gallery = shutil.copytree(made.gallery, tmp_path / "shop")
    store, over = ReviewStore.of_gallery(gallery), threading.Event()

    def decide() -> None:
        number = 0
        while not over.wait(0.02):
            number += 1
            pair = [LabelDecision(f"{2 * number + side:064x}", "x", "keep") for side in (0, 1)]
            store.decide(pair)

    thread = threading.Thread(target=decide)
    thread.start()
    try:
        counts = [back_up(gallery, tmp_path / f"{turn}.zip").decisions["labels"] for turn in range(8)]
    finally:
        over.set()
        thread.join()
    assert all((count - 3) % 2 == 0 for count in counts)
    assert counts == sorted(counts)


@pytest.mark.slow
def test_a_restore_killed_anywhere_ends_when_it_is_done_again(made: Made, fresh: Path, tmp_path: Path) -> None:
    killed = 0
    for steps in (0, 1, 3, 8, 21, 34, 55):
        twin = shutil.copytree(fresh, fresh.parent / f"twin {steps}")
        killed += run([made.backup, twin, steps], function=restore_and_die).returncode == 9
        restore(made.backup, twin)
        check_restored(twin, made)
    assert killed >= 5


def test_a_server_that_runs_sees_what_is_restored(made: Made, fresh: Path) -> None:
    store = ReviewStore.of_gallery(fresh)
    assert store.label_decisions() == {}
    with served(fresh) as jobs:
        send(jobs, 50)
        restore(made.backup, fresh)
        send(jobs, 51)
        send(jobs, 1)
    assert len(store.label_decisions()) == 3
    assert len(list(added_folder(fresh).rglob("*.png"))) == 4
    assert len([row for row in rows(fresh) if len(os.path.basename(row.path)) > 60]) == 4


def test_nothing_is_overwritten_unasked_or_written_into_the_gallery(made: Made, tmp_path: Path) -> None:
    (tmp_path / "letter.zip").write_bytes(b"mine")
    with pytest.raises(InputError, match="give --overwrite"):
        back_up(made.gallery, tmp_path / "letter.zip")
    assert (tmp_path / "letter.zip").read_bytes() == b"mine"
    back_up(made.gallery, tmp_path / "letter.zip", overwrite=True)
    assert os.listdir(tmp_path) == ["letter.zip"]
    for place in ("shop/saved.zip", "shop/annotations/added/saved.zip", "photos/saved.zip", "photos"):
        with pytest.raises(InputError, match="lies inside"):
            back_up(made.gallery, made.gallery.parent / place)
        assert not (made.gallery.parent / place).is_file()


def test_a_damaged_sent_image_is_mended_and_a_file_of_another_kind_stays(made: Made, tmp_path: Path) -> None:
    gallery = shutil.copytree(made.gallery, tmp_path / "shop")
    (added_folder(gallery) / "by hand.png").write_bytes(picture(9))
    back_up(gallery, tmp_path / "out.zip")
    sent = next(path for path in added_folder(gallery).rglob("*.png") if len(path.name) > 60)
    sound = sent.read_bytes()
    sent.write_bytes(sound[:-1] + b"x")
    (added_folder(gallery) / "by hand.png").write_bytes(b"changed since")
    report = restore(tmp_path / "out.zip", gallery)
    assert report.images == {"restored": 1, "present": 2, "removed": 0, "in_the_way": 1}
    assert sent.read_bytes() == sound
    assert (added_folder(gallery) / "by hand.png").read_bytes() == b"changed since"
    assert decisions_file(gallery).exists()


def test_an_undo_of_restored_decisions_tells_the_ids_of_now(made: Made, fresh: Path) -> None:
    restore(made.backup, fresh)
    ids = {name: subject.image_id for name, subject in subjects_of(fresh).items()}
    with serve(fresh, access=Access()) as client:
        undone = [client.post(f"/v1/{kind}/undo").json()["undone"] for kind in ("duplicates", "labels", "labels")]
    assert undone[0] == sorted((ids["red/0.jpg"], ids["red/copy.jpg"]))
    assert undone[2] == sorted((ids["red/1.png"], ids["green/0.jpg"]))


def test_sent_images_that_were_taken_out_are_taken_out_where_they_were_added_already(made: Made, fresh: Path) -> None:
    shutil.copytree(added_folder(made.gallery), added_folder(fresh))
    with served(fresh) as jobs:
        jobs.resume()
    restore(made.backup, fresh)
    check_restored(fresh, made)


def paths_in(gallery: Path) -> set[str]:
    return {row.path for row in rows(gallery) if row.status in ("indexed", "duplicate")}


def build_anew(photos: Path, gallery: Path, model: Path) -> Path:
    """A gallery of photos that are elsewhere, with others before them, so that all ids differ."""
    before = gallery.parent / f"before {gallery.name}" / "hat"
    before.mkdir(parents=True)
    for number in range(4):
        (before / f"hat {number}.png").write_bytes(picture(700 + number))
    build_gallery(model_path=model, sources=[before.parent, photos], out=gallery)
    return gallery


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = draw_folder(tmp_path / "photos", per_class=2)
    shutil.copy(folder / "green" / "0.jpg", folder / "green" / "copy.jpg")
    return folder


@pytest.fixture
def gallery(photos: Path, tmp_path: Path, tiny_model: Path) -> Path:
    """A gallery out of which a photo, and of two copies one, were taken: by command, and by a server."""
    gallery = tmp_path / "shop"
    build_gallery(model_path=tiny_model, sources=[photos], out=gallery)
    remove_from_gallery(gallery, selection=Selection(patterns=("red/0.jpg",)))
    with served(gallery) as jobs:
        jobs.remove([row.id for row in rows(gallery) if row.path == "green/copy.jpg"])
    assert {"red/0.jpg", "green/copy.jpg"}.isdisjoint(paths_in(gallery))
    return gallery


@pytest.fixture
def saved(gallery: Path, tmp_path: Path) -> Path:
    assert back_up(gallery, tmp_path / "shop.zip").removed == 2
    return tmp_path / "shop.zip"


def test_removals_are_restored(gallery: Path, photos: Path, saved: Path, tmp_path: Path, tiny_model: Path) -> None:
    moved = shutil.copytree(photos, tmp_path / "elsewhere")
    new = build_anew(moved, tmp_path / "new", tiny_model)
    before = paths_in(new)
    report = restore(saved, new)
    assert report.removed == 2
    assert before - paths_in(new) == {"red/0.jpg", "green/copy.jpg"}
    update_gallery(new)
    assert restore(saved, new).removed == 0
    assert before - paths_in(new) == {"red/0.jpg", "green/copy.jpg"}
    add_to_gallery(new, [moved / "red" / "0.jpg"])
    assert before - paths_in(new) == {"green/copy.jpg"}


def test_of_copies_the_one_of_the_same_path_below_another_folder_is_taken_out(tmp_path: Path, tiny_model: Path) -> None:
    photos = draw_folder(tmp_path / "photos", per_class=1)
    (photos / "red" / "0.jpg").rename(photos / "red" / "x.jpg")
    for name in ("bx.jpg", "c.jpg", "kept.jpg"):
        shutil.copy(photos / "red" / "x.jpg", photos / "red" / name)
    gallery = tmp_path / "shop"
    build_gallery(model_path=tiny_model, sources=[photos], out=gallery)
    remove_from_gallery(gallery, selection=Selection(patterns=("red/bx.jpg", "red/c.jpg")))
    back_up(gallery, tmp_path / "shop.zip")
    moved = shutil.copytree(photos, tmp_path / "elsewhere")
    (moved / "red" / "bx.jpg").unlink()
    new = build_anew(moved, tmp_path / "new", tiny_model)
    restore(tmp_path / "shop.zip", new)
    assert {path for path in paths_in(new) if path.startswith("red/")} == {"red/x.jpg", "red/kept.jpg"}


def test_a_photo_that_was_added_again_to_the_same_gallery_stays(gallery: Path, photos: Path, saved: Path) -> None:
    add_to_gallery(gallery, [photos / "red" / "0.jpg"])
    assert restore(saved, gallery).removed == 0
    assert "red/0.jpg" in paths_in(gallery)


def test_of_two_sources_with_equal_paths_and_images_the_kept_one_stays(tmp_path: Path, tiny_model: Path) -> None:
    def places_in(gallery: Path) -> set[str]:
        with read_current_catalog(gallery) as catalog:
            roots = {number: Path(source.root) for number, source in catalog.sources().items()}
        return {str(roots[row.source] / row.path) for row in rows(gallery) if row.status == "indexed"}

    photos = draw_folder(tmp_path / "photos" / "first", per_class=2).parent
    shutil.copytree(photos / "first", photos / "second")
    gallery, new = tmp_path / "shop", tmp_path / "new"
    build_gallery(model_path=tiny_model, sources=[photos / "first", photos / "second"], out=gallery)
    remove_from_gallery(gallery, selection=Selection(patterns=(str(photos / "second" / "red" / "0.jpg"),)))
    before = places_in(gallery)
    back_up(gallery, tmp_path / "shop.zip")
    assert restore(tmp_path / "shop.zip", gallery).removed == 0
    assert places_in(gallery) == before
    moved = shutil.copytree(photos, tmp_path / "moved")
    build_gallery(model_path=tiny_model, sources=[moved / "second", moved / "first"], out=new)
    assert restore(tmp_path / "shop.zip", new).removed == 1
    assert places_in(new) == {path.replace(str(photos), str(moved)) for path in before}
