import os
from pathlib import Path

import numpy as np
import pytest

from index.errors import InputError
from index.evaluation.comparison import bootstrap_interval
from index.evaluation.group_sources import read_group_sources
from index.evaluation.groups import find_groups
from index.evaluation.metrics import score_retrieval
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.public import evaluate
from index.writing.build import build_gallery
from tests.conftest import draw_folder, draw_image

KS = (1, 2, 4)


def test_a_gallery_and_its_model_score_alike(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (image_folder / "broken.jpg").write_bytes(b"x")
    build_gallery(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    from_gallery = evaluate(gallery, k=KS, nmi=True)
    from_model = evaluate(model=tiny_model, data=image_folder, k=KS, nmi=True)
    assert from_gallery.to_json() == from_model.to_json() | {"skipped": 0}
    assert from_model.skipped == 1
    assert from_gallery.scores.queries == 15
    vectors, labels, ids, _ = gallery.labelled_vectors()
    products = vectors @ vectors.T
    np.fill_diagonal(products, -2)
    assert from_gallery.scores.recall[1] == np.mean(labels[products.argmax(axis=1)] == labels)
    assert len(ids) == 15


def test_queries_may_be_another_folder(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build_gallery(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g")
    queries = draw_folder(tmp_path / "queries", per_class=2)
    (queries / "yellow").mkdir()
    draw_image((220, 220, 30), seed=0).save(queries / "yellow" / "0.png")  # a label that the gallery lacks
    draw_image((220, 220, 30), seed=1).save(queries / "unlabelled.png")
    (queries / "broken.jpg").write_bytes(b"x")
    evaluation = evaluate(Gallery.open(tmp_path / "g"), query=queries, k=KS)
    scores = evaluation.scores
    assert evaluation.skipped == 1
    assert (scores.queries, scores.lone_queries) == (6, 1)
    assert scores.recall[1] == 1.0  # the same drawings are members: nothing was removed
    assert list(evaluation.per_class) == ["blue", "green", "red"]  # the gallery's labels, by name
    assert {score.queries for score in evaluation.per_class.values()} == {2}
    from_model = evaluate(model=tiny_model, data=image_folder, query=queries, k=KS)
    assert from_model.to_json() == evaluation.to_json()


def test_evaluation_is_that_of_the_metrics_module(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    for name in ("1.png", "3.png"):  # some labels made wrong, so that the scores are no round numbers
        (image_folder / "red" / name).rename(image_folder / "blue" / f"red_{name}")
    build_gallery(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    vectors, labels, ids, _ = gallery.labelled_vectors()
    expected = score_retrieval(
        vectors, labels, gallery=vectors, gallery_labels=labels, gallery_ids=ids, query_ids=ids, ks=KS
    )
    evaluation = evaluate(gallery, k=KS)
    document = evaluation.to_json()
    assert document | expected.to_json() == document
    assert 0 < expected.r_precision.mean() < 1
    assert evaluation.scores.recall_interval == bootstrap_interval(expected.hits[1], seed=0)
    assert evaluation.scores.map_interval == bootstrap_interval(expected.average_precision, seed=0)
    assert document["mean_class_recall_at_1"] == expected.mean_class_recall(1)
    assert evaluation.nmi is None
    for name, score in evaluation.per_class.items():
        of_class = expected.hits[1][expected.labels == ["blue", "green", "red"].index(name)]
        assert (score.queries, score.recall_at_1) == (len(of_class), pytest.approx(of_class.mean()))


def test_a_label_file_says_which_images_are_scored_and_as_what(tmp_path: Path, tiny_model: Path) -> None:
    draw_folder(tmp_path / "images", per_class=4)
    rows = [f"images/{name}/{i}.{'png' if i % 2 else 'jpg'},{name[0]}" for name in ("red", "blue") for i in range(3)]
    rows += ["images/green/0.jpg,", "images/green/no.jpg,", "images/green/none.jpg,g"]  # only the last is skipped
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    evaluation = evaluate(model=tiny_model, data=tmp_path / "labels.csv", k=KS)
    assert {name: score.queries for name, score in evaluation.per_class.items()} == {"b": 3, "r": 3}
    assert evaluation.skipped == 1
    (tmp_path / "queries.csv").write_text("path,label\nimages/red/3.png,r\n")
    asked = evaluate(model=tiny_model, data=tmp_path / "labels.csv", query=tmp_path / "queries.csv", k=KS)
    assert asked.scores.queries == 1
    assert asked.scores.recall[1] == 1.0
    (tmp_path / "queries.csv").write_text("path,label\nimages/none.jpg,r\n")
    with pytest.raises(InputError, match="no usable image with a label in the label file: 1 unreadable"):
        evaluate(model=tiny_model, data=tmp_path / "queries.csv", k=KS)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("path,price\nred/0.jpg,1\n", "expected a column label; found path, price"),
        ("path,label,group\nred/0.jpg,r,a\nred/0.jpg,r,b\n", "has another value of 'group' above; keep one"),
    ],
)
def test_a_table_without_labels_or_with_two_groups_of_an_image_is_refused(
    tmp_path: Path, tiny_model: Path, image_folder: Path, table: str, problem: str
) -> None:
    (image_folder / "table.csv").write_text(table)
    with pytest.raises(InputError, match=problem):
        evaluate(model=tiny_model, data=image_folder / "table.csv", k=KS)


def test_folders_that_cannot_be_scored_say_why(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no usable image in the folder: it has no files"):
        evaluate(model=tiny_model, data=tmp_path / "empty", k=KS)
    draw_image((1, 2, 3), seed=0).save(tmp_path / "empty" / "a.png")
    with pytest.raises(InputError, match="no query has a label"):
        evaluate(model=tiny_model, data=tmp_path / "empty", k=KS)
    with pytest.raises(InputError, match="no such file or folder"):
        evaluate(model=tiny_model, data=tmp_path / "none", k=KS)


def _draw_bursts(folder: Path, *, seconds: float) -> list[str]:
    """Eight shots each of six groups of two labels, whose colour says the group; the lines of a table about them."""
    rows, random = [], np.random.default_rng(7)
    for label in ("kiwi", "lime"):
        (folder / label).mkdir(parents=True)
        for group in range(6):
            red, green, blue = random.integers(256, size=3).tolist()
            for shot in range(8):
                name = f"{label}/{'abcdef'[group]}{'stuvwxyz'[shot]}.png"
                draw_image((red, green, blue), seed=100 * group + shot).save(folder / name)
                taken = 1e9 + seconds * (10 * group + (5000 if label == "lime" else 0)) + shot
                os.utime(folder / name, (taken, taken))
                rows.append(f"{name},{label},{label}{group},{name}")
    return rows


@pytest.fixture(scope="module")
def burst_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bursts")
    rows = _draw_bursts(folder, seconds=1000)
    (folder / "table.csv").write_text("\n".join(["path,label,group,alone", *rows]) + "\n")
    return folder


def test_a_column_groups_the_evaluation(tmp_path: Path, tiny_model: Path, burst_folder: Path) -> None:
    build_gallery(model_path=tiny_model, sources=[burst_folder / "table.csv"], out=tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    vectors, labels, ids, _ = gallery.labelled_vectors()
    group_sources = read_group_sources(gallery)
    assert group_sources.given == [
        f"{label}{group}" for label in ("kiwi", "lime") for group in range(6) for _ in range(8)
    ]
    found = find_groups(vectors, labels, group_sources)
    groups = found.numbers  # those given, some joined by copies: a drawing has few features
    assert all(len(set(groups[start : start + 8].tolist())) == 1 for start in range(0, 96, 8))
    expected = score_retrieval(
        vectors, labels, gallery=vectors, gallery_labels=labels, gallery_ids=ids, query_ids=ids,
        query_groups=groups, gallery_groups=groups, ks=KS,
    )  # fmt: skip
    for evaluation in (
        evaluate(gallery, k=KS),
        evaluate(gallery, groups="group", k=KS),
        evaluate(model=tiny_model, data=burst_folder / "table.csv", k=KS),
    ):
        assert evaluation.grouped.scores.to_json() == expected.to_json()
        assert evaluation.grouped.groups.found_by.startswith("the column 'group'")
        assert evaluation.scores.recall[1] > expected.recall[1] + 0.05, "which is the ungrouped answer"
        assert evaluation.is_flattered
    with pytest.raises(InputError, match=r"table\.csv: no image has a value in a column 'trip'"):
        evaluate(model=tiny_model, data=burst_folder / "table.csv", groups="trip", k=KS)
    with pytest.raises(InputError, match="no image has a value in its metadata for 'trip'"):
        evaluate(gallery, groups="trip", k=KS)
    some = evaluate(gallery, where=parse_filter("label = 'kiwi'"), k=KS).grouped
    assert some.scores.hits[1].tolist() == expected.hits[1][expected.labels == 0].tolist()
