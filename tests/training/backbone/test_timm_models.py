"""Backbones of timm: every family without its classifier, at sizes of ours, with weights from files."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from index.errors import InputError, MissingDependencyError
from training.backbone.backbones import load_backbone, require_input_size, with_features
from training.options.backbone_libraries import preprocess_for

FAMILIES = {  # width of the features; those of one size are made for ours
    "test_resnet": 96,
    "test_efficientnet": 256,
    "test_vit": 64,
}
OTHERS = {
    "mobilenetv3_small_050": 1024,
    "test_convnext": 64,
    "vit_tiny_patch16_224": 192,
    "vit_small_patch14_dinov2.lvd142m": 384,
    "swin_tiny_patch4_window7_224": 768,
}
SIDE = 64


def random_images(count: int, side: int = SIDE) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "width"),
    [*FAMILIES.items(), *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS.items())],
)
def test_the_features_of_every_family_are_one_vector_an_image_at_a_size_of_ours(name: str, width: int) -> None:
    backbone = load_backbone(f"timm:{name}", "none", seed=3, side=SIDE)
    require_input_size(backbone, SIDE)
    features = backbone.module(random_images(2))
    assert backbone.feature_dim == width
    assert features.shape == (2, width)
    assert features.isfinite().all()
    assert (features[0] - features[1]).abs().max() > 0


def test_the_classifier_on_the_features_gives_what_timm_gives() -> None:
    backbone = load_backbone("timm:test_resnet", "none", seed=2)
    with torch.random.fork_rng(devices=[]):
        whole = timm.create_model("test_resnet").eval()
    whole.load_state_dict(backbone.module.state_dict(), strict=False)
    images = random_images(2)
    with torch.inference_mode():
        torch.testing.assert_close(whole.fc(backbone.module(images)), whole(images))


@pytest.mark.parametrize(
    ("name", "layout"), [("test_vit", "safetensors"), ("test_vit", "without_classifier"), ("test_convnext", "pth")]
)
def test_weights_files_of_timms_layout_load(name: str, layout: str, tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        source = timm.create_model(name, num_classes=0 if layout == "without_classifier" else 5)
    path = tmp_path / ("weights.safetensors" if layout == "safetensors" else "weights.pth")
    state = {key: value.clone() for key, value in source.state_dict().items()}
    save_file(state, path) if layout == "safetensors" else torch.save(state, path)
    loaded = load_backbone(f"timm:{name}", str(path)).module.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in loaded.items())


def test_positions_of_a_file_are_resampled_to_the_size_of_the_images(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        source = timm.create_model("test_vit", num_classes=0)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    small = load_backbone("timm:test_vit", str(tmp_path / "weights.pth"), side=80).module
    assert small.pos_embed.shape == (1, 1 + 5 * 5, 64)
    source.set_input_size(80)
    torch.testing.assert_close(small.pos_embed, source.pos_embed.detach())


def test_a_transformer_at_another_size_than_it_was_made_for_is_refused() -> None:
    own = load_backbone("timm:vit_tiny_patch16_224", "none")
    with pytest.raises(InputError, match="timm:vit_tiny_patch16_224 cannot take images of --crop 64"):
        require_input_size(own, 64)
    with pytest.raises(
        InputError, match=r"timm:test_vit cannot take images of --crop 56 .*divisible by patch size"
    ):
        require_input_size(load_backbone("timm:test_vit", "none", side=56), 56)


def test_a_size_that_no_model_can_be_made_for_is_refused() -> None:
    with pytest.raises(InputError, match=r"timm:test_vit.*--crop 4"):
        require_input_size(load_backbone("timm:test_vit", "none", side=4), 4)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("resnet5", "is no model of timm .*resnet50"),
        ("qqqqq", "is no model of timm .*resnet50"),
        ("resnet18.mine", "no weights 'mine' of resnet18; it has a1_in1k, "),
        ("hf-hub:timm/resnet18.a1_in1k", "not from hf-hub; name that .* --weights FILE"),
        ("vit_base_patch16_sapiens2", "3 x 1024 x 768"),
    ],
)
def test_a_name_that_timm_does_not_know_is_told_with_near_ones(name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_backbone(f"timm:{name}", "none")


def test_pretrained_weights_come_from_the_hubs_own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        source = timm.create_model("test_vit")
    snapshot = tmp_path / "models--timm--test_vit.r160_in1k" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    save_file(source.state_dict(), snapshot / "model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    fetched = load_backbone("timm:test_vit.r160_in1k", "pretrained").module.state_dict()
    assert all(torch.equal(tensor, source.state_dict()[key]) for key, tensor in fetched.items())
    smaller = load_backbone("timm:test_vit.r160_in1k", "pretrained", side=80).module
    assert smaller.pos_embed.shape[1] == 1 + 5 * 5


def test_weights_that_cannot_be_fetched_are_one_error_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"timm:test_vit could not be fetched .* --weights FILE") as told:
        load_backbone("timm:test_vit", "pretrained")
    assert "\n" not in str(told.value)
    assert capfd.readouterr().out == ""
    with pytest.raises(
        InputError, match=r"--weights imagenet is a word for torchvision's; .*--weights pretrained"
    ):
        load_backbone("timm:test_vit", "imagenet")
    with pytest.raises(InputError, match="timm has no weights of test_vit4, but none"):
        load_backbone("timm:test_vit4", "pretrained")


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.options.timm_names.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"timm:test_vit needs .*retrieval-app\[backbones\]"):
        preprocess_for("timm:test_vit")


@pytest.mark.parametrize(("name", "width"), [("test_resnet", 384), ("test_convnext", 512)])
def test_poolings_of_ours_read_the_maps_of_convolutional_networks(name: str, width: int) -> None:
    backbone = load_backbone(f"timm:{name}", "none", side=SIDE)
    pooled = with_features(backbone, pooling="layers", side=SIDE)
    assert pooled.feature_dim == width
    assert pooled.module(random_images(2)).shape == (2, width)


def test_poolings_of_ours_are_refused_for_tokens() -> None:
    backbone = load_backbone("timm:test_vit", "none", side=64)
    with pytest.raises(InputError, match="timm:test_vit does not offer: it makes no feature maps"):
        with_features(backbone, pooling="gem", side=64)


def test_preprocessing_is_the_models_own() -> None:
    dino = preprocess_for("timm:vit_small_patch14_dinov2.lvd142m")
    assert (dino.resize, dino.crop, dino.interpolation) == (518, 518, "bicubic")
    assert preprocess_for("timm:test_vit").mean == (0.5, 0.5, 0.5)
    resnet = preprocess_for("timm:resnet18.a1_in1k")
    assert (resnet.resize, resnet.crop) == (int(224 / 0.95), 224)
    small = preprocess_for("timm:resnet18.a1_in1k", crop=112)
    assert (small.resize, small.crop) == (117, 112)
