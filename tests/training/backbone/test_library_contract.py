"""What every library of backbones does alike, whichever it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from index.errors import InputError
from index.model.in_the_box import describe_box
from tests.training.small_towers import RESNET, VIT
from training.backbone.backbones import load_backbone, require_input_size
from training.options.backbone_libraries import LIBRARIES, find_library, preprocess_for

EXAMPLES = {  # a small model, and one of another architecture
    "torchvision": ("squeezenet1_1", "shufflenet_v2_x0_5"),
    "timm": ("timm:test_resnet", "timm:test_vit"),
    "open_clip": (f"open_clip:{VIT}", f"open_clip:{RESNET}"),
    "box": ("box", "shufflenet_v2_x0_5"),
}
of_every_library = pytest.mark.parametrize("library", LIBRARIES)
pytestmark = pytest.mark.usefixtures("small_towers")


@of_every_library
def test_the_features_are_one_vector_an_image_of_a_frozen_network(library: str) -> None:
    backbone = load_backbone(EXAMPLES[library][0], "none", seed=3, side=64)
    require_input_size(backbone, 64)
    features = backbone.module(torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert features.flatten(1).shape == (2, backbone.feature_dim)
    assert features.isfinite().all()
    assert (features[0] - features[1]).abs().max() > 0
    assert not any(module.training for module in backbone.module.modules())
    assert not any(parameter.requires_grad for parameter in backbone.module.parameters())


@of_every_library
@torch.random.fork_rng(devices=[])
def test_random_weights_depend_on_the_seed_and_leave_the_global_generator_alone(library: str) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    hashes = [load_backbone(EXAMPLES[library][0], "none", seed=seed).hash_weights() for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(3), expected)
    assert hashes[0] == hashes[1] != hashes[2]


@of_every_library
def test_a_file_of_its_weights_makes_the_same_network(library: str, tmp_path: Path) -> None:
    name = EXAMPLES[library][0]
    source = load_backbone(name, "none", seed=5)
    save_file(source.network.state_dict(), tmp_path / "weights.safetensors")
    assert load_backbone(name, str(tmp_path / "weights.safetensors")).hash_weights() == source.hash_weights()


@of_every_library
def test_weights_of_another_architecture_are_refused_by_file_and_architecture(
    library: str, tmp_path: Path
) -> None:
    name, other = EXAMPLES[library]
    library, model = (
        ("torchvision", describe_box().backbone) if library == "box" else (library, find_library(name)[1])
    )
    torch.save(load_backbone(other, "none").network.state_dict(), tmp_path / "weights.pth")
    with pytest.raises(InputError, match=rf"weights\.pth: these are not weights of .*{library}'s {model}"):
        load_backbone(name, str(tmp_path / "weights.pth"))


@of_every_library
def test_a_missing_file_is_named_with_the_words_that_there_are(library: str) -> None:
    with pytest.raises(
        InputError, match=r"nowhere\.pth: no such weights file; --weights takes pretrained, none or a file"
    ):
        load_backbone(EXAMPLES[library][0], "nowhere.pth")


@of_every_library
def test_a_size_alone_changes_nothing_else_of_the_preprocessing(library: str) -> None:
    name = EXAMPLES[library][0]
    own = preprocess_for(name)
    assert preprocess_for(name, resize=80, crop=70) == replace(own, resize=80, crop=70)
    assert own.crop <= own.resize


def test_a_library_that_there_is_not_is_told_with_those_that_there_are() -> None:
    with pytest.raises(
        InputError, match="'keras:vgg16' is of no known library; there is torchvision, timm, open_clip"
    ):
        load_backbone("keras:vgg16", "none")
