"""The confidences that phase 2 reads, and the images that are trusted by them."""

import math

import numpy as np
import pytest
import torch

from index.arrays import NO_ID
from index.labels.label_errors import second_pass
from index.labels.noise_model import LabelPrior
from index.labels.simulated_noise import estimate_p_error
from tests.index.labels.test_leave_one_out import blobs
from tests.training.losses.draws import draw, loss_function, value_and_gradients
from training.confidence import confidences
from training.confidence.confidences import (
    KEPT,
    ConfidenceModule,
    TopConfidences,
    confidences_of_module,
    estimate_posteriors,
    pool_posteriors,
    rows_to_trust,
)
from training.confidence.duplicates import find_duplicates


def _module(feature_dim: int = 6, class_count: int = 4) -> ConfidenceModule:
    generator = torch.Generator().manual_seed(0)
    module = ConfidenceModule(feature_dim, hidden=5, class_count=class_count, generator=generator)
    return module.eval().requires_grad_(False)


def _source(count: int = 30) -> torch.Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1))


def test_blocks_of_confidences_hold_fewer_images_where_classes_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert confidences.rows_at_once(10) == 4096
    assert confidences.rows_at_once(100_000) == 167
    module, source = _module(), _source(30)
    monkeypatch.setattr(confidences, "_BLOCK_VALUES", 7 * 4)
    found, expected = confidences_of_module(module, source, _labels()), module(source)
    blocks = list(found.blocks())
    assert [len(rows) for rows, _ in blocks] == [7, 7, 7, 7, 2]
    torch.testing.assert_close(torch.cat([c for _, c in blocks]), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.own, expected.gather(1, _labels()[:, None])[:, 0], rtol=0, atol=1e-6)
    assert found.noise is None


def test_images_are_trusted_from_the_smallest_confidence_on() -> None:
    own = torch.tensor([0.05, 0.1, 0.5, 0.0999, 1.0, 0.0])
    assert rows_to_trust(own, min_confidence=0.1).tolist() == [1, 2, 4]
    assert rows_to_trust(own, min_confidence=1.5).tolist() == []


def _labels(count: int = 30) -> torch.Tensor:
    return torch.arange(count) % 4


@pytest.mark.parametrize("groups", [None, torch.arange(30) // 3])
def test_posteriors_are_those_of_the_second_pass_with_the_noise_model(groups: torch.Tensor | None) -> None:
    source, given = _source(), _labels().numpy()
    found = estimate_posteriors(source, _labels(), class_count=4, groups=groups)
    passes = second_pass(source.numpy(), given, count=4, groups=None if groups is None else groups.numpy())
    left_out = passes.hold(passes.blocks())
    calibration, noise = estimate_p_error(left_out, given)
    expected = torch.from_numpy(noise.posterior(left_out, given) * (1 - calibration.p_no_class[:, None])).float()
    assert found.noise_rate == pytest.approx(calibration.p_error.mean(), abs=1e-5)
    assert (found.noise.noise_rate, found.noise.power) == pytest.approx((noise.noise_rate, noise.power), abs=1e-5)
    torch.testing.assert_close(torch.cat([c for _, c in found.blocks()]), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.own, expected[torch.arange(30), _labels()], rtol=0, atol=1e-4)


@pytest.mark.parametrize("most_transitions", [100, 1])
def test_images_of_no_class_have_small_posteriors(monkeypatch: pytest.MonkeyPatch, most_transitions: int) -> None:
    monkeypatch.setattr(confidences, "_MOST_TRANSITIONS", most_transitions)
    features, labels = blobs(seed=5, per_class=40, classes=12, width=30)
    random = np.random.default_rng(0)
    strange = random.normal(size=(120, 30)).astype(np.float32) * np.linalg.norm(features, axis=1).mean() / 30**0.5
    given = np.concatenate([labels, random.integers(12, size=120)])
    found = estimate_posteriors(
        torch.from_numpy(np.concatenate([features, strange])), torch.from_numpy(given), class_count=12, groups=None
    )
    assert found.noise_rate == pytest.approx(0.2, abs=0.05)
    shown = torch.cat([block.sum(dim=1) for _, block in found.blocks()])
    assert shown[480:].mean() < 0.3
    assert shown[:480].mean() > 0.9


@pytest.mark.parametrize("most_transitions", [100, 1])
def test_posteriors_keep_to_what_is_known_of_labels(monkeypatch: pytest.MonkeyPatch, most_transitions: int) -> None:
    monkeypatch.setattr(confidences, "_MOST_TRANSITIONS", most_transitions)
    features, right = blobs(seed=3, per_class=40, classes=6, width=30)
    labels = right.copy()
    labels[::5] = (labels[::5] + np.random.default_rng(0).integers(1, 6, 48)) % 6
    looked, doubted, changed = np.arange(0, 60, 5), np.arange(61, 120, 5), np.arange(120, 240, 5)
    p_right, before = np.full(240, np.nan), labels.copy()
    p_right[looked], p_right[doubted], p_right[changed] = 1, 0.1, 0.5
    before[changed] = right[changed]  # a machine changed right labels to wrong ones

    def estimate(prior: LabelPrior | None) -> tuple[np.ndarray, float | None]:
        found = estimate_posteriors(
            torch.from_numpy(features), torch.from_numpy(labels), class_count=6, groups=None, prior=prior
        )
        return torch.cat([block for _, block in found.blocks()]).numpy(), found.noise_rate

    plain, plain_rate = estimate(None)
    found, rate = estimate(LabelPrior(p_right, before))
    assert plain_rate is not None
    assert rate is not None
    np.testing.assert_allclose(found[looked], np.eye(6)[labels[looked]], atol=1e-6)  # also where they look wrong
    assert plain[looked, labels[looked]].mean() < 0.5
    assert (found[doubted, labels[doubted]] <= plain[doubted, labels[doubted]] + 1e-3).all()
    assert found[changed, before[changed]].mean() >= plain[changed, before[changed]].mean() - 1e-6
    untouched = np.isnan(p_right)
    assert np.abs(found[untouched] - plain[untouched]).mean() < 0.01  # the decided labels weigh otherwise
    expected = plain_rate * 240 - len(looked) + 0.9 * len(doubted)  # no label there is wrong by confidences alone
    assert rate * 240 == pytest.approx(expected, rel=0.3)


def test_sparse_posteriors_leave_out_the_negligible_and_a_module_has_none() -> None:
    centres = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))
    source = 0.8 * centres[_labels()] + _source()
    found = estimate_posteriors(source, _labels(), class_count=4, groups=None)
    sparse, whole = found.posteriors(), torch.cat([block for _, block in found.blocks()]).numpy()
    assert 30 < sparse.nnz < whole.size, "neither certain nor without what can be left out"
    assert np.abs(sparse.toarray() - whole).max() < 1e-3
    assert (sparse.data >= 1e-3).all()
    assert confidences_of_module(_module(), source, _labels()).posteriors() is None


def _features(count: int, *, seed: int = 0) -> np.ndarray:
    """Rows of unlike images: positive, with much in common."""
    return np.abs(np.random.default_rng(seed).normal(loc=0.5, size=(count, 200))).astype(np.float32)


def _find(features: np.ndarray, labels: list[int], hashes: list[str] | None = None) -> tuple[list[int], list[int]]:
    names = hashes or [str(i) for i in range(len(labels))]
    found = find_duplicates(features, np.array(labels, dtype=np.int64), hashes=names)
    return found.other_label.tolist(), found.groups.tolist()


def test_a_picture_saved_again_with_another_label_is_told_on_both_sides() -> None:
    features = _features(8)
    features[6] = features[1] + 0.01 * _features(1, seed=9)[0]
    other, groups = _find(features, [0, 0, 0, 0, 1, 1, 1, 1])
    assert other == [NO_ID, 6, NO_ID, NO_ID, NO_ID, NO_ID, 1, NO_ID]
    assert groups == [0, 1, 2, 3, 4, 5, 1, 7]


def test_copies_with_the_same_label_are_one_group_and_no_conflict() -> None:
    features = _features(6)
    features[2] = features[0]
    other, groups = _find(features, [0, 0, 0, 1, 1, 1])
    assert other == [NO_ID] * 6
    assert groups == [0, 1, 0, 3, 4, 5]


def test_the_same_bytes_are_copies_and_every_one_meets_the_other_label() -> None:
    features = _features(6)
    features[[1, 4]] = features[0]
    other, groups = _find(features, [0, 0, 0, 1, 1, 1], ["x", "x", "c", "d", "x", "f"])
    assert other == [4, 4, NO_ID, NO_ID, 0, NO_ID]
    assert groups == [0, 0, 2, 3, 0, 5]


def test_unlike_pictures_features_that_differ_little_and_kinds_of_image_are_nobodys_copies() -> None:
    kinds = _features(8)
    kinds[:4, 0] += 30
    kinds[4:, 1] += 30
    for features in (_features(8), 100 + _features(8), kinds):
        assert _find(features, [0, 1, 0, 1, 0, 1, 0, 1]) == ([NO_ID] * 8, list(range(8)))


def _softmax(count: int, classes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.softmax(4 * torch.randn(count, classes, generator=generator), dim=1)


def test_the_largest_are_kept_and_the_others_have_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confidences, "KEPT", 2)
    found = TopConfidences.of([torch.tensor([[0.5, 0.1, 0.3, 0.0]]), torch.tensor([[0.0, 0.2, 0.2, 0.6]])])
    first, second = found.columns(0, 4)
    torch.testing.assert_close(first, torch.tensor([0.5, 0.05, 0.3, 0.05]))
    assert second[3] == torch.tensor(0.6)
    torch.testing.assert_close(second.sum(), torch.tensor(1.0))


def test_of_few_classes_nothing_is_lost() -> None:
    whole = _softmax(20, KEPT)
    found = TopConfidences.of(whole.split(7))
    assert torch.equal(torch.cat([found.columns(0, 10), found.columns(10, KEPT)], dim=1), whole)
    rows = torch.tensor([3, 3, 19])
    assert torch.equal(found.take(rows).columns(5, 9), whole[rows, 5:9])


def test_the_loss_of_the_largest_is_that_of_all_within_what_the_others_can_weigh() -> None:
    classes, drawn = 500, draw(1, batch=12, classes=500, width=8)
    whole = _softmax(12, classes)
    inputs = (drawn.embeddings, drawn.proxies)
    exact = value_and_gradients(loss_function("spa"), inputs, whole)
    near = value_and_gradients(loss_function("spa"), inputs, TopConfidences.of([whole]))
    for got, wanted in zip(near, exact, strict=True):
        assert float((got - wanted).norm() / wanted.norm()) < 2e-4


def test_they_are_placed_among_more_images_and_more_classes() -> None:
    whole = _softmax(3, 4)
    placed = TopConfidences.of([whole]).place(torch.tensor([5, 0, 2]), torch.tensor([1, 3, 6, 8]), count=6)
    expected = torch.zeros(6, 9)
    expected[torch.tensor([5, 0, 2])[:, None], torch.tensor([1, 3, 6, 8])] = whole
    torch.testing.assert_close(placed.columns(0, 9), expected, rtol=0, atol=1e-7)


def test_a_label_that_no_other_image_has_is_taken_as_right() -> None:
    features, labels = blobs(seed=3, per_class=12, classes=6, width=20)
    source = torch.from_numpy(features)
    alone, copies = labels.copy(), np.arange(len(labels))
    alone[0] = 6  # one image
    alone[12:15], copies[12:15] = 7, 12  # copies of one
    given = torch.from_numpy(alone)
    found = estimate_posteriors(source, given, class_count=8, groups=torch.from_numpy(copies))
    assert found.own[[0, 12, 13, 14]].tolist() == [1, 1, 1, 1]
    assert found.noise.noise_rate < 0.01, "clean separable data"
    assert estimate_posteriors(_source(5), torch.zeros(5, dtype=torch.int64), class_count=1, groups=None).own.min() == 1
    only = torch.arange(5)
    assert estimate_posteriors(_source(5), only, class_count=5, groups=None).own.tolist() == [1] * 5


def test_posteriors_of_very_many_classes_keep_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = blobs(seed=4, per_class=6, classes=70, width=40)
    wrong = labels.copy()
    wrong[::7] = (wrong[::7] + 1) % 70
    source, given = torch.from_numpy(features), torch.from_numpy(wrong)
    whole = estimate_posteriors(source, given, class_count=70, groups=None)
    monkeypatch.setattr(confidences, "_MOST_TRANSITIONS", 69)
    kept = estimate_posteriors(source, given, class_count=70, groups=None)
    assert kept.noise.noise_rate == pytest.approx(whole.noise.noise_rate, abs=0.03)
    for found in (whole, kept):
        values = torch.cat([block for _, block in found.blocks()])
        assert values.sum(dim=1).max() < 1 + 1e-4
        assert values.sum(dim=1).mean() > 0.9
        assert (values.argmax(dim=1).numpy() == labels).mean() > 0.95
    assert (kept.own < 0.5).sum() == pytest.approx(int((whole.own < 0.5).sum()), abs=4)


def test_pooled_posteriors_are_normalised_geometric_means() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.rand(6, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    first, second = first / first.sum(1, keepdim=True), second / second.sum(1, keepdim=True) * 0.25
    second[5] = 0  # does not train
    found = pool_posteriors(first, second.clone(), class_count=5)
    for row in range(5):
        means = [math.sqrt(a * b) for a, b in zip(first[row].tolist(), second[row].tolist(), strict=True)]
        assert found[row].tolist() == pytest.approx([0.5 * mean / sum(means) for mean in means])
    assert found[5].tolist() == [0.0] * 5
    torch.testing.assert_close(pool_posteriors(first, first.clone(), class_count=5), first)


def test_pooled_posteriors_of_many_classes_are_those_of_few() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, change = (torch.randn(5, 200, generator=generator) for _ in range(2))
    first, second = (torch.softmax(one, dim=1) for one in (6 * logits, 6 * logits + change))
    top = pool_posteriors(*(TopConfidences.of([one]) for one in (first, second)), class_count=200)
    torch.testing.assert_close(top.columns(0, 200), pool_posteriors(first, second, class_count=200), atol=2e-3, rtol=0)
