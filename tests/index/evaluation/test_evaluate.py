from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import normalise_rows
from index.errors import InputError
from index.evaluation.comparison import bootstrap_interval, paired_bootstrap
from index.evaluation.evaluate import read_group_sources
from index.evaluation.groups import (
    GroupSources,
    find_groups,
    find_known_groups,
    find_level,
    keep_alike,
    pair_by_name,
    pair_by_time,
)
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.public import evaluate
from index.writing.build import build_gallery
from tests.conftest import draw_folder, draw_image, tries
from tests.index.evaluation.test_relevant_ranks import score_among

KS = (1, 2, 4)


def test_a_gallery_and_its_model_score_alike(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (image_folder / "broken.jpg").write_bytes(b"x")
    build_gallery(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    from_gallery = evaluate(gallery, k=KS)
    from_model = evaluate(model=tiny_model, data=image_folder, k=KS)
    assert from_gallery.to_json() == from_model.to_json() | {"skipped": 0}
    assert from_model.skipped == 1
    assert from_gallery.scores.queries == 15


def test_of_many_queries_a_sample_of_each_label_is_asked(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_gallery(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g")
    monkeypatch.setattr("index.evaluation.evaluate.MOST_QUERIES", 6)
    found = evaluate(tmp_path / "g", k=KS)
    assert (found.scores.queries, found.sampled_from) == (6, 15)
    assert [score.queries for score in found.per_class.values()] == [2, 2, 2]
    every = evaluate(tmp_path / "g", k=KS, exact=True)
    assert (every.scores.queries, every.sampled_from) == (15, None)


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
    vectors, labels, _, _ = gallery.labelled_vectors()
    expected = score_among(vectors, labels, ks=KS)
    evaluation = evaluate(gallery, k=KS)
    document = evaluation.to_json()
    assert document | expected.to_json() == document
    assert 0 < expected.r_precision.mean() < 1
    assert evaluation.scores.recall_interval == bootstrap_interval(expected.hits[1], seed=0)
    assert evaluation.scores.map_interval == bootstrap_interval(expected.average_precision, seed=0)
    assert document["mean_class_recall_at_1"] == expected.mean_class_recall(1)
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
def test_a_bad_table_is_refused(tmp_path: Path, tiny_model: Path, image_folder: Path, table: str, problem: str) -> None:
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


@pytest.fixture(scope="module")
def burst_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight shots each of six groups of two labels, whose colour says the group, and a table about them."""
    folder, rows = tmp_path_factory.mktemp("bursts"), ["path,label,group,alone"]
    random = np.random.default_rng(7)
    for label in ("kiwi", "lime"):
        (folder / label).mkdir()
        for group in range(6):
            red, green, blue = random.integers(256, size=3).tolist()
            for shot in range(8):
                name = f"{label}/{'abcdef'[group]}{'stuvwxyz'[shot]}.png"
                draw_image((red, green, blue), seed=100 * group + shot).save(folder / name)
                rows.append(f"{name},{label},{label}{group},{name}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_a_column_groups_the_evaluation(tmp_path: Path, tiny_model: Path, burst_folder: Path) -> None:
    build_gallery(model_path=tiny_model, sources=[burst_folder / "table.csv"], out=tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    vectors, labels, _, _ = gallery.labelled_vectors()
    group_sources = read_group_sources(gallery)
    assert group_sources.given == [
        f"{label}{group}" for label in ("kiwi", "lime") for group in range(6) for _ in range(8)
    ]
    found = find_groups(vectors, labels, group_sources)
    groups = found.numbers  # those given, some joined by copies: a drawing has few features
    assert all(len(set(groups[start : start + 8].tolist())) == 1 for start in range(0, 96, 8))
    expected = score_among(vectors, labels, groups=groups, ks=KS)
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


CLASSES, BURSTS, SHOTS = 12, 10, 5
LABELS = np.repeat(np.arange(CLASSES), BURSTS * SHOTS)
BURST = np.arange(len(LABELS)) // SHOTS
NAMES = [f"{label}/IMG_{row:05}.jpg" for row, label in enumerate(LABELS)]
UNKNOWN = np.full(len(LABELS), np.nan)


def photos(*, group: float, label: float = 1.0, seed: int = 0) -> np.ndarray:
    """(N, 32) unit rows of a label, a burst weighing `group`, and noise."""
    random = np.random.default_rng(seed)
    x = label * random.normal(size=(CLASSES, 32))[LABELS] + group * random.normal(size=(CLASSES * BURSTS, 32))[BURST]
    return normalise_rows((x + random.normal(size=(len(LABELS), 32))).astype(np.float32))


def times(rows: Sequence[int], *, pause_s: float = 3600.0) -> np.ndarray:
    """Shots three seconds grouped, bursts an hour."""
    return np.array([pause_s * (row // SHOTS) + 3.0 * (row % SHOTS) for row in rows])


def purity(groups: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Of the pairs of one group the share that is of one burst, and of these the share that is in one group."""
    together, burst = (values[:, None] == values for values in (groups, truth))
    off = ~np.eye(len(groups), dtype=bool)
    both = (together & burst & off).sum()
    return both / max(1, (together & off).sum()), both / (burst & off).sum()


@pytest.mark.parametrize("clue", ["numbers in file names", "times within a minute"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_planted_bursts_are_found_by_names_or_times(clue: str, shuffled: bool) -> None:
    order = np.random.default_rng(5).permutation(len(LABELS)) if shuffled else np.arange(len(LABELS))
    group_sources = GroupSources(
        [NAMES[row] for row in order] if clue == "numbers in file names" else ["x"] * len(order),
        times(order.tolist()) if clue == "times within a minute" else UNKNOWN,
    )
    groups = find_known_groups(photos(group=3.0)[order], LABELS[order], group_sources)
    assert groups.is_certain
    assert groups.found_by == clue
    right, found = purity(groups.numbers, BURST[order])
    assert right > 0.85, "a far pair in two hundred is as alike, and bursts beside each other then join"
    assert found > 0.95


@pytest.mark.parametrize("clue", ["numbers in file names", "times within a minute"])
def test_names_and_times_in_no_order_of_groups_tell_nothing(clue: str) -> None:
    """As in a data set that was numbered at random, or copied: bursts are there, but do not stand together."""
    vectors = photos(group=3.0)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(LABELS))
        order = order[np.argsort(LABELS[order], kind="stable")]  # every folder by itself
        numbered = (
            GroupSources(NAMES, UNKNOWN)
            if clue == "numbers in file names"
            else GroupSources(["x"] * len(LABELS), UNKNOWN * 0 + 1e9)
        )
        assert find_known_groups(vectors[order], LABELS[order], numbered) is None


@pytest.mark.deep
@settings(max_examples=tries(10, deep=20), deadline=None, derandomize=True)  # for some seed chance finds groups
@given(seed=st.integers(0, 10**6), label=st.sampled_from([0.0, 0.3, 0.6, 0.8, 1.0, 1.5]))
def test_independent_photos_are_of_no_group_however_they_are_named(seed: int, label: float) -> None:
    vectors = photos(group=0.0, label=label, seed=seed)
    assert find_groups(vectors, LABELS, GroupSources(NAMES, times(range(len(LABELS))))) is None


def test_bursts_without_any_clue_are_suspected_by_closeness_alone() -> None:
    """Nearer than photos of other labels come to be, so that nearly all that is found is found in the group."""
    vectors = photos(group=3.0)
    groups = find_groups(vectors, LABELS, GroupSources(["x"] * len(LABELS), UNKNOWN))
    assert not groups.is_certain
    assert groups.found_by == "similarity alone"
    assert purity(groups.numbers, BURST)[1] > 0.95
    assert purity(groups.shots, LABELS)[0] == 1.0
    assert purity(groups.shots, BURST)[0] > purity(groups.numbers, BURST)[0]


def test_what_the_user_says_goes_before_all_clues_and_copies_come_to_it() -> None:
    vectors = photos(group=3.0)[:6]
    given_groups, copies = ["a", None, "a", "b", "", "b"], np.array([0, 1, 2, 3, 1, 5])
    group_sources = GroupSources(NAMES[:6], times(range(6)), given=given_groups, copies=copies)
    groups = find_groups(vectors, LABELS[:6], group_sources)
    assert groups.numbers.tolist() == [0, 1, 0, 3, 1, 3]
    assert groups.to_json() == {"found_by": "the column 'group' and copies", "groups": 3, "images": 6}


def test_copies_alone_are_groups_and_lone_images_are_none() -> None:
    vectors, names = photos(group=0.0)[:4], ["a", "b", "c", "d"]
    copied = find_groups(vectors, LABELS[:4], GroupSources(names, UNKNOWN[:4], copies=np.array([7, 8, 7, 9])))
    assert (copied.numbers.tolist(), copied.found_by) == ([0, 1, 0, 3], "copies")
    assert find_groups(vectors, LABELS[:4], GroupSources(names, UNKNOWN[:4], given=["", None, "x", "y"])) is None


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["img_", "IMG ", ""]), st.integers(0, 12)), max_size=30)
)
def test_near_names_are_of_one_folder_and_series_and_few_numbers_apart(files: list[tuple[str, str, int]]) -> None:
    pairs = pair_by_name([f"{folder}/{start}{number:04}.jpg" for folder, start, number in files])
    for left, right in pairs.tolist():
        assert files[left][:2] == files[right][:2]
        assert abs(files[left][2] - files[right][2]) <= 3
    numbers = {file: row for row, file in enumerate(files)}
    paired = {frozenset(pair) for pair in pairs.tolist()}
    if len(numbers) == len(files):  # each number once: then the next one of a series is always near
        for folder, start, number in files:
            if (folder, start, number + 1) in numbers:
                assert frozenset({numbers[folder, start, number], numbers[folder, start, number + 1]}) in paired


def test_names_without_a_number_and_unknown_times_are_near_nothing() -> None:
    assert pair_by_name(["a.jpg", "b.jpg", "4f0c-11aa.jpg", "4f0d-12aa.jpg", "9" * 40 + ".jpg"]).shape == (0, 2)
    assert pair_by_time(np.array([np.nan, np.nan, 5.0])).shape == (0, 2)
    assert keep_alike(np.empty((0, 2), np.int64), photos(group=0.0), LABELS).shape == (0, 2)


def test_a_level_needs_more_near_pairs_than_chance_gives() -> None:
    random = np.random.default_rng(0)
    far = random.normal(size=5000).astype(np.float32)
    assert find_level(far[:500], far) is None
    assert find_level(far[:3] + 9, far) is None, "three pairs are no evidence"
    assert find_level(np.empty(0, np.float32), far) is None
    level = find_level(np.concatenate([far[:400], far[:100] + 9]).astype(np.float32), far)
    assert np.quantile(far, 0.7) < level < 9


def draw_hits(shape: tuple[int, ...], *, share: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) < share).astype(np.float64)


@pytest.mark.parametrize(("clustered", "draw_seeds"), [(False, False), (True, False), (True, True)])
def test_the_difference_agrees_with_a_loop_over_the_same_draws(clustered: bool, draw_seeds: bool) -> None:
    first, second = draw_hits((3, 40), share=0.6, seed=1), draw_hits((3, 40), share=0.5, seed=2)
    clusters = np.random.default_rng(3).choice([7, 2, 9, 4, 30], size=40) if clustered else np.arange(40)
    given_clusters = clusters if clustered else None
    options = {"level": 0.9, "clusters": given_clusters, "draw_seeds": draw_seeds}
    found = paired_bootstrap(first, second, seed=5, resamples=200, **options)
    members = [np.flatnonzero(clusters == name) for name in sorted(set(clusters))]
    count = len(members)
    drawn_clusters = np.random.default_rng(5).integers(count, size=(200, count))
    drawn_seeds = np.random.default_rng([5, 1]).integers(3, size=(200, 3)) if draw_seeds else [range(3)] * 200
    means = [
        np.mean([first[s, q] - second[s, q] for s in seeds for group in groups for q in members[group]])
        for groups, seeds in zip(drawn_clusters, drawn_seeds, strict=True)
    ]
    mean = (first - second).mean()
    assert found.mean == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])))
    assert found.p_value == (1 + sum(abs(m - mean) >= abs(mean) - 1e-12 for m in means)) / 201


def test_equal_methods_do_not_differ_and_a_constant_gain_is_certain() -> None:
    hits = draw_hits((2, 50), share=0.5, seed=0)
    same = paired_bootstrap(hits, hits, seed=0)
    assert (same.mean, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    gain = paired_bootstrap(np.ones(50), np.zeros(50), seed=0, resamples=99)
    assert (gain.mean, gain.low, gain.high, gain.p_value) == (1, 1, 1, 0.01)  # never 0


def test_scores_of_other_queries_are_refused() -> None:
    for first, second in (((3,), (4,)), ((2, 3), (3,)), ((0,), (0,)), ((1, 1, 2), (1, 1, 2)), ((), ())):
        with pytest.raises(InputError, match="paired scores must be two arrays"):
            paired_bootstrap(np.zeros(first), np.zeros(second), seed=0)
    with pytest.raises(InputError, match="clusters must be one a query"):
        paired_bootstrap(np.zeros((2, 3)), np.zeros((2, 3)), seed=0, clusters=np.zeros(2, dtype=np.int64))
    with pytest.raises(InputError, match="resamples must be at least 1"):
        paired_bootstrap(np.zeros(3), np.zeros(3), seed=0, resamples=0)
