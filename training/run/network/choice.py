"""Which weights and which head the network stage gives, and whether they ship: all by what is held out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor, nn

from index.arrays import Floats
from training.head.embedding_heads import Head, ProjectionHead
from training.head.untrained import LabelledFeatures, count_directions, fit_rival
from training.network.model import NetworkModel
from training.options.losses import CLASS_WHITENED
from training.run.distributed import current_team
from training.run.network.data import NetworkData, mean_score, read_together
from training.run.network.fit import FittedWeights, interpolate_weights, load_weights
from training.run.network.inputs import NetworkInputs
from training.run.searches import embed_features

START = "start"  # weights that no epoch has bettered

Weights = dict[str, Tensor]


@dataclass(slots=True)
class NetworkChoice:
    """What was tried on the held-out part, by name, and what came of it.

    Attributes:
        tried: MAP@R by part of every candidate.
        weights, head: the best ones' names in it; None where nothing could be tried.
        ships: whether the best finds more there than the run's frozen embedding.
    """

    tried: dict[str, dict[str, float]] = field(default_factory=dict)
    weights: str = "average"
    head: str = "trained"
    ships: bool = True

    @property
    def shipping(self) -> str:
        """The name in `tried` of the weights with their head."""
        return f"{self.weights}, head refitted" if self.head == "refitted" else self.weights

    def best(self, names: Iterable[str]) -> str:
        """The highest mean over the parts; the first of equals."""
        return max(names, key=lambda name: mean_score(self.tried[name]))


def fit_closed_form(
    features: Floats, data: NetworkData, rows: np.ndarray, *, embedding_dim: int
) -> ProjectionHead:
    """Whitening within classes on (n, F) features of the images `rows`; rows of 0 where they span fewer directions."""
    numbers = np.unique(data.labels[rows], return_inverse=True)[1]
    groups = None if data.groups is None else data.groups[rows]
    width = min(embedding_dim, count_directions(features))
    found = fit_rival(
        CLASS_WHITENED, LabelledFeatures(features, numbers.astype(np.int64), groups), embedding_dim=width
    )
    assert isinstance(found, ProjectionHead)
    missing = embedding_dim - width
    weight = nn.functional.pad(found.weight, (0, 0, 0, missing))
    return ProjectionHead(weight, nn.functional.pad(found.bias, (0, missing)))


def choose_weights(
    fitted: FittedWeights, model: NetworkModel, data: NetworkData, *, inputs: NetworkInputs, frozen: Head | None,
    frozen_features: Floats, share: float,
) -> tuple[NetworkChoice, Head, Floats]:  # fmt: skip
    """Leave the best weights in the model; give the head that goes with them, and its (N, F) float32 features.

    First the trained weights are chosen, each with its own head: the last ones, the averaged ones, those of the best
    epoch, or of the start where no epoch found more. Those that ship lie between the start and them. Then the head: the
    trained one, or one in closed form on the features of those weights. What ships has to find more than `frozen`.
    Without an epoch nothing is tried, and `frozen` ships.

    Args:
        frozen: the run's embedding without this stage, fitted without what is held out.
        frozen_features: (N, F) float32, what it takes.
        share: of the way from the start to the trained weights; it is not chosen here, since what is held out is like
            the classes that train, and what will be searched may not be.

    All processes call this, as they read features together; rank 0 judges, and has the head.
    """
    if len(fitted.epochs) == 1:  # no time was left to train
        return NetworkChoice(weights=START, ships=False), model.head.freeze(), frozen_features
    choice = NetworkChoice()
    candidates = {"average": fitted.average, "last": fitted.last}
    if fitted.best_epoch != len(fitted.epochs) - 1:
        candidates["best epoch" if fitted.best_epoch else START] = fitted.best
    has_parts = bool(fitted.epochs[0].found)
    if has_parts:
        choice.weights = _try(choice, candidates, model, data, inputs)
    weights = candidates[choice.weights]
    if share < 1 and choice.weights != START:
        choice.weights += f", {share:g} of the way"
        weights = interpolate_weights(fitted.start, weights, share)
        if has_parts:
            _try(choice, {choice.weights: weights}, model, data, inputs)
    load_weights(model, weights)
    features = read_together(inputs, np.arange(len(data.labels))).numpy()
    head: Head = model.head.freeze()
    if has_parts and current_team().is_first:
        head = _choose_head(choice, model.head.freeze(), data, features)
        choice.ships = _beats_frozen(choice, frozen, frozen_features, data)
    return choice, head, features


def _try(
    choice: NetworkChoice, candidates: Mapping[str, Weights], model: NetworkModel, data: NetworkData,
    inputs: NetworkInputs,
) -> str:  # fmt: skip
    rows = data.searched_rows()
    for name, weights in candidates.items():
        load_weights(model, weights)
        features = read_together(inputs, rows).numpy()
        choice.tried[name] = current_team().first_does(partial(data.score_features, model.head, features, rows))
    return choice.best(candidates)


def _choose_head(choice: NetworkChoice, head: ProjectionHead, data: NetworkData, features: Floats) -> Head:
    """The trained head, or the one that closed form gives without what is held out, fitted again with it."""
    train, width = data.split.train, head.embedding_dim
    refitted = fit_closed_form(features[train], data, train, embedding_dim=width)
    name = f"{choice.weights}, head refitted"
    choice.tried[name] = data.score(lambda rows: embed_features(refitted, features[rows]))
    if choice.best([choice.weights, name]) == choice.weights:
        return head
    choice.head = "refitted"
    return fit_closed_form(features, data, np.arange(len(data.labels)), embedding_dim=width)


def _beats_frozen(choice: NetworkChoice, frozen: Head | None, features: Floats, data: NetworkData) -> bool:
    if frozen is None:
        return True
    choice.tried["frozen"] = data.score(lambda rows: embed_features(frozen, features[rows]))
    return mean_score(choice.tried[choice.shipping]) > mean_score(choice.tried["frozen"])
