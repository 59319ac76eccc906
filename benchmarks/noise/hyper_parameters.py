"""Hyper-parameters for every method, chosen with the same number of trials on a part of the training data.

A trial is one training; Recall@1 is read after several of its epochs, so their number is chosen too. Nothing here sees
a test image: what judges are training classes held out, or training images where the test classes are the same. They
judge by their labels before the noise, which a user with noisy data has not: it is the same for every method.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from benchmarks.noise.cells import FILTERED, RECIPE, Cell, GridFolder, LabelSet
from benchmarks.noise.experiments import UNWEIGHTED
from benchmarks.noise.feature_sets import count_folds, load_features
from benchmarks.noise.grid import fit_label_sets, load_label_set, run_cells
from index.errors import InputError
from training.options.config import EmbeddingConfig
from training.options.losses import RIVALS
from training.options.resolve import recipe_values

LEARNING_RATES = (3e-4, 1e-3)
PHASE1_LEARNING_RATES = (1e-4, 1e-3)
STEPS, MOST_EPOCHS, LEAST_EPOCHS = 3_000, 80, 20
ALPHAS = (4.0, 8.0, 16.0, 32.0)
SEARCHED: dict[str, tuple[dict[str, float], ...]] = {
    **dict.fromkeys(("spa", "proxy-anchor", "adaptive-proxy-anchor"), tuple({"alpha": value} for value in ALPHAS)),
    "proxy-nca": tuple({"nca_scale": value} for value in (1.0, 2.0, 4.0, 8.0)),
    "multi-similarity": tuple({"ms_base": value} for value in (0.3, 0.5, 0.7, 0.9)),
    "procsim": tuple({"ms_base": base, "procsim_lambda": value} for base in (0.5, 0.9) for value in (0.1, 1.0)),
    "superloss": tuple({"superloss_lambda": value} for value in (1.0, 2.0, 4.0, 16.0)),
}
LIBRARY_OPTIONS = tuple({"batch_size": value} for value in (75, 150, 300, 600))
"""Four settings of a method's own options, beside the learning rate of the head and the number of epochs.

The options are those that moved Recall@1 most when every method was tried on the training classes of Tiny-ImageNet;
Smooth Proxy-Anchor keeps the paper's lambda and beta. The losses of pytorch-metric-learning have no options here, but
most of them live from the pairs in a batch.
"""


def tune(
    folder: GridFolder, *, dataset: str, width: int, methods: Sequence[str], noise: str, **pool: int
) -> dict[str, dict[str, Any]]:
    """Settings by method name, `phase1` among them, for one dataset and width; trials that stand are not repeated.

    Args:
        methods: names with or without `-filtered`, which shares the settings of its base; untrained ones have none,
            nor has the default recipe, whose values were chosen for all datasets at once (docs/recipe.md).
        noise: of the labels that train; the choice is used for all noises.
        pool: as `run_cells` takes it.
    """
    features = load_features(folder.features(dataset))
    folds = [(number, count_folds(features)) for number in range(count_folds(features))]
    phase1 = _choose_phase1(folder, dataset=dataset, noise=noise, folds=folds, **pool)
    label_sets = [LabelSet(dataset, noise, seed=0, fold=fold, phase1=phase1) for fold in folds]
    samples = len(load_label_set(folder, label_sets[0])[1])
    base = sorted({method.removesuffix(FILTERED) for method in methods} - {*RIVALS, RECIPE, UNWEIGHTED})
    trials = {
        method: [list_trials(labels, method=method, width=width, samples=samples) for labels in label_sets]
        for method in base
    }
    run_cells(folder, [cell for parts in trials.values() for cells in parts for cell in cells], **pool)
    chosen = {method: _choose(folder, parts) for method, parts in trials.items()}
    filtered = {method + FILTERED: settings for method, settings in chosen.items()}
    untrained: dict[str, dict[str, Any]] = {method: {} for method in RIVALS}
    return {"phase1": phase1, **untrained, **chosen, **filtered}


def list_trials(labels: LabelSet, *, method: str, width: int, samples: int) -> list[Cell]:
    """The trials of one method: as many for each, and as many steps.

    Args:
        samples: training images; few of them need more epochs for the same number of steps.
    """
    cells = []
    for lr in LEARNING_RATES:
        for options in SEARCHED.get(method, LIBRARY_OPTIONS):
            steps_an_epoch = math.ceil(samples / options.get("batch_size", EmbeddingConfig().batch_size))
            epochs = min(max(math.ceil(STEPS / steps_an_epoch), LEAST_EPOCHS), MOST_EPOCHS)
            curve = tuple(epochs // part for part in (8, 4, 2, 1))
            settings = {**recipe_values("paper", method=method), "lr": lr, **options, "epochs": epochs}
            cells.append(Cell(labels, method, width, settings, curve=curve))
    return cells


def _choose(folder: GridFolder, parts: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    """The settings, with the epochs, that answer most queries of all folds rightly; of equals the first."""
    best, settings = -1.0, {}
    for trial in zip(*parts, strict=True):
        records = [folder.read(cell) for cell in trial]
        for epoch in trial[0].curve:
            right = sum(record["curve"][str(epoch)] * record["queries"] for record in records)
            if right > best:
                best, settings = right, {**trial[0].settings, "epochs": epoch}
    return settings


def _choose_phase1(
    folder: GridFolder, *, dataset: str, noise: str, folds: Sequence[tuple[int, int]], **pool: int
) -> dict[str, float]:
    """The confidence module's learning rate with the lowest held-out loss on the noisy labels themselves."""
    sets = {
        lr: [LabelSet(dataset, noise, seed=0, fold=fold, phase1={"confidence_lr": lr}) for fold in folds]
        for lr in PHASE1_LEARNING_RATES
    }
    fit_label_sets(folder, [labels for parts in sets.values() for labels in parts], **pool)
    losses = {lr: sum(_held_out_loss(folder, labels) for labels in parts) for lr, parts in sets.items()}
    return {"confidence_lr": min(losses, key=losses.__getitem__)}


def _held_out_loss(folder: GridFolder, labels: LabelSet) -> float:
    report = json.loads(folder.report(labels).read_text())
    losses = [loss for loss in report["held_out_losses"] if loss is not None]
    if not losses:
        raise InputError(f"{labels.dataset}: too few images to hold any out of phase 1; use --settings paper")
    return min(losses)
