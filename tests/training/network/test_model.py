"""The model in training: gradients reach what is unfrozen and nothing else, statistics stay, the result is a run's."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from index.images.preprocess import PreprocessConfig
from tests.training.losses.draws import make_loss
from training.backbone.backbones import load_backbone, with_features
from training.backbone.extract import Extractor
from training.head.embedding_heads import ProjectionHead
from training.losses.interface import Batch
from training.network.model import NetworkModel, choose_blocks, find_blocks
from training.options.finetuning import FinetuneConfig
from training.run.finetuning import inputs as network_inputs
from training.run.finetuning.fit import (
    average_weights,
    backward_in_chunks,
    copy_weights,
    hold_near_start,
    load_weights,
    make_optimizer,
    rate_share,
    set_rates,
    using_weights,
)
from training.run.finetuning.inputs import choose_precision
from training.run.finetuning.selection import interpolate_weights

SIDE = 32


def make_model(
    name: str = "mobilenet_v3_small",
    *,
    last: int | None = 2,
    view: str = "crop",
    pooling: str = "own",
    side: int = SIDE,
    **others,
) -> NetworkModel:
    backbone = load_backbone(name, "none", seed=1)
    if (view, pooling) != ("crop", "own"):
        backbone = with_features(backbone, view=view, pooling=pooling, side=side)
    extractor = Extractor(backbone, PreprocessConfig(side, side), device=torch.device("cpu"), precision="float32")
    blocks = choose_blocks(find_blocks(backbone, side=80 if view == "both" else side), last=last, name=name)
    weight = torch.randn(4, backbone.feature_dim, generator=torch.Generator().manual_seed(0))
    return NetworkModel(
        backbone,
        ProjectionHead(weight, torch.zeros(4)),
        blocks,
        whole=last is None,
        mean=extractor.mean,
        std=extractor.std,
        **others,
    )


def some_images(count: int = 4, side: int = SIDE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(256, (count, side, side, 3), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(("name", "last"), [("mobilenet_v3_small", 2), ("squeezenet1_1", 1), ("squeezenet1_1", None)])
def test_gradients_reach_the_head_and_the_unfrozen_blocks_and_nothing_else(name: str, last: int | None) -> None:
    model = make_model(name, last=last)
    network = load_backbone(name, "none").network
    blocks = find_blocks(load_backbone(name, "none"), side=SIDE)
    modules = [module for block in (blocks if last is None else blocks[-last:]) for module in block.names]
    expected = {f"backbone.{m}.{n}" for m in modules for n, _ in network.get_submodule(m).named_parameters()}
    target = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    (model(some_images()) * target).sum().backward()
    found = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert found <= expected | {"head.weight", "head.bias"}
    wanted = {n for n, p in model.named_parameters() if p.requires_grad}
    assert wanted == expected | {"head.weight", "head.bias"} == set(model.moving())
    assert len(found) > 0.8 * len(wanted), "but for what ReLUs happen to close"


@pytest.mark.parametrize(("view", "pooling"), [("crop", "gem"), ("both", "layers")])
def test_gradients_flow_through_views_and_poolings_of_ours(view: str, pooling: str) -> None:
    model = make_model("resnet18", last=2, view=view, pooling=pooling, side=64)
    model(some_images(side=80 if view == "both" else 64))[:, 0].sum().backward()
    got = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    reached = [block for block in ("layer3.1", "layer4.0", "layer4.1") if any(f".{block}." in name for name in got)]
    assert reached == ["layer4.0", "layer4.1"]


def _statistics(model: NetworkModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.named_buffers()}


def test_frozen_statistics_of_batch_norm_do_not_move_while_the_model_learns() -> None:
    model = make_model(last=None)
    before = _statistics(model)
    model(some_images())
    assert all(torch.equal(tensor, before[name]) for name, tensor in _statistics(model).items())
    assert not any(module.training for module in model.backbone.modules())


def test_the_model_embeds_as_extractor_and_head_do() -> None:
    backbone = load_backbone("squeezenet1_1", "none", seed=1)
    sizes = PreprocessConfig(SIDE, SIDE)
    extractor = Extractor(backbone, sizes, device=torch.device("cpu"), precision="float32")
    head = ProjectionHead(torch.randn(4, 512), torch.randn(4))
    model = NetworkModel(backbone, head, [], whole=False, mean=extractor.mean, std=extractor.std)
    images = some_images()
    with torch.no_grad():
        torch.testing.assert_close(model(images), head(extractor.extract(images.numpy())))


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_inputs, "resolve_precision", lambda *_: torch.bfloat16)


def test_hardware_without_bfloat16_is_not_asked(monkeypatch) -> None:
    monkeypatch.setattr(network_inputs, "resolve_precision", lambda *_: torch.float32)
    monkeypatch.setattr(network_inputs, "time_step", lambda *_: pytest.fail("it would take minutes"))
    assert choose_precision(make_model(), some_images()) == "float32"


def test_a_measurement_names_a_precision_and_leaves_the_model_as_it_was(native: None) -> None:
    model = make_model(last=2)
    before = {name: tensor.clone() for name, tensor in model.moving().items()}
    assert choose_precision(model, some_images()) in ("float32", "bfloat16")
    assert model.precision == torch.float32
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.moving().items())


def test_the_faster_one_is_chosen(native: None, monkeypatch) -> None:
    seconds = {torch.float32: 2.0, torch.bfloat16: 1.0}
    monkeypatch.setattr(network_inputs, "time_step", lambda model, _: seconds[model.precision])
    assert choose_precision(make_model(), some_images()) == "bfloat16"
    seconds[torch.float32] = 0.5
    assert choose_precision(make_model(), some_images()) == "float32"


def test_in_half_precision_embeddings_are_float32_and_nearly_the_same() -> None:
    model, images = make_model("squeezenet1_1"), some_images()
    with torch.no_grad():
        full = model(images)
        model.precision = torch.bfloat16
        half = model(images)
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    assert torch.nn.functional.cosine_similarity(half, full).min() > 0.95


CONFIG = FinetuneConfig(finetune="last-3", lr=1e-3, layer_decay=0.5, finetune_head_lr=0.02)


def _optimizer(model, loss) -> torch.optim.AdamW:
    return make_optimizer(model, loss, CONFIG, proxy_lr=0.1, weight_decay=1e-4)


def test_every_moving_parameter_has_one_rate_by_its_block() -> None:
    model, loss = make_model(last=3), make_loss("proxy-anchor", width=4)
    optimizer = _optimizer(model, loss)
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    moving = [p for p in model.parameters() if p.requires_grad]
    assert sorted(map(id, listed)) == sorted(map(id, [*moving, *loss.parameters()]))
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([1e-3, 5e-4, 2.5e-4, 0.02, 0.1])
    last = {id(p) for p in optimizer.param_groups[0]["params"]}
    assert last == {id(p) for n, p in model.named_parameters() if n.startswith("backbone.classifier.0.")}
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    assert decays == [0, 0, 0, 1e-4, 1e-4], "the network is held near its start instead"


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_rates_rise_over_a_tenth_then_fall_and_never_reach_nothing(steps: int) -> None:
    shares = [rate_share(step, steps) for step in range(steps)]
    top = max(1, round(0.1 * steps)) - 1
    assert shares[top] == max(shares) == 1
    assert all(a < b for a, b in pairwise(shares[: top + 1]))
    assert all(a > b for a, b in pairwise(shares[top:]))
    assert min(shares) > 0


def test_the_rates_of_a_step_keep_their_proportions() -> None:
    optimizer = _optimizer(make_model(last=3), make_loss("proxy-anchor", width=4))
    set_rates(optimizer, step=40, steps=100)
    share = rate_share(40, 100)
    expected = [share * rate for rate in (1e-3, 5e-4, 2.5e-4, 0.02, 0.1)]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected)


def test_the_penalty_adds_the_gradient_of_the_squared_distance() -> None:
    model = make_model(last=2)
    parameters = [p for level in model.levels for p in level]
    start = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    loss = model(some_images())[:, 0].sum()
    distance = sum((p - s).square().sum() for p, s in zip(parameters, start, strict=True))
    expected = torch.autograd.grad(loss + 0.3 * distance, parameters, retain_graph=True)
    loss.backward()
    hold_near_start(parameters, start, weight=0.3)
    for parameter, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted)


def _shake(model: NetworkModel, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.moving().values():
        if tensor.is_floating_point():
            tensor.add_(torch.randn(tensor.shape, generator=generator))


@pytest.fixture
def model() -> NetworkModel:
    return make_model(last=2)


def test_the_average_is_that_of_a_loop(model: NetworkModel) -> None:
    average = copy_weights(model)
    expected = {name: tensor.double() for name, tensor in average.items()}
    for step in range(30):
        _shake(model, step)
        average_weights(average, model.moving(), keep=0.7, step=step)
        keep = min(0.7, (step + 1) / (step + 10))
        for name, tensor in model.moving().items():
            counts = not tensor.is_floating_point()
            expected[name] = tensor.double() if counts else keep * expected[name] + (1 - keep) * tensor.double()
    for name, tensor in average.items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-4, atol=1e-5)


def test_the_way_between_two_has_both_ends_exactly(model: NetworkModel) -> None:
    start = copy_weights(model)
    _shake(model, 1)
    trained = copy_weights(model)
    nothing, half, whole = (interpolate_weights(start, trained, share) for share in (0, 0.5, 1))
    for name, tensor in start.items():
        if tensor.is_floating_point():
            assert torch.equal(nothing[name], tensor)
            assert torch.equal(whole[name], trained[name])
            torch.testing.assert_close(half[name], (tensor + trained[name]) / 2)


def test_copies_stay_when_the_model_moves_and_its_own_come_back_even_after_an_error(model: NetworkModel) -> None:
    images = some_images()
    with torch.no_grad():
        before, start = model(images), copy_weights(model)
        _shake(model, 2)
        moved = copy_weights(model)
        with using_weights(model, start):
            assert torch.equal(model(images), before)
        with pytest.raises(RuntimeError), using_weights(model, start):
            raise RuntimeError
        assert all(torch.equal(tensor, moved[name]) for name, tensor in model.moving().items())
        assert not torch.equal(model(images), before)
        load_weights(model, start)
        assert torch.equal(model(images), before)


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0])


def draw_rows(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class _Rows(nn.Module):
    """A tiny float64 network, each row by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(draw_rows(*parameter.shape, seed=number))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.layers(rows))


@pytest.mark.parametrize("chunk", [1, 3, 6])
@pytest.mark.parametrize("method", ["proxy-anchor", "multi-similarity"])
def test_gradients_are_those_of_the_whole_batch(method: str, chunk: int) -> None:
    rows, model = draw_rows(7, 5, seed=9), _Rows()
    loss = make_loss(method, seed=1).double()
    batch = Batch(LABELS)
    tensors = [*model.parameters(), *loss.parameters()]
    whole_loss = loss(model(rows), batch)
    expected = torch.autograd.grad(whole_loss, tensors, allow_unused=True)
    found_loss = backward_in_chunks(model, rows, lambda embeddings: loss(embeddings, batch), chunk=chunk)
    torch.testing.assert_close(found_loss, whole_loss.detach(), rtol=1e-12, atol=0)
    for tensor, gradient in zip(tensors, expected, strict=True):
        if gradient is not None:
            torch.testing.assert_close(tensor.grad, gradient, rtol=1e-9, atol=1e-12)
    assert any(gradient is not None and gradient.abs().max() > 1e-6 for gradient in expected)


def test_the_largest_chunk_passes_whole_and_no_image_passes_more_than_once_with_gradients() -> None:
    seen: list[tuple[int, bool]] = []

    class Watched(_Rows):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            seen.append((len(rows), torch.is_grad_enabled()))
            return super().forward(rows)

    rows = draw_rows(7, 5, seed=9)
    backward_in_chunks(Watched(), rows, lambda embeddings: embeddings[:, 0].sum(), chunk=None)
    backward_in_chunks(Watched(), rows, lambda embeddings: embeddings[:, 0].sum(), chunk=7)
    assert seen == [(7, True), (7, True)]
    seen.clear()
    backward_in_chunks(Watched(), rows, lambda embeddings: embeddings[:, 0].sum(), chunk=3)
    assert seen == [(3, False), (3, False), (1, False), (3, True), (3, True), (1, True)]
