"""Hyper-parameters for every method, chosen with the same number of trials on a part of the training data.

A trial is one training; Recall@1 is read after several of its epochs, so their number is chosen too. Nothing here sees
a test image: what judges are training classes held out, or training images where the test classes are the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from benchmarks.cells import FILTERED, Cell, GridFolder, LabelSet
from benchmarks.grid import fit_label_sets, load_label_set, run_cells
from training.config import EmbeddingConfig
from training.loss_config import UNTRAINED_METHODS

LEARNING_RATES = (3e-4, 1e-3)
PHASE1_LEARNING_RATES = (1e-4, 1e-3)
STEPS, MOST_EPOCHS, LEAST_EPOCHS = 3_000, 80, 20
SEARCHED: dict[str, tuple[dict[str, float], ...]] = {
    "spa": tuple({"alpha": value} for value in (4.0, 8.0, 16.0, 32.0)),
    "proxy-anchor": tuple({"alpha": value} for value in (4.0, 8.0, 16.0, 32.0)),
    "adaptive-proxy-anchor": tuple({"alpha": value} for value in (4.0, 8.0, 16.0, 32.0)),
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
    folder: GridFolder,
    *,
    dataset: str,
    width: int,
    methods: Sequence[str],
    noise: str,
    workers: int,
    threads: int,
) -> dict[str, dict[str, Any]]:
    """Settings by method name, `phase1` among them, for one dataset and width; trials that stand are not repeated.

    Args:
        methods: names with or without `-filtered`, which shares the settings of its base; untrained ones have none.
        noise: under which the choice is made, for all noises: a user does not know theirs.
    """
    base = sorted({m.removesuffix(FILTERED) for m in methods} - set(UNTRAINED_METHODS))
    phase1 = _choose_phase1(folder, dataset=dataset, noise=noise, workers=workers, threads=threads)
    labels = LabelSet(dataset, noise, seed=0, tuning=True, phase1=phase1)
    samples = len(load_label_set(folder, labels)[1])
    trials = {method: list_trials(labels, method=method, width=width, samples=samples) for method in base}
    run_cells(folder, [cell for cells in trials.values() for cell in cells], workers=workers, threads=threads)
    chosen = {method: _choose(folder, cells) for method, cells in trials.items()}
    settings = {method: chosen.get(method.removesuffix(FILTERED), {}) for method in methods}
    return {"phase1": phase1, **settings}


def list_trials(labels: LabelSet, *, method: str, width: int, samples: int) -> list[Cell]:
    """The trials of one method: as many for each, and as many steps.

    Args:
        samples: training images; few of them need more epochs for the same number of steps.
    """
    steps_an_epoch = math.ceil(samples / EmbeddingConfig().batch_size)
    epochs = min(max(math.ceil(STEPS / steps_an_epoch), LEAST_EPOCHS), MOST_EPOCHS)
    curve = tuple(epochs // part for part in (8, 4, 2, 1))
    return [
        Cell(labels, method, width, {"lr": lr, **options, "epochs": epochs}, curve=curve)
        for lr in LEARNING_RATES
        for options in SEARCHED.get(method, LIBRARY_OPTIONS)
    ]


def _choose(folder: GridFolder, cells: Sequence[Cell]) -> dict[str, Any]:
    """The settings, with the epochs, of the best Recall@1; of equals the first."""
    best, settings = -1.0, {}
    for cell in cells:
        for epoch, recall in folder.read(cell)["curve"].items():
            if recall > best:
                best, settings = recall, {**cell.settings, "epochs": int(epoch)}
    return settings


def _choose_phase1(
    folder: GridFolder, *, dataset: str, noise: str, workers: int, threads: int
) -> dict[str, float]:
    """The confidence module's learning rate with the lowest held-out loss on the noisy labels themselves."""
    sets = [
        LabelSet(dataset, noise, seed=0, tuning=True, phase1={"confidence_lr": lr}) for lr in PHASE1_LEARNING_RATES
    ]
    fit_label_sets(folder, sets, workers=workers, threads=threads)
    losses = [min(json.loads(folder.report(labels).read_text())["held_out_losses"]) for labels in sets]
    return dict(sets[losses.index(min(losses))].phase1)
