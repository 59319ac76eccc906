"""The backbone, its weights files, and the two trained parts."""

import math
import pickle
import random
import re
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from index.errors import InputError
from tests.conftest import tries
from tests.training.conftest import random_images
from training.backbone.backbones import load_backbone, require_input_size
from training.confidence.confidences import ConfidenceModule
from training.head.embedding_heads import EmbeddingHead, ProjectionHead, WhitenedHead


def test_applying_the_removed_layer_to_the_features_gives_the_classifier(tmp_path: Path) -> None:
    classifier = torchvision.models.resnet18(weights=None).eval()
    save_file(classifier.state_dict(), tmp_path / "weights.safetensors")
    backbone = load_backbone("resnet18", str(tmp_path / "weights.safetensors"))
    images = random_images(2)
    with torch.inference_mode():
        torch.testing.assert_close(classifier.fc(backbone.module(images)), classifier(images))


@pytest.mark.parametrize("layout", ["safetensors", "pth", "nested", "without_last_layer", "other_class_count"])
def test_weights_files_of_every_layout_load(tmp_path: Path, layout: str) -> None:
    classes = 7 if layout == "other_class_count" else 1000
    source = torchvision.models.shufflenet_v2_x0_5(weights=None, num_classes=classes)
    state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    path = tmp_path / ("weights.safetensors" if layout == "safetensors" else "weights.pth")
    if layout == "safetensors":
        save_file(state, path)
    elif layout == "nested":
        torch.save({"state_dict": state, "epoch": 3}, path)
    elif layout == "without_last_layer":
        torch.save({name: tensor for name, tensor in state.items() if not name.startswith("fc.")}, path)
    else:
        torch.save(state, path)
    loaded = load_backbone("shufflenet_v2_x0_5", str(path)).module.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.items())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "auxiliary"), [("googlenet", True), ("inception_v3", False)])
def test_auxiliary_classifiers_may_be_in_a_weights_file_or_not(tmp_path: Path, name: str, auxiliary: bool) -> None:
    source = torchvision.models.get_model(
        name, weights=None, init_weights=False, aux_logits=auxiliary, transform_input=True
    ).eval()
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    backbone = load_backbone(name, str(tmp_path / "weights.pth"))
    images = random_images(2, side=96)
    with torch.inference_mode():
        torch.testing.assert_close(source.fc(backbone.module(images)), source(images))
    assert not [key for key in backbone.module.state_dict() if key.lower().startswith("aux")]


def test_weights_of_another_width_and_other_things_than_tensors_are_refused(tmp_path: Path) -> None:
    torch.save(torchvision.models.shufflenet_v2_x1_0(weights=None).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(InputError, match="other shapes"):
        load_backbone("shufflenet_v2_x0_5", str(tmp_path / "weights.pth"))
    torch.save([1, 2, 3], tmp_path / "list.pth")
    with pytest.raises(InputError, match="expected a dictionary of tensors"):
        load_backbone("squeezenet1_1", str(tmp_path / "list.pth"))


class _Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return (Path.touch, (self.witness,))


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_weights_file_with_code_in_it_is_refused_unexecuted(tmp_path: Path, writer: str) -> None:
    witness, path = tmp_path / "executed", tmp_path / "weights.pth"
    if writer == "torch":
        torch.save({"fc.weight": _Trap(witness)}, path)
    else:
        path.write_bytes(pickle.dumps(_Trap(witness), protocol=2))
    with pytest.raises(InputError, match=r"weights\.pth"):
        load_backbone("squeezenet1_1", str(path))
    assert not witness.exists()


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_a_file_that_holds_no_weights_or_torn_ones_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights.{suffix}"
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), path)
    for content in (b"", b"PK\x03\x04 torn", b"\x80\x02}q\x00.", path.read_bytes()[:100_000]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=re.escape(str(path))):
            load_backbone("squeezenet1_1", str(path))


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_damaged_weights_files_never_end_in_anything_but_weights_or_a_named_error(tmp_path: Path) -> None:
    source, path = tmp_path / "source.pth", tmp_path / "damaged.pth"
    torch.save({"features.0.weight": torch.randn(3, 3)}, source, _use_new_zipfile_serialization=False)
    whole, dice = source.read_bytes(), random.Random(0)
    for _ in range(tries(60, deep=300)):
        damaged = bytearray(whole)
        for _ in range(dice.randint(1, 8)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"damaged\.pth"):
            load_backbone("squeezenet1_1", str(path))


@pytest.mark.parametrize("word", ["pretrained", "imagenet"])
def test_pretrained_weights_come_from_torchvisions_own_cache(word, tmp_path, monkeypatch) -> None:
    url = torchvision.models.get_model_weights("squeezenet1_1").DEFAULT.url
    fetched = tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2]
    fetched.parent.mkdir(parents=True)
    source = torchvision.models.squeezenet1_1(weights=None)
    torch.save(source.state_dict(), fetched)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    loaded = load_backbone("squeezenet1_1", word).module.state_dict()
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in loaded.items())


def test_models_of_other_tasks_and_image_sizes_that_the_architecture_cannot_take_are_refused() -> None:
    with pytest.raises(InputError, match="not a torchvision classification model"):
        load_backbone("fcn_resnet50", "none")
    alexnet = load_backbone("alexnet", "none")
    with pytest.raises(InputError, match=r"alexnet cannot take images of --crop 32"):
        require_input_size(alexnet, 32)
    require_input_size(alexnet, 64)


def test_confidence_module_and_embedding_head_start_as_the_papers_say() -> None:
    module = ConfidenceModule(2048, hidden=512, class_count=100, generator=torch.Generator().manual_seed(0))
    assert not module.reduce.bias.any()
    assert not module.classify.bias.any()
    assert float(module.reduce.weight.detach().std()) == pytest.approx(math.sqrt(2 / 2048), rel=0.01)
    assert float(module.classify.weight.detach().std()) == pytest.approx(math.sqrt(2 / (512 + 100)), rel=0.02)
    head = EmbeddingHead(2048, embedding_dim=64, generator=torch.Generator().manual_seed(0))
    assert not head.linear.bias.any()
    assert float(head.linear.weight.detach().std()) == pytest.approx(math.sqrt(2 / 64), rel=0.02)
    torch.testing.assert_close(head(torch.randn(7, 2048) * 100).norm(dim=1), torch.ones(7))


def test_confidences_are_the_sigmoid_of_the_logits_of_one_hidden_layer() -> None:
    module = ConfidenceModule(6, hidden=5, class_count=3, generator=torch.Generator().manual_seed(0))
    features = torch.randn(4, 6)
    hidden = (features @ module.reduce.weight.T + module.reduce.bias).clamp(min=0)
    logits = hidden @ module.classify.weight.T + module.classify.bias
    torch.testing.assert_close(module.logits(features), logits)
    torch.testing.assert_close(module(features), 1 / (1 + (-logits).exp()))


def _whitened(*, directions: int = 6, width: int = 4, features: int = 9) -> WhitenedHead:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(directions, features, generator=generator)
    return WhitenedHead(weight, torch.randn(directions, generator=generator), embedding_dim=width)


def test_a_whitened_head_begins_as_the_first_of_its_directions() -> None:
    head, features = _whitened(), 5 * torch.randn(7, 9)
    first = ProjectionHead(head.weight[:4], head.bias[:4])
    assert head.embedding_dim == first.embedding_dim == 4
    torch.testing.assert_close(head(features), first(features))
    torch.testing.assert_close(head(features).norm(dim=1), torch.ones(7))
    assert [name for name, _ in head.named_parameters()] == ["mix"], "the directions themselves are fixed"
    assert all(tensor.dtype == torch.float32 for tensor in head.state_dict().values())


def test_a_moved_whitened_head_uses_all_directions_and_folds_to_the_same_embeddings() -> None:
    head, features = _whitened(), 3 * torch.randn(7, 9)
    head.mix.data += 0.3 * torch.randn(head.mix.shape, generator=torch.Generator().manual_seed(4))
    unit = features / features.norm(dim=1, keepdim=True)
    rows = (unit @ head.weight.T + head.bias) @ head.mix.T
    torch.testing.assert_close(head(features), rows / rows.norm(dim=1, keepdim=True))
    folded = head.fold()
    assert isinstance(folded, ProjectionHead)
    torch.testing.assert_close(folded(features), head(features))
    assert not any(tensor.requires_grad for tensor in folded.state_dict().values())


@pytest.mark.parametrize("width", [1, 4])
def test_the_drift_is_zero_at_the_start_and_counts_what_moved_over_the_root_of_the_width(width: int) -> None:
    head = _whitened(width=width)
    assert head.drift().item() == 0
    head.drift().backward()
    assert not head.mix.grad.any(), "at the start nothing pulls"
    with torch.no_grad():
        head.mix[0, 0] -= 0.5
        head.mix[-1, 5] += 2
    expected = (0.5**2 + 2**2) / math.sqrt(width) if width > 1 else 0.5**2 + 2**2
    assert head.drift().item() == pytest.approx(expected)
