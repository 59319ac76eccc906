"""Both phases together: when labels are judged, by whom, and which images then train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from index.errors import InputError, RunError
from index.labels.leave_one_out import LeaveOneOut
from tests.training.conftest import make_config
from training.backbone.feature_sources import CachedSource
from training.confidence.confidences import Beliefs, FixedConfidences
from training.head.embedding_heads import EmbeddingHead, Head, ProjectionHead
from training.options.config import TrainConfig
from training.options.losses import METHODS, TRAINED_METHODS
from training.run.heads import choose_rows, find_beliefs, require_directions, train_head
from training.run.phases import PhaseContext

CLASSES = 3


def _context(path: Path | None = None) -> PhaseContext:
    return PhaseContext(seed=0, device=torch.device("cpu"), checkpoint=path)


def _data(count: int = 60, *, wrong: float = 0.2) -> tuple[CachedSource, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    features = nn.functional.one_hot(labels, 10).float() + 0.3 * torch.randn(count, 10, generator=generator) + 0.5
    changed = torch.rand(count, generator=generator) < wrong
    return CachedSource(features[:, None]), torch.where(changed, (labels + 1) % CLASSES, labels)


def _config(**changes: Any) -> TrainConfig:
    return make_config(**({"method": "proxy-nca", "embedding_dim": 4, "epochs": 2} | changes))


def _believe(source: CachedSource, labels: Tensor, config: TrainConfig, **options: Any) -> Beliefs:
    return find_beliefs(source, labels, class_count=CLASSES, config=config, context=_context(), **options)


def _train(config: TrainConfig, **options: Any) -> tuple[Head, int]:
    source, labels = _data()
    beliefs = _believe(source, labels, config) if config.needs_beliefs else None
    return train_head(
        source, labels, class_count=CLASSES, config=config, context=_context(), beliefs=beliefs, **options
    )


def test_only_smooth_proxy_anchor_asks_for_confidences_by_itself() -> None:
    assert [method for method in METHODS if make_config(method=method).needs_beliefs] == ["spa"]


@pytest.mark.parametrize(
    "changes", [{"sample_weights": "confidence"}, {"start": "whitened"}, {"min_confidence": 0.1}]
)
def test_weights_a_whitened_start_and_a_least_confidence_each_ask_for_confidences(changes: dict[str, Any]) -> None:
    assert _config(**changes).needs_beliefs
    assert not _config().needs_beliefs


def test_leave_one_out_judges_where_it_is_chosen_and_leaves_copies_out_together() -> None:
    source, labels = _data()
    config = _config(confidences="leave-one-out", sample_weights="confidence")
    groups = torch.arange(60) // 2
    for options in ({}, {"groups": groups}):
        given = {name: value.numpy() for name, value in options.items()}
        judge = LeaveOneOut(source.centre.numpy(), labels.numpy(), count=CLASSES, **given)
        own = torch.from_numpy(judge.confidences(np.arange(60)))[torch.arange(60), labels]
        torch.testing.assert_close(_believe(source, labels, config, **options).own, own)
    assert not torch.equal(
        _believe(source, labels, config).own, _believe(source, labels, config, groups=groups).own
    )


def test_the_module_judges_by_default_and_its_checkpoint_is_kept(tmp_path: Path) -> None:
    source, labels = _data()
    beliefs = find_beliefs(
        source, labels, class_count=CLASSES, config=_config(), context=_context(tmp_path / "confidence")
    )
    assert (tmp_path / "confidence").exists()
    confidences = torch.cat([block for _, block in beliefs.confidences.blocks()])
    torch.testing.assert_close(beliefs.own, confidences[torch.arange(60), labels])
    assert not torch.allclose(confidences.sum(dim=1), torch.ones(60)), "sigmoids, one a class"


def test_the_images_left_for_training_are_those_confident_enough() -> None:
    beliefs = Beliefs(torch.tensor([0.2, 0.9, 0.5, 0.1]), FixedConfidences(torch.zeros(4, 2)), torch.ones(4))
    rows = choose_rows(beliefs, config=_config(min_confidence=0.5))
    assert rows is not None
    assert rows.tolist() == [1, 2]
    assert choose_rows(beliefs, config=_config()) is None
    assert choose_rows(None, config=_config(min_confidence=0.5)) is None


@pytest.mark.parametrize("judge", ["module", "leave-one-out"])
def test_an_image_below_the_least_confidence_does_not_train(judge: str) -> None:
    source, labels = _data()
    options = {"confidences": judge, "sample_weights": "confidence"}
    if judge == "module":
        options["confidence_epochs"] = 20
    own = _believe(source, labels, _config(**options)).own
    least = float(own.median())
    _, count = _train(_config(**options, min_confidence=least))
    assert count == int((own >= least).sum())
    assert 0 < count < 60
    assert _train(_config(**options))[1] == 60


def test_a_least_confidence_that_nobody_reaches_is_refused_by_name() -> None:
    with pytest.raises(RunError, match="--min-confidence"):
        _train(_config(confidences="leave-one-out", min_confidence=0.9999))


@pytest.mark.parametrize(("method", "judge"), [("proxy-nca", "module"), ("multi-similarity", "leave-one-out")])
def test_confidences_of_either_judge_weigh_samples(method: str, judge: str) -> None:
    weighed = {"confidences": judge, "sample_weights": "confidence"}
    heads = [_train(_config(method=method, **options))[0] for options in ({}, weighed)]
    assert not torch.equal(heads[0].linear.weight, heads[1].linear.weight)


@pytest.mark.parametrize("method", TRAINED_METHODS)
def test_every_loss_trains_from_a_whitened_start_to_one_projection(method: str) -> None:
    judge = "module" if method == "spa" else "leave-one-out"
    head, count = _train(_config(method=method, confidences=judge, start="whitened", hold=0.1, lr=0.01))
    assert isinstance(head, ProjectionHead)
    assert (head.embedding_dim, count) == (4, 60)
    assert all(tensor.isfinite().all() for tensor in head.state_dict().values())


def test_a_random_start_stays_the_linear_layer_of_the_paper() -> None:
    assert isinstance(_train(_config())[0], EmbeddingHead)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": "whitened"}, r"what --start whitened can give: 40 images .* 39 directions; .* --start random"),
        ({"select": "auto", "trial": True}, r"what --select auto can give: .* --select trained"),
    ],
)
def test_a_width_that_a_projection_cannot_have_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_directions(40, 512, config=_config(embedding_dim=40, **changes))
    require_directions(41, 512, config=_config(embedding_dim=40, **changes))
    with pytest.raises(InputError, match="1000 images of 16 features span at most 16 directions"):
        require_directions(1000, 16, config=_config(embedding_dim=17, **changes))


def test_a_random_head_may_be_as_wide_as_it_likes() -> None:
    require_directions(3, 4, config=_config(embedding_dim=512))
    require_directions(3, 4, config=make_config(embedding_dim=512, method="raw"))
