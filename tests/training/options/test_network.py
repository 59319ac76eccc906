"""Options of the network stage: what is refused by name, and which loss a run's network trains with."""

from __future__ import annotations

from typing import Any

import pytest

from index.errors import InputError
from training.options.losses import RIVALS, LossConfig
from training.options.network import NetworkConfig
from training.options.resolve import resolve


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("unfreeze", "last-0", "--unfreeze must be none, all, auto, or last-N with N of at least 1, got 'last-0'"),
        ("unfreeze", "last", "--unfreeze must be none, all"),
        ("unfreeze", "some", "--unfreeze must be none, all"),
        ("network_method", "pca", "--network-method must be one of spa, "),
        (
            "unfreeze",
            "auto",
            "--unfreeze auto is planned for a time: add --time-budget, such as --time-budget 30m",
        ),
        ("time_budget", "45", "--time-budget must be a time with its unit, such as 90s, 30m or 1.5h; got '45'"),
        ("time_budget", "0m", "--time-budget must be a time with its unit"),
        ("time_budget", "-5m", "--time-budget must be a time with its unit"),
        ("time_budget", "ten minutes", "--time-budget must be a time with its unit"),
        ("time_budget", 600, "--time-budget must be text, got 600"),
        ("network_epochs", None, "--network-epochs must be a whole number without --time-budget, got None"),
        ("network_epochs", 0, "--network-epochs must be at least 1, got 0"),
        ("network_batch_size", 1, "--network-batch-size must be at least 2"),
        ("network_views", -1, "--network-views must be at least 0, got -1"),
        ("network_lr", 0.0, "--network-lr must be greater than 0"),
        ("network_decay", 1.5, r"--network-decay must be in 0.01..1, got 1.5"),
        ("network_head_lr", -1.0, "--network-head-lr must be greater than 0"),
        ("network_penalty", -1.0, "--network-penalty must be at least 0"),
        ("network_average", 1.0, "--network-average must be in 0..0.9999"),
        ("network_share", 1.5, "--network-share must be greater than 0 and at most 1, got 1.5"),
        ("network_judge_every", 0, "--network-judge-every must be at least 1"),
        ("network_patience", 0, "--network-patience must be at least 1"),
        ("network_batch_norm", "off", "--network-batch-norm must be one of frozen, train, got 'off'"),
    ],
)
def test_a_wrong_value_is_named_with_its_flag(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(weights="none", **({"unfreeze": "all"} | {field: value}))


def test_views_to_train_on_are_no_larger_than_those_that_are_searched() -> None:
    with pytest.raises(InputError, match=r"--network-crop must be at most --crop \(224\), got 225"):
        resolve(weights="none", unfreeze="all", network_crop=225)


@pytest.mark.parametrize("view", ["crop", "whole", "both"])
def test_smaller_views_to_train_on_go_with_whatever_is_searched(view: str) -> None:
    assert resolve(weights="none", unfreeze="all", view=view, network_crop=160).network.network_crop == 160


def test_what_to_unfreeze_is_read_and_by_default_nothing_is() -> None:
    assert not NetworkConfig().trains
    assert (NetworkConfig("all").trains, NetworkConfig("all").last_blocks) == (True, None)
    assert (NetworkConfig("last-12").trains, NetworkConfig("last-12").last_blocks) == (True, 12)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_a_time_is_read_in_seconds(text: str, seconds: float) -> None:
    assert NetworkConfig("all", time_budget=text).budget_s == seconds


def test_a_time_leaves_open_what_is_not_given_and_trains_the_network_by_itself() -> None:
    open_ = resolve(weights="none", time_budget="10m").network
    assert (open_.unfreeze, open_.network_epochs, open_.network_crop, open_.trains) == ("auto", None, None, True)
    given = resolve(weights="none", time_budget="10m", unfreeze="last-2", network_epochs=3).network
    assert (given.unfreeze, given.epochs) == ("last-2", 3)
    recipe = resolve(weights="none", time_budget="10m")
    assert recipe.network_loss == resolve(weights="none", unfreeze="all").network_loss
    with pytest.raises(InputError, match="--time-budget goes with --unfreeze, and would do nothing here"):
        resolve(weights="none", time_budget="10m", unfreeze="none")


def test_options_of_the_network_go_with_a_network_that_trains() -> None:
    with pytest.raises(InputError, match="--network-lr goes with --unfreeze, and would do nothing here"):
        resolve(weights="none", network_lr=1e-3)


def test_the_default_recipe_trains_the_network_with_a_loss_of_its_own_and_the_head_as_ever() -> None:
    plain, unfrozen = resolve(weights="none"), resolve(weights="none", unfreeze="last-2")
    assert unfrozen.loss == plain.loss
    loss = unfrozen.network_loss
    assert (loss.method, loss.options.alpha, loss.options.delta) == ("proxy-anchor", 32, 0.1)
    assert (loss.options.positive_weights, loss.options.negative_weights) == ("confidence", "confidence")
    assert (plain.judges_again, unfrozen.judges_again) == (False, True)


def test_a_method_that_is_named_trains_the_network_too_unless_another_is_named_for_it() -> None:
    named = resolve(weights="none", unfreeze="all", method="multi-similarity")
    assert named.network_loss == named.loss
    anchor = resolve(weights="none", unfreeze="all", method="proxy-anchor")
    assert anchor.network_loss == anchor.loss
    found = anchor.loss.options
    assert (found.alpha, found.positive_weights, found.negative_weights) == (32, "confidence", "confidence")
    unweighed = resolve(
        weights="none", unfreeze="all", method="proxy-anchor", positive_weights="none"
    ).loss.options
    assert (unweighed.positive_weights, unweighed.negative_weights) == ("none", "none")
    with pytest.raises(InputError, match="--negative-weights goes with --positive-weights confidence"):
        resolve(weights="none", method="proxy-anchor", negative_weights="confidence")
    frozen = resolve(weights="none", method="proxy-anchor").loss.options
    assert (frozen.alpha, frozen.positive_weights) == (4, "none"), "as a linear map likes it"
    paper = resolve("paper", weights="none", unfreeze="all")
    assert paper.network_loss == paper.loss == LossConfig("spa")
    other = resolve(weights="none", unfreeze="all", method="multi-similarity", network_method="proxy-nca")
    assert (other.network_loss.method, other.network_loss.options.sample_weights) == ("proxy-nca", "confidence")


@pytest.mark.parametrize("method", RIVALS)
def test_a_method_without_training_leaves_the_network_the_loss_and_the_judge_of_the_recipe(method: str) -> None:
    config = resolve(weights="none", unfreeze="all", method=method, min_confidence=0.1, proxy_lr=0.1)
    assert config.network_loss.method == "proxy-anchor"
    assert config.confidence.confidences == "leave-one-out"
    assert config.needs_beliefs
    assert not resolve(weights="none", method=method).needs_beliefs
    with pytest.raises(InputError, match="--lr goes with a method that trains"):
        resolve(weights="none", unfreeze="all", method=method, lr=0.1)
