"""Groups of images that repeat each other."""

from contextlib import closing
from pathlib import Path

import pytest

from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision
from index.progress import no_progress
from index.writing.build import build_gallery
from retrieval_app.api.image_routes import share_labels
from retrieval_app.reports.duplicates_report import (
    NEAR,
    DuplicateGroup,
    GroupedImage,
    find_duplicate_groups,
    write_duplicates,
)
from retrieval_app.review.keep_rules import choose_kept
from retrieval_app.review.review_store import ReviewStore
from tests.retrieval_app.insights.conftest import SAME_FILE, SAVED_AGAIN, draw_labelled


def test_equal_files_and_pictures_saved_again_are_groups(labelled: Gallery, ids: dict[str, int]) -> None:
    duplicates = find_duplicate_groups(labelled)
    groups = {frozenset(image.path for image in group.images): group for group in duplicates.groups}
    equal, again = groups[frozenset(("blue/1.png", SAME_FILE))], groups[frozenset(("green/1.png", SAVED_AGAIN))]
    assert len({image.sha256 for image in equal.images}) == 1
    assert len({image.sha256 for image in again.images}) == 2
    assert (equal.images[1].similarity, equal.images[1].hash_distance) == (pytest.approx(1), 0)
    assert again.images[0].similarity is None
    assert 0.92 <= (again.images[1].similarity or 0) < 1
    assert duplicates.kept_for[ids[SAME_FILE]] == ids["blue/1.png"]
    assert duplicates.find(ids[SAME_FILE]) is duplicates.find(ids["blue/1.png"]) is equal
    assert duplicates.find(ids["red/1.png"]) is None
    assert duplicates.images == labelled.count


def test_set_aside_images_and_differing_labels_first(tmp_path: Path, tiny_model: Path) -> None:
    images = draw_labelled(tmp_path / "images")
    (images / "red/like_green_5.png").write_bytes((images / "green/5.png").read_bytes())
    build_gallery(model_path=tiny_model, sources=[images], out=tmp_path / "gallery", dedup="near")
    gallery = Gallery.open(tmp_path / "gallery")
    groups = find_duplicate_groups(gallery).groups
    assert [group.labels_differ for group in groups] == [True, *[False] * (len(groups) - 1)]
    assert {image.path for image in groups[0].images} == {"red/like_green_5.png", "green/5.png"}
    aside = {image.path: image for group in groups for image in group.images if not image.indexed}
    assert {SAME_FILE, SAVED_AGAIN} <= aside.keys()
    assert aside[SAVED_AGAIN].similarity is None
    assert aside[SAVED_AGAIN].id not in gallery.ids


def test_labels_as_decided_tell_whether_a_group_differs_and_of_equal_files_the_shortest_name_is_kept(
    tmp_path: Path, tiny_model: Path
) -> None:
    images = draw_labelled(tmp_path / "images")
    same = (images / "green/5.png").read_bytes()
    for name in ("red/0 copy of 5.png", "green/0 copy of 5.png"):
        (images / name).write_bytes(same)
    build_gallery(model_path=tiny_model, sources=[images], out=tmp_path / "gallery")
    gallery = Gallery.open(tmp_path / "gallery")

    def count() -> int:
        return write_duplicates(gallery, None, config=NEAR, progress=no_progress)[0]["groups_with_different_labels"]

    before = count()
    with closing(ReviewStore.of_gallery(gallery.path)) as store:
        wrong = next(row for row in gallery.rows(gallery.ids.tolist()) if row.path == "red/0 copy of 5.png")
        store.decide([LabelDecision(wrong.sha256 or "", "red", "change", "green")])
    gallery = gallery.read_decisions()
    assert count() == before - 1
    chosen = choose_kept(gallery, find_duplicate_groups(gallery), rule="largest")
    keeps = {row.path for row in gallery.rows([number for one in chosen.decisions for number in one.keep])}
    assert "green/5.png" in keeps


@pytest.mark.parametrize(
    ("sha256", "hash_distance", "is_burst"),
    [("kept", None, False), ("other", 0, False), ("other", 6, False), ("other", 8, True), ("other", None, True)],
)
def test_a_group_of_another_perceptual_hash_is_a_burst(sha256: str, hash_distance: int | None, is_burst: bool) -> None:
    kept = GroupedImage(1, "1.jpg", "photos", None, "kept", 100)
    copy = GroupedImage(2, "2.jpg", "photos", None, "copy", 90, similarity=0.99, hash_distance=2)
    other = GroupedImage(3, "3.jpg", "photos", None, sha256, 80, similarity=0.95, hash_distance=hash_distance)
    group = DuplicateGroup(kept, (copy, other))
    assert group.is_burst(group.images) is is_burst
    assert not group.is_burst((kept, copy))


def test_neighbours_labels_are_counted_without_itself(labelled: Gallery, ids: dict[str, int]) -> None:
    shares = share_labels(labelled, ids["red/wrong_0.png"], k=10)  # which shows blue
    assert (shares["label"], shares["shares"][0]["label"]) == ("red", "blue")
    assert shares["neighbours"] == sum(share["count"] for share in shares["shares"]) == 10
    assert sum(share["share"] for share in shares["shares"]) == pytest.approx(1)
    assert shares["own_share"] == sum(share["share"] for share in shares["shares"] if share["label"] == "red")
    hits = labelled.search(labelled.vector(ids["red/wrong_0.png"]), k=10, exclude_id=ids["red/wrong_0.png"])
    blue = [hit.score for hit in hits if hit.label == "blue"]
    assert shares["shares"][0]["mean_score"] == pytest.approx(sum(blue) / len(blue))
