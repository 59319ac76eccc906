"""Fine-tuning of a run: the backbone trains with a head, and is exported unless the frozen embedding finds more."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from index.arrays import Floats
from index.errors import RunError
from index.evaluation.comparison import paired_bootstrap
from index.evaluation.metrics import RetrievalScores
from index.images.preprocess import Pixels, PreprocessConfig
from index.progress import Progress
from training.backbone.extract import Extractor, keep_freed_memory
from training.confidence.confidences import LabelConfidences
from training.head.embedding_heads import Head, ProjectionHead
from training.head.untrained import LabelledFeatures, count_directions, fit_rival
from training.losses.guidance import Guidance
from training.losses.interface import MetricLoss, ProxyLoss, build_loss
from training.network.decoded_images import MappedArray, decode_images
from training.network.model import Block, NetworkModel, find_blocks
from training.options.config import TrainConfig
from training.options.finetuning import FinetuneConfig
from training.options.losses import RIVALS, WCCN
from training.options.machine import Machine, name_device
from training.run.checkpoint import pack_modules, unpack_module
from training.run.distributed import current_team
from training.run.features import SentExtractor
from training.run.finetuning.data import (
    FinetuneData,
    LossConfidences,
    mean_precisions,
    mean_score,
    read_together,
    reestimate_confidences,
)
from training.run.finetuning.fit import (
    FinetuneLoop,
    FittedWeights,
    OutOfTimeError,
    interpolate_weights,
    limit_preparation,
    load_weights,
)
from training.run.finetuning.inputs import (
    PRECISIONS,
    FinetuneInputs,
    build_model,
    keep_inputs,
    measure_precision,
    plan_blocks,
)
from training.run.fit import choose_rows, mean_embeddings
from training.run.holdout import fit_heads, split_for_finetuning
from training.run.phases import FINETUNING, PhaseContext, TrainingJob, Watcher, phase_generator
from training.run.prepare import TrainingSet
from training.run.searches import embed_features
from training.run.verdict import FROZEN_HEAD, HELD_OUT, PARTS, TRAINED, MethodComparison, compare

ONE_ERROR = 0.683  # share of draws within a standard error to either side


def fit_closed_form(images: LabelledFeatures, *, embedding_dim: int) -> ProjectionHead:
    """Within-class whitening, with rows of 0 where the images span fewer directions."""
    width = min(embedding_dim, count_directions(images.features))
    found = fit_rival(WCCN, images, embedding_dim=width)
    assert isinstance(found, ProjectionHead)
    missing = embedding_dim - width
    weight = nn.functional.pad(found.weight, (0, 0, 0, missing))
    return ProjectionHead(weight, nn.functional.pad(found.bias, (0, missing)))


def fit_head(images: LabelledFeatures, *, method: str, config: TrainConfig, device: torch.device) -> Head | None:
    """Head of a method on features of a frozen or fine-tuned backbone: trained, or in closed form for a rival.

    None where a trained head has too few images to span a direction.
    """
    if method not in RIVALS:
        return fit_heads(images, config=config, device=device, rivals=False).get(TRAINED)
    return fit_rival(method, images, embedding_dim=min(config.embedding.width, count_directions(images.features)))


FitHead = Callable[[LabelledFeatures], Head | None]


def interpolate_and_score(
    fitted: FittedWeights,
    model: NetworkModel,
    data: FinetuneData,
    *,
    inputs: FinetuneInputs,
    fit: FitHead | None,
    frozen: Head | None,
    frozen_features: Floats,
    alpha: float,
    progress: Progress = lambda *_: None,
) -> tuple[dict[str, dict[str, RetrievalScores]], Head, Floats]:
    """Load the exported weights into the model; returns scores, head and (N, F) float32 features by these weights.

    The weights are the averaged ones, interpolated with the initial ones. Nothing is selected by the few held-out
    images but whether the frozen embedding is exported instead. All processes call this; rank 0 fits and evaluates.

    Args:
        fit: fits a head of the frozen embedding's kind; None on other ranks.
        frozen: the run's embedding without fine-tuning, fitted without the held-out images; None: too few to fit.
        alpha: of the interpolation. It is not selected here, as the held-out images resemble those that train.

    Returns:
        Scores by part of `frozen` and `fine-tuned`; empty without training, held-out images or one of these heads.
    """
    if len(fitted.epochs) == 1:  # no time was left to train
        return {}, model.head.freeze(), frozen_features
    load_weights(model, interpolate_weights(fitted.start, fitted.average, alpha))
    features = read_together(inputs, np.arange(len(data.labels)), progress=progress).numpy()
    if fit is None:
        return {}, model.head.freeze(), features
    found = {}
    if fitted.epochs[0].found and frozen and (head := fit(data.labelled(features).take(data.split.train))):
        compared = data.with_held_out_posteriors(features)
        found["frozen"] = compared.search(lambda rows: embed_features(frozen, frozen_features[rows]))
        found["fine-tuned"] = compared.search(lambda rows: embed_features(head, features[rows]))
    return found, fit(data.labelled(features)) or model.head.freeze(), features


def choose_parts(parts: Mapping[str, RetrievalScores], *, purpose: str) -> Mapping[str, RetrievalScores]:
    """The part that `--for` names; all where that one could not be held out, or for both."""
    part = PARTS.get(purpose, "")
    return {part: parts[part]} if part in parts else parts


def _selects_finetuned(found: Mapping[str, Mapping[str, RetrievalScores]]) -> bool:
    """Whether the fine-tuned embedding is exported: unless the frozen one leads by a standard error in MAP@R.

    The error is of the mean lead over the parts, by a bootstrap over classes. Few held-out images tell no better, and
    fine-tuning mostly helps. It is exported too where nothing was compared.
    """
    if not found:
        return True
    leads = [
        paired_bootstrap(
            tuned.average_precision,
            found["frozen"][part].average_precision,
            seed=0,
            level=ONE_ERROR,
            clusters=tuned.labels,
        )
        for part, tuned in found["fine-tuned"].items()
    ]
    error = float(np.linalg.norm([lead.high - lead.low for lead in leads])) / 2
    return sum(lead.mean for lead in leads) > -error


@dataclass(frozen=True, slots=True)
class StageResult:
    """Result of fine-tuning.

    Attributes:
        head: None where the run's frozen embedding is selected.
        features: (N, F) float32 of the training images, by the selected weights.
        report: for the run's report.
        answers: where the network is selected, its comparisons with the frozen embedding, as in a `Verdict`.
    """

    head: Head | None
    features: Floats
    report: dict[str, Any]
    answers: Mapping[str, MethodComparison] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Work:
    """Arguments of fine-tuning for every process, with the initial confidences."""

    data: FinetuneData
    hashes: list[str]
    confidences: LossConfidences
    guidance: Guidance | None
    config: TrainConfig


def help_decoding(paths: Sequence[Path], plan: MappedArray, preprocess: PreprocessConfig) -> None:
    """Have the decoded images in this machine's cache; its first process decodes."""
    decode_images(paths, _on_this_machine(plan), preprocess, workers=current_team().machine.workers)


def _on_this_machine(plan: MappedArray) -> MappedArray:
    return replace(plan, file=current_team().machine.cache / plan.file.relative_to(plan.file.parents[1]))


@keep_freed_memory()
def help_training(
    work: _Work,
    plan: MappedArray,
    sent: SentExtractor,
    start: ProjectionHead,
    loss_begun: dict[str, Tensor],
    precision: torch.dtype,
) -> None:
    """Train and read features with rank 0.

    `start` and `loss_begun` are the initial head and the loss's parameters, on the CPU.
    """
    machine, config = current_team().machine, work.config
    extractor = sent.open(machine)
    blocks = plan_blocks(extractor.backbone, config, side=extractor.preprocess.crop)
    model = build_model(extractor, start, blocks, config=config)
    model.precision = precision
    loss = _build_loss(work)
    unpack_module(loss, loss_begun, name="loss")
    context = PhaseContext(seed=config.seed, device=extractor.device, checkpoint=None)
    pixels = _on_this_machine(plan).open()
    loop = _prepare_loop(work, model, blocks, loss, pixels, extractor=extractor, machine=machine, context=context)
    interpolate_and_score(
        loop.run(),
        model,
        work.data,
        inputs=loop.inputs,
        fit=None,
        frozen=None,
        frozen_features=np.zeros((0, 0), dtype=np.float32),
        alpha=config.finetuning.wise_ft_alpha,
    )
    model.release()


def _build_loss(work: _Work) -> MetricLoss:
    return build_loss(
        work.config.loss,
        class_count=work.data.class_count,
        embedding_dim=work.config.embedding.width,
        generator=phase_generator(work.config.seed, FINETUNING, 0),
        guidance=work.guidance,
    )


def _prepare_loop(
    work: _Work,
    model: NetworkModel,
    blocks: list[Block],
    loss: MetricLoss,
    pixels: Pixels,
    *,
    extractor: Extractor,
    machine: Machine,
    context: PhaseContext,
    watcher: Watcher | None = None,
    on_preparing: Callable[[str, int, int], None] = lambda *_: None,
    begun: float | None = None,
    reserved_s: float = 0.0,
) -> FinetuneLoop:
    """Training loop before its first step, in each process; `on_preparing` is called as `Watcher.on_images`."""
    config, watcher = work.config, watcher or Watcher()
    inputs = keep_inputs(
        extractor,
        blocks,
        pixels,
        hashes=work.hashes,
        config=config,
        machine=machine,
        watcher=replace(watcher, on_images=on_preparing),
    )
    loop = FinetuneLoop(
        model,
        loss.to(context.device),
        work.data,
        inputs=inputs,
        confidences=work.confidences,
        config=config,
        context=context,
        begun=begun,
        reserved_s=reserved_s,
        on_images=partial(watcher.on_images, "finetuning images"),
        on_start=partial(on_preparing, "held-out images before fine-tuning"),
        on_note=watcher.on_note,
    )
    loop.prepare()
    return loop


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
    job: TrainingJob,
    training: TrainingSet,
    *,
    confidences: LabelConfidences | None,
    method: str,
    guidance: Guidance | None,
    extractor: Extractor,
    decoding: MappedArray,
) -> StageResult:
    """Fine-tune the backbone and a head from within-class whitening, and select by the held-out images.

    The extractor's backbone ends with the selected weights, or the initial ones.

    Args:
        method: of the run's frozen embedding, which has to be beaten with the same kind of head.
        decoding: place of the decoded images.
    """
    started, config, machine, team = time.perf_counter(), job.config, job.machine, current_team()
    images, hashes = [image.path for image in training.images], [image.sha256 for image in training.images]
    labels, features = training.labels.cpu().numpy(), training.features
    split = split_for_finetuning(labels, seed=config.seed, groups=training.groups)
    if (trusted := choose_rows(confidences, config=config)) is not None:
        split = replace(split, train=np.intersect1d(split.train, trusted.numpy()))
    train = split.train
    limited = config.finetuning.limited(len(train), on_cpu=machine.device.type == "cpu")
    config = replace(config, finetuning=limited)
    if limited.time_budget is not None:
        before = sum(job.seconds.values())
        job.watcher.on_note(
            f"fine-tuning: {limited.time_budget} from now (--time-budget), with decoding and evaluations; the "
            f"{before:.0f} s before and --val are not part of it"
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
    blocks = plan_blocks(extractor.backbone, config, side=extractor.preprocess.crop)
    context, on_preparing = job.context(FINETUNING), job.watcher.on_images
    reserved_s = 0.0  # until the time of fitting a head is known
    # What trains together cannot end alone, and what had trained before an interruption is not given up.
    may_end = team.size == 1 and not job.run.checkpoint(FINETUNING).exists()
    report: dict[str, Any] = {
        "method": config.loss.method,
        "finetune": limited.finetune or f"last-{len(blocks)}",
        "image_size": limited.image_size,
        "trained_on": len(train),
        "held_out": {"unseen": len(split.unseen), "seen": len(split.seen)},
        "by_posteriors": config.reestimates_confidences,
        "blocks": len(blocks),
        "of_blocks": len(find_blocks(extractor.backbone, side=extractor.preprocess.crop)),
        "decoded_bytes": decoding.bytes,
        "device": name_device(extractor.device),
        "time_budget": limited.time_budget,
    }
    try:
        start = fit_closed_form(data.labelled(features).take(train), embedding_dim=config.embedding.width)
        work = _Work(data, hashes, _initial_confidences(features, data, confidences, config), guidance, config)
        # Guidance knows images and classes by their numbers, which parts of the data have not.
        kind = WCCN if guidance is not None else method
        fit = partial(fit_head, method=kind, config=config, device=machine.device)
        frozen, fitting_s = fit(data.labelled(features).take(train)), time.perf_counter() - started
        reserved_s = 3 * fitting_s  # for the heads that are compared at the end
        if may_end and limited.budget_s is not None:
            left_s = limited.budget_s - reserved_s
            on_preparing = limit_preparation(on_preparing, begun=started, budget_s=left_s)
        team.ask(help_decoding, images, decoding, extractor.preprocess)
        pixels = decode_images(
            images,
            decoding,
            extractor.preprocess,
            workers=machine.workers,
            progress=partial(on_preparing, f"decoding ({decoding.bytes / 1e6:,.0f} MB)"),
        )
        on_preparing("choosing a precision", 0, 1)
        model = build_model(extractor, start, blocks, config=config)
        precision = machine.precision
        if precision == "auto":  # the faster one, measured once and kept for a resume
            measured = job.run.keep_json(
                "finetuning.json", lambda: {"precision": measure_precision(model, pixels, train, config=config)}
            )
            precision = measured["precision"]
        on_preparing("choosing a precision", 1, 1)
        model.precision = PRECISIONS[precision]
        loss = _build_loss(work)
        if isinstance(loss, ProxyLoss):
            weights = torch.ones(len(labels)) if confidences is None else confidences.own.cpu()
            device, shape = model.head.weight.device, (data.class_count, model.head.embedding_dim)
            means = mean_embeddings(
                lambda rows: model.head(torch.from_numpy(features[rows]).to(device)).cpu(),
                torch.from_numpy(labels),
                torch.from_numpy(train),
                weights=weights,
                shape=shape,
            )
            loss.start_at(means)
        if team.size > 1:
            begun = {name: tensor.detach().cpu() for name, tensor in pack_modules(loss=loss).items()}
            sent = replace(work, guidance=None if guidance is None else deepcopy(guidance).cpu())
            team.ask(
                help_training,
                sent,
                decoding,
                SentExtractor.of(extractor),
                deepcopy(start).cpu(),
                begun,
                model.precision,
            )
        loop = _prepare_loop(
            work,
            model,
            blocks,
            loss,
            pixels,
            extractor=extractor,
            machine=machine,
            context=context,
            watcher=job.watcher,
            on_preparing=on_preparing,
            begun=started,
            reserved_s=reserved_s,
        )
    except (KeyboardInterrupt, OutOfTimeError) as end:
        if not may_end:
            raise
        extractor.backbone.module.requires_grad_(False)
        return StageResult(
            None, features, report | _end_unprepared(end, job, limited, started=started, reserved_s=reserved_s)
        )
    fitted = loop.run()
    found, head, chosen_features = interpolate_and_score(
        fitted,
        model,
        data,
        inputs=loop.inputs,
        fit=fit,
        frozen=frozen,
        frozen_features=features,
        alpha=limited.wise_ft_alpha,
        progress=partial(job.watcher.on_images, "fine-tuned features"),
    )
    deciding = {name: choose_parts(parts, purpose=config.selection.for_) for name, parts in found.items()}
    if not (selected := len(fitted.epochs) > 1 and _selects_finetuned(deciding)):
        load_weights(model, fitted.start)
    model.release()
    scores = {name: mean_precisions(parts) for name, parts in found.items()}
    report |= {
        "parameters": sum(p.numel() for level in model.levels for p in level),
        "precision": str(model.precision).removeprefix("torch."),
        "epochs": [
            {"epoch": score.epoch, "loss": score.loss, "map_at_r": score.found, "seconds": score.seconds}
            for score in fitted.epochs
        ],
        "tried": scores,
        "selected": selected,
        "map_at_r": {name: mean_score(mean_precisions(parts)) for name, parts in deciding.items()} or None,
        "ended_by": loop.ended_by,
        "kept_bytes": loop.inputs.kept_bytes,
        "waited_s": loop.inputs.waited_s,
        "seconds": time.perf_counter() - started,
        "prepared_s": loop.prepared_s,
    }
    if not selected:
        return StageResult(None, features, report)
    return StageResult(head, chosen_features, report, _compare_parts(found, frozen=method, seed=config.seed))


def _compare_parts(
    found: Mapping[str, Mapping[str, RetrievalScores]], *, frozen: str, seed: int
) -> dict[str, MethodComparison]:
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


def _end_unprepared(
    end: KeyboardInterrupt | OutOfTimeError,
    job: TrainingJob,
    options: FinetuneConfig,
    *,
    started: float,
    reserved_s: float,
) -> dict[str, Any]:
    """Rest of the report where fine-tuning ended before its first step; says so."""
    if isinstance(end, OutOfTimeError):
        ended_by, minutes = "time", math.ceil((2 * end.seconds + reserved_s) / 60)
        job.watcher.on_note(
            f"fine-tuning: of --time-budget {options.time_budget} preparation would take {end.seconds:.0f} s and the "
            f"comparison at the end {reserved_s:.0f} s, so nothing is fine-tuned: train anew with --time-budget "
            f"{minutes}m or more"
        )
    else:
        ended_by = "Ctrl-C"
        job.watcher.on_note("Ctrl-C: fine-tuning ends before its first step; again ends at once")
    seconds = time.perf_counter() - started
    return {
        "parameters": None,
        "precision": None,
        "epochs": [{"epoch": 0, "loss": None, "map_at_r": None, "seconds": 0.0}],
        "tried": {},
        "selected": False,
        "map_at_r": None,
        "ended_by": ended_by,
        "kept_bytes": 0,
        "waited_s": 0.0,
        "seconds": seconds,
        "prepared_s": seconds,
    }


def _initial_confidences(
    features: Floats, data: FinetuneData, confidences: LabelConfidences | None, config: TrainConfig
) -> LossConfidences:
    """Leave-one-out confidences without the held-out images, or those of the confidence module."""
    loss = config.loss
    if confidences is None or not loss.needs_confidences:
        return LossConfidences()
    if config.reestimates_confidences:
        return reestimate_confidences(torch.from_numpy(features[data.split.train]), data, loss)
    return LossConfidences.of(confidences, loss)
