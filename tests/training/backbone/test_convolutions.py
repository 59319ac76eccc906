"""Convolutions that stand in give the features and the gradients of the network as it is, and leave it as it was."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training.backbone.backbones import load_backbone, with_features
from training.backbone.convolutions import Convolution, find_convolutions, fold_norm, standing_in

SIDE = 32


def _restless(network: nn.Module) -> nn.Module:
    """The network with statistics and scales as after a training, not as at a start."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.running_mean, -0.3, 0.3),
                (module.running_var, 0.5, 1.5),
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.3, 0.3),
            ):
                tensor.uniform_(low, high, generator=generator)
    return network


def _backbone(name: str) -> nn.Module:
    module = load_backbone(name, "none", seed=1).module
    return _restless(module).requires_grad_(True)


def _images(side: int = SIDE, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(2)).to(dtype)


def _learn(
    module: nn.Module, convolutions: Sequence[Convolution], *, side: int = SIDE
) -> tuple[Tensor, dict[str, Tensor]]:
    """Features, and the gradients of a sum of them that weighs each differently."""
    module.zero_grad(set_to_none=True)
    with standing_in(convolutions):
        features = module(_images(side, next(module.parameters()).dtype))
    weights = torch.linspace(-1, 1, features.numel(), dtype=features.dtype).view_as(features)
    (features * weights).sum().backward()
    return features.detach(), {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def _assert_close(found: Tensor, expected: Tensor, *, share: float) -> None:
    assert (found - expected).norm() <= share * expected.norm() + 1e-6


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("resnet18", 20),
        ("shufflenet_v2_x0_5", 56),
        pytest.param("mobilenet_v2", 52, marks=pytest.mark.slow),
        pytest.param("densenet121", 59, marks=pytest.mark.slow),
    ],
)
def test_features_and_all_gradients_are_those_of_the_network_as_it_is(name: str, norms: int) -> None:
    module = _backbone(name).double()  # in float32 some ReLUs open by rounding
    convolutions = find_convolutions(module, side=SIDE)
    assert sum(each.norm is not None for each in convolutions) == norms
    expected, gradients = _learn(module, ())
    features, found = _learn(module, convolutions)
    _assert_close(features, expected, share=1e-9)
    assert found.keys() == gradients.keys()
    for key, gradient in gradients.items():
        _assert_close(found[key], gradient, share=1e-9)


def test_poolings_that_read_maps_read_the_same() -> None:
    backbone = load_backbone("mobilenet_v2", "none", seed=1)
    _restless(backbone.network)
    module = with_features(backbone, pooling="layers", side=64).module
    convolutions = find_convolutions(module, side=64)
    expected = module(_images(64))
    with standing_in(convolutions):
        _assert_close(module(_images(64)), expected, share=1e-4)


@pytest.mark.parametrize(("has_bias", "is_affine"), [(True, True), (False, False)])
def test_a_folded_norm_is_the_norm_of_the_convolution(has_bias: bool, is_affine: bool) -> None:
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=has_bias).double()
    norm = _restless_norm(nn.BatchNorm2d(6, affine=is_affine).double())
    images = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    weight, bias = fold_norm(conv.weight, conv.bias, norm)
    found = nn.functional.conv2d(images, weight, bias, stride=2, padding=1, groups=2)
    torch.testing.assert_close(found, norm(conv(images)))


def _restless_norm(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    if norm.affine:
        _restless(norm)
    else:
        norm.running_mean.uniform_(-0.3, 0.3)
        norm.running_var.uniform_(0.5, 1.5)
    return norm.eval()


class _Fold(nn.Module):
    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return fold_norm(weight, bias, self.norm)


def test_gradients_of_a_folded_norm_pass_gradcheck() -> None:
    conv, fold = nn.Conv2d(2, 3, 1).double(), _Fold(_restless_norm(nn.BatchNorm2d(3).double()))

    def folded(weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.functional_call(fold, {"norm.weight": scale, "norm.bias": shift}, (weight, bias))

    parameters = (conv.weight, conv.bias, fold.norm.weight, fold.norm.bias)
    assert torch.autograd.gradcheck(folded, tuple(p.detach().requires_grad_() for p in parameters))


def test_norms_that_follow_their_batches_are_left_to_do_so() -> None:
    alone, other = (_backbone("resnet18") for _ in range(2))
    convolutions = find_convolutions(other, side=SIDE)
    expected = alone.train()(_images())
    with standing_in(convolutions):
        torch.testing.assert_close(other.train()(_images()), expected)
    for followed, tensor in zip(alone.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(tensor, followed)


class _ReadTwice(nn.Module):
    """What the convolution gives is read by its norm and by a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        made = self.conv(images)
        return (self.norm(made) + made).mean(dim=(2, 3))


def test_a_norm_is_not_folded_where_something_else_reads_what_it_takes() -> None:
    assert not list(find_convolutions(_restless(_ReadTwice()).eval(), side=8))
    assert not list(find_convolutions(_backbone("squeezenet1_1"), side=SIDE)), "it has no norms"


def test_a_norm_that_is_given_anything_else_than_its_convolution_made_is_itself() -> None:
    conv, norm = nn.Conv2d(3, 4, 1), _restless_norm(nn.BatchNorm2d(4))
    other = torch.randn(2, 4, 3, 3)
    with standing_in([Convolution(conv, norm)]):
        made = norm(other)
    torch.testing.assert_close(made, norm(other))


def test_the_modules_are_as_they_were_even_after_a_failure() -> None:
    module = _backbone("resnet18")
    convolutions = find_convolutions(module, side=SIDE)
    with pytest.raises(RuntimeError, match="channels"), standing_in(convolutions):
        module(torch.zeros(1, 5, SIDE, SIDE))
    assert all("forward" not in vars(each) for each in module.modules())


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 1)])
def test_depthwise_convolutions_in_bfloat16_have_the_gradients_of_float32(kernel, stride, monkeypatch) -> None:
    kinds: list[torch.dtype] = []
    backward = torch.ops.aten.convolution_backward

    def note(gradient: Tensor, *others: object) -> object:
        kinds.append(gradient.dtype)
        return backward(gradient, *others)

    monkeypatch.setattr(torch.ops.aten, "convolution_backward", note)
    conv = nn.Conv2d(8, 8, kernel, stride=stride, padding=kernel // 2, groups=8)
    network = nn.Sequential(nn.Conv2d(3, 8, 1), conv, _restless_norm(nn.BatchNorm2d(8)), nn.Flatten())
    generator = torch.Generator().manual_seed(3)
    for each in (network[0], conv):
        each.weight.data.normal_(0, 0.3, generator=generator)
    convolutions = find_convolutions(network, side=12)
    expected, gradients = _learn(network, (), side=12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features, found = _learn(network, convolutions, side=12)
    assert features.dtype == torch.bfloat16
    assert kinds == [torch.float32]
    _assert_close(features.float(), expected, share=2e-2)
    for key, gradient in gradients.items():
        assert found[key].dtype == torch.float32
        _assert_close(found[key], gradient, share=5e-2)


def test_frozen_blocks_get_no_gradient(activated) -> None:
    module = _backbone("mobilenet_v2").requires_grad_(False)
    last = list(module.features[-1].parameters())
    for parameter in last:
        parameter.requires_grad_(True)
    convolutions = find_convolutions(module, side=SIDE)
    assert sum(each.activation is not None for each in convolutions) == 35
    activated.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, found = _learn(module, convolutions)
    assert len(found) == len(last)
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert len(activated) == 34, "all but the last, which learns"


class _ReadBefore(nn.Module):
    """What the norm gives is read by an activation and by a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.activation = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        normed = self.norm(self.conv(images))
        return (self.activation(normed) + normed).mean(dim=(2, 3))


@pytest.fixture
def activated(monkeypatch) -> list[torch.dtype]:
    """Types of the inputs of every convolution that runs with its activation."""
    kinds: list[torch.dtype] = []
    run = Convolution._run_activated

    def note(self: Convolution, inputs: Tensor, *others: Any) -> Tensor:
        kinds.append(inputs.dtype)
        return run(self, inputs, *others)

    monkeypatch.setattr(Convolution, "_run_activated", note)
    return kinds


@pytest.mark.parametrize(("name", "count"), [("mobilenet_v2", 35), ("mobilenet_v3_small", 23), ("efficientnet_b0", 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_part_of_the_convolutions_where_nothing_learns(name, count, dtype, activated) -> None:
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("the processor has no bfloat16")
    module = _backbone(name).requires_grad_(False)
    in_half = {"dtype": dtype, "enabled": dtype == torch.bfloat16}
    with torch.autocast("cpu", **in_half):  # as an extractor may call it
        convolutions = find_convolutions(module, side=SIDE, in_bfloat16=dtype == torch.bfloat16)
    for _ in range(2):
        activated.clear()
        with torch.autocast("cpu", **in_half), standing_in(convolutions):
            found = module(_images())
        assert activated == count * [dtype]
        _assert_close(found.float(), module(_images()), share=1e-4 if dtype == torch.float32 else 5e-2)
        for each in convolutions:  # as a training changes them
            each.conv.weight.mul_(1.1)


def test_in_bfloat16_nothing_is_applied_in_place_unless_the_network_needs_that() -> None:
    module = _backbone("mobilenet_v2")
    for half in (False, True):
        find_convolutions(module, side=SIDE, in_bfloat16=half)
        kinds = [each.inplace for each in module.modules() if isinstance(each, nn.ReLU6)]
        assert kinds == [not half] * 35
    needing = _restless(_ReadAfter()).eval()
    assert not find_convolutions(needing, side=8, in_bfloat16=True)
    assert needing.activation.inplace


class _ReadAfter(nn.Module):
    """What the norm gives is changed in place, and read after that."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.activation = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        normed = self.norm(self.conv(images))
        self.activation(normed)
        return normed.mean(dim=(2, 3))


def test_where_the_operator_is_missing_activations_stay_apart(monkeypatch) -> None:
    module = _backbone("mobilenet_v2").requires_grad_(False)
    expected = module(_images())
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    convolutions = find_convolutions(module, side=SIDE)
    assert {each.activation for each in convolutions} == {None}
    assert sum(each.norm is not None for each in convolutions) == 52
    with torch.autocast("cpu", dtype=torch.bfloat16), standing_in(convolutions):
        _assert_close(module(_images()).float(), expected, share=5e-2)


def test_an_activation_is_not_part_of_a_convolution_where_something_else_reads_its_input() -> None:
    module = _restless(_ReadBefore()).eval()
    convolutions = find_convolutions(module, side=8)
    assert [each.activation for each in convolutions] == [None]
    expected = module(_images(8))
    with torch.no_grad(), standing_in(convolutions):
        _assert_close(module(_images(8)), expected, share=1e-5)
