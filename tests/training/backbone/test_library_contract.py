"""What every library of backbones does alike, whichever it is."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from index.errors import InputError, MissingDependencyError, ModelFileError
from index.model.builtin import BUILTIN_MODEL, describe_builtin
from index.model.embedder import Embedder
from index.outputs import SEMANTIC
from tests.training.conftest import random_images
from tests.training.small_towers import RESNET, TIMM, VIT, WIDTH
from training.backbone import builtin_models
from training.backbone.backbones import arrange_images, load_backbone, require_input_size, with_features
from training.options.backbone_libraries import find_library, preprocess_for
from training.options.resolve import resolve

EXAMPLES = {  # a small model, and one of another architecture
    "torchvision": ("squeezenet1_1", "shufflenet_v2_x0_5"),
    "timm": ("timm:test_resnet", "timm:test_vit"),
    "open_clip": (f"open_clip:{VIT}", f"open_clip:{RESNET}"),
    "builtin": ("builtin", "shufflenet_v2_x0_5"),
}
of_every_library = pytest.mark.parametrize("library", EXAMPLES)  # ONNX files have no weights to draw
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
def test_weights_of_another_architecture_are_refused_by_file_and_architecture(library, tmp_path) -> None:
    name, other = EXAMPLES[library]
    model = find_library(name)[1]
    torch.save(load_backbone(other, "none").network.state_dict(), tmp_path / "weights.pth")
    with pytest.raises(InputError, match=rf"weights\.pth: these are not weights of .*{library}'s {model}"):
        load_backbone(name, str(tmp_path / "weights.pth"))


@of_every_library
def test_a_missing_file_is_named_with_the_words_that_there_are(library: str) -> None:
    with pytest.raises(InputError, match=r"nowhere\.pth: no such weights file; --weights takes pretrained, none"):
        load_backbone(EXAMPLES[library][0], "nowhere.pth")


@pytest.mark.parametrize("name", ["keras:vgg16", "builtin:large"])
def test_a_library_that_there_is_not_is_told_with_those_that_there_are(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}': unknown library; expected one of torchvision, timm"):
        load_backbone(name, "none")


@pytest.mark.parametrize(("library", "package"), [("timm", "timm"), ("open_clip", "open_clip_torch")])
def test_a_library_that_is_not_installed_is_named_with_its_extra(library: str, package: str, monkeypatch) -> None:
    monkeypatch.setattr("training.options.backbone_libraries.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=rf"needs .*{package}.*retrieval-app\[backbones\]"):
        preprocess_for(EXAMPLES[library][0])


def create_timm_model(name: str, **options: int) -> torch.nn.Module:
    import timm  # which takes seconds

    with torch.random.fork_rng(devices=[]):
        return timm.create_model(name, **options).eval()


def whole_model(name: str) -> torch.nn.Module:
    import open_clip  # which takes seconds

    with torch.random.fork_rng(devices=[]):
        return open_clip.create_model(name).eval()


@pytest.mark.parametrize(("name", "part"), [(VIT, "model"), (RESNET, "tower"), (TIMM, "tower")])
def test_a_file_of_the_model_or_of_its_tower_gives_what_open_clip_gives(name, part, tmp_path) -> None:
    model, path = whole_model(name), tmp_path / "weights.safetensors"
    state = (model if part == "model" else model.visual).state_dict()
    save_file({key: value.clone() for key, value in state.items()}, path)
    backbone = load_backbone(f"open_clip:{name}", str(path))
    images = random_images(2, preprocess_for(f"open_clip:{name}").crop)
    with torch.inference_mode():
        torch.testing.assert_close(backbone.module(images), model.encode_image(images))


@pytest.mark.parametrize(("name", "positions"), [(VIT, "positional_embedding"), (TIMM, "trunk.pos_embed")])
def test_positions_of_a_file_are_resampled_to_the_size_of_the_images(name: str, positions: str, tmp_path) -> None:
    model = whole_model(name)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    backbone = load_backbone(f"open_clip:{name}", str(tmp_path / "weights.pt"), side=64)
    assert backbone.module.state_dict()[positions].shape[-2] != model.visual.state_dict()[positions].shape[-2]
    require_input_size(backbone, 64)
    assert backbone.module(random_images(2, 64)).shape == (2, WIDTH)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of the Hub, which is not asked."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "weights", "told"),
    [
        ("open_clip:ViT-B-31", "none", "not a model of open_clip; similar names: .*ViT-B-32"),
        ("open_clip:ViT-B-32/mine", "none", "no weights 'mine' of ViT-B-32; it has openai, "),
        ("open_clip:ViT-B-32/openai", "none", "another activation; choose open_clip:ViT-B-32-quickgelu/openai"),
        (f"open_clip:{VIT}", "pretrained", r"open_clip:ViT-M-32/TAG, with TAG one of |--weights FILE"),
        ("open_clip:ViT-B-32/laion2b_s34b_b79k", "pretrained", "laion2b_s34b_b79k could not be fetched .* --weights F"),
        ("timm:resnet5", "none", "is not a model of timm .*resnet50"),
        ("timm:resnet18.mine", "none", "no weights 'mine' of resnet18; it has a1_in1k, "),
        ("timm:hf-hub:timm/resnet18.a1_in1k", "none", "not from hf-hub; name that .* --weights FILE"),
        ("timm:test_vit", "imagenet", r"--weights imagenet is a word for torchvision's; .*pretrained"),
        ("timm:test_vit4", "pretrained", "timm has no weights of test_vit4, but none"),
        ("timm:test_vit", "pretrained", "timm:test_vit could not be fetched .* --weights FILE"),
    ],
)
def test_names_and_weights_that_cannot_be_had_are_one_line_with_the_way_out(name, weights, told, capfd) -> None:
    with pytest.raises(InputError, match=told) as raised:
        load_backbone(name, weights)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr().out == ""


def test_fetched_weights_are_those_of_the_tag_at_a_size_of_ours(monkeypatch, tmp_path) -> None:
    """Of a file in the place of a download; the text's part of it is left behind."""
    import open_clip

    torch.save(whole_model(VIT).state_dict(), tmp_path / "weights.pt")
    fetched = {"file": str(tmp_path / "weights.pt"), "mean": (0.1, 0.2, 0.3)}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, VIT, {"mine": fetched})
    name = f"open_clip:{VIT}/mine"
    of_the_tag = load_backbone(name, "pretrained", side=64).module
    of_the_file = load_backbone(name, fetched["file"], side=64).module
    images = random_images(2, 64)
    torch.testing.assert_close(of_the_tag(images), of_the_file(images))
    assert preprocess_for(name).mean == (0.1, 0.2, 0.3)


def test_preprocessing_goes_by_the_weights() -> None:
    plain = preprocess_for("open_clip:ViT-B-32/laion2b_s34b_b79k")
    assert (plain.resize, plain.crop, plain.interpolation) == (224, 224, "bicubic")
    assert plain.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert preprocess_for("open_clip:ViT-B-16-SigLIP").mean == (0.5, 0.5, 0.5)  # all its weights agree
    assert preprocess_for("open_clip:ViT-L-14/laion2b_s32b_b82k").mean == (0.5, 0.5, 0.5)
    assert preprocess_for("open_clip:ViT-L-14").mean == plain.mean  # they do not: the library's default


def test_the_classifier_on_the_features_gives_what_timm_gives() -> None:
    backbone = load_backbone("timm:test_resnet", "none", seed=2)
    whole = create_timm_model("test_resnet")
    whole.load_state_dict(backbone.module.state_dict(), strict=False)
    images = random_images(2, 64)
    with torch.inference_mode():
        torch.testing.assert_close(whole.fc(backbone.module(images)), whole(images))


def test_positions_of_a_file_of_timm_are_resampled(tmp_path: Path) -> None:
    source = create_timm_model("test_vit", num_classes=0)
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    small = load_backbone("timm:test_vit", str(tmp_path / "weights.pth"), side=80).module
    assert small.pos_embed.shape == (1, 1 + 5 * 5, 64)
    source.set_input_size(80)
    torch.testing.assert_close(small.pos_embed, source.pos_embed.detach())


def test_a_transformer_at_another_size_than_it_was_made_for_is_refused() -> None:
    own = load_backbone("timm:vit_tiny_patch16_224", "none")
    with pytest.raises(InputError, match="timm:vit_tiny_patch16_224 cannot take images of --crop 64"):
        require_input_size(own, 64)
    for side, said in ((56, r"test_vit cannot take images of --crop 56 .*divisible by patch"), (4, "--crop 4")):
        with pytest.raises(InputError, match=said):
            require_input_size(load_backbone("timm:test_vit", "none", side=side), side)


def test_a_model_of_images_that_are_not_square_is_refused() -> None:
    pytest.importorskip("timm", "1.0.30", reason="older ones have no such model")
    with pytest.raises(InputError, match="3 x 1024 x 768"):
        load_backbone("timm:vit_base_patch16_sapiens2", "none")


def test_pretrained_weights_come_from_the_hubs_own_cache(hub: Path) -> None:
    source = create_timm_model("test_vit")
    snapshot = hub / "models--timm--test_vit.r160_in1k" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    save_file(source.state_dict(), snapshot / "model.safetensors")
    fetched = load_backbone("timm:test_vit.r160_in1k", "pretrained").module.state_dict()
    assert all(torch.equal(tensor, source.state_dict()[key]) for key, tensor in fetched.items())
    smaller = load_backbone("timm:test_vit.r160_in1k", "pretrained", side=80).module
    assert smaller.pos_embed.shape[1] == 1 + 5 * 5


def test_poolings_of_ours_read_the_maps_of_convolutional_networks_and_refuse_tokens() -> None:
    pooled = with_features(load_backbone("timm:test_convnext", "none", side=64), pooling="layers", side=64)
    assert pooled.module(random_images(2, 64)).shape == (2, 512) == (2, pooled.feature_dim)
    with pytest.raises(InputError, match="timm:test_vit does not offer: it makes no feature maps"):
        with_features(load_backbone("timm:test_vit", "none", side=64), pooling="gem", side=64)


def test_preprocessing_is_the_models_own() -> None:
    dino = preprocess_for("timm:vit_small_patch14_dinov2.lvd142m")
    assert (dino.resize, dino.crop, dino.interpolation) == (518, 518, "bicubic")
    assert preprocess_for("timm:test_vit").mean == (0.5, 0.5, 0.5)
    resnet = preprocess_for("timm:resnet18.a1_in1k")
    assert (resnet.resize, resnet.crop) == (int(224 / 0.95), 224)


def test_its_features_are_those_that_the_packaged_model_embeds() -> None:
    own = preprocess_for("builtin", view="whole")
    pixels = np.random.default_rng(0).integers(256, size=(12, own.crop // 8, own.crop // 8, 3), dtype=np.uint8)
    pixels = np.stack([np.asarray(Image.fromarray(one).resize((own.crop, own.crop))) for one in pixels])
    mean, std = (255 * torch.tensor(values).view(1, 3, 1, 1) for values in (own.mean, own.std))
    backbone = load_backbone("builtin", "pretrained", side=own.crop)
    seeing = with_features(backbone, view="whole", pooling=describe_builtin().pooling, side=own.crop)
    with torch.inference_mode():
        features = seeing.module(arrange_images(torch.from_numpy(pixels), mean, std)).flatten(1).numpy()
    embedded = Embedder(BUILTIN_MODEL).with_outputs(SEMANTIC).embed_batch(pixels)
    assert backbone.name == describe_builtin().backbone, "which a run can load when another network is built in"
    rows, columns = np.triu_indices(len(pixels), k=1)
    similar = [np.corrcoef(one)[rows, columns] for one in (features, embedded)]  # the model reduces them, in int8
    assert np.corrcoef(*similar)[0, 1] > 0.8


def test_without_weights_it_is_what_trains() -> None:
    config = resolve()
    assert (config.backbone, config.weights) == ("builtin", "pretrained")
    assert resolve(backbone="builtin").weights == "pretrained"
    assert resolve(weights="imagenet").backbone == "resnet50"
    with pytest.raises(InputError, match="--weights is missing"):
        resolve(backbone="resnet50")


def test_missing_weights_and_those_of_another_network_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {**builtin_models._read_from_graph(), "features.99.weight": torch.zeros(1)}
    for found, said in ((stored, r"features\.99\.weight"), ({}, "not the weights of its network")):
        monkeypatch.setattr(builtin_models, "_read_from_graph", lambda found=found: found)
        with pytest.raises(ModelFileError, match=said):
            load_backbone("builtin", "pretrained")


def test_the_builtin_network_has_the_same_bfloat16_features_with_and_without_gradients() -> None:
    module, _ = builtin_models.build_module("", "pretrained", seed=0)
    images = torch.rand(2, 3, 65, 65, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trained = module.eval()(images)
        with torch.no_grad():
            seen = module(images)
    assert trained.requires_grad
    assert torch.equal(seen, trained)


def test_relu6_by_the_bits_is_relu6_of_every_bfloat16_number() -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    numbers = numbers[~numbers.isnan()]
    with torch.no_grad():
        assert torch.equal(builtin_models._QuickReLU6(inplace=True)(numbers.clone()), numbers.clamp(0, 6))
