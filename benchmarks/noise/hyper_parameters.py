"""Hyper-parameters for every method, chosen with the same number of trials on a part of the training data.

A trial is one training; Recall@1 is read after several of its epochs, so their number is chosen too. Every method
begins with the same number of settings, with a random start and with the default recipe's (whitened, held, labels
believed by leave-one-out), and goes on with the neighbours of its best ones until its trials are spent and no neighbour
of the best is untried: what is chosen does not lie on an edge of what was tried. Nothing here sees a test image: what
judges are training classes held out, or training images where the test classes are the same. They judge by their
labels before the noise, which a user with noisy data has not: it is the same for every method.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.noise.cells import FILTERED, GUIDED, RECIPE, Cell, GridFolder, LabelSet, base_method, digest
from benchmarks.noise.experiments import UNWEIGHTED
from benchmarks.noise.feature_sets import count_folds, load_features
from benchmarks.noise.grid import fit_label_sets, load_label_set, run_cells
from index.errors import InputError
from training.options.config import EmbeddingConfig
from training.options.losses import RIVALS
from training.options.resolve import recipe_values

TRIALS = 45  # of each method; the default recipe's values were chosen among as many, once for all datasets
MOST_TRIALS = 2  # times as many, where the best still lies on an edge
PHASE1_LEARNING_RATES = (1e-4, 1e-3)
LEARNING_RATES, HOLDS = (3e-4, 1e-3), (0.02, 0.2)
STEPS, MOST_EPOCHS, LEAST_EPOCHS = 1_600, 80, 8
MOST_EPOCHS_TRIED = 2 * MOST_EPOCHS
STEPS_FROM_START = 400  # of heads that begin at the recipe's start; where the last epoch is best, more follow
CURVE = (8, 4, 2, 1)  # parts of a training after which Recall@1 is read
LADDERS: Mapping[str, tuple[float, ...]] = {
    "lr": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "hold": (0.0, 0.002, 0.006, 0.02, 0.06, 0.2, 0.6, 2.0, 6.0, 20.0, 60.0),
    "alpha": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
    "lambda_": (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "nca_scale": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
    "ms_base": (-0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9),
    "procsim_lambda": (0.001, 0.01, 0.1, 1.0, 10.0, 100.0),
    "omega": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
    "superloss_lambda": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
    "batch_size": (36, 75, 150, 300, 600, 1200),
}
"""The values that an option may take, in steps so wide that neighbours differ; the ends change nothing any more."""
ALPHAS = tuple({"alpha": value} for value in (4.0, 8.0, 16.0, 32.0))
SEARCHED: dict[str, tuple[dict[str, float], ...]] = {
    **dict.fromkeys(("proxy-anchor", "adaptive-proxy-anchor"), ALPHAS),
    "spa": tuple({"alpha": alpha, "lambda_": value} for alpha in (8.0, 32.0) for value in (0.1, 0.3)),
    "proxy-nca": tuple({"nca_scale": value} for value in (1.0, 2.0, 4.0, 8.0)),
    "multi-similarity": tuple({"ms_base": value} for value in (0.3, 0.5, 0.7, 0.9)),
    "procsim": tuple({"ms_base": base, "procsim_lambda": value} for base in (0.5, 0.9) for value in (0.1, 1.0)),
    "procsim" + GUIDED: tuple(
        {"omega": omega, "procsim_lambda": value} for omega in (0.3, 3.0) for value in (0.1, 1.0)
    ),
    "superloss": tuple({"superloss_lambda": value} for value in (1.0, 2.0, 4.0, 16.0)),
}
LIBRARY_OPTIONS = tuple({"batch_size": value} for value in (75, 150, 300, 600))
"""Four settings of a method's own options, with which its search begins.

The options are those that moved Recall@1 most when every method was tried on the training classes of Tiny-ImageNet.
The losses of pytorch-metric-learning have no options here, but most of them live from the pairs in a batch.
"""
Values = dict[str, Any]


def tune(
    folder: GridFolder,
    *,
    dataset: str,
    width: int,
    methods: Sequence[str],
    noise: str,
    trials: int = TRIALS,
    **pool: int,
) -> dict[str, Values]:
    """Settings by method name, `phase1` among them, for one dataset and width; trials that stand are not repeated.

    Args:
        methods: names with or without `-filtered`, which shares the settings of its base; untrained ones have none,
            nor has the default recipe, whose values were chosen for all datasets at once (docs/recipe.md).
        noise: of the labels that train; the choice is used for all noises and shapes.
        trials: of each method; more where its best lies on an edge.
        pool: as `run_cells` takes it.
    """
    features = load_features(folder.features(dataset))
    folds = [(number, count_folds(features)) for number in range(count_folds(features))]
    phase1 = _choose_phase1(folder, dataset=dataset, noise=noise, folds=folds, **pool)
    label_sets = [LabelSet(dataset, noise, seed=0, fold=fold, phase1=phase1) for fold in folds]
    samples = len(load_label_set(folder, label_sets[0])[1])
    base = sorted({method.removesuffix(FILTERED) for method in methods} - {*RIVALS, RECIPE, UNWEIGHTED})
    searches = {method: Search(method, label_sets, width=width, trials=trials) for method in base}
    waves = {method: search.begin(samples=samples) for method, search in searches.items()}
    while any(waves.values()):
        run_cells(folder, [cell for wave in waves.values() for parts in wave for cell in parts], **pool)
        waves = {method: searches[method].go_on(folder, wave) for method, wave in waves.items() if wave}
    chosen = {method: search.best for method, search in searches.items()}
    filtered = {method + FILTERED: settings for method, settings in chosen.items()}
    untrained: dict[str, Values] = {method: {} for method in RIVALS}
    return {"phase1": phase1, **untrained, **chosen, **filtered}


@dataclass(slots=True)
class Search:
    """The search for one method's settings: a wave of trials after another, a trial being one cell a fold.

    Attributes:
        found: queries answered rightly, of all folds, and the settings with the best number of epochs, by trial.
    """

    method: str
    label_sets: Sequence[LabelSet]
    width: int
    trials: int
    found: dict[str, tuple[float, Values, Values]] = field(default_factory=dict)

    def begin(self, *, samples: int) -> list[list[Cell]]:
        """The first trials: as many for each method, with as many steps; `samples` training images."""
        return [self._cells(settings) for settings in first_settings(self.method, samples=samples)][: self.trials]

    def go_on(self, folder: GridFolder, wave: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
        """Note how a wave went, and list the next one; empty at the end of the search."""
        for parts in wave:
            self.found[digest(parts[0].settings)] = self._judge(folder, parts)
        left = self.trials - len(self.found)
        order = sorted(self.found.values(), key=lambda each: -each[0])  # of equals the first
        for _, trial, best in order if left > 0 else order[:1]:
            untried = [each for each in list_neighbours(trial, best) if digest(each) not in self.found]
            room = left if left > 0 else MOST_TRIALS * self.trials - len(self.found)
            if untried[:room]:
                return [self._cells(settings) for settings in untried[:room]]
        return []

    @property
    def best(self) -> Values:
        """The settings that answer most queries rightly; of equals the first."""
        return max(self.found.values(), key=lambda each: each[0])[2]

    def _cells(self, settings: Values) -> list[Cell]:
        curve = list_curve(settings["epochs"])
        return [Cell(labels, self.method, self.width, settings, curve=curve) for labels in self.label_sets]

    def _judge(self, folder: GridFolder, parts: Sequence[Cell]) -> tuple[float, Values, Values]:
        records = [folder.read(cell) for cell in parts]
        right = {
            epoch: sum(record["curve"][str(epoch)] * record["queries"] for record in records)
            for epoch in parts[0].curve
        }
        best = max(right, key=right.__getitem__)
        return right[best], dict(parts[0].settings), {**parts[0].settings, "epochs": best}


def first_settings(method: str, *, samples: int) -> list[Values]:
    """What a search begins with: random starts by learning rate, and the recipe's start by how firmly it is held."""
    own = SEARCHED.get(method, LIBRARY_OPTIONS)
    recipe = {"start": "whitened", "confidences": "leave-one-out", "lr": 1e-3}
    kinds = [
        *(({"lr": lr}, STEPS) for lr in LEARNING_RATES),
        *(({**recipe, "hold": hold}, STEPS_FROM_START) for hold in HOLDS),
    ]
    found = []
    for (kind, steps), options in itertools.product(kinds, own):
        settings = {**recipe_values("paper", method=base_method(method)), **kind, **options}
        steps_an_epoch = math.ceil(samples / settings.get("batch_size", EmbeddingConfig().batch_size))
        found.append(
            {**settings, "epochs": min(max(math.ceil(steps / steps_an_epoch), LEAST_EPOCHS), MOST_EPOCHS)}
        )
    # By their own options first, so that few trials know both starts too.
    return [each for number in range(len(own)) for each in found[number :: len(own)]]


def list_curve(epochs: int) -> tuple[int, ...]:
    """The epochs after which Recall@1 is read."""
    return tuple(dict.fromkeys(max(1, epochs // part) for part in CURVE))


def list_neighbours(trial: Values, best: Values) -> list[Values]:
    """Settings one step away in one option, and of more or fewer epochs where the best number was the last or first.

    Args:
        trial: the settings of a trial.
        best: the same with the number of epochs after which it was best.
    """
    found = []
    for name, ladder in LADDERS.items():
        if name in trial:
            place = ladder.index(trial[name])
            found += [
                {**trial, name: value} for value in (*ladder[max(0, place - 1) : place], *ladder[place + 1 :][:1])
            ]
    curve = list_curve(trial["epochs"])
    if best["epochs"] == curve[-1] and 2 * trial["epochs"] <= MOST_EPOCHS_TRIED:
        found.append({**trial, "epochs": 2 * trial["epochs"]})
    elif best["epochs"] == curve[0] > 1:
        found.append({**trial, "epochs": curve[0]})
    return [each for each in found if each.get("images_per_class", 0) <= each.get("batch_size", math.inf)]


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
