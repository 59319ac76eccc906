"""Images that a condition skips: recorded with it, left out of later updates, and back in the next build without it."""

from functools import partial
from pathlib import Path

import pytest

from index.errors import InputError
from index.filters.parser import parse_filter
from index.gallery.info import read_info
from index.writing.build import update_gallery
from tests.conftest import draw_image
from tests.index.galleries import build, rows, vectors

TINY = parse_filter("small_side < 9")


def draw_tiny(path: Path, seed: int) -> None:
    draw_image((200, 30, 90), seed=seed).resize((8, 12)).save(path)


def test_images_that_match_are_skipped_until_a_build_without_the_condition(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    gallery = tmp_path / "g"
    draw_tiny(image_folder / "red" / "tiny.png", 1)
    report = build(image_folder, gallery, tiny_model, skip_if=TINY)
    assert report.skipped_by_reason == {"skip-if": 1}
    [skipped] = [row for row in rows(gallery) if row.status == "skipped"]
    assert (skipped.path, skipped.detail, skipped.measures.height) == ("red/tiny.png", "small_side < 9", 12)
    assert skipped.id not in vectors(gallery)
    assert read_info(gallery).settings["skip_if"] == "small_side < 9"
    assert not build(image_folder, gallery, tiny_model, skip_if=TINY).changed
    assert not update_gallery(gallery).changed
    draw_tiny(image_folder / "red" / "second.png", 2)
    assert update_gallery(gallery).skipped_by_reason == {"skip-if": 2}
    back = build(image_folder, gallery, tiny_model)
    assert (back.skipped, back.indexed) == (0, report.indexed + 2)
    assert len(vectors(gallery)) == back.indexed


def test_indexed_images_are_skipped_too_and_come_back_under_other_ids(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    gallery = tmp_path / "g"
    for name in ("a.png", "b.png"):  # of equal files the second is a duplicate, released with the first
        draw_tiny(image_folder / name, 1)
    before = build(image_folder, gallery, tiny_model, dedup="exact")
    ids = {row.path: row.id for row in rows(gallery)}
    assert update_gallery(gallery, skip_if=TINY).skipped_by_reason == {"skip-if": 2}
    with pytest.raises(InputError, match="no item of the gallery has the metadata prize"):
        update_gallery(gallery, skip_if=parse_filter("prize < 3"))
    for refused in (partial(update_gallery, gallery), partial(build, image_folder, gallery, tiny_model)):
        with pytest.raises(InputError, match="tag IS NULL: tags are given to images that are indexed"):
            refused(skip_if=parse_filter("tag IS NULL"))
    again = build(image_folder, gallery, tiny_model, dedup="exact")
    assert (again.indexed, again.duplicate) == (before.indexed, before.duplicate)
    now = {row.path: row.id for row in rows(gallery)}
    assert {path for path in ids if ids[path] != now[path]} == {"a.png", "b.png"}
