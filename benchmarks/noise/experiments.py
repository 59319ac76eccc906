"""The trainings of each table: the SPA paper's Tables 1 to 3, with the untrained baselines that it leaves out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.noise.grid import CLEAN, FILTERED, POSTERIORS, RECIPE, Cell, LabelSet
from training.options.losses import LOSSES, RIVALS, UNTRAINED_METHODS
from training.options.resolve import recipe_values

READS_POSTERIORS: Mapping[str, Mapping[str, Any]] = {
    "spa": {"confidences": "leave-one-out"},
    "proxy-nca": {"confidences": "leave-one-out", "targets": "posteriors"},
}
LAMBDAS, BETAS = (0.075, 0.1, 0.125, 0.15), (50.0, 100.0, 150.0, 200.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """What one table is about: a dataset, its noise, the width and the seeds."""

    dataset: str
    noise: str
    width: int
    seeds: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the methods that train, in place of the recipe's."""

    def cell(self, method: str, seed: int, **changes: Any) -> Cell:
        """One training of the table; a method that reads no labels is the same under any noise."""
        labels = LabelSet(self.dataset, CLEAN if method in UNTRAINED_METHODS else self.noise, seed)
        if method in RIVALS:
            return Cell(labels, method, self.width)
        # The recipe's values are in the cell, so that another version of the recipe is another cell.
        if method == RECIPE:
            values = recipe_values(RECIPE)
        else:
            base = method.removesuffix(FILTERED).removesuffix(POSTERIORS)
            values = recipe_values("spa-paper", method=base)
            values |= READS_POSTERIORS[base] if method.endswith(POSTERIORS) else {}
            if base == "prism":  # its authors give it the true share of wrong labels
                values["prism_rate"] = 0.0 if self.noise == CLEAN else float(self.noise.partition(":")[2])
        given = {name: value for name, value in (values | self.options | changes).items() if value is not None}
        return Cell(labels, method, self.width, given)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: its name, its trainings, one a seed, and its place where rows are a grid of two options."""

    name: str
    cells: tuple[Cell, ...]
    at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table: rows over one setting, and the names of the axes where rows are a grid."""

    name: str
    title: str
    setting: Setting
    rows: tuple[Row, ...]
    axes: tuple[str, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """All trainings."""
        return [cell for row in self.rows for cell in row.cells]


def make_table(number: str, setting: Setting, methods: Sequence[str]) -> Experiment:
    """Table 1 (with and without samples of low confidence), 2 (lambda and beta of SPA) or 3 (all methods)."""
    if number == "3":
        return Experiment("table-3", "Recall@K by method", setting, tuple(_row(setting, m) for m in methods))
    if number == "2":
        places = itertools.product(LAMBDAS, BETAS)
        grid = tuple(_row(setting, "spa", at=at, lambda_=at[0], beta=at[1]) for at in places)
        return Experiment("table-2", "Smooth Proxy-Anchor by lambda and beta", setting, grid, ("lambda", "beta"))
    names = dict.fromkeys(m.removesuffix(FILTERED) for m in methods if m.removesuffix(FILTERED) in LOSSES)
    rows = tuple(_row(setting, name + suffix) for name in names for suffix in ("", FILTERED))
    return Experiment("table-1", "with and without the samples of low confidence", setting, rows)


def _row(setting: Setting, method: str, *, at: tuple[float, ...] = (), **changes: Any) -> Row:
    seeds = (0,) if method in UNTRAINED_METHODS else setting.seeds
    return Row(method, tuple(setting.cell(method, seed, **changes) for seed in seeds), at)
