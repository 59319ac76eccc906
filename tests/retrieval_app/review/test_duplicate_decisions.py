from __future__ import annotations

import csv
import io
import os
from dataclasses import replace

import pytest

from index.errors import InputError
from index.gallery.gallery import Gallery
from retrieval_app.review.duplicate_decisions import (
    DuplicateDecision,
    GroupImage,
    check_duplicate_decision,
    name_group,
)
from retrieval_app.review.duplicate_file import stream_duplicate_file
from retrieval_app.review.subjects import find_subjects
from tests.retrieval_app.review.conftest import HOSTILE, UNDECODABLE, ids_by_path

A, B = "a" * 64, "b" * 64
GROUP = (GroupImage(A, 1, "/x/1.jpg"), GroupImage(A, 2, "/x/2.jpg"), GroupImage(B, 3, "/x/3.jpg"))


def test_a_group_has_the_same_name_in_any_order_and_another_with_one_more_copy() -> None:
    assert name_group([A, B, A]) == name_group([B, A, A]) != name_group([A, B])


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (DuplicateDecision(GROUP, "copies"), "at least one is kept"),
        (DuplicateDecision(GROUP, "copies", (1, 9)), r"\[9\] are not among \[1, 2, 3\]"),
        (DuplicateDecision(GROUP, "different", (1,)), "only 'copies'"),
        (DuplicateDecision(GROUP[:1] * 2, "different"), "at least two images"),
        (DuplicateDecision((*GROUP, GROUP[0]), "different"), "at least two images"),
        (DuplicateDecision(GROUP, "merge", (1,)), "one of copies, different, open"),
    ],
)
def test_a_duplicate_decision_that_says_nothing_clear_is_refused(decision: DuplicateDecision, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_duplicate_decision(decision)


def test_kept_images_are_found_by_path_and_else_by_their_bytes() -> None:
    decision = DuplicateDecision(GROUP, "copies", (2, 3))
    renumbered = [replace(image, image_id=4 - image.image_id) for image in GROUP]  # 1 and 3 swap their ids
    assert decision.find_kept(renumbered) == (1, 2)
    decision = DuplicateDecision(GROUP, "copies", (1, 2))
    moved = [GroupImage(A, 11, "/y/1"), GroupImage(A, 12, "/y/2"), GroupImage(B, 13, "/y/3")]
    assert decision.find_kept(moved) == (11, 12)


def read(blocks: bytes) -> list[dict[str, str]]:
    text = blocks.decode("utf-8", "surrogateescape")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def decide_in(gallery: Gallery, paths: list[str], decision: str, keep: list[str]) -> DuplicateDecision:
    ids = ids_by_path(gallery)
    subjects = find_subjects(gallery, [ids[path] for path in paths])
    images = tuple(subjects[ids[path]].as_group_image() for path in paths)
    return DuplicateDecision(images, decision, tuple(ids[path] for path in keep))


def test_copies_are_kept_or_dropped_and_different_pictures_are_all_kept(shop: Gallery) -> None:
    copies = decide_in(shop, ["red/0.jpg", "red/copy.jpg", "red/again.jpg"], "copies", ["red/copy.jpg"])
    different = decide_in(shop, ["blue/0.jpg", "blue/2.jpg"], "different", [])
    rows = read(b"".join(stream_duplicate_file(shop, [copies, different])))
    assert {os.path.relpath(row["path"], shop.roots[1]): row["decision"] for row in rows} == {
        "red/0.jpg": "drop",
        "red/copy.jpg": "keep",
        "red/again.jpg": "drop",
        "blue/0.jpg": "keep",
        "blue/2.jpg": "keep",
    }
    assert {row["group"] for row in rows} == {copies.group, different.group}


def test_hostile_names_stay_the_names_of_the_files(hostile: Gallery) -> None:
    paths = [os.fsdecode(b"red/" + name) for name in (*HOSTILE, UNDECODABLE)]
    rows = read(b"".join(stream_duplicate_file(hostile, [decide_in(hostile, paths, "different", [])])))
    assert {os.path.relpath(row["path"], hostile.roots[1]) for row in rows} == set(paths)
    assert all(os.path.isfile(row["path"]) for row in rows)


def test_a_group_that_is_not_what_was_decided_about_is_left_out(shop: Gallery) -> None:
    decision = decide_in(shop, ["red/0.jpg", "red/copy.jpg"], "copies", ["red/copy.jpg"])
    stranger = GroupImage("f" * 64, 900, "/gone.jpg")
    changed = tuple(replace(image, sha256="e" * 64) for image in decision.images)
    gone = [replace(decision, images=(*decision.images, stranger)), replace(decision, images=changed)]
    assert read(b"".join(stream_duplicate_file(shop, gone))) == []
