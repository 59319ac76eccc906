"""One training run, from labelled images to a run folder: `train` is the chain of its steps, in their order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from index.errors import InputError
from training.backbone.backbones import Backbone, load_backbone, require_input_size
from training.backbone.extract import Extractor
from training.confidence.confidences import Beliefs
from training.data.datasets import Dataset, require_outside
from training.data.label_noise import describe_noise
from training.head.embedding_heads import Head
from training.head.untrained import UNTRAINED_DIM, count_directions, fit_rival, fit_rivals, fit_untrained
from training.losses.guidance import Guidance, load_guidance
from training.losses.interface import loss_class
from training.network.decoded_images import MappedArray
from training.network.model import Block
from training.options.config import FIRM_HOLD, TrainConfig
from training.options.losses import CLASS_WHITENED, RIVALS, UNTRAINED_METHODS
from training.options.machine import Machine
from training.run.feature_runtime import require_runtime, settle_runtime
from training.run.feature_selection import Candidate, list_candidates, select_features
from training.run.heads import choose_rows, find_beliefs, require_directions, summarise_beliefs, train_head
from training.run.network.blocks import plan_blocks, smaller_side
from training.run.network.stage import StageResult, plan_decoding, train_network
from training.run.phases import NETWORK, EpochReport, PhaseContext, Watcher, warn_of_unsuitable_lambda
from training.run.picture_stage import PICTURE_PHASE, VIEWS, require_pictures, train_picture
from training.run.prepare import (
    TrainingSet,
    ValidationRecords,
    check_hierarchy,
    list_data,
    open_extractor,
    prepare_training,
    prepare_validation,
)
from training.run.processes import require_same_files
from training.run.run_folder import RunFolder
from training.run.searches import KnownImages, Searches, SearchScores, ValidationSet, embed_features, plan_searches
from training.run.trial import TrialData, run_trial
from training.run.verdict import (
    FROZEN_HEAD,
    HOLDOUT,
    QUESTIONS,
    TRAINED,
    VAL,
    add_network,
    ask_validation,
    choose_verdict,
    compare_validation,
    reach_verdict,
)


@dataclass(frozen=True, slots=True)
class _Job:
    """What every step needs: the run folder, the options as given, where it computes, and who is told."""

    run: RunFolder
    config: TrainConfig
    machine: Machine
    watcher: Watcher
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Time a step, which is told when it begins."""
        self.watcher.on_phase(phase)
        started = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - started

    def context(self, checkpoint: Path, *, class_count: int = 0) -> PhaseContext:
        """Of a phase whose epochs are noted in the metrics file and told."""

        def note(report: EpochReport) -> None:
            self.run.append_metrics(report.to_json())
            self.watcher.on_epoch(report)
            if report.phase == "embedding" and report.epoch == 1:
                warn_of_unsuitable_lambda(
                    report, class_count=class_count, judge=self.config.confidence.confidences
                )

        return PhaseContext(
            seed=self.config.seed, device=self.machine.device, checkpoint=checkpoint, on_epoch=note
        )


@dataclass(frozen=True, slots=True)
class _Listed:
    """What is known before images are decoded: which there are, and which features and blocks of the backbone count."""

    dataset: Dataset
    validation: ValidationRecords | None
    backbone: Backbone
    candidates: list[Candidate]
    blocks: list[Block]

    @property
    def paths(self) -> list[Path]:
        records = self.dataset.records + (() if self.validation is None else self.validation.records)
        return [record.path for record in records]


@dataclass(frozen=True, slots=True)
class _Features:
    """Images that train, with their features; those that validate, with what is known of them; what extracts more.

    `decoding` is where images will lie decoded; None where the network does not train.
    """

    training: TrainingSet
    validation: tuple[ValidationSet, KnownImages] | None
    extractor: Extractor
    decoding: MappedArray | None


@dataclass(frozen=True, slots=True)
class _Fitted:
    """The embedding on the frozen backbone: its method, its head, and how many images the head was trained on."""

    method: str
    head: Head
    trained_on: int


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """Heads by name, their scores on --val (none without it), the searches that these are of, and the verdict."""

    heads: dict[str, Head]
    scores: dict[str, SearchScores]
    searches: Searches | None
    verdict: dict[str, Any] | None


def train(
    data: Path,
    out: Path,
    *,
    config: TrainConfig,
    machine: Machine,
    val: Path | None = None,
    asked: Mapping[str, Any] = MappingProxyType({}),
    resume: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train on a folder of class folders or a CSV, into a run folder.

    Args:
        out: the run folder; new, or begun with the same options where `resume`.
        val: other labelled images for Recall@K, which choose the embedding that is exported (`--select auto`).
        asked: the options of `config` that were not left to a recipe, for the command that trains again.
        resume: continue a run that was interrupted; a finished one gives its report again.

    Returns:
        The report: {"run", "seconds", "phases", "val", "val_scenes", "baselines", "images", "trained_on", "classes",
        "skipped", "noise", "method", "embedding_dim", "verdict", "feature_choice", "trial", "network", "picture",
        "beliefs"}.
        "val" is among the validation images, "apart" in it with their scenes apart, and "against_training" in it their
        search among the training images; None where there is none. "feature_choice" is None where view and pooling
        were given, "network" where the backbone stays frozen, "picture" without --copies.

    Raises:
        InputError: data, weights or options that cannot be used.
        RunError: a run folder in the way, missing, or begun with other options.
    """
    started, watcher = time.perf_counter(), watcher or Watcher()
    begun = RunFolder.open(out, resuming=True) if resume else None
    if begun is not None:
        begun.check_same(config=config, data=data, val=val)
        if (out / "report.json").exists():
            watcher.on_run(begun)
            watcher.on_report(report := begun.read_json("report.json"))
            return report
    listed = _list(data, val, out=out, config=config, machine=machine, is_new=begun is None)
    run = begun or RunFolder.create(out, config=config, data=data, val=val, asked=asked)
    job = _Job(run, config, machine, watcher)
    with _discarding(run, when_new=begun is None):
        watcher.on_run(run)
        choice = _select_features(job, listed)
        features = _extract(job, listed, choice, data=data)
        guidance = None
        if (file := getattr(config.loss.options, "guidance", None)) is not None:
            hashes = [image.sha256 for image in features.training.images]
            guidance = load_guidance(Path(file), classes=features.training.classes, sha256=hashes)
    run.begin_metrics()
    holdout = _evaluate_holdout(job, features.training, guidance)
    confidences = _estimate_confidences(job, features.training)
    plan = _resolve_plan(config, features, choice=choice, holdout=holdout, confidences=confidences)
    verdict = _ask_holdout(plan, holdout, feature_dim=features.training.source.centre.shape[1])
    fitted = _fit(job, features, confidences, guidance, plan=plan, verdict=verdict)
    stage = _train_network(job, listed, features, confidences, guidance, plan=plan, method=fitted.method)
    evaluation = _evaluate(
        job, listed, features, confidences, plan=plan, fitted=fitted, stage=stage, verdict=verdict
    )
    report = _save(job, features, plan=plan, fitted=fitted, stage=stage, evaluation=evaluation)
    believed = None if confidences is None else _summarise_confidences(features.training, confidences)
    report |= {"trial": holdout, "beliefs": believed, "seconds": time.perf_counter() - started}
    run.write_json("report.json", report)
    watcher.on_report(report := run.read_json("report.json"))  # as a resume of the finished run gives it
    return report


def _list(
    data: Path, val: Path | None, *, out: Path, config: TrainConfig, machine: Machine, is_new: bool
) -> _Listed:
    """The images, the backbone, and which features of it the options allow; what cannot be is refused here."""
    require_runtime(machine, trains_network=config.network.trains)
    require_outside(out, data=data, flag="--out")
    require_outside(machine.cache, data=data, flag="--cache")
    dataset, validation = list_data(data, val, config=config)
    require_same_files(dataset.records + (() if validation is None else validation.records))
    backbone = load_backbone(config.backbone, config.weights, seed=config.seed, side=config.input.crop)
    require_input_size(backbone, config.input.crop)
    candidates = list_candidates(backbone, config.input, embedding_dim=config.embedding.embedding_dim or 1)
    blocks = list[Block]()
    if config.network.trains:
        if config.network.network_crop is not None:
            require_input_size(backbone, config.network.network_crop, flag="--network-crop")
        blocks = plan_blocks(backbone, config, side=config.input.crop)
    if is_new:
        check_hierarchy(dataset, config=config)
        for loss in (config.loss, config.network_loss):
            if loss.trains:
                loss_class(loss.method)  # whether its package is there, before any long work
        require_directions(len(dataset.records), max(one.feature_dim for one in candidates), config=config)
    return _Listed(dataset, validation, backbone, candidates, blocks)


@contextmanager
def _discarding(run: RunFolder, *, when_new: bool) -> Iterator[None]:
    try:
        yield
    except InputError:
        if when_new:
            run.discard()
        raise


def _select_features(job: _Job, listed: _Listed) -> Candidate:
    """The view and pooling of the features: as the options say, or what finds most on a sample."""
    if not job.config.input.is_open:
        return listed.candidates[0]
    with job.measure("look"):
        return select_features(
            job.run, listed.dataset.records, listed.candidates, views=len(listed.paths), network=listed.backbone,
            config=job.config, machine=job.machine, watcher=job.watcher,
        )  # fmt: skip


def _extract(job: _Job, listed: _Listed, choice: Candidate, *, data: Path) -> _Features:
    """Features of all images, by torch or a quicker runtime; and the frozen weights, so that they can be had again."""
    config, machine, watcher = job.config, job.machine, job.watcher
    views = config.input.cached_views or 1
    in_torch = open_extractor(
        listed.backbone, config.input, view=choice.view, pooling=choice.pooling, machine=machine
    )
    extractor = settle_runtime(
        job.run, in_torch, listed.paths, views=views + (VIEWS if config.picture.copies else 0),
        trains_network=config.network.trains, machine=machine, tell=watcher.on_note,
    )  # fmt: skip
    job.run.fix_features(extractor.describe(views=views))
    with job.measure("features"):
        training = prepare_training(
            job.run,
            listed.dataset,
            data=data,
            config=config,
            machine=machine,
            extractor=extractor,
            watcher=watcher,
        )
        hashes, decoding = [image.sha256 for image in training.images], None
        require_directions(*training.source.centre.shape, config=config)  # now of the images that are usable
        if config.picture.copies:
            require_pictures(hashes)
        if config.network.trains:
            decoding = plan_decoding(hashes, extractor=extractor, machine=machine)
        validation = prepare_validation(listed.validation, machine=machine, extractor=extractor, watcher=watcher)
    job.run.save_backbone(extractor.backbone)
    return _Features(training, validation, extractor, decoding)


def _evaluate_holdout(job: _Job, training: TrainingSet, guidance: Guidance | None) -> dict[str, Any] | None:
    """What training finds on classes and images held out, beside no training; measured once, also over a resume."""
    config = job.config
    if not config.selection.trial or not config.loss.trains or guidance is not None:
        return None
    with job.measure("trial"):
        if not (job.run.path / "trial.json").exists():
            found = run_trial(
                TrialData(training.features, training.labels.cpu().numpy(), training.copies, training.scenes),
                config=config, device=job.machine.device,
                progress=lambda done, total: job.watcher.on_images("trial", done, total),
            )  # fmt: skip
            job.run.write_json("trial.json", found.to_json())
        holdout = job.run.read_json("trial.json")
    job.watcher.on_trial(holdout)
    return holdout


def _estimate_confidences(job: _Job, training: TrainingSet) -> Beliefs | None:
    """How far each label is believed, where anything reads it."""
    if not job.config.needs_beliefs:
        return None
    with job.measure("confidence"):
        leaves_out = job.config.confidence.confidences == "leave-one-out"
        found = find_beliefs(
            training.source, training.labels, class_count=len(training.classes), config=job.config,
            context=job.context(job.run.confidence_checkpoint),
            groups=torch.from_numpy(training.copies).to(job.machine.device) if leaves_out else None,
        )  # fmt: skip
        job.run.write_confidences(_confidence_rows(training, found))
    job.watcher.on_beliefs(_summarise_confidences(training, found))
    return found


def _summarise_confidences(training: TrainingSet, confidences: Beliefs) -> dict[str, Any]:
    weights, labels = confidences.weights.cpu().numpy(), training.labels.cpu().numpy()
    return summarise_beliefs(weights, labels, classes=training.classes)


def _confidence_rows(training: TrainingSet, confidences: Beliefs) -> Iterator[list[object]]:
    top = min(3, len(training.classes))
    for rows, found in confidences.confidences.blocks():
        values, numbers = found.topk(top, dim=1)
        for row, v, n in zip(rows.tolist(), values.tolist(), numbers.tolist(), strict=True):
            image = training.images[row]
            suggestions = [
                x for number, value in zip(n, v, strict=True) for x in (training.classes[number], f"{value:.6f}")
            ]
            yield [image.path, image.given, image.used, f"{confidences.own[row].item():.6f}", *suggestions]


def _resolve_plan(
    config: TrainConfig, features: _Features, *, choice: Candidate, holdout: Mapping[str, Any] | None,
    confidences: Beliefs | None,
) -> TrainConfig:  # fmt: skip
    """The options with all that depends on the data: view and pooling, width, hold, and the size of random views."""
    rows, centre = choose_rows(confidences, config=config), features.training.source.centre
    spanned = min(centre.shape[1], (len(centre) if rows is None else len(rows)) - 1)
    embedding, network, sizes = config.embedding.wide(spanned), config.network, config.input
    hold = embedding.penalty if holdout is None else holdout["hold"]
    embedding = replace(embedding, hold=FIRM_HOLD if hold is None else hold)  # there was too little to try it on
    if network.trains and network.network_crop is None:
        network = replace(network, network_crop=smaller_side(features.extractor.backbone, sizes.crop))
    if sizes.is_open:
        sizes = sizes.settle(view=choice.view, pooling=choice.pooling)
    return replace(config, embedding=embedding, network=network, input=sizes)


def _fit(
    job: _Job, features: _Features, confidences: Beliefs | None, guidance: Guidance | None, *, plan: TrainConfig,
    verdict: Mapping[str, Any] | None,
) -> _Fitted:  # fmt: skip
    """The head on the frozen backbone: trained, or of closed form where the holdout says so and --val does not."""
    training, method = features.training, plan.loss.method
    if verdict is not None and verdict["exported"] != TRAINED and not _chooses_by_val(features, plan):
        method = verdict["exported"]
    if method in RIVALS:
        with job.measure("projection"):
            labelled = training.labelled(_known_weights(plan, confidences), reads_labels=method == CLASS_WHITENED)
            head: Head = fit_rival(method, labelled, embedding_dim=plan.embedding.width)
        return _Fitted(method, head, len(training.images))
    validation = None if features.validation is None else features.validation[0]

    def validate(epoch: int, head: torch.nn.Module) -> None:
        if validation is not None and epoch % plan.validate_every == 0:
            recall = validation.score(embed_features(head, validation.features)).recall
            job.run.append_metrics({"phase": "validation", "epoch": epoch, "recall": recall})
            job.watcher.on_validation(epoch, recall)

    with job.measure("embedding"):
        head, trained_on = train_head(
            training.source, training.labels, class_count=len(training.classes), config=plan,
            context=job.context(job.run.embedding_checkpoint, class_count=len(training.classes)),
            beliefs=confidences, guidance=guidance, on_head=validate,
        )  # fmt: skip
    return _Fitted(method, head, trained_on)


def _chooses_by_val(features: _Features, config: TrainConfig) -> bool:
    """Whether --val chooses what is exported. A benchmark's test part, which a protocol validates on, only reports."""
    return features.validation is not None and config.data.protocol == "folder"


def _known_weights(config: TrainConfig, confidences: Beliefs | None) -> np.ndarray | None:
    """(N,) how much each image counts, where leave-one-out has found it already."""
    if confidences is None or config.confidence.confidences != "leave-one-out":
        return None
    return confidences.weights.cpu().numpy()


def _ask_holdout(
    plan: TrainConfig, holdout: Mapping[str, Any] | None, *, feature_dim: int
) -> dict[str, Any] | None:
    """The verdict by the holdout; None where nothing trains."""
    if not plan.loss.trains:
        return None
    part = None if holdout is None else holdout["deciding"]
    return reach_verdict(
        None if holdout is None or part is None else holdout[part], by=HOLDOUT, question=QUESTIONS.get(part or "", ""),
        chooses=plan.selection.select == "auto",
        widths={TRAINED: plan.embedding.width, **dict.fromkeys(RIVALS, plan.embedding.width), "raw": feature_dim},
        contradicted_on=None if holdout is None else QUESTIONS.get(holdout["contradicted_on"]),
    )  # fmt: skip


def _train_network(
    job: _Job, listed: _Listed, features: _Features, confidences: Beliefs | None, guidance: Guidance | None, *,
    plan: TrainConfig, method: str,
) -> StageResult | None:  # fmt: skip
    """The backbone with a head of its own, beside the frozen embedding by `method`; None where it stays frozen."""
    if features.decoding is None:
        return None
    with job.measure(NETWORK):
        return train_network(
            job.run, features.training, confidences=confidences, method=method, guidance=guidance,
            extractor=features.extractor, blocks=listed.blocks, decoding=features.decoding, config=plan,
            machine=job.machine, context=job.context(job.run.network_checkpoint), on_images=job.watcher.on_images,
            on_note=job.watcher.on_note,
        )  # fmt: skip


def _evaluate(
    job: _Job, listed: _Listed, features: _Features, confidences: Beliefs | None, *, plan: TrainConfig,
    fitted: _Fitted, stage: StageResult | None, verdict: dict[str, Any] | None,
) -> _Evaluation:  # fmt: skip
    """The heads on --val, where there is one, and which of them is exported."""
    training = features.training
    trained = fitted.head if stage is None or stage.head is None else stage.head
    heads, scores, searches = dict[str, Head](), dict[str, SearchScores](), None
    if features.validation is not None:
        searches = plan_searches(*features.validation, training.known)
        heads = fit_rivals(
            training.labelled(_known_weights(plan, confidences)), embedding_dim=plan.embedding.width
        )
        if trained is not fitted.head:
            heads[FROZEN_HEAD] = fitted.head
        scores = {name: searches.score(head) for name, head in heads.items()}
        if stage is not None and stage.head is not None:
            seen = prepare_validation(
                listed.validation, machine=job.machine, extractor=features.extractor, watcher=job.watcher
            )
            assert seen is not None
            searches = searches.seen_as(seen[0].features, training=stage.features)
        if trained is not fitted.head or fitted.method not in RIVALS:
            scores[TRAINED] = searches.score(trained)
    heads[TRAINED] = trained
    if trained is not fitted.head and verdict is not None:
        verdict = add_network(verdict)
    if features.validation is not None and TRAINED in scores and _chooses_by_val(features, plan):
        question = ask_validation(features.validation[1].labels, trained=training.classes)
        by_images = _ask_validation(scores, question=question, heads=heads, config=plan)
        if by_images is not None:  # the holdout did not compare a network
            verdict = choose_verdict(by_images, verdict if trained is fitted.head else None)
    return _Evaluation(heads, scores, searches, verdict)


def _ask_validation(
    scores: Mapping[str, SearchScores], *, question: str, heads: Mapping[str, Head], config: TrainConfig
) -> dict[str, Any] | None:
    """The verdict by --val; None where its images only find those of their own scene."""
    found = {name: telling for name, one in scores.items() if (telling := one.telling) is not None}
    if TRAINED not in found:
        return None
    comparison = compare_validation(found, seed=config.seed)
    return reach_verdict(
        comparison.to_json(), by=VAL, question=question, chooses=config.selection.select == "auto",
        widths={name: head.embedding_dim for name, head in heads.items()},
    )  # fmt: skip


def _save(
    job: _Job, features: _Features, *, plan: TrainConfig, fitted: _Fitted, stage: StageResult | None,
    evaluation: _Evaluation,
) -> dict[str, Any]:  # fmt: skip
    """Write the embedding that is exported and what goes with it; most of the report."""
    run, training, extractor = job.run, features.training, features.extractor
    heads, scores, searches, verdict = (
        evaluation.heads, evaluation.scores, evaluation.searches, evaluation.verdict,
    )  # fmt: skip
    exported = TRAINED if verdict is None else verdict["exported"]
    head, method, network = fitted.head, fitted.method, None if stage is None else stage.report
    found = scores[exported if exported in scores else method] if scores else None
    if stage is not None and stage.head is not None:
        if exported == TRAINED:
            head, method = stage.head, plan.network_loss.method
            run.save_backbone(extractor.backbone)
        else:  # copies are told by the backbone that is exported
            network = {**stage.report, "ships": False, "left_by": VAL}
            frozen = load_backbone(plan.backbone, plan.weights, seed=plan.seed, side=plan.input.crop)
            sizes = plan.input
            extractor = open_extractor(frozen, sizes, view=sizes.view, pooling=sizes.pooling, machine=job.machine)
    if exported in heads and exported not in (FROZEN_HEAD, TRAINED):
        head, method = heads[exported], exported
    if method not in UNTRAINED_METHODS and (network is None or not network["ships"]):
        width = min(UNTRAINED_DIM, count_directions(training.features))
        run.save_untrained_head(fit_untrained("pca", training.features, embedding_dim=width))
    run.save_head(head, method=method, class_count=len(training.classes))
    baselines = {
        name: {"embedding_dim": heads[name].embedding_dim, **one.to_json()}
        for name, one in scores.items()
        if name != exported or name in RIVALS
    }
    return {
        "run": str(run.path),
        "picture": _train_picture(job, training, extractor) if plan.picture.copies else None,
        "phases": {name: {"seconds": seconds} for name, seconds in job.seconds.items()},
        "val": None if found is None else found.to_json(),
        "val_scenes": None if searches is None or searches.scenes is None else searches.scenes.to_json(),
        "baselines": None if searches is None else baselines,
        "verdict": verdict,
        "images": len(training.images),
        "trained_on": fitted.trained_on,
        "classes": len(training.classes),
        "skipped": run.count_skipped(),
        "noise": None if plan.data.noise is None else _report_noise(training),
        "method": method,
        "embedding_dim": head.embedding_dim,
        "feature_choice": run.read_feature_choice(),
        "network": network,
    }


def _train_picture(job: _Job, training: TrainingSet, extractor: Extractor) -> dict[str, Any]:
    """The output by which copies are found, saved, on the features of the network that is exported; its report."""
    with job.measure(PICTURE_PHASE):
        head, report = train_picture(
            training.images, training.copies, extractor=extractor, machine=job.machine, watcher=job.watcher,
            picture_dim=job.config.picture.picture_dim, seed=job.config.seed,
        )  # fmt: skip
        job.run.save_picture_head(head, threshold=report["threshold"], is_kept=report["is_kept"])
    return report


def _report_noise(training: TrainingSet) -> dict[str, Any]:
    numbers = {label: number for number, label in enumerate(training.classes)}
    given, used = (
        np.array([numbers[getattr(image, column)] for image in training.images], dtype=np.int64)
        for column in ("given", "used")
    )
    return describe_noise(given, used, classes=training.classes)
