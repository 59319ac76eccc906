"""Labels that may be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from index.gallery.gallery import Gallery
from index.labels.doubts import Doubts
from index.writing.build import build_gallery, update_gallery
from retrieval_app.insights.duplicate_groups import find_duplicate_groups
from retrieval_app.insights.gallery_doubts import find_doubts
from tests.models import tiny_contract, write_three_output_model, write_tiny_model
from tests.retrieval_app.insights.conftest import MISLABELLED, draw_labelled


@pytest.fixture(scope="module")
def doubts(labelled: Gallery) -> Doubts:
    """Of the labelled gallery."""
    return find_doubts(labelled)


def test_planted_errors_rank_first(labelled: Gallery, doubts: Doubts, ids: dict[str, int]) -> None:
    first = {doubt.id: doubt for doubt in doubts.items[: len(MISLABELLED)]}
    assert first.keys() == {ids[path] for path in MISLABELLED}
    for path, shown in MISLABELLED.items():
        doubt = first[ids[path]]
        assert (doubt.label, doubt.suggested) == (path.partition("/")[0], shown)
        assert doubt.wrong > 0.5
        assert {label for _, _, label in doubt.disagreeing} == {shown}
        for other, score in doubt.agreeing:
            assert labelled.image(other).label == doubt.label
            assert score == pytest.approx(float(labelled.vector(other) @ labelled.vector(doubt.id)), abs=1e-5)
        assert doubts.find(ids[path]) is doubt
    assert doubts.find(ids["blue/3.png"]) is None
    assert doubts.judged == labelled.count
    assert set(doubts.pairs) == {("red", "blue", 1), ("green", "red", 1)}


def test_a_copy_does_not_vouch_for_its_like(build: Callable[[dict[str, str]], Gallery]) -> None:
    images = {f"red/{i}.png": "red" for i in range(8)} | {f"blue/{i}.png": "blue" for i in range(8)}
    gallery = build(images | {"blue/wrong.png": "red"})
    source = Path(gallery.sources[1].root)
    for number in range(3):
        (source / f"blue/copy_{number}.png").write_bytes((source / "blue/wrong.png").read_bytes())
    update_gallery(gallery.path)
    changed = Gallery.open(gallery.path)
    found = find_doubts(changed, duplicates=find_duplicate_groups(changed))
    assert {changed.image(doubt.id).path for doubt in found.items[:4]} == {
        "blue/wrong.png", "blue/copy_0.png", "blue/copy_1.png", "blue/copy_2.png"
    }  # fmt: skip
    assert all(doubt.suggested == "red" and doubt.wrong > 0.5 for doubt in found.items[:4])
    group = {doubt.id for doubt in found.items[:4]}
    assert all(other not in group for doubt in found.items[:4] for other, _ in doubt.agreeing)


@pytest.mark.parametrize("is_free", [True, False])
def test_labels_are_judged_by_untrained_vectors_or_as_a_lower_bound(tmp_path: Path, *, is_free: bool) -> None:
    model = tmp_path / "model.onnx"
    if is_free:
        write_three_output_model(model)
    else:
        write_tiny_model(model, contract=replace(tiny_contract(), method="spa").to_json())
    build_gallery(model_path=model, sources=[draw_labelled(tmp_path / "images")], out=tmp_path / "gallery")
    gallery = Gallery.open(tmp_path / "gallery")
    found = find_doubts(gallery)
    assert found.is_lower_bound is not is_free
    judging = gallery.by("untrained" if is_free else "kind")
    for doubt in found.items:
        for other, score in doubt.agreeing:
            assert score == pytest.approx(float(judging.vector(other) @ judging.vector(doubt.id)), abs=1e-5)
    assert found.items[0].agreeing
