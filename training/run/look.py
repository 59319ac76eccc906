"""A look at a sample before features of everything are extracted: which view and pooling suit these images.

Every candidate is judged as the trial judges, but without a step of training: whitening within classes is fitted on a
part of the sample, and searches classes and images held out of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

import numpy as np

from index.arrays import Floats, Labels, normalise_rows
from index.evaluation.comparison import paired_bootstrap
from index.evaluation.metrics import Scores
from training.backbone.backbones import Backbone
from training.confidence.same_pictures import find_duplicates
from training.data.datasets import Record
from training.data.scene_clues import read_clues
from training.head.embedding_heads import Head
from training.head.projection import count_directions
from training.head.untrained import LabelledFeatures, fit_rival
from training.head.whitening import DIRECTIONS
from training.options.config import TrainConfig
from training.options.losses import CLASS_WHITENED
from training.options.machine import Machine
from training.run.feature_choice import Candidate, FeatureChoice, Tried, choose
from training.run.look_sample import Sample, SampleReader
from training.run.phases import Watcher
from training.run.run_folder import RunFolder
from training.run.searches import KnownImages, find_trial_scenes
from training.run.trial import TrialData
from training.run.trial_splits import split_for_trial
from training.run.validate import embed_features

SPLITS = 6  # of the sample, few images of which are held out at a time


def settle_features(
    run: RunFolder,
    records: Sequence[Record],
    candidates: Sequence[Candidate],
    *,
    network: Backbone,
    config: TrainConfig,
    machine: Machine,
    watcher: Watcher,
) -> TrainConfig:
    """The config with the view and pooling that the run takes: chosen once, and the same for a resume."""
    if run.read_feature_choice() is None:
        choice = look(records, candidates, network=network, config=config, machine=machine, watcher=watcher)
        run.write_feature_choice(choice.to_json())
    chosen = run.read_feature_choice()
    assert chosen is not None
    return replace(config, input=config.input.settle(view=chosen["view"], pooling=chosen["pooling"]))


def look(
    records: Sequence[Record],
    candidates: Sequence[Candidate],
    *,
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
    sample = reader.read(records)
    tried = judge_candidates(sample, embedding_dim=config.embedding.width, seed=config.seed)
    chosen = choose(tried) if tried else candidates[0]
    reader.keep(sample, chosen)
    return FeatureChoice(chosen, tried, len(sample.labels), len(np.unique(sample.labels)))


def judge_candidates(sample: Sample, *, embedding_dim: int, seed: int) -> tuple[Tried, ...]:
    """What each candidate finds, in their order; empty where there is nothing to find.

    Photos of one scene do not find each other, and duplicates do not vouch for each other's labels, by the features of
    the first candidate.
    """
    if not len(sample.labels):
        return ()
    first, *_ = sample.features
    groups, scenes = _find_groups(sample, sample.features[first])
    found = {}
    for one, features in sample.features.items():
        short = _shorten(features, width=max(DIRECTIONS, embedding_dim))
        data = TrialData(short, sample.labels, groups, scenes)
        found[one] = _search(data, embedding_dim=embedding_dim, seed=seed)
    if not found[first]:
        return ()
    return tuple(
        _compare(one, of_one, None if one == first else found[first], seed=seed) for one, of_one in found.items()
    )


def _find_groups(sample: Sample, features: Floats) -> tuple[np.ndarray, np.ndarray | None]:
    """Groups and scenes, as `TrialData` has them."""
    clues = read_clues(
        [record.path for record in sample.records],
        groups=[record.group for record in sample.records],
        hashes=sample.hashes,
    )
    known = KnownImages(features, [str(label) for label in sample.labels], sample.hashes, clues)
    copies = find_duplicates(features, sample.labels, hashes=sample.hashes).groups
    return copies, find_trial_scenes(known, copies=copies)


def _shorten(features: Floats, *, width: int) -> Floats:
    """(N, F) to (N, at most `width`) coordinates of unit rows where they reach furthest; beyond is mostly noise.

    All products of rows are nearly what they were, and fitting is many times cheaper.
    """
    unit = normalise_rows(features).astype(np.float64)
    values, vectors = np.linalg.eigh(unit @ unit.T)  # (N,) rising, (N, N)
    return (vectors[:, -width:] * np.sqrt(np.maximum(values[-width:], 0))).astype(np.float32)


_Found = Mapping[str, tuple[Scores, Labels]]
"""By part: (Q,) hits, and the queries' classes."""


def _search(data: TrialData, *, embedding_dim: int, seed: int) -> _Found:
    """What one candidate finds; no part in which there is nothing to find."""
    hits: dict[str, list[Scores]] = defaultdict(list)
    labels: dict[str, list[Labels]] = defaultdict(list)
    rounds = (split_for_trial(data.labels, seed=seed + number, scenes=data.scenes) for number in range(SPLITS))
    for split in islice(chain.from_iterable(rounds), SPLITS):
        searched = data.searched(split)
        head = _fit(data.take(split.train), embedding_dim=embedding_dim) if searched else None
        if head is None:
            continue
        for part, validation in searched.items():
            scores = validation.score(embed_features(head, validation.features))
            hits[part].append(scores.hits[1])
            labels[part].append(scores.labels)
    return {part: (np.concatenate(hits[part]), np.concatenate(labels[part])) for part in hits}


def _fit(images: TrialData, *, embedding_dim: int) -> Head | None:
    """The head, as wide as the run's or as the images allow; None for images of one class or one direction."""
    classes, numbers = np.unique(images.labels, return_inverse=True)
    width = min(embedding_dim, count_directions(images.features))
    if len(classes) < 2 or not width:
        return None
    labelled = LabelledFeatures(images.features, numbers.astype(np.int64), images.groups)
    return fit_rival(CLASS_WHITENED, labelled, embedding_dim=width)


def _compare(candidate: Candidate, found: _Found, first: _Found | None, *, seed: int) -> Tried:
    recall = {part: float(hits.mean()) for part, (hits, _) in found.items()}
    mean = float(np.mean(list(recall.values())))
    if first is None:
        return Tried(candidate, recall, mean, None)
    labels = np.concatenate([labels for _, labels in found.values()])
    difference = paired_bootstrap(_level(found), _level(first), seed=seed, clusters=labels)
    return Tried(candidate, recall, mean, difference)


def _level(found: _Found) -> Scores:
    """(Q,) hits of all parts, so weighed that every part counts the same: their mean is that of the parts."""
    total = sum(len(hits) for hits, _ in found.values())
    return np.concatenate([hits * (total / len(found) / len(hits)) for hits, _ in found.values()])
