"""Torch is measured beside the runtimes that take a backbone's graph, on images of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from index.errors import InputError
from index.images.preprocess import PreprocessConfig
from index.model.backends import measuring
from index.model.backends.measuring import Measured
from tests.training.conftest import BACKBONE
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.backbone.kept_graphs import keep_graph
from training.options.runtimes import GRAPH_RUNTIMES, TORCH
from training.run.feature_runtime import agrees, measure_runtimes, read_some

SMALL, CPU = PreprocessConfig(resize=40, crop=32), torch.device("cpu")


def _extractor(*, seed: int = 0, precision: str = "float32") -> Extractor:
    return Extractor(load_backbone(BACKBONE, "none", seed=seed), SMALL, device=CPU, precision=precision)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_SECONDS", 0.0)


def test_all_that_are_installed_are_measured_beside_torch_and_agree_with_it_in_float32(
    pictures: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extractor, paths = _extractor(), sorted(pictures.rglob("*.jpg"))
    graph = keep_graph(extractor, cache=cache)
    measured = measure_runtimes(extractor, graph, paths)
    assert measured.keys() == {TORCH, *GRAPH_RUNTIMES}
    assert all(one.agreement > 0.9999 and agrees(one) and one.images_per_s > 0 for one in measured.values())
    monkeypatch.setattr(measuring, "measure_backends", lambda *_: pytest.fail("measured again"))
    assert measure_runtimes(extractor, graph, paths) == measured


def test_a_graph_of_other_weights_does_not_agree(pictures: Path, cache: Path) -> None:
    graph = keep_graph(_extractor(), cache=cache)
    measured = measure_runtimes(_extractor(seed=1, precision="bfloat16"), graph, sorted(pictures.rglob("*.jpg")))
    assert not any(agrees(measured[name]) for name in GRAPH_RUNTIMES)
    assert 0.9 < measured[TORCH].agreement < 0.99999, "torch itself is compared in float32"


@pytest.mark.parametrize(
    ("precision", "agreement", "stands"),
    [
        ("float32", 0.99995, True), ("as exported", 0.9995, False), ("bfloat16", 0.997, True),
        ("bfloat16", 0.99, False), ("float32", float("nan"), False),
    ],
)  # fmt: skip
def test_how_near_features_must_be_depends_on_their_precision(
    precision: str, agreement: float, stands: bool
) -> None:
    assert agrees(Measured("1", precision, 10.0, agreement)) is stands


def test_images_come_from_all_over_the_list_without_those_that_cannot_be_read(
    pictures: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    paths = sorted(pictures.rglob("*.jpg"))
    extractor = _extractor()
    assert read_some(paths, extractor).shape == (16, 32, 32, 3)
    assert np.array_equal(read_some([broken, *paths[:2]], extractor), read_some(paths[:2], extractor))
    with pytest.raises(InputError, match="none of the 1 images is readable"):
        read_some([broken], extractor)
