"""What is trained beside each other: the run that is the user's, and losses of the papers in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.noise.cells import CLEAN, digest, file_name, short_name

DEFAULT, UNWEIGHTED = "default", "unweighted"
LOSSES = ("spa", "proxy-anchor", "multi-similarity", "proxy-nca", "procsim")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {},
    UNWEIGHTED: {"method": "proxy-anchor", "positive_weights": "none"},
    **{loss: {"recipe": "paper", "method": loss} for loss in LOSSES},
}
"""`default` is `retrieval train --unfreeze`; `unweighted` the same loss of the network, believing all labels alike.
The losses come with their papers' options, the network's rates and epochs are the same for all."""


def name_set(dataset: str, *parts: str) -> str:
    """Of files of a dataset: readable, and unlike that of any other."""
    short = short_name(dataset)
    own = [short] if short == dataset else [short, digest(dataset)]
    return "_".join(file_name(part) for part in (*own, *parts))


@dataclass(frozen=True, slots=True)
class NetworkCell:
    """One training of a network, on one dataset with one noise.

    Attributes:
        dataset: of `benchmarks.noise.splits`.
        noise: `clean` or as `--label-noise` has it.
        plan: options of the network by name, as `--option` gives them.
    """

    dataset: str
    noise: str
    variant: str
    seed: int
    plan: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        """Of its files."""
        plan = "_".join(f"{name.removeprefix('network_')}-{value}" for name, value in self.plan)
        return "_".join((name_set(self.dataset, self.noise), self.variant, plan, f"seed{self.seed}"))

    def options(self, *, width: int) -> dict[str, Any]:
        """Of `retrieval_app.train`."""
        noise = {} if self.noise == CLEAN else {"label_noise": self.noise}
        start = {} if self.variant in LOSSES else {"trial": False}
        return {"backbone": "mobilenet_v2", "embedding_dim": width, "seed": self.seed,
                **noise, **start, **VARIANTS[self.variant], **dict(self.plan)}  # fmt: skip
