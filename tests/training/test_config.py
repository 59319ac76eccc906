"""Options: every wrong value is refused with its flag and what was given."""

from __future__ import annotations

import dataclasses
import math

import pytest

from index.errors import InputError
from tests.training.conftest import make_config
from training.config import ConfidenceConfig, DataConfig, EmbeddingConfig, InputConfig, LossConfig

WRONG = [
    ("max_per_class", 1, "--max-per-class"),
    ("label_noise", "uniform", "--label-noise"),
    ("label_noise", "uniform:1.5", "--label-noise"),
    ("label_noise", "uniform:-0.1", "--label-noise"),
    ("label_noise", "semantic:0.5", "--label-noise"),
    ("resize", 0, "--resize"),
    ("crop", 0, "--crop"),
    ("crop", 41, "--crop"),
    ("features", "cached", "--features"),
    ("features", "cached:0", "--features"),
    ("features", "disk", "--features"),
    ("confidence_epochs", 0, "--confidence-epochs"),
    ("confidence_hidden", 0, "--confidence-hidden"),
    ("confidence_lr", 0.0, "--confidence-lr"),
    ("patience", 0, "--patience"),
    ("holdout", -0.1, "--holdout"),
    ("holdout", 0.6, "--holdout"),
    ("holdout", math.nan, "--holdout"),
    ("alpha", 0.0, "--alpha"),
    ("alpha", math.nan, "--alpha"),
    ("beta", math.inf, "--beta"),
    ("beta", -1.0, "--beta"),
    ("delta", -0.1, "--delta"),
    ("lambda_", 0.0, "--lambda"),
    ("lambda_", 1.0, "--lambda"),
    ("embedding_dim", 0, "--embedding-dim"),
    ("epochs", 0, "--epochs"),
    ("batch_size", 1, "--batch-size"),
    ("lr", 0.0, "--lr"),
    ("lr", math.inf, "--lr"),
    ("proxy_lr", -1.0, "--proxy-lr"),
    ("weight_decay", -1e-4, "--weight-decay"),
    ("seed", -1, "--seed"),
    ("seed", 2**32, "--seed"),
    ("validate_every", 0, "--validate-every"),
    ("recipe", "mine", "--recipe"),
]


@pytest.mark.parametrize(("field", "value", "flag"), WRONG)
def test_a_wrong_value_is_named_with_its_flag(field: str, value: object, flag: str) -> None:
    with pytest.raises(InputError) as caught:
        make_config(**{field: value})
    assert flag in str(caught.value).replace("(", " ").split()
    assert str(value) in str(caught.value)


def test_the_defaults_are_the_papers() -> None:
    loss, embedding, confidence, images = LossConfig(), EmbeddingConfig(), ConfidenceConfig(), InputConfig()
    assert (loss.method, loss.alpha, loss.delta, loss.lambda_, loss.beta) == ("spa", 32, 0.1, 0.1, 100)
    assert loss.negative_normalisation == "all"
    assert (embedding.embedding_dim, embedding.batch_size, embedding.epochs) == (64, 150, 40)
    assert (embedding.lr, embedding.proxy_lr, embedding.weight_decay) == (1e-4, 1e-2, 1e-4)
    assert (confidence.confidence_hidden, confidence.confidence_lr) == (512, 1e-4)
    assert (images.resize, images.crop, images.cached_views) == (256, 224, 1)


@pytest.mark.parametrize(
    ("text", "rate"), [("uniform:0", 0), ("uniform:0.3", 0.3), ("uniform:.5", 0.5), ("uniform:1", 1)]
)
def test_the_noise_rate_is_read_from_its_option(text: str, rate: float) -> None:
    assert DataConfig(label_noise=text).noise_rate == rate


def test_no_noise_is_asked_for_by_default() -> None:
    assert DataConfig().noise_rate == 0


@pytest.mark.parametrize(("text", "views"), [("cached:1", 1), ("cached:12", 12), ("live", None)])
def test_the_number_of_views_is_read_from_the_features_option(text: str, views: int | None) -> None:
    assert InputConfig(features=text).cached_views == views


def test_options_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_config().seed = 3  # type: ignore[misc]
