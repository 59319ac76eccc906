"""The default recipe of `retrieval train`, and what else could be done at every point of it: one change each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from training.head.whitening import DIRECTIONS, FLATTEN, RIDGE
from training.losses.proxy_nca import scale_for
from training.options.config import TrainConfig
from training.options.resolve import resolve

RECIPE_NAME = "recipe"
UNTRAINED = "untrained"
MODULE_FOLDS = 5  # of the confidence module that is asked about images that it has not seen
AVERAGED_SEEDS = 5
START = {"directions": DIRECTIONS, "ridge": RIDGE, "flatten": FLATTEN}
_EVERY_DIRECTION = 1 << 16


@dataclass(frozen=True, slots=True)
class Variation:
    """One way to make a head.

    Attributes:
        group, name: where it stands in the table.
        settings: options of `retrieval train` that differ from the recipe's; a function is asked with C.
        beliefs: whose confidence in the labels weighs samples, by name of `recipe_heads.BELIEFS`.
        start: parameters of `fit_within_classes` that differ from the recipe's; `weights` by the same names.
        make: what becomes of it, by name of `recipe_heads.MAKERS`.
        share: of the trained head in what is made of it and of the start.
        seed_offset: added to the seed of initial weights and batches.
    """

    group: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    beliefs: str = "leave-one-out"
    make: str = "trained"
    share: float = 1.0
    seed_offset: int = 0

    def config(self, *, class_count: int, width: int) -> TrainConfig:
        """All options of the training."""
        settings = {
            name: value(class_count) if callable(value) else value for name, value in self.settings.items()
        }
        return resolve(weights="none", embedding_dim=width, select="trained", **settings)

    def describe(self, *, class_count: int, width: int) -> dict[str, Any]:
        """All that the head depends on beside the data, resolved: another version of the recipe is another record."""
        found: dict[str, Any] = {
            "variation": self.name, "make": self.make, "width": width, "share": self.share, "beliefs": self.beliefs,
            "start": {**START, "weights": self.beliefs, **self.start}, "seed_offset": self.seed_offset,
        }  # fmt: skip
        if self.group != UNTRAINED:
            config = self.config(class_count=class_count, width=width)
            found |= {"loss": asdict(config.loss), "embedding": asdict(config.embedding)}
            if "nca_scale" in found["loss"]["options"]:
                found["loss"]["options"]["nca_scale"] = config.loss.options.nca_scale or scale_for(class_count)
        return found


def list_variations() -> dict[str, Variation]:
    """All of them by name, in the order of the table."""
    alike = {"sample_weights": "none"}
    random = {"start": "random", "hold": 0.0}
    found = [
        Variation("recipe", RECIPE_NAME),
        Variation("recipe", "another training seed", seed_offset=1),
        Variation(UNTRAINED, "raw features", make="raw"),
        Variation(UNTRAINED, "PCA", make="pca"),
        Variation(UNTRAINED, "PCA, whitened", make="pca-whitened"),
        Variation(UNTRAINED, "PCA, variance^-0.25", make="pca-half-whitened"),
        Variation(UNTRAINED, "the start alone", make="start"),
        Variation("start", "random, lr 1e-4", {**random, "lr": 1e-4}),
        Variation("start", "random, lr 1e-3", random),
        Variation("start", "labels as given", start={"weights": "given"}),
        *(Variation("start", f"ridge {value:g}", start={"ridge": value}) for value in (0.3, 3.0)),
        *(Variation("start", f"flatten {value:g}", start={"flatten": value}) for value in (0.0, 0.25)),
        Variation("start", "256 directions", start={"directions": 256}),
        Variation("start", "all directions", start={"directions": _EVERY_DIRECTION}),
        *(Variation("hold", f"hold {value:g}", {"hold": value}) for value in (0.0, 0.006, 0.02, 0.2, 0.6)),
        *(Variation("steps", f"{value} steps", {"steps": value}) for value in (100, 600, 1200)),
        Variation("steps", "batch 1024", {"batch_size": 1024}),
        *(Variation("steps", f"lr {value:g}", {"lr": value}) for value in (3e-4, 3e-3)),
        Variation("beliefs", "labels as given, no weights", alike, beliefs="given"),
        Variation("beliefs", "the paper's module", beliefs="module"),
        Variation("beliefs", f"the paper's module, {MODULE_FOLDS} folds", beliefs="module-in-folds"),
        Variation("beliefs", "confidence squared", beliefs="squared"),
        Variation("beliefs", "root of the confidence", beliefs="root"),
        Variation("beliefs", "noise model", beliefs="noise-model"),
        *(Variation("loss", f"Smooth Proxy-Anchor, lambda {value:g}", {"method": "spa", "lambda_": value})
          for value in (0.1, 0.2, 0.3, 0.5)),
        Variation("loss", "Proxy-Anchor", {"method": "proxy-anchor"}),
        Variation("loss", "Multi-Similarity", {"method": "multi-similarity", "images_per_class": 4}),
        Variation("loss", "Proxy-NCA, scale ln C", {"nca_scale": math.log}),
        *(Variation("loss", f"Proxy-NCA, scale {value:g}", {"nca_scale": value}) for value in (1.0, 4.0, 8.0)),
        Variation("loss", "Proxy-NCA, scale 1.1 sqrt(C)", {"nca_scale": lambda count: 1.1 * math.sqrt(count)}),
        Variation("averaging", f"mean of {AVERAGED_SEEDS} seeds", make="mean of seeds"),
        Variation("averaging", "half way back to the start", make="on the way", share=0.5),
        Variation("averaging", "1/2 start beside 1/2 trained", make="side by side", share=0.5),
        Variation("averaging", "3/4 start beside 1/4 trained", make="side by side", share=0.25),
    ]  # fmt: skip
    return {variation.name: variation for variation in found}
