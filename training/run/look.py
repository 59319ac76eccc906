"""A look at a sample before features of everything are extracted: which view and pooling suit these images.

Every candidate is judged without training: each photo of the sample searches the others by half-whitened PCA.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from index.evaluation.comparison import paired_bootstrap
from training.backbone.backbones import Backbone
from training.confidence.same_pictures import find_duplicates
from training.data.datasets import Record
from training.head.projection import count_directions
from training.head.untrained import fit_untrained
from training.options.config import TrainConfig
from training.options.machine import Machine
from training.run.feature_choice import Candidate, FeatureChoice, Tried, choose
from training.run.look_sample import Sample, SampleReader
from training.run.phases import Watcher
from training.run.run_folder import RunFolder
from training.run.searches import ValidationSet, embed_features
from training.run.verdict import widen_interval

_IMAGES_A_DIRECTION = 4  # of PCA: of as many directions as images, whitening leaves nothing to find


def select_features(
    run: RunFolder,
    records: Sequence[Record],
    candidates: Sequence[Candidate],
    *,
    views: int,
    network: Backbone,
    config: TrainConfig,
    machine: Machine,
    watcher: Watcher,
) -> Candidate:
    """The view and pooling that the run takes: chosen once, and the same for a resume.

    Args:
        views: of images, of which the run extracts features; the sample costs a tenth of them.
    """
    if run.read_feature_choice() is None:
        choice = look(
            records, candidates, views=views, network=network, config=config, machine=machine, watcher=watcher
        )
        run.write_feature_choice(choice.to_json())
    chosen = run.read_feature_choice()
    assert chosen is not None
    return next(one for one in candidates if (one.view, one.pooling) == (chosen["view"], chosen["pooling"]))


def look(
    records: Sequence[Record],
    candidates: Sequence[Candidate],
    *,
    views: int,
    network: Backbone,
    config: TrainConfig,
    machine: Machine,
    watcher: Watcher,
) -> FeatureChoice:
    """Try the candidates on a sample of the records; the first one is taken where nothing can be tried.

    Features that the run will need are left in the cache.
    """
    if len(candidates) == 1:
        return FeatureChoice(candidates[0])
    reader = SampleReader(network, candidates, config=config, machine=machine, watcher=watcher)
    if not (images := reader.afford(views=views)):
        return FeatureChoice(candidates[0], images=len(records))
    sample = reader.read(records, images=images)
    tried = judge_candidates(sample, embedding_dim=config.embedding.width, seed=config.seed)
    chosen = choose(tried) if tried else candidates[0]
    reader.keep(sample, chosen)
    return FeatureChoice(chosen, tried, len(sample.labels), len(np.unique(sample.labels)))


def judge_candidates(sample: Sample, *, embedding_dim: int, seed: int) -> tuple[Tried, ...]:
    """What each candidate finds, in their order; empty where there is nothing to find.

    Duplicates, by the features of the first candidate, do not find each other. (Scenes are not looked for: what tells
    them of a whole collection misleads in a sample of it.)
    """
    count = len(sample.labels)
    if count < 2 * _IMAGES_A_DIRECTION:
        return ()
    first = next(iter(sample.features))
    copies = find_duplicates(sample.features[first], sample.labels, hashes=sample.hashes).groups
    searched = ValidationSet(sample.features[first], sample.labels, ks=(1,), scenes=copies)
    if not searched.can_find():
        return ()
    found = {}
    for one, features in sample.features.items():
        width = min(embedding_dim, count_directions(features), count // _IMAGES_A_DIRECTION)
        head = fit_untrained("pca-half-whitened", features, embedding_dim=width)
        found[one] = searched.score(embed_features(head, features))
    usual, classes = found[first], len(np.unique(found[first].labels))
    tried = []
    for one, scores in found.items():
        difference = paired_bootstrap(scores.hits[1], usual.hits[1], seed=seed, clusters=usual.labels)
        interval = widen_interval(difference, classes=classes, comparisons=max(1, len(found) - 1))
        tried.append(Tried(one, scores.recall[1], difference.mean, interval))
    return tuple(tried)
