"""Both phases together: when labels are judged, by whom, and which images then train."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from index.errors import InputError
from tests.training.conftest import make_config
from tests.training.run.test_fit import separable
from training.confidence.confidences import LabelConfidences
from training.head.embedding_heads import Head, WhitenedHead
from training.head.untrained import fit_within_classes
from training.losses.interface import MetricLoss
from training.options.config import HeadConfig, TrainConfig
from training.options.losses import METHODS, LossConfig
from training.run.fit import HeadPlan, HeadTraining, TrainedHead, count_epochs
from training.run.label_confidences import choose_rows, estimate_confidences
from training.run.phases import FINETUNING, PHASES, PhaseContext, count_batches, draw_batches, phase_generator
from training.run.prepare import require_directions

CLASSES = 3


CONTEXT = PhaseContext(seed=0, device=torch.device("cpu"), checkpoint=None)


def _config(**changes: Any) -> TrainConfig:
    return make_config(**({"method": "proxy-nca", "embedding_dim": 4, "head_epochs": 2} | changes))


def _train(config: TrainConfig) -> tuple[Head, int]:
    source, labels = separable(wrong=0.2)
    given = {"class_count": CLASSES, "config": config, "context": CONTEXT}
    confidences = estimate_confidences(source, labels, **given) if config.needs_confidences else None
    rows, plan = choose_rows(confidences, config=config), HeadPlan(config.head.width, 0.1)
    head = HeadTraining(source, labels, CLASSES, config, plan, CONTEXT, confidences, rows=rows).train()
    return head, len(labels) if rows is None else len(rows)


def test_the_images_left_for_training_are_those_confident_enough() -> None:
    own, by_class = torch.tensor([0.2, 0.9, 0.5, 0.1]), torch.zeros(4, 2)
    confidences = LabelConfidences(own, by_class, 2)
    rows = choose_rows(confidences, config=_config(min_confidence=0.5))
    assert rows.tolist() == [1, 2]
    assert choose_rows(confidences, config=_config()) is None
    assert choose_rows(None, config=_config(min_confidence=0.5)) is None


def test_a_head_on_fixed_features_trains_with_its_own_scale() -> None:
    heads = [
        _train(_config(method="proxy-anchor", **scales))[0].linear.weight
        for scales in ({"alpha": 4.0}, {"alpha": 32.0, "head_alpha": 4.0}, {"alpha": 32.0})
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


@pytest.mark.parametrize("judge", ["module", "leave-one-out"])
def test_an_image_below_the_least_confidence_does_not_train(judge: str) -> None:
    source, labels = separable(wrong=0.2)
    options = {"method": "multi-similarity", "confidences": judge, "init": "wccn"}
    if judge == "module":
        options["confidence_epochs"] = 20
    own = estimate_confidences(source, labels, class_count=CLASSES, config=_config(**options), context=CONTEXT).own
    least = float(own.median())
    _, count = _train(_config(**options, min_confidence=least))
    assert count == int((own >= least).sum())
    assert 0 < count < 60
    assert _train(_config(**options))[1] == 60


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": "wccn"}, r"what --init wccn can give: 40 images .* 39 directions; .* --init random"),
        ({"select": "auto", "holdout": True}, r"what --select auto can give: .* --select trained"),
    ],
)
def test_a_width_that_a_projection_cannot_have_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_directions(40, 512, config=_config(embedding_dim=40, **changes))
    require_directions(41, 512, config=_config(embedding_dim=40, **changes))
    with pytest.raises(InputError, match="1000 images of 16 features span at most 16 directions"):
        require_directions(1000, 16, config=_config(embedding_dim=17, **changes))
    require_directions(3, 4, config=_config(embedding_dim=512))  # a random head may be as wide as it likes
    require_directions(3, 4, config=make_config(embedding_dim=512, method="raw"))


def test_spa_weights_a_whitened_start_and_a_least_confidence_each_ask_for_confidences() -> None:
    assert [method for method in METHODS if make_config(method=method).needs_confidences] == ["spa"]
    for changes in (
        {"targets": "posteriors", "confidences": "leave-one-out"},
        {"init": "wccn"},
        {"min_confidence": 0.1},
    ):
        assert _config(**changes).needs_confidences


def _blobs(count: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Features (N, 8) of three classes, their labels, and confidences of which some are 0."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    features = nn.functional.one_hot(labels, 8).float() + 0.4 * torch.randn(count, 8, generator=generator) + 1
    own = torch.rand(count, generator=generator)
    own[::5] = 0
    return features, labels, own


def _start(
    *, start: str = "wccn", method: str = "proxy-nca", rows: Tensor | None = None
) -> tuple[TrainedHead, MetricLoss, torch.optim.Optimizer, int]:
    features, labels, own = _blobs()
    config = replace(make_config(), loss=LossConfig(method=method), head=HeadConfig(embedding_dim=2, init=start))
    confidences = LabelConfidences(own, torch.zeros(40, CLASSES + 1), CLASSES + 1)
    plan = HeadPlan(2, 0.1)
    return HeadTraining(features, labels, CLASSES + 1, config, plan, CONTEXT, confidences, rows=rows).start()


@given(steps=st.integers(1, 500), batches=st.integers(1, 150))
def test_the_epochs_of_any_number_of_steps_add_up_to_them(steps: int, batches: int) -> None:
    assert count_epochs(HeadConfig(head_epochs=7), batches) == (7, None)
    epochs, last = count_epochs(HeadConfig(head_steps=steps), batches)
    assert 1 <= last <= batches
    assert (epochs - 1) * batches + last == steps


def test_a_whitened_start_is_the_projection_of_the_rows_that_train_weighed_by_confidence() -> None:
    features, labels, own = _blobs()
    rows = torch.tensor([row for row in range(40) if row % 4])
    head = _start(rows=rows)[0]
    expected = fit_within_classes(
        features[rows].numpy(), labels[rows].numpy(), weights=own[rows].numpy(), embedding_dim=2
    )
    assert isinstance(head, WhitenedHead)
    assert torch.equal(head.weight, expected.weight)
    assert torch.equal(head.bias, expected.bias)
    assert head.drift().item() == 0
    assert head.embedding_dim == 2


@pytest.mark.parametrize("method", ["proxy-nca", "spa", "proxy-anchor", "adaptive-proxy-anchor"])
def test_proxies_start_at_the_mean_embedding_of_their_class_weighed_by_confidence(method: str) -> None:
    features, labels, own = _blobs()
    rows = torch.tensor([row for row in range(40) if row % 4])
    head, loss, _, epoch = _start(method=method, rows=rows)
    for label in range(CLASSES):
        total = torch.zeros(2)
        for row in rows.tolist():
            if labels[row] == label:
                total += own[row] * head(features[row][None])[0].detach()
        torch.testing.assert_close(loss.proxies[label].detach(), total / total.norm())
    drawn = _start(start="random", method=method)[1]
    assert loss.proxies[CLASSES].norm() > 0, "a class without images keeps a drawn proxy"
    assert loss.proxies.shape == drawn.proxies.shape
    assert epoch == 1


LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=90).map(torch.tensor)


def _draw(labels: Tensor, *, size: int, images_per_class: int, epoch: int = 1) -> list[Tensor]:
    rows = 10 * torch.arange(len(labels))  # numbers of images, of which some take no part
    together = {"labels": labels, "images_per_class": images_per_class}
    return list(draw_batches(rows, size, phase_generator(0, "embedding", epoch), **together))


@given(labels=LABELS, images_per_class=st.integers(0, 5), groups=st.integers(1, 6))
def test_an_epoch_has_every_image_once_in_as_many_batches_as_are_counted(labels, images_per_class, groups) -> None:
    size = max(2, groups * images_per_class)
    batches = _draw(labels, size=size, images_per_class=images_per_class)
    assert sorted(torch.cat(batches).tolist()) == [10 * row for row in range(len(labels))]
    assert len(batches) == count_batches(labels, size, images_per_class=images_per_class)
    assert max(map(len, batches)) <= size


@given(labels=LABELS, images_per_class=st.integers(2, 5))
def test_an_image_has_another_of_its_class_beside_it_where_there_is_one(labels, images_per_class) -> None:
    for batch in _draw(labels, size=4 * images_per_class, images_per_class=images_per_class):
        drawn = labels[batch // 10]
        for label in drawn.unique():
            if (labels == label).sum() > 1 and images_per_class > 2:
                assert (drawn == label).sum() > 1


def test_classes_that_divide_come_in_whole_groups_and_batches_have_many_classes() -> None:
    labels = torch.arange(40).repeat(8)
    batches = _draw(labels, size=60, images_per_class=4)
    assert [len(batch) for batch in batches] == [60, 60, 60, 60, 60, 20]
    counts = [torch.bincount(labels[batch // 10]).unique().tolist() for batch in batches]
    assert all(set(found) <= {0, 4, 8} for found in counts)
    assert all(len(labels[batch // 10].unique()) > 10 for batch in batches[:5])


def test_another_epoch_has_other_batches_and_the_same_one_the_same() -> None:
    labels = torch.arange(12).repeat(5)
    first, again, next_one = (
        torch.cat(_draw(labels, size=16, images_per_class=4, epoch=epoch)).tolist() for epoch in (1, 1, 2)
    )
    assert first == again != next_one


def test_no_two_phases_epochs_or_seeds_draw_alike() -> None:
    phases = [(seed, phase, n) for seed in (0, 1, 2**32 - 1) for phase in (*PHASES, FINETUNING) for n in (0, 1, 8)]
    seeds = [phase_generator(*phase).initial_seed() for phase in phases]
    assert len(set(seeds)) == len(seeds)
