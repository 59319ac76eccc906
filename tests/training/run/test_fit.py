"""The two loops: early stopping, what they return, and what they refuse."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from index.errors import InputError, RunError
from tests.training.conftest import make_config
from tests.training.losses.draws import loss_config
from training.confidence.confidences import (
    ConfidenceModule,
    Confidences,
    LabelConfidences,
    confidences_of_module,
    take_rows,
)
from training.head.embedding_heads import Head
from training.head.untrained import fit_within_classes
from training.options.config import HeadConfig
from training.options.losses import LOSSES, NEEDS_CONFIDENCES
from training.run import fit
from training.run.checkpoint import load_checkpoint
from training.run.fit import HeadPlan, HeadTraining
from training.run.label_confidences import fit_confidence, split_holdout
from training.run.phases import EpochReport, PhaseContext, draw_batches, phase_generator

CLASSES = 3
NOISY = {"wrong": 0.4, "confidence_lr": 0.05, "confidence_epochs": 60, "confidence_val_share": 0.3}


class StopError(Exception):
    """Ends a phase."""


def separable(count: int = 60, *, wrong: float = 0.0) -> tuple[Tensor, Tensor]:
    """Features (N, 8) of three classes that can be told, and labels of which a share is wrong."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % CLASSES
    features = nn.functional.one_hot(labels, 8).float() + 0.3 * torch.randn(count, 8, generator=generator)
    chosen = torch.rand(count, generator=generator) < wrong
    return features, torch.where(chosen, (labels + 1) % CLASSES, labels)


def _context(path: Path | None = None, on_epoch: Any = lambda report: None) -> PhaseContext:
    return PhaseContext(seed=0, device=torch.device("cpu"), checkpoint=path, on_epoch=on_epoch)


def _fit_confidence(path: Path, *, wrong: float = 0.0, **options: Any) -> tuple[ConfidenceModule, list[EpochReport]]:
    (source, labels), reports = separable(wrong=wrong), list[EpochReport]()
    config = HeadConfig(
        **({"confidence_hidden": 16, "confidence_lr": 0.02, "confidence_epochs": 30, "head_batch_size": 16} | options)
    )
    module = fit_confidence(source, labels, class_count=CLASSES, config=config, context=_context(path, reports.append))
    return module, reports


def _confidences_for(method: str, folder: Path) -> Confidences | None:
    """From a module that knows the classes, where the method needs it."""
    if method not in NEEDS_CONFIDENCES:
        return None
    return confidences_of_module(_fit_confidence(folder / "c")[0], *separable()).by_class


def _fit(
    path: Path | None = None, *, method: str = "proxy-anchor", loss: dict[str, Any] | None = None, **changes: Any
) -> tuple[Head, list[EpochReport]]:
    """Phase 2 on `separable`, with any argument or option of the head changed by name."""
    source, labels = separable(wrong=changes.pop("wrong", 0.0))
    reports: list[EpochReport] = []
    given = {
        "confidences": None,
        "source": source,
        "labels": labels,
        "context": _context(path, reports.append),
        "rows": None,
        "own": None,
    }
    given = {name: changes.pop(name, value) for name, value in given.items()}
    options = {"embedding_dim": 4, "head_epochs": 3, "head_batch_size": 16, "head_lr": 0.01} | changes
    config = replace(make_config(), loss=loss_config(method, **(loss or {})), head=HeadConfig(**options))
    by_class, own, confidences = given["confidences"], given["own"], None
    if by_class is not None or own is not None:
        by_class = torch.ones(60, CLASSES) if by_class is None else by_class
        confidences = LabelConfidences(torch.ones(60) if own is None else own, by_class, CLASSES)
    plan = HeadPlan(config.head.width, config.head.l2_sp or 0.0)
    training = HeadTraining(
        given["source"], given["labels"], CLASSES, config, plan, given["context"], confidences, rows=given["rows"]
    )
    return training.train(), reports


def _own() -> Tensor:
    return torch.rand(60, generator=torch.Generator().manual_seed(5))


def _fit_whitened(path: Path | None = None, *, method: str = "proxy-nca", **changes: Any) -> Head:
    options = {"init": "wccn", "l2_sp": 0.1, "own": _own(), "wrong": 0.2} | changes
    return _fit(path, method=method, **options)[0]


def test_the_confidence_module_learns_separable_classes_and_every_epoch_runs(tmp_path: Path) -> None:
    module, reports = _fit_confidence(tmp_path / "c", confidence_val_share=0.0, confidence_patience=1)
    source, labels = separable()
    assert (module(source).argmax(dim=1) == labels).float().mean() > 0.95
    assert reports[-1].loss < reports[0].loss / 2
    assert [report.held_out_loss for report in reports] == [None] * 30
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    tensors, _ = load_checkpoint(tmp_path / "c")
    assert all(torch.equal(tensor, tensors[f"module.{name}"]) for name, tensor in module.state_dict().items())


def test_the_reported_loss_is_the_mean_over_images_and_classes(tmp_path: Path) -> None:
    _, reports = _fit_confidence(tmp_path / "c", confidence_epochs=1, confidence_lr=1e-12, confidence_val_share=0.2)
    untrained = ConfidenceModule(8, hidden=16, class_count=CLASSES, generator=phase_generator(0, "confidence", 0))
    source, labels = separable()
    train, held = split_holdout(60, holdout=0.2, seed=0)
    targets = nn.functional.one_hot(labels, CLASSES).double()
    for rows, seen in ((train, reports[0].loss), (held, reports[0].held_out_loss)):
        confidences, wanted = untrained(source[rows]).double(), targets[rows]
        losses = -(wanted * confidences.log() + (1 - wanted) * (1 - confidences).log())
        assert seen == pytest.approx(losses.mean().item(), rel=1e-4)


def test_early_stopping_returns_the_weights_of_the_best_held_out_epoch_and_stays_stopped(tmp_path: Path) -> None:
    module, reports = _fit_confidence(tmp_path / "c", confidence_patience=3, **NOISY)
    losses = [report.held_out_loss for report in reports]
    best = min(range(len(losses)), key=losses.__getitem__)
    assert len(losses) == best + 1 + 3 < 60, "three epochs without a better one end the phase"
    source, labels = separable(wrong=0.4)
    _, held = split_holdout(60, holdout=0.3, seed=0)
    targets = nn.functional.one_hot(labels, CLASSES).float()
    again = nn.functional.binary_cross_entropy_with_logits(module.logits(source[held]), targets[held])
    assert float(again) == pytest.approx(losses[best], rel=1e-6)
    assert float(again) < losses[-1]
    resumed, more = _fit_confidence(tmp_path / "c", confidence_patience=3, **NOISY)
    assert more == []
    assert all(torch.equal(t, resumed.state_dict()[name]) for name, t in module.state_dict().items())


def test_the_held_out_images_are_whole_seeded_and_of_the_asked_share() -> None:
    train, held = split_holdout(101, holdout=0.1, seed=3)
    assert (len(train), len(held)) == (91, 10)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(101))
    assert torch.equal(held, split_holdout(101, holdout=0.1, seed=3)[1])
    assert not torch.equal(held, split_holdout(101, holdout=0.1, seed=4)[1])


def test_smooth_proxy_anchor_does_not_look_at_the_given_labels_in_phase_two(tmp_path: Path) -> None:
    confidences, labels = _confidences_for("spa", tmp_path), separable()[1]
    heads = [_fit(method="spa", labels=used, confidences=confidences)[0] for used in (labels, labels.flip(0))]
    assert torch.equal(heads[0].linear.weight, heads[1].linear.weight)


def test_positives_are_counted_as_confidences_above_lambda_of_the_images_that_take_part(tmp_path: Path) -> None:
    module, source = _fit_confidence(tmp_path / "c")[0], separable()[0]
    options = {"method": "spa", "head_batch_size": 7, "head_epochs": 1}
    _, (report,) = _fit(
        confidences=confidences_of_module(module, source, separable()[1]).by_class, loss={"lambda_": 0.6}, **options
    )
    chosen = module(source) > 0.6
    assert report.positives_per_sample == pytest.approx(float(chosen.sum()) / 60)
    assert report.share_without_positive == pytest.approx(float((~chosen.any(dim=1)).float().mean()))
    assert 0 < report.positives_per_sample < CLASSES
    values = torch.zeros(60, CLASSES)
    values[:10, :2] = 1
    _, (report,) = _fit(confidences=values, rows=torch.arange(20), **options)
    assert (report.positives_per_sample, report.share_without_positive) == (1, 0.5)
    assert report.images_per_second == pytest.approx(20 / report.seconds)


@pytest.mark.parametrize("method", LOSSES)
def test_phase_two_pulls_the_classes_apart(tmp_path: Path, method: str) -> None:
    source, labels = separable()
    head, reports = _fit(method=method, head_epochs=30, confidences=_confidences_for(method, tmp_path))
    rows = head(source)
    cosines, same = rows @ rows.T, labels[:, None] == labels
    assert cosines[same].mean() > cosines[~same].mean() + 0.5
    assert reports[-1].loss < reports[0].loss or method == "prism", "a memory that fills has more pairs"
    assert (reports[0].positives_per_sample is None) == (method not in NEEDS_CONFIDENCES)


@pytest.mark.parametrize("method", ["spa", "proxy-nca", "multi-similarity"])
def test_leaving_rows_out_trains_as_if_they_had_never_been_there(tmp_path: Path, method: str) -> None:
    source, labels = separable(wrong=0.3)
    confidences = _confidences_for(method, tmp_path)
    rows = torch.tensor([row for row in range(60) if row % 4 != 1])
    given = {"method": method, "source": source, "labels": labels, "confidences": confidences}
    kept = None if confidences is None else take_rows(confidences, rows)
    without = {"source": source[rows], "labels": labels[rows], "confidences": kept}
    left_out, never, whole, all_rows = (
        _fit(**options)[0].linear.weight
        for options in (given | {"rows": rows}, given | without, given, given | {"rows": torch.arange(60)})
    )
    assert torch.equal(left_out, never)
    assert not torch.equal(whole, never)
    assert torch.equal(whole, all_rows)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"method": "spa"}, ValueError, "spa needs the label confidences"),
        ({"rows": torch.arange(0)}, RunError, "no training image is left for phase 2: .*--min-confidence"),
        (
            {"source": torch.full((60, 8), float("nan"))},
            RunError,
            "the embedding loss of epoch 1 is nan; lower the learning rate",
        ),
        ({"init": "wccn"}, ValueError, "needs the label confidences"),
        ({"init": "wccn", "own": _own(), "embedding_dim": 9}, InputError, "--embedding-dim 9 .*at most 8 direct"),
    ],
)
def test_phase_two_refuses_what_it_cannot_train_and_leaves_no_checkpoint(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _fit(tmp_path / "e", **changes)
    assert not (tmp_path / "e").exists()


def test_without_a_checkpoint_the_same_weights_come_out_and_nothing_is_kept(tmp_path: Path) -> None:
    heads = [_fit(path)[0] for path in (None, tmp_path / "e")]
    assert torch.equal(heads[0].linear.weight, heads[1].linear.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


def test_every_option_of_the_optimizer_reaches_its_weights(tmp_path: Path) -> None:
    def fit(name: str, **changes: float) -> dict[str, Tensor]:
        _fit(tmp_path / name, **({"head_epochs": 2, "proxy_lr": 0.02, "weight_decay": 0.1} | changes))
        return load_checkpoint(tmp_path / name)[0]

    base, start = fit("base"), fit("start", head_lr=1e-30, proxy_lr=1e-30)
    slow_head, slow_proxies = fit("head", head_lr=1e-30), fit("proxies", proxy_lr=1e-30)
    without_decay = fit("decay", weight_decay=0.0)
    for name in ("head.linear.weight", "loss.proxies"):
        assert not torch.equal(base[name], start[name])
        assert not torch.equal(base[name], without_decay[name])
    assert torch.equal(slow_head["head.linear.weight"], start["head.linear.weight"])
    assert torch.equal(slow_proxies["loss.proxies"], start["loss.proxies"])
    assert not torch.equal(slow_proxies["head.linear.weight"], start["head.linear.weight"])
    assert not torch.equal(slow_head["loss.proxies"], start["loss.proxies"])


def test_a_firmly_held_head_stays_where_it_started_and_a_free_one_leaves() -> None:
    source, labels = separable(wrong=0.2)
    fitted = fit_within_classes(source.numpy(), labels.numpy(), weights=_own().numpy(), embedding_dim=4)
    start = fitted.weight[:4]
    moved = {
        l2_sp: (_fit_whitened(l2_sp=l2_sp, head_epochs=30).weight - start).norm().item() for l2_sp in (0.0, 0.1, 1e6)
    }
    assert moved[1e6] < 0.01 * start.norm() < moved[0.1] < moved[0.0]


@pytest.mark.parametrize(("steps", "start"), [(1, "random"), (4, "wccn"), (11, "random"), (11, "wccn")])
def test_exactly_the_steps_that_are_asked_for_are_taken(
    steps: int, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[int]] = []

    def draw(*args: Any, **options: Any) -> Iterator[Tensor]:
        for rows in draw_batches(*args, **options):
            drawn.append(rows.tolist())
            yield rows

    monkeypatch.setattr(fit, "draw_batches", draw)
    _, reports = _fit(method="proxy-nca", own=_own(), head_steps=steps, init=start, head_epochs=1)
    whole, rest = divmod(steps, 4)  # four batches an epoch
    assert len(drawn) == steps
    assert [report.epoch for report in reports] == list(range(1, whole + (rest > 0) + 1))
    assert {report.epochs for report in reports} == {len(reports)}
    for epoch in range(whole):
        rows = itertools.chain.from_iterable(drawn[4 * epoch : 4 * epoch + 4])
        assert sorted(rows) == list(range(60)), "every image once an epoch"
    seen = [sum(map(len, drawn[4 * n : 4 * n + 4])) for n in range(len(reports))]
    assert [round(report.images_per_second * report.seconds) for report in reports] == seen


def test_steps_that_make_whole_epochs_are_those_epochs() -> None:
    assert torch.equal(_fit_whitened(head_steps=12).weight, _fit_whitened(head_epochs=3).weight)
    assert not torch.equal(_fit_whitened(head_steps=11).weight, _fit_whitened(head_epochs=3).weight)


@pytest.mark.parametrize("method", ["proxy-nca", "multi-similarity"])
def test_a_held_phase_interrupted_after_any_epoch_goes_on_to_the_same_bits(tmp_path: Path, method: str) -> None:
    seen: list[int] = []

    def stop_at_news(report: EpochReport) -> None:
        if report.epoch not in seen:
            seen.append(report.epoch)
            raise StopError

    def fit(name: str, on_epoch: Any) -> Head:
        together = 4 if method == "multi-similarity" else 0
        context = _context(tmp_path / name, on_epoch)
        return _fit_whitened(method=method, head_steps=11, images_per_class=together, context=context)

    straight = fit("straight", lambda report: None)
    for _ in range(3):
        with pytest.raises(StopError):
            fit("e", stop_at_news)
    head = fit("e", stop_at_news)
    assert seen == [1, 2, 3]
    assert torch.equal(head.weight, straight.weight)
    assert torch.equal(head.bias, straight.bias)
    again = fit("e", lambda report: pytest.fail("nothing is left to train"))
    assert torch.equal(again.weight, straight.weight)


def test_the_weight_of_a_sample_is_the_confidence_in_its_own_label() -> None:
    plain, flipped, halved = (_fit_whitened(own=own).weight for own in (_own(), _own().flip(0), _own() / 2))
    assert not torch.equal(plain, flipped)
    torch.testing.assert_close(plain, halved, msg="only shares matter")


def test_the_reported_loss_holds_what_the_hold_costs() -> None:
    def report(**changes: Any) -> list[float]:
        reports: list[EpochReport] = []
        _fit_whitened(context=_context(None, reports.append), **changes)
        return [one.loss for one in reports]

    free, held = (report(l2_sp=l2_sp, head_epochs=1, head_batch_size=60) for l2_sp in (0.0, 5.0))
    assert free == held, "the first step is taken at the start, where nothing drifts"
    assert report(l2_sp=5.0, head_lr=0.1)[0] > report(l2_sp=0.0, head_lr=0.1)[0]
