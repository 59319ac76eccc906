"""Fine-tuning of a run: the backbone trains with a head, and is exported unless the frozen embedding finds more."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from index.arrays import Floats
from index.errors import RunError
from index.evaluation.metrics import RetrievalScores
from index.images.preprocess import Pixels, PreprocessConfig
from training.backbone.extract import Extractor, keep_freed_memory
from training.confidence.confidences import Confidences, LabelConfidences
from training.head.embedding_heads import Head, ProjectionHead
from training.head.untrained import LabelledFeatures, count_directions, fit_closed_form, fit_rival
from training.losses.interface import MetricLoss, build_loss
from training.network.decoded_images import MappedArray, decode_images
from training.network.model import Block, NetworkModel, find_blocks
from training.options.config import TrainConfig
from training.options.losses import RIVALS
from training.options.machine import Machine
from training.run.checkpoint import pack_modules, unpack_module
from training.run.distributed import current_team
from training.run.features import SentExtractor
from training.run.finetuning.budget import HEADS_AT_END, Budget, OnImages, OutOfTimeError
from training.run.finetuning.data import FinetuneData, confidences_for, mean_precisions, reestimate_confidences
from training.run.finetuning.fit import EpochScore, FinetuneLoop, load_weights
from training.run.finetuning.inputs import (
    PRECISIONS,
    FinetuneInputs,
    build_model,
    find_precision,
    keep_centres,
    plan_blocks,
    view_side,
)
from training.run.finetuning.sample import take_sample
from training.run.finetuning.selection import can_decide, choose_parts, load_exported, selects_finetuned
from training.run.fit import FrozenEmbedding, HeadPlan, start_proxies
from training.run.holdout import fit_heads, split_for_finetuning
from training.run.label_confidences import choose_rows
from training.run.phases import FINETUNING, PhaseContext, TrainingJob, Watcher, phase_generator
from training.run.prepare import PreparedData, TrainingSet
from training.run.searches import embed_features
from training.run.verdict import FROZEN_HEAD, HELD_OUT, PARTS, TRAINED, MethodComparison, compare

Found = Mapping[str, Mapping[str, RetrievalScores]]
"""Scores on held-out images by `frozen` and `fine-tuned`, then by part."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """Result of fine-tuning: head and (N, F) features of its training images, by the selected weights.

    `images` are those of the run or a sample of them. The head is None where the run's frozen embedding is selected;
    else `answers` compare both, as in a `Verdict`.
    """

    head: Head | None
    features: Floats
    images: TrainingSet
    report: dict[str, Any]
    answers: Mapping[str, MethodComparison] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FinetuneTask:
    """Input of every process that fine-tunes: data, initial confidences and options.

    `width` is of the embedding, `side` of training views in pixels; `blocks` train.
    """

    data: FinetuneData
    hashes: list[str]
    confidences: Confidences | None
    config: TrainConfig
    width: int
    blocks: list[Block]
    side: int
    budget: Budget

    def build_loss(self) -> MetricLoss:
        """Loss with its initial parameters."""
        return build_loss(
            self.config.loss,
            class_count=self.data.class_count,
            embedding_dim=self.width,
            generator=phase_generator(self.config.seed, FINETUNING, 0),
        )


@contextmanager
def advising_on_gpu_memory() -> Iterator[None]:
    """Name the options that take less memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = str(error).split(". ")[0]
        raise RunError(
            f"the GPU has no memory for a batch of the network ({said}): add --micro-batch-size 16, which gives the "
            "same gradients, or lower --batch-size or --image-size; in a new --out"
        ) from error


@advising_on_gpu_memory()
@keep_freed_memory()
def finetune_backbone(
    job: TrainingJob, prepared: PreparedData, confidences: LabelConfidences | None, frozen: FrozenEmbedding
) -> StageResult:
    """Fine-tune the backbone with a head, and select by the held-out images.

    The head begins as within-class whitening, and is fitted anew to the fine-tuned features for the export. The
    extractor's backbone ends with the selected weights, or the initial ones.
    """
    with job.measure(FINETUNING):
        begun, task = time.perf_counter(), None
        # Several processes end together, and what had trained before an interruption is not given up.
        may_end = current_team().size == 1 and not job.run.checkpoint(FINETUNING).exists()
        fit = partial(fit_head, method=frozen.method, plan=frozen.plan, config=job.config, device=job.machine.device)
        try:
            prepared, confidences = take_sample(job, prepared, confidences, width=frozen.plan.width)
            task = plan_task(job, prepared, confidences, frozen, begun=begun)
            data, features, budget = task.data, prepared.training.features, task.budget
            fitting, known = time.perf_counter(), data.labelled(features).take(data.split.train)
            start, rival = fit_closed_form(known, embedding_dim=task.width), fit(known)
            budget.reserved_s = HEADS_AT_END * (time.perf_counter() - fitting)
            on_images = budget.limit_preparation(job.watcher.on_images) if may_end else job.watcher.on_images
            loop = prepare_loop(job, prepared, task, start, confidences, on_images=on_images)
        except (KeyboardInterrupt, OutOfTimeError) as end:
            if not may_end:
                raise
            if isinstance(end, KeyboardInterrupt):
                job.watcher.on_note("Ctrl-C: fine-tuning ends before its first step; again ends at once")
            task = task or plan_task(job, prepared, confidences, frozen, begun=begun)
            return _end_before_training(task, prepared, end, job.watcher)
        loop.run()
        tuned, choice = load_exported(loop, data, job.config, on_images=job.watcher.on_images)
        found: Found = {}
        head: Head | None = None
        if tuned is not None:
            estimated = data.estimate_posteriors(tuned)
            weighted = replace(data.labelled(tuned), weights=estimated.own.numpy())
            whiten = partial(fit_whitening, width=task.width, config=job.config)
            fit_tuned = whiten if job.config.for_ == "new" else fit
            # Heads without the held-out images, which select an embedding; alike where known classes decide, too.
            own = (fit_tuned if can_decide(data.labels[data.split.unseen]) else fit)(weighted.take(data.split.train))
            if loop.epochs[0].map_at_r and rival is not None and own is not None:
                compared = data.with_held_out_posteriors(estimated)
                found = {
                    "frozen": compared.search(lambda rows: embed_features(rival, features[rows])),
                    "fine-tuned": compared.search(lambda rows: embed_features(own, tuned[rows])),
                }
            trusted = choose_rows(confidences, config=job.config)
            chosen = weighted if trusted is None else weighted.take(trusted.numpy())
            head = fit_tuned(weighted if fit_tuned is fit and frozen.method not in RIVALS else chosen) or whiten(chosen)
        deciding = {name: choose_parts(parts, purpose=job.config.for_) for name, parts in found.items()}
        if not (selected := tuned is not None and selects_finetuned(deciding)):
            load_weights(loop.model, loop.start)
        loop.model.requires_grad_(False)
        report = _describe_task(task, prepared) | choice
        report |= _describe_end(loop, budget, ended_by=loop.ended_by, found=found, deciding=deciding, selected=selected)
        if tuned is None or not selected:
            return StageResult(None, features, prepared.training, report)
        return StageResult(
            head, tuned, prepared.training, report, _compare_parts(found, frozen=frozen.method, seed=job.config.seed)
        )


def _end_before_training(
    task: FinetuneTask, prepared: PreparedData, end: KeyboardInterrupt | OutOfTimeError, watcher: Watcher
) -> StageResult:
    """The frozen embedding, where Ctrl-C or the time ends the preparation."""
    prepared.extractor.backbone.module.requires_grad_(False)
    ended_by = "Ctrl-C"
    if isinstance(end, OutOfTimeError):
        ended_by = "time"
        watcher.on_note(f"fine-tuning: {task.budget.explain(end)}")
    report = _describe_task(task, prepared) | _describe_end(None, task.budget, ended_by=ended_by)
    return StageResult(None, prepared.training.features, prepared.training, report)


def plan_task(
    job: TrainingJob,
    prepared: PreparedData,
    confidences: LabelConfidences | None,
    frozen: FrozenEmbedding,
    *,
    begun: float,
) -> FinetuneTask:
    """Split of the images, budget since `begun` and initial confidences."""
    config, training = job.config, prepared.training
    labels, features = training.labels.cpu().numpy(), training.features
    split = split_for_finetuning(labels, seed=config.seed, groups=training.groups)
    if (trusted := choose_rows(confidences, config=config)) is not None:
        split = replace(split, train=np.intersect1d(split.train, trusted.numpy()))
    on_cpu = job.machine.device.type == "cpu"
    budget = Budget(config.finetuning, images=len(split.train), on_cpu=on_cpu, begun=begun)
    if budget.text is not None:
        job.watcher.on_note(
            f"fine-tuning: {budget.text} in all (--time-budget), with decoding and evaluations; the "
            f"{sum(job.seconds.values()):.0f} s before and --val are not part of it"
        )
    data = FinetuneData(
        labels,
        len(training.classes),
        split,
        copies=training.copies,
        groups=training.groups,
        posteriors=None if confidences is None else confidences.posteriors(),
        prior=training.prior,
    )
    initial = None if confidences is None else confidences_for(config.loss, confidences)
    if config.reestimates_confidences:  # without the held-out images
        initial = reestimate_confidences(torch.from_numpy(features[split.train]), data, config.loss)
    backbone, hashes = prepared.extractor.backbone, [image.sha256 for image in training.images]
    blocks = plan_blocks(backbone, config, side=config.input.crop)
    side, width = view_side(backbone, config), frozen.plan.width
    return FinetuneTask(data, hashes, initial, config, width, blocks, side, budget)


def prepare_loop(
    job: TrainingJob,
    prepared: PreparedData,
    task: FinetuneTask,
    start: ProjectionHead,
    confidences: LabelConfidences | None,
    *,
    on_images: OnImages,
) -> FinetuneLoop:
    """Training loop of rank 0 before its first step; the other processes begin to train with it.

    `start` is the initial head; proxies start at its mean embeddings of the classes.
    """
    machine, team, extractor, data = job.machine, current_team(), prepared.extractor, task.data
    images, decoding, features = prepared.training.images, prepared.decoding, prepared.training.features
    assert decoding is not None
    paths = [image.path for image in images]
    team.call_on_others(help_decoding, paths, decoding, extractor.preprocess)
    pixels = decode_images(
        paths,
        decoding,
        extractor.preprocess,
        workers=machine.workers,
        progress=partial(on_images, f"decoding ({decoding.bytes / 1e6:,.0f} MB)"),
    )
    on_images("choosing a precision", 0, 1)
    model = build_model(extractor, start, task.blocks, config=task.config)
    model.precision = PRECISIONS[find_precision(job, model, pixels, data.split.train, side=task.side)]
    on_images("choosing a precision", 1, 1)
    loss = task.build_loss()
    start_proxies(
        loss,
        lambda rows: start(torch.from_numpy(features[rows]).to(start.weight.device)).cpu(),
        torch.from_numpy(data.labels),
        torch.from_numpy(data.split.train),
        weights=torch.ones(len(data.labels)) if confidences is None else confidences.own.cpu(),
        shape=(data.class_count, task.width),
    )
    if team.size > 1:
        begun = {name: tensor.detach().cpu() for name, tensor in pack_modules(loss=loss).items()}
        at_first = deepcopy(start).cpu()
        sent_extractor = SentExtractor.of(extractor)
        team.call_on_others(help_training, task, decoding, sent_extractor, at_first, begun, model.precision)
    return open_loop(
        task,
        model,
        loss,
        pixels,
        extractor=extractor,
        machine=machine,
        context=job.context(FINETUNING),
        watcher=job.watcher,
        on_preparing=on_images,
    )


def help_decoding(paths: Sequence[Path], decoding: MappedArray, preprocess: PreprocessConfig) -> None:
    """Decode the images into this machine's cache; its first process does so."""
    machine = current_team().machine
    decode_images(paths, _on_this_machine(decoding, machine), preprocess, workers=machine.workers)


def _on_this_machine(decoding: MappedArray, machine: Machine) -> MappedArray:
    return replace(decoding, file=machine.cache / decoding.file.relative_to(decoding.file.parents[1]))


@keep_freed_memory()
def help_training(
    task: FinetuneTask,
    decoding: MappedArray,
    sent: SentExtractor,
    start: ProjectionHead,
    loss_begun: dict[str, Tensor],
    precision: torch.dtype,
) -> None:
    """Train and read features with rank 0.

    `start` and `loss_begun` are the initial head and the loss's parameters, on the CPU.
    """
    machine = current_team().machine
    extractor = sent.open(machine)
    model = build_model(extractor, start, task.blocks, config=task.config)
    model.precision = precision
    loss = task.build_loss()
    unpack_module(loss, loss_begun, name="loss")
    context = PhaseContext(seed=task.config.seed, device=extractor.device, checkpoint=None)
    pixels = _on_this_machine(decoding, machine).open()
    loop = open_loop(task, model, loss, pixels, extractor=extractor, machine=machine, context=context)
    loop.run()
    load_exported(loop, task.data, task.config)
    model.requires_grad_(False)


def open_loop(
    task: FinetuneTask,
    model: NetworkModel,
    loss: MetricLoss,
    pixels: Pixels,
    *,
    extractor: Extractor,
    machine: Machine,
    context: PhaseContext,
    watcher: Watcher | None = None,
    on_preparing: OnImages = lambda *_: None,
) -> FinetuneLoop:
    """Training loop before its first step, in each process."""
    watcher = watcher or Watcher()
    centre = keep_centres(
        extractor,
        task.blocks,
        pixels,
        hashes=task.hashes,
        config=task.config,
        cache=machine.cache,
        watcher=replace(watcher, on_images=on_preparing),
    )
    # A CPU needs its cores to train, so that no threads draw ahead there.
    threads = machine.workers if machine.device.type == "cuda" else 0
    inputs = FinetuneInputs(extractor, pixels, side=task.side, threads=threads, centre=centre)
    loop = FinetuneLoop(
        model,
        loss.to(context.device),
        task.data,
        inputs=inputs,
        confidences=task.confidences,
        config=task.config,
        budget=task.budget,
        context=context,
        watcher=watcher,
    )
    loop.prepare(partial(on_preparing, "held-out images before fine-tuning"))
    return loop


def fit_head(
    images: LabelledFeatures, *, method: str, plan: HeadPlan, config: TrainConfig, device: torch.device
) -> Head | None:
    """Head of a method on features of a frozen or fine-tuned backbone: trained, or in closed form for a rival.

    None where a trained head has too few images to span a direction. Training leaves labels of low confidence out.
    """
    if method not in RIVALS:
        return next(iter(fit_heads(images, [plan], config=config, device=device, rivals=False).values()), None)
    return fit_rival(method, images, embedding_dim=min(plan.width, count_directions(images.features)))


def fit_whitening(images: LabelledFeatures, *, width: int, config: TrainConfig) -> ProjectionHead:
    """Within-class whitening, as wide as --embedding-dim, or as `width` and the images allow.

    On fine-tuned features it finds more of new classes than a trained head, and fewer of known ones
    (docs/results/network.md).
    """
    directions = count_directions(images.features)
    return fit_closed_form(images, embedding_dim=config.head.embedding_dim or min(width, directions))


def _compare_parts(found: Found, *, frozen: str, seed: int) -> dict[str, MethodComparison]:
    """Fine-tuned against frozen embedding, by question; `frozen` is the latter's method."""
    rival = frozen if frozen in RIVALS else FROZEN_HEAD
    return {
        question: compare(
            {TRAINED: tuned.average_precision, rival: found["frozen"][part].average_precision},
            tuned.labels,
            seed=seed,
            parts=len(found["fine-tuned"]),
            by=HELD_OUT,
            metric="MAP@R",
        )
        for question, part in PARTS.items()
        if (tuned := found.get("fine-tuned", {}).get(part)) is not None
    }


def _describe_task(task: FinetuneTask, prepared: PreparedData) -> dict[str, Any]:
    """First part of the report of fine-tuning: its inputs."""
    config, split, backbone, decoding = task.config, task.data.split, prepared.extractor.backbone, prepared.decoding
    assert decoding is not None
    device = prepared.extractor.device
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    return {
        "method": config.loss.method,
        "finetune": config.finetuning.finetune or f"last-{len(task.blocks)}",
        "image_size": task.side,
        "trained_on": len(split.train),
        "held_out": {"unseen": len(split.unseen), "seen": len(split.seen)},
        "by_posteriors": config.reestimates_confidences,
        "blocks": len(task.blocks),
        "of_blocks": len(find_blocks(backbone, side=config.input.crop)),
        "decoded_bytes": decoding.bytes,
        "device": torch.cuda.get_device_name(device) if on_gpu else device.type.upper(),
        "time_budget": task.budget.text,
    }


def _describe_end(
    loop: FinetuneLoop | None,
    budget: Budget,
    *,
    ended_by: str | None,
    found: Found = MappingProxyType({}),
    deciding: Found = MappingProxyType({}),
    selected: bool = False,
) -> dict[str, Any]:
    """Rest of the report after training; without a loop it ended before its first step."""
    epochs = [EpochScore(0, None)] if loop is None else loop.epochs
    decided = {name: float(np.mean(list(mean_precisions(parts).values()))) for name, parts in deciding.items()}
    return {
        "parameters": None if loop is None else sum(p.numel() for level in loop.model.levels for p in level),
        "precision": None if loop is None else str(loop.model.precision).removeprefix("torch."),
        "epochs": [asdict(score) for score in epochs],
        "tried": {name: mean_precisions(parts) for name, parts in found.items()},
        "selected": selected,
        "map_at_r": decided or None,
        "ended_by": ended_by,
        "kept_bytes": 0 if loop is None else loop.inputs.kept_bytes,
        "waited_s": 0.0 if loop is None else loop.inputs.waited_s,
        "seconds": budget.used_s,
        "prepared_s": budget.used_s if loop is None else budget.prepared_s,
    }
