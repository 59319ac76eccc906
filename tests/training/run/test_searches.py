"""What validation images are asked for: ungrouped, grouped, and against the training images."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from index.arrays import normalise_rows
from index.errors import InputError
from index.evaluation.groups import GroupSources
from index.evaluation.metrics import DEFAULT_KS
from training.head.embedding_heads import RawHead
from training.run.searches import KnownImages, ValidationSet, find_holdout_groups, plan_searches

CLASSES, GROUPS, SHOTS = 6, 6, 4


def _photos(*, seed: int, folder: str, named: bool = True) -> KnownImages:
    """Bursts of six classes: the group shows more than the thing does; without names only closeness tells them."""
    things = np.random.default_rng(1).normal(size=(CLASSES, 24))
    random = np.random.default_rng(seed)
    label, group = np.arange(CLASSES * GROUPS * SHOTS) // (GROUPS * SHOTS), np.arange(144) // SHOTS
    x = things[label] + 3 * random.normal(size=(CLASSES * GROUPS, 24))[group] + random.normal(size=(144, 24))
    names = [f"{folder}/{kind}/IMG_{number:04}.jpg" if named else "x" for number, kind in enumerate(label.tolist())]
    hashes = tuple(f"{folder}{number}" for number in range(144))
    group_sources = GroupSources(names, np.full(144, np.nan), given=[None] * 144, copies=np.arange(144))
    return KnownImages(x.astype(np.float32), [f"c{kind}" for kind in label], hashes, group_sources)


def _nearest_is_right(queries: KnownImages, gallery: KnownImages, *, barred: np.ndarray) -> float:
    products = normalise_rows(queries.features) @ normalise_rows(gallery.features).T
    products[barred] = -np.inf
    return float(np.mean(np.array(gallery.labels)[products.argmax(axis=1)] == np.array(queries.labels)))


def test_each_search_answers_its_own_question() -> None:
    training, validation = _photos(seed=2, folder="train"), _photos(seed=3, folder="val")
    searches = plan_searches(validation, training)
    found = searches.score(RawHead(24)).to_json()
    group = np.arange(144) // SHOTS
    own = np.eye(144, dtype=bool)
    assert found["recall"]["1"] == _nearest_is_right(validation, validation, barred=own) > 0.9
    assert searches.groups.found_by == "numbers in file names"
    together = searches.groups.numbers[:, None] == searches.groups.numbers
    assert (together >= (group[:, None] == group)).mean() > 0.99
    assert found["grouped"]["recall"]["1"] == _nearest_is_right(validation, validation, barred=together)
    nothing = np.zeros((144, 144), dtype=bool)
    honest = _nearest_is_right(validation, training, barred=nothing)
    assert found["against_training"]["recall"]["1"] == honest
    assert found["against_training"]["queries"] == 144
    assert max(found["grouped"]["recall"]["1"], honest) < found["recall"]["1"] - 0.3


def _part_at_random(*, named: bool, column: bool = False) -> tuple[KnownImages, KnownImages, np.ndarray]:
    """Of 1,440 photos in bursts of four, 30 classes, a fifth validates, whatever their bursts; and who is barred."""
    random, rows = np.random.default_rng(5), np.arange(30 * 12 * SHOTS)
    label, burst = rows // (12 * SHOTS), rows // SHOTS
    x = random.normal(size=(30, 24))[label] + 2 * random.normal(size=(360, 24))[burst]
    x = (x + 0.5 * random.normal(size=x.shape)).astype(np.float32)
    is_validation = random.random(len(rows)) < 0.2

    def take(chosen: np.ndarray, folder: str) -> KnownImages:
        names = [f"{folder}/{label[row]}/img_{row:05}.jpg" if named else "x" for row in chosen.tolist()]
        given = [str(burst[row]) if column else None for row in chosen.tolist()]
        group_sources = GroupSources(names, np.full(len(chosen), np.nan), given=given, copies=np.arange(len(chosen)))
        hashes = [str(row) for row in chosen.tolist()]
        return KnownImages(x[chosen], [f"c{kind}" for kind in label[chosen].tolist()], hashes, group_sources)

    parts = np.flatnonzero(is_validation), np.flatnonzero(~is_validation)
    barred = burst[parts[0]][:, None] == burst[parts[1]]
    return take(parts[0], "test"), take(parts[1], "train"), barred


@pytest.mark.parametrize("clue", ["column", "names", "closeness"])
def test_bursts_parted_between_training_and_validation_do_not_find_each_other(clue: str) -> None:
    validation, training, barred = _part_at_random(named=clue == "names", column=clue == "column")
    found = plan_searches(validation, training).score(RawHead(24)).to_json()["against_training"]
    assert _nearest_is_right(validation, training, barred=np.zeros_like(barred)) > 0.95
    honest = _nearest_is_right(validation, training, barred=barred)
    assert honest < 0.6
    if clue == "closeness":
        assert found["recall"]["1"] < honest + 0.05, "a suspicion, which may bar too much"
    else:
        assert found["recall"]["1"] == pytest.approx(honest, abs=0.03)


def test_photos_of_other_days_than_those_that_train_may_find_all_of_these() -> None:
    """Both are full of bursts, that nothing but closeness tells."""
    training, validation = (_photos(seed=seed, folder="x", named=False) for seed in (2, 3))
    training = replace(training, hashes=[f"t{number}" for number in range(144)])
    searches = plan_searches(validation, training)
    assert not searches.groups.is_certain
    found = searches.score(RawHead(24)).to_json()["against_training"]["recall"]["1"]
    assert found == _nearest_is_right(validation, training, barred=np.zeros((144, 144), dtype=bool))


def test_only_images_of_trained_labels_search_the_training_images_and_never_find_their_own_bytes() -> None:
    training = _photos(seed=2, folder="train")
    same = KnownImages(training.features, ["new", *training.labels[1:]], training.hashes, training.group_sources)
    searches = plan_searches(same, training)
    assert searches.queries.tolist() == list(range(1, 144))
    groups = searches.against.groups
    assert (groups[144:] == groups[1:144]).all()
    others = KnownImages(
        training.features, [f"x{label}" for label in training.labels], training.hashes, training.group_sources
    )
    assert plan_searches(others, training).against is None
    assert plan_searches(others, training).score(RawHead(24)).to_json()["against_training"] is None


def test_a_benchmark_is_asked_as_it_says_alone() -> None:
    validation = replace(_photos(seed=3, folder="val"), is_gallery=np.arange(144) % 2 == 0)
    searches = plan_searches(validation, _photos(seed=2, folder="train"))
    assert (searches.groups, searches.against) == (None, None)


@pytest.mark.parametrize("named", [True, False])
def test_the_holdout_is_told_groups_of_one_label_and_copies_are_of_one(named: bool) -> None:
    training, copies = _photos(seed=2, folder="train", named=named), np.arange(144)
    groups = find_holdout_groups(training, copies=copies)
    labels = np.array(training.labels)
    assert all(len(set(labels[groups == group].tolist())) == 1 for group in np.unique(groups))
    assert groups[100] != groups[3]
    copies[100] = 3
    groups = find_holdout_groups(training, copies=copies)
    assert groups[100] == groups[3]


def _rows(count: int, *, seed: int) -> np.ndarray:
    return normalise_rows(np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32))


def test_without_a_gallery_each_image_is_asked_among_all_others() -> None:
    rows, labels = _rows(20, seed=0), np.arange(20) % 4
    scores = ValidationSet(rows, labels).score(rows)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    assert scores.recall[1] == np.mean(labels[cosines.argmax(axis=1)] == labels)
    assert scores.queries == 20
    assert tuple(scores.recall) == DEFAULT_KS


def _searched(seed: int, *, count: int, grouped: bool, has_gallery: bool) -> tuple[ValidationSet, np.ndarray]:
    """A search with its embeddings; many products are equal."""
    dice = np.random.default_rng(seed)
    rows = normalise_rows(dice.integers(-1, 2, size=(count, 3)).astype(np.float32) + np.float32([0.5, 0, 0]))
    groups = dice.integers(count // 2, size=count) if grouped else None
    is_gallery = dice.random(count) < 0.6 if has_gallery else None
    return ValidationSet(rows, 2 * dice.integers(3, size=count), is_gallery, ks=(1, 3), groups=groups), rows


SEARCHES = given(
    seed=st.integers(0, 10_000), count=st.integers(4, 40), grouped=st.booleans(), has_gallery=st.booleans()
)


@settings(deadline=None, max_examples=80)
@SEARCHES
def test_certain_posteriors_give_exactly_the_scores_by_labels(seed, count, grouped, has_gallery) -> None:
    searched, rows = _searched(seed, count=count, grouped=grouped, has_gallery=has_gallery)
    certain = replace(searched, posteriors=csr_array(np.eye(5, dtype=np.float32)[searched.labels]))
    if not searched.can_find():
        with pytest.raises(InputError):
            certain.score(rows)
        return
    by_labels, found = searched.score(rows), certain.score(rows)
    for name in ("average_precision", "r_precision", "labels"):
        assert getattr(found, name).tolist() == getattr(by_labels, name).tolist()
    assert {k: hits.tolist() for k, hits in found.hits.items()} == {
        k: hits.tolist() for k, hits in by_labels.hits.items()
    }
    assert found.lone_queries == by_labels.lone_queries


@settings(deadline=None, max_examples=80)
@SEARCHES
def test_uncertain_labels_give_the_scores_of_a_loop_over_ranked_neighbours(seed, count, grouped, has_gallery) -> None:
    searched, rows = _searched(seed, count=count, grouped=grouped, has_gallery=has_gallery)
    q = np.random.default_rng(seed).dirichlet(np.full(5, 0.3), size=count)
    asked, gallery = searched.parts()
    groups = np.arange(count) if searched.groups is None else searched.groups
    hits, precision = [], []
    for query in asked:
        others = [other for other in gallery if groups[other] != groups[query]]
        if not any(searched.labels[other] == searched.labels[query] for other in others):
            continue
        relevance = {other: float(q[query] @ q[other]) for other in others}
        exact = {other: np.float32(rows[query].astype(float) @ rows[other].astype(float)) for other in others}
        ranked = sorted(others, key=lambda other: (-exact[other], other))
        expected = max(1, round(sum(relevance.values())))
        found, total = 0.0, 0.0
        for rank, other in enumerate(ranked[:expected], 1):
            found += relevance[other]
            total += relevance[other] * found / rank
        hits.append(relevance[ranked[0]])
        precision.append(total / expected)
    uncertain = replace(searched, posteriors=csr_array(q))
    if not hits:
        with pytest.raises(InputError):
            uncertain.score(rows)
        return
    scores = uncertain.score(rows)
    assert scores.hits[1] == pytest.approx(hits)
    assert scores.average_precision == pytest.approx(precision)
