"""The grid of trainings: what is shared, what is skipped, what is never read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.noise import hyper_parameters
from benchmarks.noise.cells import Cell, GridFolder, LabelSet, result_name
from benchmarks.noise.experiments import (
    ABLATIONS,
    TABLES,
    Setting,
    ablate_margin,
    build,
    table_1,
    table_2,
    table_3,
)
from benchmarks.noise.feature_sets import FeatureSet, count_folds, hold_out_for_tuning, load_features
from benchmarks.noise.grid import load_label_set, run_cell, run_cells
from benchmarks.noise.hyper_parameters import LADDERS, SEARCHED, first_settings, list_neighbours, tune
from benchmarks.noise.reports import format_experiment, summarise_experiment
from index.errors import InputError, RunError
from training.head.untrained import LabelledFeatures, fit_rival
from training.options.losses import RIVALS, TRAINED_METHODS
from training.run.validate import ValidationSet, embed_features

CLASSES, IMAGES, FEATURES = 6, 12, 10


def _write_features(folder: Path, *, seen: bool = False) -> None:
    """Clusters of features around one centre a class: `c0` … train, others test."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    labels = [f"c{number}" for number in range(CLASSES) for _ in range(IMAGES)]
    for part in ("train", "test"):
        centres = np.eye(FEATURES)[:CLASSES].repeat(IMAGES, axis=0)
        noise = 0.3 * generator.normal(size=(CLASSES * IMAGES, FEATURES))
        np.save(folder / f"{part}.npy", (centres + noise).astype(np.float32))
    document = {
        "name": "made", "train_labels": labels, "test_labels": labels if seen else [f"t{name}" for name in labels],
        "test_paths": [f"{number}.jpg" for number in range(len(labels))], "is_gallery": None, "ks": [1, 2],
    }  # fmt: skip
    (folder / "set.json").write_text(json.dumps(document))


@pytest.fixture
def folder(tmp_path: Path) -> GridFolder:
    load_features.cache_clear()
    grid = GridFolder(tmp_path)
    _write_features(grid.features("made"))
    return grid


def _cell(method: str = "spa", *, noise: str = "uniform:0.25", seed: int = 0, **settings) -> Cell:
    labels = LabelSet("made", noise, seed, phase1={"confidence_epochs": 5, "confidence_lr": 0.05})
    quick = {} if method in RIVALS else {"epochs": 3, "batch_size": 16}
    return Cell(labels, method, 4, {**quick, **settings})


def _setting() -> Setting:
    quick = {"epochs": 2, "batch_size": 16}
    methods = (*TRAINED_METHODS, "proxy-anchor-filtered", "proxy-nca-filtered")
    phase1 = {"confidence_epochs": 5, "confidence_lr": 0.05}
    return Setting("made", "uniform:0.25", 4, (0, 1), {"phase1": phase1, **dict.fromkeys(methods, quick)})


def test_cells_run_in_processes_and_those_that_stand_are_left_alone(folder: GridFolder) -> None:
    cells = [_cell(), _cell("proxy-anchor"), _cell("raw")]
    run_cells(folder, cells[:1], workers=1, threads=1)
    before = folder.cell(cells[0]).stat().st_mtime_ns
    run_cells(folder, cells, workers=2, threads=1)
    assert folder.cell(cells[0]).stat().st_mtime_ns == before
    for cell in cells:
        record = folder.read(cell)
        assert record["recall"]["1"] == pytest.approx(record["hits"].mean())
        assert record["queries"] == CLASSES * IMAGES
    assert folder.read(cells[2])["embedding_dim"] == FEATURES


def test_a_cell_gives_the_same_scores_whenever_it_runs(folder: GridFolder, tmp_path: Path) -> None:
    cell = _cell("proxy-nca")
    run_cell(folder, cell)
    first = folder.read(cell)
    folder.cell(cell).unlink()
    run_cell(folder, cell)
    second = folder.read(cell)
    assert {**first, "seconds": 0, "hits": 0} == {**second, "seconds": 0, "hits": 0}
    assert np.array_equal(first["hits"], second["hits"])


def test_phase_1_runs_once_for_all_methods_of_a_label_set(folder: GridFolder) -> None:
    run_cells(folder, [_cell(), _cell("proxy-anchor-filtered"), _cell("proxy-anchor")], workers=1, threads=1)
    assert len(list((folder.path / "confidences").glob("*.npy"))) == 1
    report = json.loads(folder.report(_cell().labels).read_text())
    assert report["wrong"] == round(0.25 * CLASSES * IMAGES)
    assert 0.5 < report["auc"] <= 1


def test_a_half_written_record_is_made_again(folder: GridFolder) -> None:
    cell = _cell("raw")
    run_cell(folder, cell)
    folder.cell(cell).unlink()  # killed after the array, before the record
    run_cells(folder, [cell], workers=1, threads=1)
    assert folder.read(cell)["recall"]["1"] > 0.5


def test_filtered_methods_train_on_fewer_samples(folder: GridFolder) -> None:
    cell = _cell("proxy-anchor-filtered")
    run_cells(folder, [cell], workers=1, threads=1)
    record = folder.read(cell)
    assert record["samples_used"] <= record["samples"] == CLASSES * IMAGES


def test_an_error_in_a_training_ends_the_run_and_is_told(folder: GridFolder) -> None:
    with pytest.raises(RunError, match="training diverged"):
        run_cells(folder, [_cell("proxy-anchor", lr=1e30)], workers=1, threads=1)


def test_a_misspelt_option_is_refused(folder: GridFolder) -> None:
    with pytest.raises(InputError, match="lamda"):
        _cell(lamda=0.1)


def test_cells_that_differ_in_anything_have_other_files() -> None:
    cells = [
        _cell(), _cell(seed=1), _cell(noise="clean"), _cell("raw"), _cell(lr=1e-3),
        dataclasses.replace(_cell(), width=5), dataclasses.replace(_cell(), curve=(1,)),
        dataclasses.replace(_cell(), labels=dataclasses.replace(_cell().labels, fold=(0, 1))),
        dataclasses.replace(_cell(), labels=dataclasses.replace(_cell().labels, phase1={})),
        dataclasses.replace(_cell(), labels=dataclasses.replace(_cell().labels, shape="longtail:5")),
    ]  # fmt: skip
    assert len({cell.name for cell in cells}) == len(cells)


def test_a_cell_without_a_tail_has_the_name_that_it_had_before_there_were_tails() -> None:
    cell = Cell(LabelSet("made", "uniform:0.25", 1), "proxy-anchor", 4, {"epochs": 3})
    assert cell.name == "made-uniform-0.25-seed1-f1148cfdfe_proxy-anchor_4d_5e5311352f"


def test_a_tail_takes_training_images_away_before_the_noise_and_no_test_image(folder: GridFolder) -> None:
    whole = load_features(folder.features("made"))
    features, noisy = load_label_set(folder, LabelSet("made", "uniform:0.25", 1, shape="longtail:4"))
    sizes = np.bincount(features.train_labels)
    assert (max(sizes), min(sizes)) == (IMAGES, IMAGES // 4)
    assert _rows(features.train) < _rows(whole.train)
    assert (noisy != features.train_labels).sum() == round(0.25 * len(noisy))
    assert features.test is whole.test


def test_what_searches_seen_classes_is_reported_by_their_size_and_over_classes_and_seeds(tmp_path: Path) -> None:
    load_features.cache_clear()
    folder = GridFolder(tmp_path)
    _write_features(folder.features("made"), seen=True)
    setting = dataclasses.replace(_setting(), shape="longtail:4")
    experiment = table_3(setting, ("default-unweighted", "pca"))
    run_cells(folder, experiment.cells, workers=1, threads=1)
    summary = summarise_experiment(folder, experiment)
    assert all(len(row.cells) == 2 for row in experiment.rows), (
        "another tail a seed, also for what reads no labels"
    )
    for row, numbers in zip(experiment.rows, summary["rows"], strict=True):
        rare = []
        for cell in row.cells:
            features, hits = load_label_set(folder, cell.labels)[0], folder.read(cell)["hits"]
            fewest = np.argsort(np.bincount(features.train_labels), kind="stable")[: CLASSES // 3]
            rare.append(100 * hits[np.isin(features.test_labels, fewest)].mean())
        assert numbers["by_class_size"]["rare"]["mean"] == pytest.approx(np.mean(rare))
    text = format_experiment(summary)
    assert "uniform:0.25, longtail:4" in text
    assert "R@1 rare | R@1 middle | R@1 frequent" in text
    assert "95 % interval over classes and seeds" in text


def test_result_files_are_named_shortly_and_apart() -> None:
    assert result_name("table-3", "tiny-imagenet", "uniform:0.3", "64d") == "table-3_tiny-imagenet_uniform-0.3_64d"
    folders = [f"folder:/{'long' * 50}/{name}/train:/test" for name in "ab"]
    names = [result_name("table-3", folder, "uniform:0.3", "64d") for folder in folders]
    assert len(set(names)) == 2
    assert all("folder-train-test_uniform-0.3_64d" in name and len(name) < 80 for name in names)


def test_clean_labels_are_the_given_ones_and_noise_depends_on_the_seed(folder: GridFolder) -> None:
    features, clean = load_label_set(folder, LabelSet("made", "clean", 0))
    assert np.array_equal(clean, features.train_labels)
    first, second = (load_label_set(folder, LabelSet("made", "uniform:0.25", seed))[1] for seed in (0, 1))
    assert (first != clean).sum() == (second != clean).sum() == 18
    assert not np.array_equal(first, second)


def _rows(features: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in features}


def test_every_class_judges_once_where_there_are_few(folder: GridFolder) -> None:
    whole = load_features(folder.features("made"))
    folds = [hold_out_for_tuning(whole, fold=fold, folds=count_folds(whole)) for fold in range(count_folds(whole))]
    assert len(folds) == 3
    judging = [name for part in folds for name in set(part.test_names)]
    assert sorted(judging) == sorted(whole.classes)
    assert all(not set(part.classes) & set(part.test_names) for part in folds)


@pytest.mark.parametrize("seen", [False, True])
def test_tuning_sees_no_test_image(tmp_path: Path, seen: bool) -> None:
    _write_features(tmp_path / "made", seen=seen)
    load_features.cache_clear()
    whole = load_features(tmp_path / "made")
    tuning = hold_out_for_tuning(whole, fold=0, folds=count_folds(whole))
    assert _rows(tuning.train) | _rows(tuning.test) == _rows(whole.train)
    assert not _rows(tuning.train) & _rows(tuning.test)
    assert (set(tuning.classes) & set(tuning.test_names) == set(tuning.classes)) is seen
    assert set(tuning.train_labels) == set(range(len(tuning.classes)))


def test_the_search_of_every_trained_method_begins_with_as_many_settings_of_either_start() -> None:
    labels = LabelSet("made", "clean", 0, fold=(0, 1))
    assert set(SEARCHED) == {*TRAINED_METHODS, "procsim-guided"}
    for method in (*SEARCHED, "triplet"):
        first = first_settings(method, samples=200)
        names = {Cell(labels, method, 4, settings).name for settings in first}
        assert len(names) == len(first) == 16, method
        assert sum(settings.get("start") == "whitened" for settings in first) == 8
        assert all(
            value in ladder for each in first for name, ladder in LADDERS.items() if (value := each.get(name))
        )


def test_a_neighbour_is_one_step_away_and_epochs_grow_where_the_last_were_best() -> None:
    trial = {"lr": 3e-4, "alpha": 128.0, "epochs": 40}
    assert list_neighbours(trial, {**trial, "epochs": 20}) == [
        {**trial, "lr": 1e-4}, {**trial, "lr": 1e-3}, {**trial, "alpha": 64.0}
    ]  # fmt: skip
    assert list_neighbours(trial, trial)[-1] == {**trial, "epochs": 80}
    assert list_neighbours(trial, {**trial, "epochs": 5})[-1] == {**trial, "epochs": 5}
    pairs = {"batch_size": 75, "images_per_class": 60}
    assert list_neighbours({**trial, **pairs}, {**trial, "epochs": 20})[-1]["batch_size"] == 150


def test_tuning_spends_its_trials_keeps_the_best_epoch_of_the_best_and_leaves_no_neighbour_of_it_untried(
    folder: GridFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hyper_parameters, "STEPS", 40)
    monkeypatch.setattr(hyper_parameters, "LEAST_EPOCHS", 2)
    monkeypatch.setattr(hyper_parameters, "STEPS_FROM_START", 8)
    options = {"dataset": "made", "width": 4, "methods": ["proxy-nca", "proxy-nca-filtered", "raw"]}
    chosen = tune(folder, noise="uniform:0.25", workers=1, threads=1, trials=9, **options)
    right: dict[str, dict[int, float]] = {}
    for path in (folder.path / "cells").glob("*proxy-nca*.json"):
        record = json.loads(path.read_text())
        trial = right.setdefault(json.dumps(record["cell"]["settings"], sort_keys=True), {})
        for epoch, recall in record["curve"].items():
            trial[int(epoch)] = trial.get(int(epoch), 0) + recall * record["queries"]
    assert 9 <= len(right) <= 18
    settings = chosen["proxy-nca"]
    best = max(max(trial.values()) for trial in right.values())
    found = [
        (json.loads(trial), {**json.loads(trial), "epochs": epoch})
        for trial, scores in right.items() for epoch, score in scores.items() if score == best
    ]  # fmt: skip
    assert settings in [each for _, each in found]
    if len(right) < 18:
        neighbours = [list_neighbours(trial, each) for trial, each in found]
        assert any(all(json.dumps(one, sort_keys=True) in right for one in some) for some in neighbours)
    assert chosen["proxy-nca-filtered"] == settings
    assert chosen["raw"] == {}


def test_beliefs_and_axes_that_cells_share_are_those_that_each_would_have_found(folder: GridFolder) -> None:
    labels = LabelSet("made", "uniform:0.25", 0)
    features, noisy = load_label_set(folder, labels)
    run_cells(folder, [Cell(labels, "class-whitened", width) for width in (4, 6)], workers=1, threads=1)
    for width in (4, 6):
        head = fit_rival("class-whitened", LabelledFeatures(features.train, noisy), embedding_dim=width)
        hits = (
            ValidationSet(features.test, features.test_labels).score(embed_features(head, features.test)).hits[1]
        )
        assert np.array_equal(folder.read(Cell(labels, "class-whitened", width))["hits"], hits.astype(bool))


def test_guidance_by_class_names_changes_what_procsim_learns_and_its_name_in_tables(folder: GridFolder) -> None:
    experiment = table_3(dataclasses.replace(_setting(), tuned={}, seeds=(0,)), ("procsim", "procsim-guided"))
    quick = {"epochs": 3, "batch_size": 16, "images_per_class": 4, "lr": 0.01}
    cells = [Cell(row.cells[0].labels, row.cells[0].method, 4, quick) for row in experiment.rows]
    run_cells(folder, cells, workers=1, threads=1)
    without, guided = map(folder.read, cells)
    assert without["map_at_r"] != guided["map_at_r"]
    assert [row.name for row in experiment.rows] == ["procsim without guidance", "procsim with guidance"]


def test_a_rival_may_begin_at_the_recipes_start_and_be_held_there(folder: GridFolder) -> None:
    start = {"start": "whitened", "confidences": "leave-one-out", "epochs": 3, "batch_size": 16}
    held = _cell("spa", hold=1e6, lr=1e-4, **start)
    alone = Cell(held.labels, "class-whitened", 4)
    run_cells(folder, [held, alone], workers=1, threads=1)
    assert not folder.report(held.labels).exists(), "no confidence module is asked"
    assert folder.read(held)["recall"]["1"] == pytest.approx(folder.read(alone)["recall"]["1"], abs=0.03)


def test_the_tables_of_the_paper_come_out(folder: GridFolder) -> None:
    experiments = [table_3(_setting(), ("spa", "proxy-anchor", "raw")), table_1(_setting(), ("proxy-anchor",))]
    for experiment in experiments:
        run_cells(folder, experiment.cells, workers=1, threads=1)
        summary = summarise_experiment(folder, experiment)
        text = format_experiment(summary)
        assert [row["name"] for row in summary["rows"]] == [row.name for row in experiment.rows]
        assert all(f"| {row.name} |" in text for row in experiment.rows)
        for row, numbers in zip(experiment.rows, summary["rows"], strict=True):
            recalls = [100 * folder.read(cell)["recall"]["1"] for cell in row.cells]
            assert numbers["recall"]["1"]["mean"] == pytest.approx(np.mean(recalls))
            lead = summary["rows"][0]["recall"]["1"]["mean"] - numbers["recall"]["1"]["mean"]
            assert numbers["first_minus_this"]["mean"] == pytest.approx(lead)
    assert "AUC of the confidences" in format_experiment(summarise_experiment(folder, experiments[0]))


def test_a_grid_of_two_axes_has_a_cell_for_every_pair() -> None:
    experiment = table_2(_setting())
    assert len(experiment.rows) == 16
    assert {row.at for row in experiment.rows} == {
        (row.cells[0].settings["lambda_"], row.cells[0].settings["beta"]) for row in experiment.rows
    }
    assert {row.name for row in ablate_margin(_setting()).rows} == {
        "adaptive-proxy-anchor, single", "adaptive-proxy-anchor, per-class", "proxy-anchor, fixed margin"
    }  # fmt: skip


@pytest.mark.parametrize("name", [*ABLATIONS, *TABLES])
def test_every_table_and_ablation_goes_with_whatever_settings_a_search_may_choose(name: str) -> None:
    first = {method: first_settings(method, samples=200) for method in TRAINED_METHODS}
    for number in (0, 2):  # of a random start, and of the recipe's
        chosen = {method: settings[number] for method, settings in first.items()}
        filtered = {f"{method}-filtered": settings for method, settings in chosen.items()}
        setting = dataclasses.replace(_setting(), tuned={"phase1": {}, **chosen, **filtered})
        experiment = build({**ABLATIONS, **TABLES}[name], setting, methods=())
        assert len({cell.name for cell in experiment.cells}) > 2


def test_features_are_numbered_in_the_order_of_the_class_names(folder: GridFolder) -> None:
    features: FeatureSet = load_features(folder.features("made"))
    assert [features.classes[number] for number in features.train_labels[:: IMAGES]] == [
        f"c{number}" for number in range(CLASSES)
    ]  # fmt: skip
