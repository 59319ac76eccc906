"""What fine-tuning is judged by, when its loop gives up, and what it keeps of the confidences."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from index.arrays import normalise_rows
from training.confidence import confidences
from training.confidence.confidences import (
    ConfidenceModule,
    TopConfidences,
    confidences_of_module,
    estimate_posteriors,
    take_rows,
)
from training.losses.interface import read_columns
from training.options.losses import LossConfig
from training.run.finetuning.data import GALLERY, FinetuneData, confidences_for, pack_confidences, unpack_confidences
from training.run.holdout import Split, split_for_finetuning

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("classes", "held"), [(19, 0), (20, 2), (45, 4)])
def test_a_tenth_of_many_classes_and_of_the_images_of_the_others_is_held_out(classes: int, held: int) -> None:
    labels = np.repeat(np.arange(classes), 20)
    split = split_for_finetuning(labels, seed=3)
    parts = (split.train, split.unseen, split.seen)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    assert len(np.unique(labels[split.unseen])) == held
    assert not np.isin(labels[split.train], labels[split.unseen]).any()
    assert np.bincount(labels[split.seen], minlength=classes)[np.unique(labels[split.train])].tolist() == (
        [2] * (classes - held)
    )


def test_whole_groups_are_held_out_and_the_seed_decides_which() -> None:
    labels = np.repeat(np.arange(30), 12)
    groups = np.arange(len(labels)) // 3
    split = split_for_finetuning(labels, seed=0, groups=groups)
    for part in (split.unseen, split.seen):
        assert not np.isin(groups[split.train], groups[part]).any()
    again, other = (split_for_finetuning(labels, seed=seed, groups=groups) for seed in (0, 1))
    assert np.array_equal(again.train, split.train)
    assert not np.array_equal(other.unseen, split.unseen)


@settings(deadline=None, max_examples=80)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=40),
    photos=st.integers(1, 12),
    crossing=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_at_most_a_fifth_of_the_images_does_not_train(sizes, photos, crossing, seed) -> None:
    """Groups of up to 12 photos, of one class or of several; some classes are one group."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    bursts = np.arange(len(labels)) // photos
    groups = bursts if crossing else bursts + labels * (len(labels) + 1)
    split = split_for_finetuning(labels, seed=seed, groups=groups)
    held = np.concatenate([split.unseen, split.seen])
    assert not np.isin(groups[split.train], groups[held]).any()
    left_out = len(labels) - len(split.train)
    if crossing or left_out <= len(labels) / 5:
        return
    assert set(labels[split.seen]) <= set(labels[split.train])
    for label, size in enumerate(sizes):
        of_group = np.unique(groups[labels == label], return_counts=True)[1]
        assert size < 3 or len(of_group) == 1 or of_group.min() > len(labels) // 5, "this one could be held out"


def test_a_small_set_of_large_groups_keeps_four_fifths_to_train_on() -> None:
    labels = np.repeat(np.arange(12), 24)
    split = split_for_finetuning(labels, seed=0, groups=np.arange(len(labels)) // 12)
    assert (len(split.train), len(split.unseen), len(split.seen)) == (288 - 48, 0, 48)
    uneven = np.repeat(np.arange(24), [3, 21] * 12)
    assert np.bincount(labels[split_for_finetuning(labels, seed=0, groups=uneven).seen]).tolist() == [3] * 12
    whole = split_for_finetuning(labels[:48], seed=0, groups=np.arange(48) // 12)
    assert len(whole.train) == 24, "no group is small enough: half, as of any class of two groups"


def _data(split: Split, labels: np.ndarray, groups: np.ndarray | None = None) -> FinetuneData:
    return FinetuneData(labels, int(labels.max()) + 1, split, groups=groups)


def _mean_precision(x: np.ndarray, labels: np.ndarray, queries: np.ndarray, gallery: np.ndarray) -> float:
    found = []
    for query in queries:
        others = gallery[gallery != query]
        ranked = labels[others[np.argsort(-(x[others] @ x[query]))]] == labels[query]
        relevant = int(ranked.sum())
        precisions = [ranked[: rank + 1].mean() for rank in range(relevant) if ranked[rank]]
        found.append(sum(precisions) / relevant)
    return float(np.mean(found))


def test_the_score_is_that_of_a_loop_over_ranked_neighbours() -> None:
    labels = RNG.permutation(np.repeat(np.arange(22), 14))
    split = split_for_finetuning(labels, seed=0)
    vectors = normalise_rows(RNG.normal(size=(len(labels), 6)).astype(np.float32) + np.eye(22, 6)[labels])
    asked: list[int] = []

    def embed(rows: np.ndarray) -> np.ndarray:
        asked.extend(rows)
        return vectors[rows]

    found = _data(split, labels).score(embed)
    gallery = np.array([row for label in range(22) for row in split.train[labels[split.train] == label][:GALLERY]])
    assert found["unseen"] == pytest.approx(_mean_precision(vectors, labels, split.unseen, split.unseen))
    assert found["seen"] == pytest.approx(_mean_precision(vectors, labels, split.seen, gallery))
    assert set(asked) == {*gallery, *split.unseen, *split.seen}


def test_posteriors_prefer_the_network_that_did_not_learn_wrong_labels() -> None:
    """Of 40 % wrong labels one network learnt nothing; the other moved the images that train to the class they name."""
    true, labels, split, views = _draw_noisy()
    moved = true.copy()
    moved[split.train] = labels[split.train]
    good, bad = views(true, 0.5), views(moved, 0.5)
    data = FinetuneData(labels, 12, split, posteriors=_estimate(good, labels))

    def leads(data: FinetuneData) -> list[float]:
        """Of the good one, in MAP@R and in Recall@1."""
        first, second = (data.search(lambda rows, x=x: x[rows])["seen"] for x in (good, bad))
        return [float((first.average_precision - second.average_precision).mean()), first.recall[1] - second.recall[1]]

    clean = leads(replace(data, posteriors=csr_array(np.eye(12)[true])))
    assert min(clean) > 0.2
    assert max(leads(replace(data, posteriors=None))) < -0.05, "more images with the label of the query are near it"
    assert leads(data) == pytest.approx(clean, abs=0.05)
    assert leads(data.with_held_out_posteriors(data.estimate_posteriors(bad))) == pytest.approx(clean, abs=0.05), (
        "so where it trained the bad one"
    )


def test_held_out_posteriors_by_fine_tuned_features_favour_the_frozen_ones_less() -> None:
    """Frozen features tell the classes badly, the fine-tuned ones well."""
    true, labels, split, views = _draw_noisy()
    frozen, tuned = views(true, 1.0), views(true, 0.6)
    data = FinetuneData(labels, 12, split, posteriors=_estimate(frozen, labels))

    def lead(data: FinetuneData) -> float:
        return data.score(lambda rows: tuned[rows])["seen"] - data.score(lambda rows: frozen[rows])["seen"]

    by_truth = lead(replace(data, posteriors=csr_array(np.eye(12)[true])))
    assert lead(data) < lead(data.with_held_out_posteriors(data.estimate_posteriors(tuned))) < by_truth


def _draw_noisy() -> tuple[np.ndarray, np.ndarray, Split, Callable[[np.ndarray, float], np.ndarray]]:
    """True and 40 % wrong labels of 480 photos, their split, and features by the classes that these show."""
    generator = np.random.default_rng(0)
    true = np.repeat(np.arange(12), 40)
    labels = np.where(generator.random(len(true)) < 0.4, generator.integers(12, size=len(true)), true)
    centres, photos = generator.normal(size=(12, 16)), generator.normal(size=(len(true), 16))

    def views(shown: np.ndarray, spread: float) -> np.ndarray:
        return normalise_rows((centres[shown] + spread * photos).astype(np.float32))

    return true, labels, split_for_finetuning(labels, seed=0), views


def _estimate(features: np.ndarray, labels: np.ndarray) -> csr_array:
    source = torch.from_numpy(features)
    return estimate_posteriors(source, torch.from_numpy(labels), class_count=12, groups=None).posteriors()


def test_a_part_without_anything_to_find_is_left_out() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    vectors = np.eye(6, dtype=np.float32)
    nothing = np.array([], dtype=np.int64)
    assert _data(Split(np.arange(6), nothing, nothing), labels).score(lambda rows: vectors[rows]) == {}
    own_group = np.array([0, 0, 1, 2, 3, 4])
    unseen = _data(Split(np.arange(2, 6), np.arange(2), nothing), labels, own_group)
    assert unseen.score(lambda rows: vectors[rows]) == {}, "both show one group"


@pytest.mark.parametrize(("most", "kind"), [(45, torch.Tensor), (44, TopConfidences)])
def test_confidences_that_do_not_fit_into_memory_are_kept_as_the_largest(most, kind, monkeypatch) -> None:
    monkeypatch.setattr(confidences, "_FIXED_VALUES", most)
    module = ConfidenceModule(6, hidden=5, class_count=5, generator=torch.Generator().manual_seed(0))
    features = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    found = confidences_of_module(module, features, torch.arange(9) % 5)
    assert pack_confidences(confidences_for(LossConfig("proxy-anchor"), found)) == {}
    kept = confidences_for(LossConfig("spa"), found)
    assert isinstance(kept, kind)
    again = unpack_confidences(pack_confidences(kept))
    assert isinstance(again, kind)
    rows = torch.tensor([8, 1, 1])
    for one in (kept, again):
        torch.testing.assert_close(read_columns(take_rows(one, rows), 1, 4), module(features)[rows, 1:4].detach())
