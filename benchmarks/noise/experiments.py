"""Which trainings each table and ablation of the papers is made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks.noise.cells import CLEAN, FILTERED, GUIDED, RECIPE, Cell, LabelSet, base_method
from benchmarks.noise.shapes import FULL
from training.options.losses import RIVALS, UNTRAINED_METHODS
from training.options.resolve import LOOKED_AT, recipe_values

Settings = Mapping[str, Mapping[str, Any]]
LAMBDAS, BETAS = (0.075, 0.1, 0.125, 0.15), (50.0, 100.0, 150.0, 200.0)
BATCH_SIZES = (30, 60, 90, 120, 150, 180)
WIDTHS = (32, 64, 128, 256, 512, 1024)
ALPHAS, DELTAS = (4.0, 8.0, 16.0, 32.0, 64.0), (0.0, 0.1, 0.2, 0.3, 0.4)
PROCSIM = "procsim"
UNWEIGHTED = "default-unweighted"  # the row of the default recipe with a loss that believes all labels alike
KAPPAS = (1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """What one table is about: a dataset, its noise, the width, the seeds, and the settings of every method.

    `tuned` maps method names to options that differ from the paper's recipe, and `phase1` to those of phase 1;
    `shape` says how many images each training class has (`shapes.py`).
    """

    dataset: str
    noise: str
    width: int
    seeds: tuple[int, ...]
    tuned: Settings = field(default_factory=dict)
    shape: str = FULL

    def cell(self, method: str, seed: int, *, width: int | None = None, **changes: Any) -> Cell:
        """One training of the table; what reads no labels knows no noise, and no seed but that of a tail."""
        noise = CLEAN if method in UNTRAINED_METHODS else self.noise
        labels = LabelSet(self.dataset, noise, seed, shape=self.shape)
        if method in RIVALS:
            return Cell(labels, method, width or self.width)
        if method == RECIPE:
            # Its values are in the cell, so that another version of the recipe is another cell; all but how images
            # become features, which --view and --pooling say for all methods alike.
            values = {name: value for name, value in recipe_values(RECIPE).items() if name not in LOOKED_AT}
            return Cell(labels, method, width or self.width, {**values, **changes})
        labels = replace(labels, phase1=dict(self.tuned["phase1"] if self.tuned else {}))
        # What the paper's recipe gives a method is in the cell too: losses over pairs once drew batches at random.
        base = recipe_values("paper", method=base_method(method))
        settings = {**base, **(self.tuned[method] if self.tuned else {}), **changes}
        given = {name: value for name, value in settings.items() if value is not None}  # None takes an option away
        return Cell(labels, method, width or self.width, given)


@dataclass(frozen=True, slots=True)
class Row:
    """One line or curve: its name in the table, where it stands on the axes, and its cells, one a seed."""

    name: str
    cells: tuple[Cell, ...]
    at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table or ablation: rows over one setting, and the names of the axes where rows stand on a grid."""

    name: str
    title: str
    setting: Setting
    rows: tuple[Row, ...]
    axes: tuple[str, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """All trainings."""
        return [cell for row in self.rows for cell in row.cells]


def table_3(setting: Setting, methods: Sequence[str]) -> Experiment:
    """Papers/000 Table 3: Recall@K of every method, with the untrained ones that it leaves out."""
    return Experiment("table-3", "Recall@K by method", setting, tuple(_row(setting, m) for m in methods))


def table_1(setting: Setting, methods: Sequence[str] = ("proxy-nca", "proxy-anchor")) -> Experiment:
    """Table 1: every method with all samples, and without those of low confidence in their label."""
    rows = [_row(setting, method + suffix) for method in methods for suffix in ("", FILTERED)]
    return Experiment("table-1", "with and without the samples of low confidence", setting, tuple(rows))


def table_2(setting: Setting, name: str = "table-2") -> Experiment:
    """Table 2: Smooth Proxy-Anchor over lambda and beta."""
    rows = _rows_over(setting, "spa", lambda_=LAMBDAS, beta=BETAS)
    return Experiment(name, "Smooth Proxy-Anchor by lambda and beta", setting, rows, ("lambda", "beta"))


def ablate_batch(setting: Setting, methods: Sequence[str] = ("spa", "proxy-anchor")) -> Experiment:
    """Proxy-Anchor's Tables 5 and 6: Recall@1 by batch size."""
    rows = _rows_over(setting, *methods, batch_size=BATCH_SIZES)
    return Experiment("batch", "Recall@1 by batch size", setting, rows, ("batch size",))


def ablate_width(
    setting: Setting, methods: Sequence[str] = ("spa", "proxy-anchor", "multi-similarity", "pca-whitened")
) -> Experiment:
    """Proxy-Anchor's Figure 5: Recall@1 by embedding width."""
    rows = _rows_over(setting, *methods, width=WIDTHS)
    return Experiment("width", "Recall@1 by embedding width", setting, rows, ("embedding width",))


def ablate_alpha_delta(setting: Setting) -> Experiment:
    """Proxy-Anchor's Figure 6: Recall@1 by alpha and delta."""
    rows = _rows_over(setting, "proxy-anchor", alpha=ALPHAS, delta=DELTAS)
    return Experiment("alpha-delta", "Proxy-Anchor by alpha and delta", setting, rows, ("alpha", "delta"))


def ablate_margin(setting: Setting) -> Experiment:
    """Adaptive Proxy-Anchor's Table 2 and Figure 5: one margin or one a class, by kappa, beside fixed margins."""
    method = "adaptive-proxy-anchor"
    rows = [
        _row(setting, method, name=f"{method}, {margins}", at=(kappa,), margins=margins, kappa=kappa)
        for margins in ("single", "per-class")
        for kappa in KAPPAS
    ]
    fixed = _row(setting, "proxy-anchor")
    rows += [Row("proxy-anchor, fixed margin", fixed.cells, (kappa,)) for kappa in KAPPAS]
    return Experiment("margin", "learnt margins by kappa", setting, tuple(rows), ("kappa",))


def ablate_confidence(setting: Setting) -> Experiment:
    """After ProcSim's Table 1: how the confidence is computed, and no confidence at all.

    Left out are its rows with language guidance, which need a file, and the threshold on Multi-Similarity losses.
    """
    scale = {name: value for name, value in setting.tuned.get("proxy-nca", {}).items() if name == "nca_scale"}
    procsim = {
        "Otsu": {},
        "global average": {"procsim_threshold": "global-average"},
        "Gaussian mixture": {"procsim_threshold": "mixture"},
        "on Proxy-NCA": {"procsim_base": "proxy-nca", "ms_base": None, "images_per_class": 0, **scale},
    }
    rows = [
        _row(setting, PROCSIM, name=f"{show_method(PROCSIM)}, {name}", **change)
        for name, change in procsim.items()
    ]
    rows += [_row(setting, method) for method in ("multi-similarity", "proxy-nca", "superloss")]
    return Experiment("confidence", "where the confidence comes from", setting, tuple(rows))


TABLES = {"1": table_1, "2": table_2}
BY_METHOD = (table_1, ablate_batch, ablate_width)
ABLATIONS = {
    "batch": ablate_batch, "width": ablate_width, "alpha-delta": ablate_alpha_delta,
    "lambda-beta": partial(table_2, name="lambda-beta"), "margin": ablate_margin, "confidence": ablate_confidence,
}  # fmt: skip


def build(make: Callable[..., Experiment], setting: Setting, *, methods: Sequence[str]) -> Experiment:
    """A table or ablation, of these methods where it compares methods; untrained ones have no samples to filter."""
    if make not in BY_METHOD or not methods:
        return make(setting)
    if make is table_1:
        methods = tuple(dict.fromkeys(m.removesuffix(FILTERED) for m in methods if m not in RIVALS))
    return make(setting, methods)


def show_method(method: str) -> str:
    """A method's name in tables: ProcSim's says that its language guidance is not there, or that it is."""
    if base_method(method) != PROCSIM:
        return method
    return f"{PROCSIM} with guidance" if method.endswith(GUIDED) else f"{PROCSIM} without guidance"


def _row(
    setting: Setting, method: str, *, name: str | None = None, at: tuple[float, ...] = (), **changes: Any
) -> Row:
    if method == UNWEIGHTED:
        return _row(setting, RECIPE, name=UNWEIGHTED, sample_weights="none")
    seeds = (0,) if method in UNTRAINED_METHODS and setting.shape == FULL else setting.seeds
    return Row(name or show_method(method), tuple(setting.cell(method, seed, **changes) for seed in seeds), at)


def _rows_over(setting: Setting, *methods: str, **values: Sequence[Any]) -> tuple[Row, ...]:
    """A row for every method and every choice of these values of its options."""
    places = list(itertools.product(*values.values()))
    return tuple(
        _row(setting, method, at=at, **dict(zip(values, at, strict=True))) for method in methods for at in places
    )
