from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from index.errors import UnknownImageError
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision
from retrieval_app.review.subjects import find_decided_ids, find_subjects
from tests.conftest import draw_folder
from tests.retrieval_app.review.conftest import build, ids_by_path


def test_an_id_without_an_image_is_named(shop: Gallery) -> None:
    with pytest.raises(UnknownImageError, match="no image 4711"):
        find_subjects(shop, [1, 4711])


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
