"""The table behind the default recipe: what is compared, what is kept after a stop, what is never mixed up."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.noise.cells import GridFolder
from benchmarks.noise.feature_sets import load_features
from benchmarks.noise.recipe import main
from benchmarks.noise.recipe_heads import BELIEFS, MAKERS, TrainingPart, make_context
from benchmarks.noise.recipe_variations import RECIPE_NAME, list_variations
from training.options.resolve import DEFAULT, LOOKED_AT, resolve
from training.run.heads import find_beliefs, train_head

CLASSES, IMAGES, FEATURES = 6, 12, 10
NOISE = "uniform:0.25"


def _features(*, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Clusters around one centre a class, and labels."""
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    noise = 0.3 * np.random.default_rng(seed).normal(size=(len(labels), FEATURES))
    return (np.eye(FEATURES)[labels] + noise).astype(np.float32), labels


@pytest.fixture(autouse=True)
def few_steps(monkeypatch) -> None:
    monkeypatch.setattr("training.options.resolve.DEFAULT", {**DEFAULT, "steps": 8})


@pytest.fixture
def folder(tmp_path: Path) -> GridFolder:
    """A grid folder with features of a dataset; its test images are of no use to anyone."""
    load_features.cache_clear()
    grid = GridFolder(tmp_path)
    path = grid.features("made")
    path.mkdir(parents=True)
    features, labels = _features()
    np.save(path / "train.npy", features)
    np.save(path / "test.npy", np.full((1, FEATURES), np.nan, dtype=np.float32))
    document = {
        "name": "made", "train_labels": [f"c{label}" for label in labels], "test_labels": ["t"],
        "test_paths": ["0.jpg"], "is_gallery": None, "ks": [1],
    }  # fmt: skip
    (path / "set.json").write_text(json.dumps(document))
    return grid


def _run(folder: GridFolder, *options: str) -> None:
    load_features.cache_clear()
    place = ("--out", str(folder.path), "--dataset", "made", "--noise", NOISE)
    main([*place, "--width", "4", "--workers", "1", *options])


def _variations(*names: str) -> list[str]:
    return [word for name in names for word in ("--variation", name)]


def _records(folder: GridFolder) -> dict[Path, dict]:
    return {path: json.loads(path.read_text()) for path in (folder.path / "recipe").glob("*.json")}


def _result(folder: GridFolder) -> dict:
    return json.loads(next(folder.results.glob("recipe_*.json")).read_text())


def test_two_variations_are_trained_compared_and_written_and_only_once(folder: GridFolder, capsys) -> None:
    options = _variations("hold 0", "PCA")
    _run(folder, *options)
    printed = capsys.readouterr().out
    records = _records(folder)
    assert sorted((r["attempt"]["variation"], r["attempt"]["split"]) for r in records.values()) == sorted(
        itertools.product(["hold 0", "PCA", RECIPE_NAME], range(3))
    )
    document = _result(folder)
    assert document["machine"]["cores"]
    rows = {row["name"]: row["found"][0] for row in document["results"]["rows"]}
    for name, letter in itertools.product(rows, "US"):
        own = [r for r in records.values() if r["attempt"]["variation"] == name]
        part = {"U": "unseen", "S": "seen"}[letter]
        recall = 100 * np.mean([record["recall_at_1"][part] for record in own])
        assert rows[name][letter]["recall"] == pytest.approx(recall)
        assert f"{recall:.2f}" in printed
    assert rows[RECIPE_NAME]["U"]["lead"] == 0
    before = {path: path.stat().st_mtime_ns for path in records}
    _run(folder, *options)
    assert {path: path.stat().st_mtime_ns for path in _records(folder)} == before
    assert capsys.readouterr().out == printed


def test_after_a_stop_only_what_is_missing_is_made_and_it_is_the_same(folder: GridFolder, capsys) -> None:
    options = _variations("half way back to the start")
    _run(folder, *options)
    records, printed = _records(folder), capsys.readouterr().out
    lost = next(path for path, record in records.items() if record["attempt"]["variation"] == RECIPE_NAME)
    kept = {path: path.stat().st_mtime_ns for path in records if path != lost}
    lost.unlink()  # killed after the hits, before the record
    _run(folder, *options)
    again = _records(folder)
    assert {path: path.stat().st_mtime_ns for path in again if path != lost} == kept
    assert {**again[lost], "seconds": 0} == {**records[lost], "seconds": 0}
    assert capsys.readouterr().out == printed


def test_another_version_of_the_recipe_is_not_taken_for_this_one(folder: GridFolder, monkeypatch) -> None:
    _run(folder, *_variations("PCA"))
    before = set(_records(folder))
    monkeypatch.setattr("training.options.resolve.DEFAULT", {**DEFAULT, "hold": 0.5})
    _run(folder, *_variations("PCA"))
    added = [record["attempt"] for path, record in _records(folder).items() if path not in before]
    assert {(attempt["variation"], attempt["options"]["embedding"]["hold"]) for attempt in added} == {
        (RECIPE_NAME, 0.5)
    }


def test_images_of_unseen_classes_and_held_out_ones_are_asked_and_no_test_image(folder: GridFolder) -> None:
    _run(folder, *_variations("raw features"))
    records = [r for r in _records(folder).values() if r["attempt"]["variation"] == "raw features"]
    for record in records:
        queries = record["queries"]
        assert record["classes"] == 4
        assert record["training_images"] + queries["unseen"] + queries["seen"] <= CLASSES * IMAGES
    assert sum(record["queries"]["unseen"] for record in records) <= CLASSES * IMAGES, "each class judges once"


@pytest.fixture(scope="module")
def part() -> TrainingPart:
    features, labels = _features()
    return TrainingPart(features, 2 * labels, seed=0)


def test_every_variation_makes_a_head(part: TrainingPart) -> None:
    for name, variation in list_variations().items():
        quick = replace(variation, settings={**variation.settings, "steps": 2})
        heads = MAKERS[variation.make](part, quick, 4)
        rows = torch.cat([head(torch.from_numpy(part.features)) for head in heads], dim=1)
        assert rows.shape == (len(part.features), FEATURES if variation.make == "raw" else 4), name
        torch.testing.assert_close(rows.square().sum(dim=1), torch.full((len(rows),), float(len(heads))))


def test_the_recipe_is_what_the_command_trains() -> None:
    features, labels = _features()
    part = TrainingPart(features, labels, seed=3)
    config = resolve(weights="none", seed=3, embedding_dim=4)
    parts = {"class_count": CLASSES, "config": config, "context": make_context(3)}
    given = torch.from_numpy(labels)
    head, _ = train_head(part.source, given, **parts, beliefs=find_beliefs(part.source, given, **parts))
    ours = part.train(list_variations()[RECIPE_NAME], 4)
    torch.testing.assert_close(ours.weight, head.weight, rtol=0, atol=0)


def test_settings_change_what_they_name_and_nothing_else() -> None:
    theirs = _flatten(asdict(list_variations()[RECIPE_NAME].config(class_count=CLASSES, width=4)))
    for name, variation in list_variations().items():
        ours = _flatten(asdict(variation.config(class_count=CLASSES, width=4)))
        changed = {option for option, value in ours.items() if value != theirs.get(option, value)}
        assert changed <= set(variation.settings), name
        assert bool(changed) == bool(variation.settings), name


def _flatten(options: dict) -> dict:
    found = {}
    for name, value in options.items():
        found |= _flatten(value) if isinstance(value, dict) else {name: value}
    return {name: value for name, value in found.items() if name not in LOOKED_AT}  # of images, not of the recipe


def test_beliefs_are_confidences_one_an_image(part: TrainingPart) -> None:
    for name in BELIEFS:
        own = part.own(name)
        assert own.shape == (len(part.labels),), name
        assert own.min() >= 0, name
        assert own.max() <= 1, name
    assert torch.equal(part.own("squared").sqrt() > 0.5, part.own("confidence") > 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--noise", "lots:0.3"), "--noise lots:0.3: "), (("--width", "1"), "--width must be at least 2"),
     (("--variation", "magic"), "invalid choice: 'magic'")],
)  # fmt: skip
def test_wrong_usage_is_said_and_exits_with_two(folder: GridFolder, options, message: str, capsys) -> None:
    with pytest.raises(SystemExit) as error:
        _run(folder, *options)
    assert error.value.code == 2
    assert message in capsys.readouterr().err
