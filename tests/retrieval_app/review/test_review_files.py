import csv
import io
import os
import shutil
import time
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from index.errors import InputError, UnknownImageError
from index.gallery.gallery import Gallery
from index.images.image_files import decode_image
from index.labels.decided_labels import LabelProbabilities
from index.labels.decisions import (
    DuplicateDecision,
    ImageRef,
    LabelDecision,
    LabelKey,
    check_duplicate_decision,
    match_images,
    name_group,
)
from index.sources.reading import read_place
from index.text import valid_text
from index.versions.annotations import DECISIONS as FILE_NAME
from retrieval_app.review import exports
from retrieval_app.review.exports import encode_table, name_attachment, stream_label_file, stream_zip
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_decided_ids, find_subjects
from tests.conftest import draw_folder
from tests.retrieval_app.review.conftest import HOSTILE, UNDECODABLE, build, ids_by_path, write_hostile
from training.data.datasets import list_dataset

A, B = "a" * 64, "b" * 64
GROUP = (ImageRef(1, A, None, "/x/1.jpg"), ImageRef(2, A, None, "/x/2.jpg"), ImageRef(3, B, None, "/x/3.jpg"))


def test_a_group_has_the_same_name_in_any_order_and_another_with_one_more_copy() -> None:
    assert name_group([A, B, A]) == name_group([B, A, A]) != name_group([A, B])


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (DuplicateDecision(GROUP, "duplicates"), "at least one is kept"),
        (DuplicateDecision(GROUP, "duplicates", (1, 9)), r"\[9\] are not among \[1, 2, 3\]"),
        (DuplicateDecision(GROUP, "different", (1,)), "only 'duplicates'"),
        (DuplicateDecision(GROUP[:1] * 2, "different"), "at least two images"),
        (DuplicateDecision((*GROUP, GROUP[0]), "different"), "at least two images"),
        (DuplicateDecision(GROUP, "merge", (1,)), "one of duplicates, different, open"),
    ],
)
def test_a_duplicate_decision_that_says_nothing_clear_is_refused(decision: DuplicateDecision, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_duplicate_decision(decision)


def test_kept_images_are_found_by_path_and_else_by_their_bytes() -> None:
    decision = DuplicateDecision(GROUP, "duplicates", (2, 3))
    renumbered = [replace(image, image_id=4 - image.image_id) for image in GROUP]  # 1 and 3 swap their ids
    assert decision.find_kept(renumbered) == (1, 2)
    decision = DuplicateDecision(GROUP, "duplicates", (1, 2))
    moved = [ImageRef(11, A, None, "/y/1"), ImageRef(12, A, None, "/y/2"), ImageRef(13, B, None, "/y/3")]
    assert decision.find_kept(moved) == (11, 12)
    deeper = [ImageRef(1, A, None, f"/deeper{GROUP[0].path}"), replace(GROUP[0], image_id=7)]
    assert replace(decision, keep=(1,)).find_kept(deeper) == (7,)


@pytest.mark.parametrize("folder", ["/x", "/elsewhere"])
def test_many_equal_files_are_found_in_no_time(folder: str) -> None:
    group = [ImageRef(number, A, None, f"/x/{number:03}.jpg") for number in range(600)]
    here = [ImageRef(900 - number, A, None, f"{folder}/{number:03}.jpg") for number in range(600)]
    begun = time.process_time()
    assert match_images(group, here) == here
    assert time.process_time() - begun < 3  # with time as the cube of their number, half a minute


def read(blocks: bytes) -> list[dict[str, str]]:
    text = blocks.decode("utf-8", "surrogateescape")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def write(gallery: Gallery, decisions: Mapping[LabelKey, LabelDecision], path: Path) -> Counter[str]:
    counts = Counter[str]()
    path.write_bytes(b"".join(stream_label_file(gallery, LabelProbabilities(decisions), counts=counts)))
    return counts


def test_decisions_are_applied_to_every_copy_of_the_image(shop: Gallery, tmp_path: Path) -> None:
    assert write(shop, {}, tmp_path / "labels.csv") == {"kept": 17}
    images = Path(next(iter(shop.sources.values())).root)
    assert set(list_dataset(tmp_path / "labels.csv").records) == set(list_dataset(images).records)
    ids = ids_by_path(shop)
    subjects = find_subjects(shop, [ids["red/copy.jpg"], ids["blue/1.png"], ids["green/2.jpg"]])
    store = ReviewStore(tmp_path / FILE_NAME)
    store.decide(
        [
            subjects[ids["red/copy.jpg"]].decide("change", new_label='=crimson, "dark"'),
            subjects[ids["blue/1.png"]].decide("drop"),
            subjects[ids["green/2.jpg"]].decide("keep"),
        ]
    )
    written = write(shop, store.label_decisions(), tmp_path / "labels.csv")
    labels = {f"{r.path.parent.name}/{r.path.name}": r.label for r in list_dataset(tmp_path / "labels.csv").records}
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


def render_from(gallery: Gallery, image_id: int) -> bytes:
    image = decode_image(read_place(gallery.place(image_id)), name="picture", target_side=512)
    file = io.BytesIO()
    image.save(file, format="JPEG")
    return file.getvalue()


def open_zip(blocks: Iterable[bytes]) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(b"".join(blocks)))


def test_a_table_has_each_image_once_in_the_order_asked(shop: Gallery) -> None:
    rows = read(encode_table(shop, [9, 2, 9, 5]))
    assert [row["id"] for row in rows] == ["9", "2", "5"]
    assert [row["label"] for row in rows] == [shop.image(image_id).label for image_id in (9, 2, 5)]
    assert {row["source"] for row in rows} == {shop.roots[1]}


def test_no_cell_of_text_begins_as_a_formula(hostile: Gallery) -> None:
    ids = ids_by_path(hostile)
    rows = read(encode_table(hostile, list(ids.values())))
    assert [row["path"].removeprefix("'") for row in rows] == [valid_text(path) for path in ids]
    assert not any(row[name].startswith(tuple("=+-@\t\r\n")) for row in rows for name in ("path", "label", "source"))
    assert ("'=SUM(1;2)/1.png", "'=SUM(1;2)") in {(row["path"], row["label"]) for row in rows}
    assert r"red/caf\xe9.jpg" in {row["path"] for row in rows}


def test_what_cannot_be_sent_is_refused_first(shop: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MAX_ROWS", 3)
    monkeypatch.setattr(exports, "MAX_ZIP_IMAGES", 3)
    for begin in (encode_table, partial(stream_zip, render=lambda image_id: b"")):
        for ids in ([], [1, 2, 3, 4]):
            with pytest.raises(InputError, match="1 to 3 images"):
                begin(shop, ids)
        with pytest.raises(UnknownImageError, match="no image 999"):
            begin(shop, [1, 999])


def test_a_zip_holds_the_pictures_under_safe_names_and_a_list_of_them(hostile: Gallery) -> None:
    ids = [ids_by_path(hostile)[os.fsdecode(b"red/" + name)] for name in (*HOSTILE, UNDECODABLE)]
    with open_zip(stream_zip(hostile, ids, render=lambda image_id: render_from(hostile, image_id))) as archive:
        assert archive.testzip() is None
        rows = read(archive.read("list.csv"))
        pictures = archive.namelist()[:-1]
        for name in pictures:
            with Image.open(archive.open(name)) as image:
                assert (image.format, image.size) == ("JPEG", (64, 48))
    assert [row["file"] for row in rows] == pictures
    assert [int(row["id"]) for row in rows] == ids
    for name in pictures:
        folder, _, file = name.partition("/")
        assert folder == "images"
        assert all(c.isascii() and (c.isalnum() or c in "-_.") for c in file), file
        assert ".." not in file


def test_a_picture_that_is_gone_is_left_out_and_the_list_says_why(shop: Gallery) -> None:
    def render(image_id: int) -> bytes:
        if image_id == 2:
            raise InputError("=2: the image is no longer there")
        return render_from(shop, image_id)

    with open_zip(stream_zip(shop, [1, 2, 3], render=render)) as archive:
        rows = read(archive.read("list.csv"))
        assert len(archive.namelist()) == 3
    assert [bool(row["file"]) for row in rows] == [True, False, True]
    assert rows[1]["problem"] == "'=2: the image is no longer there"


def test_a_zip_is_sent_holding_little_more_than_one_picture(shop: Gallery) -> None:
    picture, sent = os.urandom(1 << 20), 0
    blocks = stream_zip(shop, list(range(1, 18)), render=lambda image_id: picture)
    tracemalloc.start()
    for block in blocks:
        sent += len(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sent > 17 << 20
    assert peak < 6 << 20


def test_the_name_of_an_attachment_is_safe_in_a_header(shop: Gallery) -> None:
    class Named:
        name = 'my "shop"\r\nSet-Cookie: x=1; ../ü'

    assert name_attachment(shop, ".csv") == "shop-selection.csv"
    assert name_attachment(Named(), ".zip") == "my-shop-Set-Cookie-x-1-selection.zip"  # type: ignore[arg-type]
