from __future__ import annotations

import csv
import io
import os
from dataclasses import replace

from index.gallery.gallery import Gallery
from retrieval_app.review.duplicate_decisions import DuplicateDecision, GroupImage
from retrieval_app.review.duplicate_file import stream_duplicate_file
from retrieval_app.review.subjects import find_subjects
from tests.retrieval_app.review.conftest import HOSTILE, UNDECODABLE, ids_by_path


def read(blocks: bytes) -> list[dict[str, str]]:
    text = blocks.decode("utf-8", "surrogateescape")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def decide(gallery: Gallery, paths: list[str], decision: str, keep: list[str]) -> DuplicateDecision:
    ids = ids_by_path(gallery)
    subjects = find_subjects(gallery, [ids[path] for path in paths])
    images = tuple(subjects[ids[path]].as_group_image() for path in paths)
    return DuplicateDecision(images, decision, tuple(ids[path] for path in keep))


def test_copies_are_kept_or_dropped_and_different_pictures_are_all_kept(shop: Gallery) -> None:
    copies = decide(shop, ["red/0.jpg", "red/copy.jpg", "red/again.jpg"], "copies", ["red/copy.jpg"])
    different = decide(shop, ["blue/0.jpg", "blue/2.jpg"], "different", [])
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
    rows = read(b"".join(stream_duplicate_file(hostile, [decide(hostile, paths, "different", [])])))
    assert {os.path.relpath(row["path"], hostile.roots[1]) for row in rows} == set(paths)
    assert all(os.path.isfile(row["path"]) for row in rows)


def test_a_group_that_is_not_what_was_decided_about_is_left_out(shop: Gallery) -> None:
    decision = decide(shop, ["red/0.jpg", "red/copy.jpg"], "copies", ["red/copy.jpg"])
    stranger = GroupImage("f" * 64, 900, "/gone.jpg")
    changed = tuple(replace(image, sha256="e" * 64) for image in decision.images)
    gone = [replace(decision, images=(*decision.images, stranger)), replace(decision, images=changed)]
    assert read(b"".join(stream_duplicate_file(shop, gone))) == []
