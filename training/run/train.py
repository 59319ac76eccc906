"""Training run, from labelled images to a run folder; `train` lists its steps in order."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from index.errors import InputError
from index.evaluation.metrics import RetrievalScores
from training.backbone.backbones import Backbone, load_backbone, require_input_size, with_features
from training.backbone.extract import Extractor
from training.confidence.confidences import LabelConfidences
from training.data.datasets import Dataset, require_outside
from training.data.label_noise import describe_noise
from training.head.embedding_heads import Head
from training.head.untrained import (
    UNTRAINED_DIM,
    LabelledFeatures,
    count_directions,
    fit_rival,
    fit_rivals,
    fit_untrained,
)
from training.losses.guidance import Guidance, load_guidance
from training.network.decoded_images import MappedArray, place_decoded, require_room
from training.options.config import FIRM_L2_SP, TrainConfig
from training.options.losses import RIVALS, UNTRAINED_METHODS, WCCN
from training.options.machine import Machine
from training.options.resolve import why_frozen
from training.run.copy_stage import COPY_PHASE, VIEWS, require_images, train_copy_head
from training.run.distributed import require_same_files
from training.run.features import require_runtime, settle_runtime
from training.run.finetuning.inputs import plan_blocks, smaller_side
from training.run.finetuning.stage import StageResult, finetune_backbone
from training.run.fit import choose_rows, estimate_confidences, known_weights, require_directions, train_head
from training.run.holdout import evaluate_holdout
from training.run.phases import FINETUNING, TrainingJob, Watcher
from training.run.prepare import (
    TrainingSet,
    ValidationRecords,
    check_hierarchy,
    list_data,
    open_extractor,
    prepare_training,
    prepare_validation,
)
from training.run.run_folder import RunFolder
from training.run.searches import KnownImages, Searches, SearchScores, embed_features, plan_searches
from training.run.verdict import FROZEN_HEAD, PARTS, SEARCHED, TRAINED, VAL, MethodComparison, Verdict, compare


@dataclass(frozen=True, slots=True)
class _Listed:
    """Images and backbone, before anything is decoded."""

    dataset: Dataset
    validation: ValidationRecords | None
    backbone: Backbone

    @property
    def paths(self) -> list[Path]:
        records = self.dataset.records + (() if self.validation is None else self.validation.records)
        return [record.path for record in records]


@dataclass(frozen=True, slots=True)
class _Features:
    """Training and validation images with features, and their extractor.

    `decoding` is the place of the decoded images; None where the backbone stays frozen.
    """

    listed: _Listed
    training: TrainingSet
    validation: KnownImages | None
    extractor: Extractor
    decoding: MappedArray | None
    guidance: Guidance | None


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Embedding on the frozen backbone: method, head, and number of training images."""

    method: str
    head: Head
    trained_on: int


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
    """Train on a folder of class folders, a table or a gallery, into a run folder; returns the report of report.json.

    Args:
        val: labelled images for evaluation, which select the exported embedding (`--select auto`).
        asked: given options of `config`, for a later training with the same options.
        resume: continue an interrupted run; a finished one returns its report.
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
    job = TrainingJob(run, config, machine, watcher)
    try:
        watcher.on_run(run)
        if (reason := why_frozen(asked)) is not None:
            watcher.on_note(f"the network stays frozen: {reason}")
        features = _extract(job, listed, data=data)
    except InputError:
        if begun is None:
            run.discard()
        raise
    run.begin_metrics()
    confidences = _estimate_confidences(job, features.training)
    holdout = _evaluate_holdout(job, features, confidences)
    plan = _resolve_plan(job.config, features, holdout=holdout, confidences=confidences)
    job = replace(job, config=plan)
    verdict = _judge_head(plan, holdout, feature_dim=features.training.features.shape[1])
    fitted = _fit(job, features, confidences, verdict=verdict)
    stage: StageResult | None = None
    if features.decoding is not None:
        if verdict is not None and verdict.answers:
            leads = (f"{SEARCHED[name]}: {one.describe_lead()}" for name, one in verdict.answers.items())
            watcher.on_note(f"before fine-tuning: {'; '.join(leads)}")
        with job.measure(FINETUNING):
            stage = finetune_backbone(
                job,
                features.training,
                confidences=confidences,
                method=fitted.method,
                guidance=features.guidance,
                extractor=features.extractor,
                decoding=features.decoding,
            )
    heads, scores, searches, verdict = _evaluate(
        job, features, confidences, fitted=fitted, stage=stage, verdict=verdict
    )
    report = _save(
        job, features, fitted=fitted, stage=stage, heads=heads, scores=scores, searches=searches, verdict=verdict
    )
    report |= {"holdout": holdout, "confidences": None if confidences is None else _describe_confidences(confidences)}
    run.write_json("report.json", {**report, "seconds": time.perf_counter() - started})
    watcher.on_report(report := run.read_json("report.json"))  # as a resume of the finished run gives it
    return report


def _list(data: Path, val: Path | None, *, out: Path, config: TrainConfig, machine: Machine, is_new: bool) -> _Listed:
    """Images and backbone; invalid input is refused here."""
    require_runtime(machine, trains_network=config.finetuning.trains)
    require_outside(out, data=data, flag="--out")
    require_outside(machine.cache, data=data, flag="--cache")
    dataset, validation = list_data(data, val, config=config)
    require_same_files(dataset.records + (() if validation is None else validation.records))
    backbone = load_backbone(config.backbone, config.weights, seed=config.seed, side=config.input.crop)
    require_input_size(backbone, config.input.crop)
    sizes = config.input
    seeing = with_features(backbone, view=sizes.view, pooling=sizes.pooling, side=sizes.crop)
    if config.finetuning.trains:
        if config.finetuning.image_size is not None:
            require_input_size(backbone, config.finetuning.image_size, flag="--image-size")
        plan_blocks(backbone, config, side=config.input.crop)
    if is_new:
        check_hierarchy(dataset, config=config)
        require_directions(len(dataset.records), seeing.feature_dim, config=config)
    return _Listed(dataset, validation, backbone)


def _extract(job: TrainingJob, listed: _Listed, *, data: Path) -> _Features:
    """Features of all images, and the saved backbone."""
    config, machine = job.config, job.machine
    in_torch = open_extractor(listed.backbone, config.input, machine=machine)
    extractor = settle_runtime(job, in_torch, listed.paths, views=1 + (VIEWS if config.copy.copy_head else 0))
    job.run.fix_features(extractor.describe())
    with job.measure("features"):
        training = prepare_training(job, listed.dataset, data=data, extractor=extractor)
        hashes, decoding, guidance = [image.sha256 for image in training.images], None, None
        require_directions(*training.on_device.shape, config=config)  # now of the images that are usable
        if config.copy.copy_head:
            require_images(hashes)
        if config.finetuning.trains:
            decoding = place_decoded(hashes, extractor.preprocess, cache=machine.cache)
            require_room(decoding)
        if (file := getattr(config.loss.options, "guidance", None)) is not None:
            guidance = load_guidance(Path(file), classes=training.classes, sha256=hashes)
        validation = prepare_validation(listed.validation, machine=machine, extractor=extractor, watcher=job.watcher)
    job.run.save_backbone(extractor.backbone)
    return _Features(listed, training, validation, extractor, decoding, guidance)


def _evaluate_holdout(
    job: TrainingJob, features: _Features, confidences: LabelConfidences | None
) -> dict[str, Any] | None:
    """Holdout evaluation of training against untrained embeddings; kept for a resume."""
    config, training = job.config, features.training
    if not config.selection.holdout or not config.loss.trains or features.guidance is not None:
        return None
    with job.measure("holdout"):
        holdout = job.run.keep_json(
            "holdout.json",
            lambda: evaluate_holdout(
                LabelledFeatures(training.features, training.labels.cpu().numpy(), training.copies, training.groups),
                config=config,
                device=job.machine.device,
                posteriors=None if confidences is None else confidences.posteriors(),
                progress=partial(job.watcher.on_images, "holdout"),
            ).to_json(),
        )
    job.watcher.on_holdout(holdout)
    return holdout


def _estimate_confidences(job: TrainingJob, training: TrainingSet) -> LabelConfidences | None:
    """Label confidences, if anything reads them."""
    if not job.config.needs_confidences:
        return None
    with job.measure("confidence"):
        leaves_out = job.config.confidence.confidences == "leave-one-out"
        found = estimate_confidences(
            training.on_device,
            training.labels,
            class_count=len(training.classes),
            config=job.config,
            context=job.context("confidence"),
            groups=torch.from_numpy(training.copies).to(job.machine.device) if leaves_out else None,
            prior=training.prior,
        )
        job.run.write_confidences(_confidence_rows(training, found))
    return found


def _confidence_rows(training: TrainingSet, confidences: LabelConfidences) -> Iterator[list[object]]:
    top = min(3, len(training.classes))
    for rows, found in confidences.by_class.blocks():
        values, numbers = found.topk(top, dim=1)
        for row, v, n in zip(rows.tolist(), values.tolist(), numbers.tolist(), strict=True):
            image = training.images[row]
            suggestions = [
                x for number, value in zip(n, v, strict=True) for x in (training.classes[number], f"{value:.6f}")
            ]
            yield [image.path, image.given, image.used, f"{confidences.own[row].item():.6f}", *suggestions]


def _describe_confidences(confidences: LabelConfidences) -> dict[str, float | None]:
    """Mean confidence in the labels, with the estimated noise rate and the power of posteriors."""
    noise, mean = confidences.noise, float(confidences.own.cpu().numpy().mean())
    return {"mean": mean} | ({} if noise is None else {"noise_rate": confidences.noise_rate, "power": noise.power})


def _resolve_plan(
    config: TrainConfig, features: _Features, *, holdout: Mapping[str, Any] | None, confidences: LabelConfidences | None
) -> TrainConfig:
    """Options with all values that depend on the data: width, L2-SP weight, image size."""
    rows, centre = choose_rows(confidences, config=config), features.training.on_device
    spanned = min(centre.shape[1], (len(centre) if rows is None else len(rows)) - 1)
    embedding, network = config.embedding.wide(spanned), config.finetuning
    l2_sp = embedding.penalty if holdout is None else holdout["l2_sp"]
    embedding = replace(embedding, l2_sp=FIRM_L2_SP if l2_sp is None else l2_sp)  # there was too little to try it on
    if network.trains and network.image_size is None:
        network = replace(network, image_size=smaller_side(features.extractor.backbone, config.input.crop))
    return replace(config, embedding=embedding, finetuning=network)


def _fit(
    job: TrainingJob, features: _Features, confidences: LabelConfidences | None, *, verdict: Verdict | None
) -> _Fitted:
    """Head on the frozen backbone: trained, or in closed form where the holdout evaluation selects that."""
    training, validation, method = features.training, features.validation, job.config.loss.method
    if verdict is not None and verdict.exported != TRAINED and not _chooses_by_val(job, features):
        method = verdict.exported
    if method in RIVALS:
        with job.measure("projection"):
            weights = known_weights(confidences, config=job.config)
            labelled = training.labelled(weights, reads_labels=method == WCCN)
            head: Head = fit_rival(method, labelled, embedding_dim=job.config.embedding.width)
        return _Fitted(method, head, len(training.images))

    def validate(epoch: int, head: torch.nn.Module) -> None:
        if validation is not None and epoch % job.config.head_eval_every == 0:
            recall = validation.ungrouped.score(embed_features(head, validation.features)).recall
            job.run.append_metrics({"phase": "validation", "epoch": epoch, "recall": recall})
            job.watcher.on_validation(epoch, recall)

    with job.measure("embedding"):
        head, trained_on = train_head(
            training.on_device,
            training.labels,
            class_count=len(training.classes),
            config=job.config,
            context=job.context("embedding", class_count=len(training.classes)),
            confidences=confidences,
            guidance=features.guidance,
            on_head=validate,
        )
    return _Fitted(method, head, trained_on)


def _chooses_by_val(job: TrainingJob, features: _Features) -> bool:
    """Whether --val selects the exported embedding; the test part of a benchmark only reports."""
    return features.validation is not None and job.config.data.protocol == "folder"


def _judge_head(plan: TrainConfig, holdout: Mapping[str, Any] | None, *, feature_dim: int) -> Verdict | None:
    """Verdict of the holdout evaluation on the head; None for a method without training."""
    if not plan.loss.trains:
        return None
    unmeasured = "the data has too few classes or photos to hold some out"
    if holdout is None:
        unmeasured = f"nothing was held out ({'--guidance' if plan.selection.holdout else '--no-holdout'})"
    return Verdict(
        plan.selection.for_,
        {question: MethodComparison(**holdout[part]) for question, part in PARTS.items() if holdout and holdout[part]},
        unmeasured,
        chooses=plan.selection.select == "auto",
        widths={**dict.fromkeys((TRAINED, FROZEN_HEAD, *RIVALS), plan.embedding.width), "raw": feature_dim},
    )


def judge_by_val(
    verdict: Verdict,
    found: Mapping[str, RetrievalScores],
    validation: KnownImages,
    *,
    classes: Sequence[str],
    seed: int,
) -> Verdict:
    """The verdict with answers by --val, whose labels say which of both: training `classes` are known, others new.

    Of too few classes for an interval, an answer that is there already stays.

    Args:
        found: scores of the validation images by method.
    """
    labels = found[TRAINED].labels
    is_known = np.isin(labels, validation.numbers[np.isin(validation.labels, classes)])
    rows = {name: of_name for name, of_name in (("known", is_known), ("new", ~is_known)) if of_name.any()}
    answers, parts = dict(verdict.answers), len(rows.keys() | verdict.answers.keys())
    for name, of_name in rows.items():
        hits = {method: one.hits[1][of_name] for method, one in found.items()}
        answer = compare(hits, labels[of_name], seed=seed, parts=parts, by=VAL)
        if answer.difference_interval is not None or name not in answers:
            answers[name] = answer
    return replace(verdict, answers=answers)


def _evaluate(
    job: TrainingJob,
    features: _Features,
    confidences: LabelConfidences | None,
    *,
    fitted: _Fitted,
    stage: StageResult | None,
    verdict: Verdict | None,
) -> tuple[dict[str, Head], dict[str, SearchScores], Searches | None, Verdict | None]:
    """Heads by name, their scores on --val, the searches, and the verdict."""
    training, validation, plan = features.training, features.validation, job.config
    trained = fitted.head if stage is None or stage.head is None else stage.head
    is_network = trained is not fitted.head
    if stage is not None and verdict is not None:
        verdict = replace(verdict, finetuning=stage.report)
        if is_network:
            verdict = replace(
                verdict,
                answers=stage.answers,
                heads=verdict.answers,
                widths={**verdict.widths, TRAINED: trained.embedding_dim},
                unmeasured="fine-tuning held none of these out, for want of photos or classes",
            )
    if validation is None:
        return {TRAINED: trained}, {}, None, verdict
    searches = plan_searches(validation, training.known)
    labelled = training.labelled(known_weights(confidences, config=plan))
    heads = fit_rivals(labelled, embedding_dim=plan.embedding.width)
    if is_network:
        heads[FROZEN_HEAD] = fitted.head
    scores = {name: searches.score(head) for name, head in heads.items()}
    heads[TRAINED] = trained
    if stage is not None and is_network:
        seen = prepare_validation(
            features.listed.validation, machine=job.machine, extractor=features.extractor, watcher=job.watcher
        )
        assert seen is not None
        searches = searches.seen_as(seen.features, training=stage.features)
    if is_network or fitted.method not in RIVALS:
        scores[TRAINED] = searches.score(trained)
    found = {name: telling for name, one in scores.items() if (telling := one.telling) is not None}
    if verdict is not None and TRAINED in found and _chooses_by_val(job, features):
        verdict = judge_by_val(verdict, found, validation, classes=training.classes, seed=plan.seed)
    return heads, scores, searches, verdict


def _save(
    job: TrainingJob,
    features: _Features,
    *,
    fitted: _Fitted,
    stage: StageResult | None,
    heads: Mapping[str, Head],
    scores: Mapping[str, SearchScores],
    searches: Searches | None,
    verdict: Verdict | None,
) -> dict[str, Any]:
    """Save the exported embedding; returns most of the report."""
    run, plan, training, extractor = job.run, job.config, features.training, features.extractor
    network = None if stage is None else stage.report
    exported = TRAINED if verdict is None else verdict.exported
    head, method = fitted.head, fitted.method
    found = scores[exported if exported in scores else method] if scores else None
    if stage is not None and stage.head is not None:
        if exported == TRAINED:
            head, method = stage.head, plan.loss.method
        else:
            network = {**stage.report, "selected": False, "left_by": "verdict"}
            frozen = load_backbone(plan.backbone, plan.weights, seed=plan.seed, side=plan.input.crop)
            sizes = plan.input
            extractor = open_extractor(frozen, sizes, machine=job.machine)
    is_finetuned = network is not None and network["selected"]
    run.save_finetuned(extractor.backbone if is_finetuned else None)
    if exported in heads and exported not in (FROZEN_HEAD, TRAINED):
        head, method = heads[exported], exported
    if method not in UNTRAINED_METHODS and not is_finetuned:
        width = min(UNTRAINED_DIM, count_directions(training.features))
        run.save_module("untrained", fit_untrained("pca", training.features, embedding_dim=width))
    run.save_head(head, method=method, class_count=len(training.classes))
    copies = None
    if plan.copy.copy_head:  # on the features of the exported backbone
        with job.measure(COPY_PHASE):
            copy_head, copies = train_copy_head(job, training.images, training.copies, extractor=extractor)
            run.save_copy_head(copy_head, threshold=copies["threshold"], is_kept=copies["is_kept"])
    baselines = {
        name: {"embedding_dim": heads[name].embedding_dim, **one.to_json()}
        for name, one in scores.items()
        if name != exported or name in RIVALS
    }
    return {
        "run": str(run.path),
        "copy_head": copies,
        "phases": {name: {"seconds": seconds} for name, seconds in job.seconds.items()},
        "val": None if found is None else found.to_json(),
        "val_groups": None if searches is None or searches.groups is None else searches.groups.to_json(),
        "baselines": None if searches is None else baselines,
        "verdict": None if verdict is None else verdict.to_json(),
        "images": len(training.images),
        "trained_on": fitted.trained_on,
        "classes": len(training.classes),
        "skipped": run.count_skipped(),
        "noise": None if plan.data.noise is None else _report_noise(training),
        "method": method,
        "embedding_dim": head.embedding_dim,
        "finetuning": network,
    }


def _report_noise(training: TrainingSet) -> dict[str, Any]:
    numbers = {label: number for number, label in enumerate(training.classes)}
    given = np.array([numbers[image.given] for image in training.images], dtype=np.int64)
    used = np.array([numbers[image.used] for image in training.images], dtype=np.int64)
    return describe_noise(given, used, classes=training.classes)
