"""What validation images are asked for: among each other, with scenes apart, and among the training images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from index.arrays import normalise_rows
from index.evaluation.scenes import Clues
from training.head.embedding_heads import RawHead
from training.run.searches import KnownImages, find_trial_scenes, plan_searches
from training.run.val_report import describe_validation
from training.run.validate import ValidationSet

CLASSES, SCENES, SHOTS = 6, 6, 4


def _photos(*, seed: int, folder: str, named: bool = True) -> KnownImages:
    """Bursts of six classes: the scene shows more than the thing does; without names only closeness tells them."""
    things = np.random.default_rng(1).normal(size=(CLASSES, 24))
    random = np.random.default_rng(seed)
    label, scene = np.arange(CLASSES * SCENES * SHOTS) // (SCENES * SHOTS), np.arange(144) // SHOTS
    x = things[label] + 3 * random.normal(size=(CLASSES * SCENES, 24))[scene] + random.normal(size=(144, 24))
    names = [
        f"{folder}/{kind}/IMG_{number:04}.jpg" if named else "x" for number, kind in enumerate(label.tolist())
    ]
    hashes = tuple(f"{folder}{number}" for number in range(144))
    clues = Clues(names, np.full(144, np.nan), given=[None] * 144, copies=np.arange(144))
    return KnownImages(x.astype(np.float32), [f"c{kind}" for kind in label], hashes, clues)


def _among(known: KnownImages) -> ValidationSet:
    return ValidationSet(known.features, np.unique(known.labels, return_inverse=True)[1].astype(np.int64))


def _nearest_is_right(queries: KnownImages, gallery: KnownImages, *, barred: np.ndarray) -> float:
    products = normalise_rows(queries.features) @ normalise_rows(gallery.features).T
    products[barred] = -np.inf
    return float(np.mean(np.array(gallery.labels)[products.argmax(axis=1)] == np.array(queries.labels)))


def test_each_search_answers_its_own_question() -> None:
    training, validation = _photos(seed=2, folder="train"), _photos(seed=3, folder="val")
    searches = plan_searches(_among(validation), validation, training)
    found = searches.score(RawHead(24)).to_json()
    scene = np.arange(144) // SHOTS
    own = np.eye(144, dtype=bool)
    assert found["recall"]["1"] == _nearest_is_right(validation, validation, barred=own) > 0.9
    assert searches.scenes is not None
    assert searches.scenes.found_by == "file names"
    together = searches.scenes.groups[:, None] == searches.scenes.groups
    assert (together >= (scene[:, None] == scene)).mean() > 0.99
    assert found["apart"]["recall"]["1"] == _nearest_is_right(validation, validation, barred=together)
    nothing = np.zeros((144, 144), dtype=bool)
    honest = _nearest_is_right(validation, training, barred=nothing)
    assert found["against_training"]["recall"]["1"] == honest
    assert found["against_training"]["queries"] == 144
    assert max(found["apart"]["recall"]["1"], honest) < found["recall"]["1"] - 0.3


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
        clues = Clues(names, np.full(len(chosen), np.nan), given=given, copies=np.arange(len(chosen)))
        hashes = [str(row) for row in chosen.tolist()]
        return KnownImages(x[chosen], [f"c{kind}" for kind in label[chosen].tolist()], hashes, clues)

    parts = np.flatnonzero(is_validation), np.flatnonzero(~is_validation)
    barred = burst[parts[0]][:, None] == burst[parts[1]]
    return take(parts[0], "test"), take(parts[1], "train"), barred


@pytest.mark.parametrize("clue", ["column", "names", "closeness"])
def test_bursts_parted_between_training_and_validation_do_not_find_each_other(clue: str) -> None:
    validation, training, barred = _part_at_random(named=clue == "names", column=clue == "column")
    found = (
        plan_searches(_among(validation), validation, training).score(RawHead(24)).to_json()["against_training"]
    )
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
    searches = plan_searches(_among(validation), validation, training)
    assert searches.scenes is not None
    assert not searches.scenes.is_certain
    found = searches.score(RawHead(24)).to_json()["against_training"]["recall"]["1"]
    assert found == _nearest_is_right(validation, training, barred=np.zeros((144, 144), dtype=bool))


def test_only_images_of_trained_labels_search_the_training_images_and_never_find_their_own_bytes() -> None:
    training = _photos(seed=2, folder="train")
    same = KnownImages(training.features, ["new", *training.labels[1:]], training.hashes, training.clues)
    searches = plan_searches(_among(same), same, training)
    assert searches.against is not None
    assert len(searches.against.queries) == 143
    barred = searches.against.query_scenes[:, None] == searches.against.scenes
    assert all(barred[place, row] for place, row in enumerate(searches.against.queries.tolist()))
    others = KnownImages(
        training.features, [f"x{label}" for label in training.labels], training.hashes, training.clues
    )
    assert plan_searches(_among(others), others, training).against is None
    assert plan_searches(_among(others), others, training).score(RawHead(24)).to_json()["against_training"] is None


def test_a_benchmark_is_asked_as_it_says_alone() -> None:
    validation = _photos(seed=3, folder="val")
    among = ValidationSet(validation.features, _among(validation).labels, np.arange(144) % 2 == 0)
    searches = plan_searches(among, validation, _photos(seed=2, folder="train"))
    assert (searches.scenes, searches.against) == (None, None)


def test_the_trial_is_told_scenes_of_one_label() -> None:
    training = _photos(seed=2, folder="train", named=False)
    scenes = find_trial_scenes(training, copies=np.arange(144))
    assert scenes is not None
    labels = np.array(training.labels)
    assert all(len(set(labels[scenes == scene].tolist())) == 1 for scene in np.unique(scenes))


def test_copies_are_of_one_scene_in_the_trial_whatever_else_tells_scenes() -> None:
    training = _photos(seed=2, folder="train")
    copies = np.arange(144)
    copies[100] = 3
    scenes = find_trial_scenes(training, copies=copies)
    assert scenes is not None
    assert scenes[100] == scenes[3]
    assert find_trial_scenes(training, copies=np.arange(144))[100] != scenes[3]


def _report(**searches: Any) -> dict[str, Any]:
    def scores(recall: float, queries: int = 40) -> dict[str, Any]:
        return {"recall": {"1": recall}, "queries": queries}

    val = {**scores(0.93), "apart": None, "against_training": None}
    val |= {name: scores(value) for name, value in searches.items()}
    scenes = {"found_by": "times", "scenes": 9, "images": 38} if "apart" in searches else None
    return {
        "method": "proxy-nca",
        "embedding_dim": 8,
        "val": val,
        "val_scenes": scenes,
        "baselines": {"raw": {**val, "embedding_dim": 8}},
    }


@pytest.mark.parametrize(
    ("searches", "warned"),
    [
        ({}, []),
        ({"apart": 0.7}, ["'among' is 23 points above 'apart'"]),
        ({"apart": 0.9, "against_training": 0.68}, ["'among' is 25 points above 'training'"]),
        (
            {"apart": 0.7, "against_training": 0.95},
            ["'among' is 23 points above 'apart'", "'training' is 25 points above 'apart'"],
        ),
    ],
)
def test_the_report_warns_of_bursts_and_of_wrong_labels(searches: dict[str, float], warned: list[str]) -> None:
    text = "\n".join(describe_validation(_report(**searches)))
    assert text.count("warning: ") == len(warned)
    assert all(f"warning: {what}" in text for what in warned)
