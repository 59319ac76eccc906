"""Backbones of open_clip: the vision tower alone, of every kind, with weights of the whole model or of the tower."""

from __future__ import annotations

from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from index.errors import InputError, MissingDependencyError
from tests.training.small_towers import RESNET, SIDE, TIMM, VIT, WIDTH
from training.backbone.backbones import load_backbone, require_input_size, with_features
from training.options.backbone_libraries import preprocess_for

pytestmark = pytest.mark.usefixtures("small_towers")


def random_images(count: int, side: int = SIDE) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def whole_model(name: str) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        return open_clip.create_model(name).eval()


@pytest.mark.parametrize(("name", "side"), [(VIT, 32), (VIT, 64), (RESNET, 64), (TIMM, 64)])
def test_the_features_are_those_of_the_space_shared_with_text_at_a_size_of_ours(name: str, side: int) -> None:
    backbone = load_backbone(f"open_clip:{name}", "none", seed=3, side=side)
    require_input_size(backbone, side)
    features = backbone.module(random_images(2, side))
    assert backbone.feature_dim == WIDTH
    assert features.shape == (2, WIDTH)
    assert (features[0] - features[1]).abs().max() > 0


@pytest.mark.parametrize(("name", "part"), [(VIT, "model"), (VIT, "tower"), (RESNET, "model"), (TIMM, "tower")])
def test_a_file_of_the_model_or_of_its_tower_gives_what_open_clip_gives(
    name: str, part: str, tmp_path: Path
) -> None:
    model, path = whole_model(name), tmp_path / "weights.safetensors"
    state = (model if part == "model" else model.visual).state_dict()
    save_file({key: value.clone() for key, value in state.items()}, path)
    backbone = load_backbone(f"open_clip:{name}", str(path))
    images = random_images(2, preprocess_for(f"open_clip:{name}").crop)
    with torch.inference_mode():
        torch.testing.assert_close(backbone.module(images), model.encode_image(images))


@pytest.mark.parametrize(("name", "positions"), [(VIT, "positional_embedding"), (TIMM, "trunk.pos_embed")])
def test_positions_of_a_file_are_resampled_to_the_size_of_the_images(
    name: str, positions: str, tmp_path: Path
) -> None:
    torch.save(whole_model(name).state_dict(), tmp_path / "weights.pt")
    backbone = load_backbone(f"open_clip:{name}", str(tmp_path / "weights.pt"), side=64)
    own = whole_model(name).visual.state_dict()[positions].shape
    assert backbone.module.state_dict()[positions].shape[-2] != own[-2]
    require_input_size(backbone, 64)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ViT-B-31", "no model of open_clip; similar names: .*ViT-B-32"),
        ("ViT-B-32/mine", "no weights 'mine' of ViT-B-32; it has openai, "),
        ("ViT-B-32/openai", "another activation; choose open_clip:ViT-B-32-quickgelu/openai"),
    ],
)
def test_a_name_that_open_clip_does_not_know_is_told_with_others(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_backbone(f"open_clip:{name}", "none")


def test_pretrained_weights_need_a_tag_and_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"open_clip:ViT-M-32/TAG, with TAG one of |--weights FILE"):
        load_backbone(f"open_clip:{VIT}", "pretrained")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    name = "open_clip:ViT-B-32/laion2b_s34b_b79k"
    with pytest.raises(InputError, match=rf"{name} could not be fetched .* --weights FILE"):
        load_backbone(name, "pretrained")


@pytest.mark.parametrize("side", [SIDE, 64])
def test_fetched_weights_are_those_of_the_tag_at_a_size_of_ours(
    side: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a file in the place of a download; the text's part of it is left behind."""
    torch.save(whole_model(VIT).state_dict(), tmp_path / "weights.pt")
    fetched = {"file": str(tmp_path / "weights.pt"), "mean": (0.1, 0.2, 0.3)}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, VIT, {"mine": fetched})
    name = f"open_clip:{VIT}/mine"
    of_the_tag = load_backbone(name, "pretrained", side=side).module
    of_the_file = load_backbone(name, fetched["file"], side=side).module
    images = random_images(2, side)
    torch.testing.assert_close(of_the_tag(images), of_the_file(images))
    assert preprocess_for(name).mean == (0.1, 0.2, 0.3)


def test_without_open_clip_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.options.open_clip_names.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"needs .*open_clip_torch.*retrieval-app\[backbones\]"):
        preprocess_for("open_clip:ViT-B-32")


def test_preprocessing_goes_by_the_weights() -> None:
    plain = preprocess_for("open_clip:ViT-B-32/laion2b_s34b_b79k")
    assert (plain.resize, plain.crop, plain.interpolation) == (224, 224, "bicubic")
    assert plain.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert preprocess_for("open_clip:ViT-B-16-SigLIP").mean == (0.5, 0.5, 0.5)  # all its weights agree
    assert preprocess_for("open_clip:ViT-L-14/laion2b_s32b_b82k").mean == (0.5, 0.5, 0.5)
    assert preprocess_for("open_clip:ViT-L-14").mean == plain.mean  # they do not: the library's default


def test_poolings_of_ours_read_the_maps_of_its_convolutional_tower() -> None:
    pooled = with_features(load_backbone(f"open_clip:{RESNET}", "none", side=64), pooling="gem", side=64)
    assert pooled.module(random_images(2, 64)).shape == (2, pooled.feature_dim)
