"""The two loops: early stopping, what they return, and what they refuse."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from index.errors import InputError, RunError
from tests.training.losses.draws import loss_config
from training.backbone.feature_sources import CachedSource
from training.confidence.confidences import Confidences, FixedConfidences, make_confidences
from training.confidence.module import ConfidenceModule
from training.head.embedding_heads import ProjectionHead
from training.head.whitening import fit_within_classes
from training.options.config import ConfidenceConfig, EmbeddingConfig
from training.options.losses import NEEDS_CONFIDENCES, TRAINED_METHODS, LossConfig
from training.run.checkpoint import load_checkpoint
from training.run.fit import fit_confidence, fit_embedding, split_holdout
from training.run.phases import EpochReport, PhaseContext, phase_generator

CLASSES = 3


def _separable(count: int = 60, *, wrong: float = 0.0) -> tuple[CachedSource, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    features = nn.functional.one_hot(labels, 8).float() + 0.3 * torch.randn(count, 8, generator=generator)
    chosen = torch.rand(count, generator=generator) < wrong
    given = torch.where(chosen, (labels + 1) % CLASSES, labels)
    return CachedSource(features[:, None]), given


def _context(path: Path | None, reports: list[EpochReport] | None = None, *, seed: int = 0) -> PhaseContext:
    reports = [] if reports is None else reports
    return PhaseContext(seed=seed, device=torch.device("cpu"), checkpoint=path, on_epoch=reports.append)


def _fit_confidence(path: Path, reports: list[EpochReport], *, wrong: float = 0.0, **options) -> ConfidenceModule:
    source, labels = _separable(wrong=wrong)
    config = ConfidenceConfig(
        **({"confidence_hidden": 16, "confidence_lr": 0.02, "confidence_epochs": 30} | options)
    )
    return fit_confidence(
        source, labels, class_count=CLASSES, config=config, batch_size=16, weight_decay=1e-4,
        context=_context(path, reports),
    )  # fmt: skip


def _confidences_for(method: str, folder: Path) -> Confidences | None:
    """From a module that knows the classes, where the method needs it."""
    if method not in NEEDS_CONFIDENCES:
        return None
    return make_confidences(_fit_confidence(folder / "c", []), _separable()[0])


def test_the_confidence_module_learns_separable_classes(tmp_path: Path) -> None:
    reports: list[EpochReport] = []
    module = _fit_confidence(tmp_path / "c", reports)
    source, labels = _separable()
    confidences = module(source.centre)
    assert (confidences.argmax(dim=1) == labels).float().mean() > 0.95
    assert reports[-1].loss < reports[0].loss / 2
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_the_reported_loss_is_the_mean_over_images_and_classes(tmp_path: Path) -> None:
    reports: list[EpochReport] = []
    _fit_confidence(tmp_path / "c", reports, confidence_epochs=1, confidence_lr=1e-12, holdout=0.2)
    untrained = ConfidenceModule(8, hidden=16, class_count=CLASSES, generator=phase_generator(0, "confidence", 0))
    source, labels = _separable()
    train, held = split_holdout(60, holdout=0.2, seed=0)
    targets = nn.functional.one_hot(labels, CLASSES).float()
    for rows, seen in ((train, reports[0].loss), (held, reports[0].held_out_loss)):
        confidences = untrained(source.centre[rows]).double()
        wanted = targets[rows].double()
        losses = -(wanted * confidences.log() + (1 - wanted) * (1 - confidences).log())
        assert seen == pytest.approx(losses.mean().item(), rel=1e-4)


def test_early_stopping_returns_the_weights_of_the_best_held_out_epoch(tmp_path: Path) -> None:
    reports: list[EpochReport] = []
    options = {"wrong": 0.4, "confidence_lr": 0.05, "patience": 3, "confidence_epochs": 60, "holdout": 0.3}
    module = _fit_confidence(tmp_path / "c", reports, **options)
    losses = [report.held_out_loss for report in reports]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == best + 1 + 3 < 60, "three epochs without a better one end the phase"

    source, labels = _separable(wrong=0.4)
    _, held = split_holdout(60, holdout=0.3, seed=0)
    targets = nn.functional.one_hot(labels, CLASSES).float()
    again = nn.functional.binary_cross_entropy_with_logits(module.logits(source.centre[held]), targets[held])
    assert float(again) == pytest.approx(losses[best], rel=1e-6)
    assert float(again) < losses[-1]


def test_without_a_holdout_every_epoch_runs_and_the_last_weights_are_kept(tmp_path: Path) -> None:
    reports: list[EpochReport] = []
    module = _fit_confidence(tmp_path / "c", reports, holdout=0.0, confidence_epochs=12, patience=1)
    assert len(reports) == 12
    assert all(report.held_out_loss is None for report in reports)
    tensors, _ = load_checkpoint(tmp_path / "c")
    assert all(torch.equal(tensor, tensors[f"module.{name}"]) for name, tensor in module.state_dict().items())


def test_the_held_out_images_are_whole_seeded_and_of_the_asked_share() -> None:
    train, held = split_holdout(101, holdout=0.1, seed=3)
    assert (len(train), len(held)) == (91, 10)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(101))
    assert torch.equal(held, split_holdout(101, holdout=0.1, seed=3)[1])
    assert not torch.equal(held, split_holdout(101, holdout=0.1, seed=4)[1])


def test_a_phase_that_stopped_early_does_not_go_on_when_it_is_resumed(tmp_path: Path) -> None:
    options = {"wrong": 0.4, "confidence_lr": 0.05, "patience": 2, "confidence_epochs": 60, "holdout": 0.3}
    reports: list[EpochReport] = []
    module = _fit_confidence(tmp_path / "c", reports, **options)
    again: list[EpochReport] = []
    resumed = _fit_confidence(tmp_path / "c", again, **options)
    assert again == []
    assert all(torch.equal(t, resumed.state_dict()[name]) for name, t in module.state_dict().items())


def test_held_out_images_rejoin_in_phase_two(tmp_path: Path) -> None:
    source, labels = _separable()
    reports: list[EpochReport] = []
    seen: list[int] = []

    class Counting(CachedSource):
        def batch(self, rows, *, generator):
            seen.extend(rows.tolist())
            return super().batch(rows, generator=generator)

    fit_embedding(
        Counting(source.centre[:, None]), labels, class_count=CLASSES, loss_config=LossConfig(method="proxy-anchor"),
        config=EmbeddingConfig(embedding_dim=4, epochs=2, batch_size=16), confidences=None,
        context=_context(tmp_path / "e", reports),
    )  # fmt: skip
    assert sorted(seen) == sorted([*range(60), *range(60)])
    assert reports[0].positives_per_sample is None


def test_phase_two_refuses_to_start_without_a_trained_confidence_module(tmp_path: Path) -> None:
    source, labels = _separable()
    with pytest.raises(ValueError, match="spa needs the confidence module"):
        fit_embedding(
            source, labels, class_count=CLASSES, loss_config=LossConfig(),
            config=EmbeddingConfig(epochs=1), confidences=None, context=_context(tmp_path / "e"),
        )  # fmt: skip
    assert not (tmp_path / "e").exists()


def test_smooth_proxy_anchor_does_not_look_at_the_given_labels_in_phase_two(tmp_path: Path) -> None:
    source, labels = _separable()
    confidences = _confidences_for("spa", tmp_path)
    heads = []
    for number, used in enumerate((labels, labels.flip(0))):
        head = fit_embedding(
            source, used, class_count=CLASSES, loss_config=LossConfig(),
            config=EmbeddingConfig(embedding_dim=4, epochs=3, batch_size=16), confidences=confidences,
            context=_context(tmp_path / f"e{number}"),
        )  # fmt: skip
        heads.append(head.linear.weight)
    assert torch.equal(*heads)


def test_positives_are_counted_as_confidences_above_lambda(tmp_path: Path) -> None:
    source, labels = _separable()
    reports: list[EpochReport] = []
    module = _fit_confidence(tmp_path / "c", [])
    confidences = make_confidences(module, source)
    fit_embedding(
        source, labels, class_count=CLASSES, loss_config=loss_config("spa", lambda_=0.6),
        config=EmbeddingConfig(embedding_dim=4, epochs=1, batch_size=7), confidences=confidences,
        context=_context(tmp_path / "e", reports),
    )  # fmt: skip
    chosen = module(source.centre) > 0.6
    assert reports[0].positives_per_sample == pytest.approx(float(chosen.sum()) / 60)
    assert reports[0].share_without_positive == pytest.approx(float((~chosen.any(dim=1)).float().mean()))
    assert 0 < reports[0].positives_per_sample < CLASSES


@pytest.mark.parametrize("method", TRAINED_METHODS)
def test_phase_two_pulls_the_classes_apart(tmp_path: Path, method: str) -> None:
    source, labels = _separable()
    confidences = _confidences_for(method, tmp_path)
    reports: list[EpochReport] = []
    head = fit_embedding(
        source, labels, class_count=CLASSES, loss_config=LossConfig(method=method),
        config=EmbeddingConfig(embedding_dim=4, epochs=30, batch_size=16, lr=0.01), confidences=confidences,
        context=_context(None, reports),
    )  # fmt: skip
    rows = head(source.centre)
    cosines = rows @ rows.T
    same = labels[:, None] == labels
    assert cosines[same].mean() > cosines[~same].mean() + 0.5
    assert reports[-1].loss < reports[0].loss
    assert (reports[0].positives_per_sample is None) == (method not in NEEDS_CONFIDENCES)


@pytest.mark.parametrize("method", ["spa", "procsim", "multi-similarity"])
def test_leaving_rows_out_trains_as_if_they_had_never_been_there(tmp_path: Path, method: str) -> None:
    source, labels = _separable(wrong=0.3)
    confidences = _confidences_for(method, tmp_path)
    rows = torch.tensor([row for row in range(60) if row % 4 != 1])

    def fit(
        source: CachedSource, labels: torch.Tensor, confidences: Confidences | None, **options
    ) -> torch.Tensor:
        return fit_embedding(
            source, labels, class_count=CLASSES, loss_config=LossConfig(method=method),
            config=EmbeddingConfig(embedding_dim=4, epochs=3, batch_size=16, lr=0.01), confidences=confidences,
            context=_context(None), **options,
        ).linear.weight  # fmt: skip

    kept = None if confidences is None else FixedConfidences(confidences.batch(rows, source.centre[rows]))
    without = fit(CachedSource(source.centre[rows][:, None]), labels[rows], kept)
    assert torch.equal(fit(source, labels, confidences, rows=rows), without)
    assert not torch.equal(fit(source, labels, confidences), without)
    assert torch.equal(fit(source, labels, confidences), fit(source, labels, confidences, rows=torch.arange(60)))


def test_positives_and_speed_count_only_the_images_that_take_part(tmp_path: Path) -> None:
    source, labels = _separable()
    reports: list[EpochReport] = []
    values = torch.zeros(60, CLASSES)
    values[:10, :2] = 1
    fit_embedding(
        source, labels, class_count=CLASSES, loss_config=LossConfig(), rows=torch.arange(20),
        config=EmbeddingConfig(embedding_dim=4, epochs=1, batch_size=7), confidences=FixedConfidences(values),
        context=_context(None, reports),
    )  # fmt: skip
    assert reports[0].positives_per_sample == 1
    assert reports[0].share_without_positive == 0.5
    assert reports[0].images_per_second == pytest.approx(20 / reports[0].seconds)


def test_phase_two_without_a_single_image_is_refused_and_names_the_option(tmp_path: Path) -> None:
    source, labels = _separable()
    with pytest.raises(RunError, match=r"no training image is left for phase 2: .*--min-confidence"):
        fit_embedding(
            source, labels, class_count=CLASSES, loss_config=LossConfig(method="proxy-anchor"),
            config=EmbeddingConfig(epochs=1), confidences=None, context=_context(tmp_path / "e"),
            rows=torch.arange(0),
        )  # fmt: skip
    assert not (tmp_path / "e").exists()


def test_without_a_checkpoint_the_same_weights_come_out_and_nothing_is_kept(tmp_path: Path) -> None:
    source, labels = _separable()
    heads = [
        fit_embedding(
            source, labels, class_count=CLASSES, loss_config=LossConfig(method="proxy-anchor"),
            config=EmbeddingConfig(embedding_dim=4, epochs=2, batch_size=16), confidences=None,
            context=_context(checkpoint),
        )
        for checkpoint in (None, tmp_path / "e")
    ]  # fmt: skip
    assert torch.equal(heads[0].linear.weight, heads[1].linear.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


def test_every_option_of_the_optimizer_reaches_its_weights(tmp_path: Path) -> None:
    source, labels = _separable()

    def fit(name: str, **changes: float) -> dict[str, torch.Tensor]:
        options = {
            "embedding_dim": 4,
            "epochs": 2,
            "batch_size": 16,
            "lr": 0.01,
            "proxy_lr": 0.02,
            "weight_decay": 0.1,
        }
        fit_embedding(
            source, labels, class_count=CLASSES, loss_config=LossConfig(method="proxy-anchor"),
            config=EmbeddingConfig(**(options | changes)), confidences=None, context=_context(tmp_path / name),
        )  # fmt: skip
        return load_checkpoint(tmp_path / name)[0]

    base, start = fit("base"), fit("start", lr=1e-30, proxy_lr=1e-30)
    slow_head, slow_proxies = fit("head", lr=1e-30), fit("proxies", proxy_lr=1e-30)
    for name in ("head.linear.weight", "loss.proxies"):
        assert not torch.equal(base[name], start[name])
        assert not torch.equal(base[name], fit(f"decay-{name}", weight_decay=0.0)[name])
    assert torch.equal(slow_head["head.linear.weight"], start["head.linear.weight"])
    assert torch.equal(slow_proxies["loss.proxies"], start["loss.proxies"])
    assert not torch.equal(slow_proxies["head.linear.weight"], start["head.linear.weight"])
    assert not torch.equal(slow_head["loss.proxies"], start["loss.proxies"])


def test_a_training_that_diverges_stops_and_says_what_to_change(tmp_path: Path) -> None:
    source, labels = _separable()
    broken = CachedSource(source.centre[:, None] * float("nan"))
    with pytest.raises(RunError, match="the embedding loss of epoch 1 is nan; lower the learning rate"):
        fit_embedding(
            broken, labels, class_count=CLASSES, loss_config=LossConfig(method="proxy-anchor"),
            config=EmbeddingConfig(embedding_dim=4, epochs=2, batch_size=16), confidences=None,
            context=_context(tmp_path / "e"),
        )  # fmt: skip
    assert not (tmp_path / "e").exists()


class _CountingSource(CachedSource):
    """Notes how many images every step asks for."""

    def __init__(self, views: torch.Tensor) -> None:
        super().__init__(views)
        self.drawn: list[list[int]] = []

    def batch(self, rows, *, generator):
        self.drawn.append(rows.tolist())
        return super().batch(rows, generator=generator)


def _fit_whitened(path: Path | None = None, *, method: str = "proxy-nca", **changes) -> ProjectionHead:
    source, labels = _separable(wrong=0.2)
    options = {"embedding_dim": 4, "epochs": 3, "batch_size": 16, "lr": 0.01, "start": "whitened", "hold": 0.1}
    weights = {"sample_weights": "confidence"} if method == "proxy-nca" else {}
    head = fit_embedding(
        changes.pop("source", source), labels, class_count=CLASSES, confidences=None,
        loss_config=loss_config(method, **weights), own=changes.pop("own", _own()),
        context=changes.pop("context", _context(path)), config=EmbeddingConfig(**(options | changes)),
    )  # fmt: skip
    assert isinstance(head, ProjectionHead)
    return head


def _own() -> torch.Tensor:
    return torch.rand(60, generator=torch.Generator().manual_seed(5))


def _whitened_start() -> torch.Tensor:
    source, labels = _separable(wrong=0.2)
    own = _own().numpy()
    projection = fit_within_classes(source.centre.numpy(), labels.numpy(), weights=own, embedding_dim=4)
    return torch.from_numpy(projection.weight[:4])


def test_what_is_projected_once_trains_as_what_is_projected_in_every_step() -> None:
    source, labels = _separable()
    heads = [
        fit_embedding(
            CachedSource(source.centre[:, None].expand(-1, views, -1)), labels, class_count=CLASSES,
            loss_config=LossConfig(method="proxy-nca"), confidences=None, context=_context(None), own=_own(),
            config=EmbeddingConfig(embedding_dim=2, start="whitened", hold=0.1, lr=0.05, epochs=5, batch_size=16),
        )
        for views in (1, 2)  # two views that are one: they are drawn, and projected when they are
    ]  # fmt: skip
    for name in ("weight", "bias"):
        torch.testing.assert_close(*(head.state_dict()[name] for head in heads))


def test_a_firmly_held_head_stays_where_it_started_and_a_free_one_leaves() -> None:
    start = _whitened_start()
    moved = {
        hold: ((_fit_whitened(hold=hold, epochs=30).weight - start).norm() / start.norm()).item()
        for hold in (0.0, 0.1, 1e6)
    }
    assert moved[1e6] < 0.01 < moved[0.1] < moved[0.0]


@pytest.mark.parametrize(("steps", "start"), [(1, "random"), (4, "whitened"), (11, "random"), (11, "whitened")])
def test_exactly_the_steps_that_are_asked_for_are_taken(steps: int, start: str) -> None:
    source, reports = _CountingSource(_separable()[0].centre[:, None]), []
    _, labels = _separable()
    fit_embedding(
        source, labels, class_count=CLASSES, confidences=None, loss_config=LossConfig(method="proxy-nca"),
        own=_own(), context=_context(None, reports),
        config=EmbeddingConfig(embedding_dim=4, batch_size=16, steps=steps, start=start, epochs=1),
    )  # fmt: skip
    whole, rest = divmod(steps, 4)  # four batches an epoch
    assert len(source.drawn) == steps
    assert [report.epoch for report in reports] == list(range(1, whole + (rest > 0) + 1))
    assert {report.epochs for report in reports} == {len(reports)}
    for epoch in range(whole):
        rows = itertools.chain.from_iterable(source.drawn[4 * epoch : 4 * epoch + 4])
        assert sorted(rows) == list(range(60)), "every image once an epoch"
    seen = [sum(map(len, source.drawn[4 * n : 4 * n + 4])) for n in range(len(reports))]
    assert [round(report.images_per_second * report.seconds) for report in reports] == seen


def test_steps_that_make_whole_epochs_are_those_epochs() -> None:
    assert torch.equal(_fit_whitened(steps=12).weight, _fit_whitened(epochs=3).weight)
    assert not torch.equal(_fit_whitened(steps=11).weight, _fit_whitened(epochs=3).weight)


@pytest.mark.parametrize("method", ["proxy-nca", "multi-similarity"])
def test_a_held_phase_interrupted_after_any_epoch_goes_on_to_the_same_bits(tmp_path: Path, method: str) -> None:
    class StopError(Exception):
        pass

    seen: list[int] = []

    def stop_at_news(epoch: int) -> None:
        if epoch not in seen:
            seen.append(epoch)
            raise StopError

    def fit(path: Path, on_epoch) -> ProjectionHead:
        context = PhaseContext(seed=0, device=torch.device("cpu"), checkpoint=path, on_epoch=on_epoch)
        together = 4 if method == "multi-similarity" else 0
        return _fit_whitened(method=method, steps=11, images_per_class=together, context=context)

    straight = fit(tmp_path / "straight", lambda report: None)
    for _ in range(3):
        with pytest.raises(StopError):
            fit(tmp_path / "e", lambda report: stop_at_news(report.epoch))
    head = fit(tmp_path / "e", lambda report: stop_at_news(report.epoch))
    assert seen == [1, 2, 3]
    assert torch.equal(head.weight, straight.weight)
    assert torch.equal(head.bias, straight.bias)
    again = fit(tmp_path / "e", lambda report: pytest.fail("nothing is left to train"))
    assert torch.equal(again.weight, straight.weight)


def test_images_that_nobody_believes_may_show_anything() -> None:
    own = _own()
    own[::6] = 0
    source, labels = _separable(wrong=0.2)
    other = source.centre.clone()
    other[::6] = torch.randn(10, 8, generator=torch.Generator().manual_seed(9))

    def fit(features: torch.Tensor) -> torch.Tensor:
        return fit_embedding(
            CachedSource(features[:, None]), labels, class_count=CLASSES, confidences=None, own=own,
            loss_config=loss_config("proxy-nca", sample_weights="confidence"), context=_context(None),
            config=EmbeddingConfig(embedding_dim=4, epochs=3, batch_size=16, lr=0.01),
        ).linear.weight  # fmt: skip

    assert torch.equal(fit(source.centre), fit(other))
    believed = other.clone()
    believed[1] += 1
    assert not torch.equal(fit(other), fit(believed))


def test_the_weight_of_a_sample_is_the_confidence_in_its_own_label() -> None:
    assert not torch.equal(_fit_whitened().weight, _fit_whitened(own=_own().flip(0)).weight)
    halved = _fit_whitened(own=_own() / 2)
    torch.testing.assert_close(_fit_whitened().weight, halved.weight, msg="only shares matter")


@pytest.mark.parametrize("changes", [{"start": "whitened"}, {"sample_weights": "confidence"}])
def test_a_whitened_start_and_sample_weights_refuse_to_begin_without_confidences(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    source, labels = _separable()
    with pytest.raises(ValueError, match="sample weights and a whitened start need the confidences"):
        fit_embedding(
            source, labels, class_count=CLASSES, confidences=None, context=_context(tmp_path / "e"),
            loss_config=loss_config("proxy-nca", sample_weights=changes.get("sample_weights", "none")),
            config=EmbeddingConfig(embedding_dim=4, start=changes.get("start", "random")),
        )  # fmt: skip
    assert not (tmp_path / "e").exists()


def test_a_whitened_start_wider_than_the_images_span_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"--embedding-dim 9 .*at most 8 directions"):
        _fit_whitened(embedding_dim=9)


def test_the_reported_loss_holds_what_the_hold_costs() -> None:
    reports: dict[float, list[EpochReport]] = {0.0: [], 5.0: []}
    for hold, found in reports.items():
        _fit_whitened(hold=hold, epochs=1, batch_size=60, context=_context(None, found))
    assert reports[0.0][0].loss == reports[5.0][0].loss, (
        "the first step is taken at the start, where nothing drifts"
    )
    for hold, found in reports.items():
        _fit_whitened(hold=hold, epochs=1, lr=0.1, context=_context(None, found))
    assert reports[5.0][1].loss > reports[0.0][1].loss
