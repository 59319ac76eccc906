from __future__ import annotations

import os
import shutil
import zipfile
from collections import Counter
from pathlib import Path

from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision
from index.versions.people import DECISIONS as FILE_NAME
from retrieval_app.review.gallery_labels import Decisions, stream_label_file
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_decided_ids, find_subjects
from tests.conftest import draw_folder
from tests.retrieval_app.review.conftest import HOSTILE, build, ids_by_path, write_hostile
from training.data.datasets import list_dataset


def write(gallery: Gallery, decisions: Decisions, path: Path) -> Counter[str]:
    """Write the label file, and give what became of the images."""
    counts = Counter[str]()
    path.write_bytes(b"".join(stream_label_file(gallery, decisions, counts=counts)))
    return counts


def test_decisions_are_applied_to_every_copy_of_the_image(shop: Gallery, tmp_path: Path) -> None:
    assert write(shop, {}, tmp_path / "labels.csv") == {"kept": 17}
    images = Path(next(iter(shop.sources.values())).root)
    assert set(list_dataset(tmp_path / "labels.csv").records) == set(list_dataset(images).records)
    ids = ids_by_path(shop)
    subjects = find_subjects(shop, [ids["red/copy.jpg"], ids["blue/1.png"], ids["green/2.jpg"]])
    store = ReviewStore(tmp_path / FILE_NAME)
    store.decide([
        subjects[ids["red/copy.jpg"]].decide("change", new_label="=crimson, \"dark\""),
        subjects[ids["blue/1.png"]].decide("drop"),
        subjects[ids["green/2.jpg"]].decide("keep"),
    ])  # fmt: skip
    written = write(shop, store.label_decisions(), tmp_path / "labels.csv")
    labels = {
        f"{r.path.parent.name}/{r.path.name}": r.label for r in list_dataset(tmp_path / "labels.csv").records
    }
    changed = {path for path, label in labels.items() if label == '=crimson, "dark"'}
    assert changed == {"red/0.jpg", "red/copy.jpg", "red/again.jpg"}
    assert set(ids) - set(labels) == {"blue/1.png"}
    assert labels["green/2.jpg"] == "green"
    assert written == {"kept": 13, "changed": 3, "dropped": 1}


def test_a_gallery_built_with_the_label_file_has_the_decisions(tmp_path: Path, tiny_model: Path) -> None:
    write_hostile(tmp_path)
    gallery = Gallery.open(build(tmp_path, model=tiny_model))
    ids = ids_by_path(gallery)
    store = ReviewStore(gallery.path / FILE_NAME)
    named = {os.fsdecode(b"red/" + name) for name in HOSTILE}
    subjects = find_subjects(gallery, ids.values())
    store.decide([subjects[ids[path]].decide("change", new_label="mended") for path in named])
    write(gallery, store.label_decisions(), tmp_path / "labels.csv")
    del gallery
    rebuilt = Gallery.open(build(tmp_path, model=tiny_model, labels=tmp_path / "labels.csv"))
    labels = {image.path: image.label for image in rebuilt.sample(rebuilt.count, seed=0)}
    assert {path for path, label in labels.items() if label == "mended"} == named
    assert labels[os.fsdecode(b"red/caf\xe9.jpg")] is None  # no row of a UTF-8 file can name it
    assert ids_by_path(rebuilt) == ids
    assert write(rebuilt, store.label_decisions(), tmp_path / "again.csv")["changed"] == 0


def test_archive_members_and_unlabelled_images_are_counted(tmp_path: Path, tiny_model: Path) -> None:
    images = draw_folder(tmp_path / "images", per_class=2)
    (images / "red" / "0.jpg").rename(images / "loose.jpg")
    with zipfile.ZipFile(images / "blue" / "more.zip", "w") as archive:
        archive.write(images / "blue" / "0.jpg", "inside.jpg")
    gallery = Gallery.open(build(tmp_path, model=tiny_model))
    assert write(gallery, {}, tmp_path / "labels.csv") == {"kept": 5, "in-archives": 1, "unlabelled": 1}
    text = (tmp_path / "labels.csv").read_text(encoding="utf-8")
    assert len(text.splitlines()) == 6
    assert "inside" not in text
    loose = find_subjects(gallery, [ids_by_path(gallery)["loose.jpg"]]).popitem()[1]
    labelled: LabelDecision = loose.decide("change", new_label="red")
    counts = write(gallery, {labelled.key: labelled}, tmp_path / "labels.csv")
    assert counts == {"kept": 5, "changed": 1, "in-archives": 1}


def test_decided_images_are_found_again_in_a_gallery_made_anew(tmp_path: Path, tiny_model: Path) -> None:
    draw_folder(tmp_path / "images", per_class=2)
    old = Gallery.open(build(tmp_path, model=tiny_model))
    subjects = find_subjects(old, ids_by_path(old).values())
    decisions = [subject.decide("drop") for subject in subjects.values()]
    assert find_decided_ids(old, decisions) == {subject.key: subject.image_id for subject in subjects.values()}
    shutil.rmtree(tmp_path / "images" / "blue")  # so that all others get other ids
    new = Gallery.open(build(tmp_path, model=tiny_model, name="anew"))
    found = find_decided_ids(new, [*decisions, LabelDecision("f" * 64, None, "drop", image_id=1)])
    assert found == {subject.key: subject.image_id for subject in find_subjects(new, range(1, 5)).values()}
