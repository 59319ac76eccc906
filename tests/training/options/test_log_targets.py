"""`--log KIND[:PLACE]` in words: what is taken, and what is refused before any work."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from index.errors import InputError, MissingDependencyError
from training.options.log_targets import KINDS, LogTarget, parse_log_targets


def test_a_kind_and_its_place_are_parted_at_the_first_colon() -> None:
    texts = ["tensorboard:logs", "mlflow", "mlflow:sqlite:///a.db", "wandb:team/project"]
    targets = parse_log_targets(texts)
    assert targets == (
        LogTarget("tensorboard", "logs"), LogTarget("mlflow"), LogTarget("mlflow", "sqlite:///a.db"),
        LogTarget("wandb", "team/project"),
    )  # fmt: skip
    assert [str(target) for target in targets] == [f"--log {text}" for text in texts]
    assert parse_log_targets("wandb") == (LogTarget("wandb"),)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["tensorbord:logs"], r"--log tensorbord:logs: expected one of tensorboard:DIR, mlflow\[:URI\], wandb"),
        (["tensorboard"], "expected tensorboard:DIR"),
        (["tensorboard:"], "expected tensorboard:DIR"),
        (["wandb", "wandb:"], "--log wandb: given twice"),
    ],
)
def test_what_names_no_target_is_refused_with_what_would(texts: Sequence[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_log_targets(texts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, KINDS[kind].package, None)
    with pytest.raises(MissingDependencyError, match=rf"--log {kind}:x needs .*retrieval-app\[loggers\]"):
        parse_log_targets(f"{kind}:x")
