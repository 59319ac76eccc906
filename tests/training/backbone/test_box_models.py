"""The network in the box as a backbone: what torch computes with its weights is what the packaged file gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch.nn.functional import normalize

from index.errors import InputError, ModelFileError
from index.model.embedder import Embedder
from index.model.in_the_box import BOX, describe_box
from index.outputs import KIND
from training.backbone import box_models
from training.backbone.backbones import arrange_images, load_backbone
from training.options.backbone_libraries import preprocess_for
from training.options.resolve import resolve


def _last_layer() -> tuple[torch.Tensor, torch.Tensor]:
    """Of `kind`: (D, F) and (D,)."""
    stored = {one.name: numpy_helper.to_array(one) for one in onnx.load(BOX).graph.initializer}
    return tuple(
        torch.from_numpy(
            next(stored[f"parts.kind.{name}{end}"] for end in ("", "_half") if f"parts.kind.{name}{end}" in stored)
            .astype(np.float32)
        )
        for name in ("weight", "bias")
    )  # fmt: skip


def test_its_features_are_those_that_the_packaged_model_embeds() -> None:
    sizes = preprocess_for("box", view="whole")
    pixels = np.random.default_rng(0).integers(256, size=(4, sizes.crop, sizes.crop, 3), dtype=np.uint8)
    mean, std = (255 * torch.tensor(values).view(1, 3, 1, 1) for values in (sizes.mean, sizes.std))
    backbone = load_backbone("box", "pretrained")
    weight, bias = _last_layer()
    with torch.inference_mode():
        features = backbone.module(arrange_images(torch.from_numpy(pixels), mean, std)).flatten(1)
        found = normalize(features @ weight.T + bias)
    assert features.shape == (4, backbone.feature_dim)
    assert backbone.name == describe_box().backbone, "which a run can load when another network is in the box"
    np.testing.assert_allclose(found.numpy(), Embedder(BOX).giving(KIND).embed_batch(pixels), atol=2e-4)


def test_it_sees_images_at_its_own_size() -> None:
    own = describe_box().preprocess
    assert (own.resize, own.crop) == (preprocess_for("box", view="whole").resize, preprocess_for("box").crop)
    assert preprocess_for("box").resize > own.crop


def test_without_weights_it_is_what_trains() -> None:
    config = resolve()
    assert (config.backbone, config.weights) == ("box", "pretrained")
    assert resolve(backbone="box").weights == "pretrained"
    assert resolve(weights="imagenet").backbone == "resnet50"
    with pytest.raises(InputError, match="--weights is missing"):
        resolve(backbone="resnet50")


def test_random_weights_and_a_file_of_weights_are_taken_too(tmp_path: Path) -> None:
    first, other = (load_backbone("box", "none", seed=seed) for seed in (0, 1))
    assert first.hash_weights() != other.hash_weights()
    torch.save(first.module.state_dict(), tmp_path / "weights.pt")
    assert load_backbone("box", str(tmp_path / "weights.pt")).hash_weights() == first.hash_weights()


def test_a_lack_of_weights_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_models, "_read_trunk", dict)
    with pytest.raises(ModelFileError, match="it lacks weights of its network: features"):
        load_backbone("box", "pretrained")


def test_what_it_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="of no known library"):
        load_backbone("box:large", "pretrained")
    with pytest.raises(InputError, match="--backbone box has none left"):
        resolve(unfreeze="all", network_batch_norm="train")


def test_weights_of_another_network_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {**box_models._read_trunk(), "features.99.weight": torch.zeros(1)}
    monkeypatch.setattr(box_models, "_read_trunk", lambda: stored)
    with pytest.raises(ModelFileError, match=r"another network: features\.99\.weight"):
        load_backbone("box", "pretrained")
