"""Which views and poolings are tried, and the rule that chooses among them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from index.errors import InputError
from tests.training.conftest import make_config
from training.backbone.backbones import load_backbone
from training.run.feature_choice import Candidate, Tried, choose, list_candidates

AUTO = {"recipe": "default", "trial": True, "view": "auto", "pooling": "auto", "resize": 72, "crop": 64}


def candidates(backbone: str = "resnet18", *, embedding_dim: int = 8, **changes: Any) -> list[tuple[str, str]]:
    sizes = make_config(**(AUTO | changes)).input
    network = load_backbone(backbone, "none")
    return [(one.view, one.pooling) for one in list_candidates(network, sizes, embedding_dim=embedding_dim)]


@pytest.mark.parametrize(
    ("changes", "views", "poolings"),
    [
        ({}, ["crop", "whole"], ["own", "gem", "layers"]),
        ({"embedding_cost": 2}, ["crop", "whole", "both"], ["own", "gem", "layers"]),
        ({"view": "both"}, ["both"], ["own", "gem", "layers"]),
        ({"pooling": "gem"}, ["crop", "whole"], ["gem"]),
        ({"resize": 64, "embedding_cost": 2}, ["crop"], ["own", "gem", "layers"]),
        ({"view": "whole", "pooling": "layers", "resize": 64}, ["whole"], ["layers"]),
        ({"embedding_dim": 600}, ["crop", "whole"], ["layers"]),
        ({"embedding_dim": 6000}, ["crop", "whole"], ["own", "gem", "layers"]),
    ],
)
def test_what_the_options_leave_open_is_tried_within_the_cost(
    changes: dict[str, Any], views: list[str], poolings: list[str]
) -> None:
    width = changes.get("embedding_dim", 8)
    expected = [(view, pooling) for view in views for pooling in poolings]
    assert candidates(**{"embedding_dim": width, **changes}) == expected


def test_a_vision_transformer_has_views_but_its_own_pooling_only() -> None:
    assert candidates("vit_b_32", resize=256, crop=224) == [("crop", "own"), ("whole", "own")]
    with pytest.raises(InputError, match="--pooling gem reads the feature maps"):
        candidates("vit_b_32", resize=256, crop=224, pooling="gem")


def _tried(pooling: str, recall: float, low: float) -> Tried:
    return Tried(Candidate("crop", pooling, 8), recall, recall - 0.5, (low, 1.0))


def test_the_usual_one_is_kept_unless_another_leads_it_by_more_than_chance() -> None:
    usual, level, better = _tried("own", 0.5, 0.0), _tried("gem", 0.6, -0.01), _tried("layers", 0.7, 0.01)
    assert choose([usual, level]) == usual.candidate
    assert choose([usual, level, better]) == better.candidate
    assert choose([usual, replace(level, interval=None)]) == usual.candidate
