"""Holdout evaluation: its splits, and its result where labels tell something or nothing."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from index.labels.label_errors import second_pass
from tests.training.conftest import make_config
from training.confidence.confidences import estimate_posteriors
from training.head.untrained import POWERS, LabelledFeatures
from training.options.config import L2_SP_WEIGHTS, USUAL_L2_SP, TrainConfig
from training.options.losses import RIVALS
from training.run import holdout as holdout_module
from training.run.holdout import evaluate_holdout, sample_images, split_for_holdout
from training.run.verdict import QUESTIONS, TRAINED, MethodComparison, Verdict, compare

CPU = torch.device("cpu")


@st.composite
def _labels(draw: st.DrawFn) -> np.ndarray:
    """(N,) labels of 2 to 60 classes with 2 to 12 images each, in any order, some numbers left out."""
    sizes = draw(st.lists(st.integers(2, 12), min_size=2, max_size=60))
    labels = np.repeat(3 * np.arange(len(sizes)), sizes)
    return np.random.default_rng(draw(st.integers(0, 1000))).permutation(labels).astype(np.int64)


@settings(deadline=None, max_examples=80)
@given(labels=_labels(), seed=st.integers(0, 2**32 - 1))
def test_a_fold_parts_all_images_and_its_unseen_classes_never_train(labels: np.ndarray, seed: int) -> None:
    splits = list(split_for_holdout(labels, seed=seed))
    again, other = (list(split_for_holdout(labels, seed=given)) for given in (seed, seed ^ 1))
    drawn = [[split.train.tolist() for split in found] for found in (splits, again, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2] or len(labels) < 100, "the seed decides"
    for split in splits:
        parts = (split.train, split.unseen, split.seen)
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
        assert all((np.diff(part) > 0).all() for part in parts)
        trained = set(labels[split.train].tolist())
        assert not trained & set(labels[split.unseen].tolist())
        assert set(labels[split.seen].tolist()) <= trained
        for label in trained:
            total, left = int((labels == label).sum()), int((labels[split.train] == label).sum())
            assert left >= 2
            assert total - left == (max(1, total // 5) if total >= 3 else 0)
        assert len(trained) >= 2


@pytest.mark.parametrize(
    ("sizes", "classes", "images"),
    [
        ([30] * 3000, (1000, 1000), (30_000, 30_000)),
        ([5000] * 200, (100, 100), (30_000, 30_000)),
        ([9000] * 12, (12, 12), (30_000, 30_000)),
        ([150_000] + [15] * 5000, (1500, 2100), (29_700, 30_300)),
        ([100] * 50, (50, 50), (5000, 5000)),
    ],
)
def test_a_sample_stands_for_very_many_images(sizes: list[int], classes: Any, images: Any) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    rows = sample_images(labels, seed=0)
    assert (np.diff(rows) > 0).all()
    assert classes[0] <= len(np.unique(labels[rows])) <= classes[1]
    assert images[0] <= len(rows) <= images[1]
    assert len(rows) == len(labels) or not np.array_equal(rows, sample_images(labels, seed=1))


def test_the_holdout_of_a_sample_is_that_of_its_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(400) % 20
    data, certain = LabelledFeatures(_features(labels), labels), csr_array(np.eye(20)[labels])
    monkeypatch.setattr(holdout_module, "SAMPLED_IMAGES", 100)
    monkeypatch.setattr(holdout_module, "SAMPLED_CLASSES", 5)
    rows = sample_images(labels, seed=0)
    sampled = _evaluate(data, _config(), posteriors=certain)
    monkeypatch.undo()
    assert sampled == _evaluate(data.take(rows), _config(), posteriors=certain[rows])
    assert sampled.images == sampled.unseen.queries == len(rows) == 100


@settings(deadline=None, max_examples=80)
@given(labels=_labels(), seed=st.integers(0, 1000))
def test_few_classes_take_turns_and_of_many_a_fifth_is_held_out_once(labels: np.ndarray, seed: int) -> None:
    count = len(np.unique(labels))
    splits = list(split_for_holdout(labels, seed=seed))
    unseen = [sorted(set(labels[split.unseen].tolist())) for split in splits]
    if count < 4:
        assert unseen == [[]]
    elif count < 25:
        assert len(splits) == (2 if count < 6 else 3)
        assert sorted(itertools.chain.from_iterable(unseen)) == sorted(set(labels.tolist())), "each unseen once"
        assert all(len(fold) >= 2 for fold in unseen), "an image is searched among some of other classes"
    else:
        held_out = list(itertools.chain.from_iterable(unseen))
        assert len(held_out) == len(set(held_out)) >= 25, "enough to tell a difference of some points"


@settings(deadline=None, max_examples=80)
@given(labels=_labels(), seed=st.integers(0, 1000), photos=st.integers(1, 6), crossing=st.booleans())
def test_no_group_straddles_what_trains_and_what_is_searched(labels, seed, photos, crossing) -> None:
    """Bursts of one class, or of whatever stands beside each other."""
    groups = np.arange(len(labels)) // photos
    if not crossing:
        order = np.argsort(labels, kind="stable")
        groups[order] = groups.copy() * 1000 + labels[order]
    for split in split_for_holdout(labels, seed=seed, groups=groups):
        searched = np.concatenate([split.unseen, split.seen])
        assert not set(groups[split.train].tolist()) & set(groups[searched].tolist())
        assert len(np.unique(np.concatenate([split.train, searched]))) == len(split.train) + len(searched)
        if not crossing:
            assert len(split.train) + len(searched) == len(labels), "nothing is left out"
            for label in set(labels[split.seen].tolist()):
                held_out = len(np.unique(groups[split.seen][labels[split.seen] == label]))
                assert 1 <= held_out <= len(np.unique(groups[labels == label])) / 2


def test_photos_of_one_group_do_not_find_each_other_in_the_holdout() -> None:
    """Each class has six pairs of photos, which show where they were taken and hardly what of."""
    labels, groups = np.arange(192) // 12, np.arange(192) // 2
    places = np.random.default_rng(1).normal(size=(96, 24))[groups]
    features = (_features(labels) + 3 * places).astype(np.float32)
    found, told = (
        _evaluate(LabelledFeatures(features, labels, groups=given), _config()).unseen for given in (None, groups)
    )
    assert found.scores["raw"] > 0.95
    assert told.scores["raw"] < 0.6
    assert told.queries == found.queries


def test_groups_that_leave_nothing_to_train_on_or_to_find_try_nothing() -> None:
    labels = np.arange(60) % 6
    for groups in (np.zeros(60, np.int64), labels):
        data = LabelledFeatures(_features(labels), labels, groups=groups)
        assert _evaluate(data, _config(l2_sp=None)) == _nothing(folds=3, images=60)


def _features(labels: np.ndarray, *, told: bool = True) -> np.ndarray:
    """(N, 24) float32: six strong directions tell nothing, the weak others the class, where something does."""
    generator = np.random.default_rng(0)
    x = 0.15 * generator.normal(size=(len(labels), 24))
    x[:, :6] += generator.normal(size=(len(labels), 6))
    classes = labels if told else generator.permutation(labels)
    x[:, 6:] += 0.4 * generator.normal(size=(labels.max() + 1, 18))[classes]
    return (x + 2).astype(np.float32)


def _config(**changes: Any) -> TrainConfig:
    """With an L2-SP weight, or every fold would train with each of them; None compares them."""
    quick = {
        "recipe": "default",
        "holdout": True,
        "l2_sp": USUAL_L2_SP,
        "embedding_dim": 4,
        "head_steps": 30,
        "head_batch_size": 64,
    }
    return make_config(**(quick | changes))


def _evaluate(data: LabelledFeatures, config: TrainConfig, **others: Any) -> SimpleNamespace:
    found = evaluate_holdout(data, config=config, device=CPU, **others)
    parts = {name: None if found[name] is None else MethodComparison(**found[name]) for name in QUESTIONS}
    return SimpleNamespace(**found | parts)


def _nothing(*, folds: int, images: int) -> SimpleNamespace:
    return SimpleNamespace(folds=folds, images=images, unseen=None, seen=None, l2_sp_recall={}, l2_sp=None)


def _parts(holdout: SimpleNamespace) -> dict[str, MethodComparison]:
    """Parts that could be searched."""
    return {name: part for name in QUESTIONS if (part := getattr(holdout, name)) is not None}


def _winner(unseen: MethodComparison | None, seen: MethodComparison | None) -> str | None:
    """What a verdict for both questions calls better."""
    answers = {name: part for name, part in (("new", unseen), ("known", seen)) if part is not None}
    verdict = Verdict("both", answers, "", chooses=True, widths={})
    return verdict.exported if verdict.outcome in ("trained", "untrained") else None


def _run(labels: np.ndarray, *, told: bool = True, **changes: Any) -> SimpleNamespace:
    return _evaluate(LabelledFeatures(_features(labels, told=told), labels), _config(**changes))


@pytest.mark.parametrize(("classes", "images"), [(3, 30), (8, 20), (30, 12)])
def test_labels_that_tell_something_make_training_win(classes: int, images: int) -> None:
    labels = np.arange(classes * images) % classes
    holdout = _run(labels)
    assert _winner(holdout.unseen, holdout.seen) not in POWERS
    assert holdout.seen.scores["trained"] > max(holdout.seen.scores[name] for name in POWERS) + 0.05
    assert (holdout.unseen is None) == (classes < 4)
    assert holdout.folds == {3: 1, 8: 3, 30: 5}[classes]
    for part in _parts(holdout).values():
        assert set(part.scores) == {"trained", *RIVALS}
        best = max(part.scores[name] for name in RIVALS)
        assert part.scores[part.best_rival] == best
        assert part.difference == pytest.approx(part.scores["trained"] - best)
        assert part.scores["trained"] > max(part.scores[name] for name in POWERS)
    assert holdout.unseen is None or holdout.unseen.queries == len(labels)


def test_posteriors_give_the_recall_by_true_labels_and_certain_ones_that_by_given_labels() -> None:
    """With 40 % wrong labels."""
    generator, true = np.random.default_rng(0), np.arange(360) % 8
    labels = np.where(generator.random(360) < 0.4, generator.integers(8, size=360), true)
    data = LabelledFeatures(_features(true), labels)
    source = torch.from_numpy(data.features)
    estimated = estimate_posteriors(source, torch.from_numpy(labels), class_count=8, groups=None).posteriors()
    given, certain, probable, clean = (
        _evaluate(data, _config(), posteriors=posteriors)
        for posteriors in (None, csr_array(np.eye(8)[labels]), estimated, csr_array(np.eye(8)[true]))
    )
    assert given == certain
    for part, expected in _parts(clean).items():
        found, by_labels = _parts(probable)[part], _parts(given)[part]
        assert found.queries == by_labels.queries == expected.queries
        for method, recall in expected.scores.items():
            assert found.scores[method] == pytest.approx(recall, abs=0.05)
        assert by_labels.scores["trained"] < expected.scores["trained"] - 0.2


def test_a_recipe_that_wrecks_the_embedding_loses_to_no_training() -> None:
    holdout = _run(np.arange(320) % 8, embedding_dim=16, init="random", l2_sp=0.0, head_lr=100.0, head_steps=3)
    assert _winner(holdout.unseen, holdout.seen) == holdout.unseen.best_rival in RIVALS


def test_a_holdout_repeats_itself_and_leaves_the_global_generators_alone() -> None:
    labels = np.arange(120) % 6
    state = torch.get_rng_state()
    first, again = _run(labels), _run(labels)
    assert first == again
    assert first != _run(labels, seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", ["multi-similarity", "spa"])
def test_classes_of_two_images_are_enough_for_a_holdout_of_unseen_classes(method: str) -> None:
    holdout = _run(np.repeat(np.arange(6), 2), method=method, embedding_dim=12)  # wider than the part that trains
    assert (holdout.unseen.queries, holdout.seen) == (12, None)
    assert 0 <= holdout.unseen.scores["trained"] <= 1


def test_too_few_classes_and_images_try_nothing_and_train_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdout_module, "fit_heads", lambda *_, **__: pytest.fail("there is nothing to search"))
    holdout = _run(np.repeat(np.arange(3), 2), l2_sp=None)
    assert holdout == _nothing(folds=1, images=6)


def test_a_least_confidence_that_leaves_too_few_images_does_not_end_the_run() -> None:
    labels = np.arange(60) % 6
    features = _features(labels, told=False)
    source = torch.from_numpy(features)
    own = estimate_posteriors(source, torch.from_numpy(labels), class_count=6, groups=None).own.numpy()
    few = _config(min_confidence=float(np.quantile(own, 0.8)), embedding_dim=16)
    found = _evaluate(LabelledFeatures(features, labels), few)
    assert found.folds == 3, "a WCCN initialisation is then only as wide as the images trusted allow"


def test_copies_of_a_picture_do_not_vouch_for_each_other_in_the_holdout(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(60) % 6
    groups = np.arange(60) // 12
    seen: list[list[int]] = []

    def spy(*given: Any, groups: np.ndarray, **options: Any) -> Any:
        seen.append(groups.tolist())
        return second_pass(*given, groups=groups, **options)

    monkeypatch.setattr("training.confidence.confidences.second_pass", spy)
    _evaluate(LabelledFeatures(_features(labels), labels, groups), _config())
    splits = split_for_holdout(labels, seed=0)
    assert seen == [groups[split.train].tolist() for split in splits]


def test_the_usual_l2_sp_weight_is_selected_where_no_other_finds_clearly_more() -> None:
    labels = np.arange(240) % 8
    holdout = _run(labels, l2_sp=None)
    assert set(holdout.l2_sp_recall) == {f"{weight:g}" for weight in L2_SP_WEIGHTS}
    assert holdout.l2_sp == USUAL_L2_SP
    again = _run(labels, l2_sp=USUAL_L2_SP)
    assert again.l2_sp_recall == {}
    assert [part.scores for part in _parts(again).values()] == [part.scores for part in _parts(holdout).values()]
    assert (
        np.mean([part.scores["trained"] for part in _parts(holdout).values()])
        == holdout.l2_sp_recall[f"{USUAL_L2_SP:g}"]
    )


@pytest.mark.parametrize(
    ("loose", "classes", "taken"), [(0.75, 20, 0.02), (0.52, 20, USUAL_L2_SP), (0.75, 5, 0.02), (0.95, 4, USUAL_L2_SP)]
)
def test_another_l2_sp_weight_has_to_lead_the_usual_one_by_more_than_chance(loose, classes, taken) -> None:
    """Hits of 400 queries, half of them found with the usual weight, a share `loose` with the loosest."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), 400 // classes)

    def draw(share: float) -> np.ndarray:
        return (generator.random(400) < share).astype(np.float64)

    hits = {part: holdout_module._Hits() for part in QUESTIONS}
    for found in hits.values():
        found._labels = [labels]
        shares = {0.02: loose, 0.06: 0.45, USUAL_L2_SP: 0.5, 0.6: 0.4}
        found.by_method = {f"trained, L2-SP {l2_sp:g}": [draw(share)] for l2_sp, share in shares.items()}
    means, l2_sp = holdout_module._choose_l2_sp(hits, config=_config(l2_sp=None))
    assert max(means, key=lambda key: means[key]) == 0.02
    assert l2_sp == taken


METHODS, IMAGES = (TRAINED, "raw", "pca", "pca-whitened", "wccn"), 20


def _clear_outcomes(classes: int, *, worse: float = 0.0, trials: int) -> list[str]:
    """What decided the trials in which something was clear: both parts are drawn alike, and apart from each other."""
    generator, labels = np.random.default_rng(classes), np.repeat(np.arange(classes), IMAGES)
    winners = []
    for _ in range(trials):
        parts = []
        for _ in range(2):
            things = generator.normal(size=len(labels)) + 0.7 * generator.normal(size=classes)[labels]
            methods = 0.35 * generator.normal(size=(len(METHODS), classes))[:, labels]
            methods += 0.5 * generator.normal(size=(len(METHODS), len(labels)))
            methods[0] -= worse
            hits = dict(zip(METHODS, (things + methods > 0).astype(np.float64), strict=True))
            parts.append(compare(hits, labels, seed=0, parts=2))
        winner = _winner(*parts)
        winners += [] if winner is None else [winner]
    return winners


@pytest.mark.slow
@pytest.mark.parametrize("classes", [5, 9, 20])
def test_equal_methods_are_called_clear_on_one_of_two_parts_in_about_one_of_twenty_trials(classes: int) -> None:
    assert len(_clear_outcomes(classes, trials=400)) / 400 <= 0.06


def test_what_is_worse_is_called_so_given_classes_enough() -> None:
    for classes, worse, least in ((20, 1.0, 0.95), (5, 2.0, 0.7)):
        outcomes = _clear_outcomes(classes, worse=worse, trials=50)
        assert TRAINED not in outcomes
        assert len(outcomes) / 50 > least
    assert _clear_outcomes(4, worse=2.0, trials=50) == []
    assert _clear_outcomes(1, worse=2.0, trials=5) == []
