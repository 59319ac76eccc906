"""A whole training run: images to features, the two phases, and the report beside the untrained baselines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from index.arrays import Ids
from index.errors import InputError
from training.backbone.backbones import load_backbone, require_input_size
from training.backbone.extract import Extractor
from training.backbone.feature_sources import FeatureSource
from training.confidence.confidences import Beliefs
from training.confidence.same_pictures import MOST_COMPARED, find_duplicates
from training.data.datasets import require_outside
from training.head.embedding_heads import Head
from training.head.projection import count_directions
from training.head.untrained import UNTRAINED_DIM, LabelledFeatures, fit_rival, fit_rivals, fit_untrained
from training.label_noise.noise import describe_noise
from training.losses.guidance import Guidance, load_guidance
from training.losses.make_loss import loss_class
from training.options.config import FIRM_HOLD, TrainConfig
from training.options.losses import CLASS_WHITENED, RIVALS, UNTRAINED_METHODS
from training.options.machine import Machine
from training.run.checkpoint import load_checkpoint
from training.run.feature_choice import list_candidates
from training.run.feature_runtime import require_runtime, settle_runtime
from training.run.fit import TrainedHead
from training.run.heads import choose_rows, find_beliefs, require_directions, summarise_beliefs, train_head
from training.run.look import settle_features
from training.run.network.blocks import plan_blocks
from training.run.network.stage import StageInput, StageResult, plan_decoding, train_network
from training.run.phases import NETWORK, EpochReport, PhaseContext, Watcher
from training.run.picture_stage import PICTURE_PHASE, VIEWS, require_pictures, train_picture
from training.run.prepare import (
    check_hierarchy,
    gather_known,
    list_data,
    open_extractor,
    prepare_training,
    prepare_validation,
)
from training.run.processes import require_same_files
from training.run.run_folder import LabelledImage, RunFolder
from training.run.searches import (
    KnownImages,
    SearchScores,
    ValidationSet,
    embed_features,
    find_trial_scenes,
    plan_searches,
)
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

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Clock:
    on_phase: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        self.on_phase(phase)
        started = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - started


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
    clock = _Clock(watcher.on_phase)
    run = RunFolder.open(out, resuming=True) if resume else None
    if run is not None:
        run.check_same(config=config, data=data, val=val)
        if (out / "report.json").exists():
            watcher.on_run(run)
            watcher.on_report(report := run.read_json("report.json"))
            return report
    require_runtime(machine, trains_network=config.network.trains)
    require_outside(out, data=data, flag="--out")
    require_outside(machine.cache, data=data, flag="--cache")
    dataset, val_records = list_data(data, val, config=config)
    listed = dataset.records + (() if val_records is None else val_records.records)
    require_same_files(listed)
    backbone = load_backbone(config.backbone, config.weights, seed=config.seed, side=config.input.crop)
    require_input_size(backbone, config.input.crop)
    candidates = list_candidates(backbone, config.input, embedding_dim=config.embedding.embedding_dim or 1)
    first = candidates[0]  # all there is, unless a look chooses
    extractor = open_extractor(backbone, config.input, view=first.view, pooling=first.pooling, machine=machine)
    is_new = run is None
    if config.network.trains:
        plan_blocks(extractor, config)
    if run is None:
        check_hierarchy(dataset, config=config)
        for loss in (config.loss, config.network_loss):
            if loss.trains:
                loss_class(loss.method)  # whether its package is there, before any long work
        require_directions(len(dataset.records), max(one.feature_dim for one in candidates), config=config)
        run = RunFolder.create(out, config=config, data=data, val=val, asked=asked)
    with _discarding(run, when_new=is_new):
        watcher.on_run(run)
    if config.input.is_open:
        with clock.measure("look"), _discarding(run, when_new=is_new):
            config = settle_features(
                run, dataset.records, candidates, views=len(listed), network=backbone, config=config,
                machine=machine, watcher=watcher,
            )  # fmt: skip
            sizes = config.input
            extractor = open_extractor(backbone, sizes, view=sizes.view, pooling=sizes.pooling, machine=machine)
    with _discarding(run, when_new=is_new):
        extractor = settle_runtime(
            run, extractor, [record.path for record in listed],
            views=(config.input.cached_views or 1) + (VIEWS if config.picture.copies else 0),
            trains_network=config.network.trains, machine=machine, tell=watcher.on_note,
        )  # fmt: skip
    run.fix_features(extractor.describe(views=config.input.cached_views or 1))
    with clock.measure("features"), _discarding(run, when_new=is_new):
        images, source = prepare_training(
            run, dataset, data=data, config=config, machine=machine, extractor=extractor, watcher=watcher
        )
        require_directions(*source.centre.shape, config=config)  # now of the images that are usable
        if config.picture.copies:
            require_pictures([image.sha256 for image in images])
        if config.network.trains:
            plan_decoding(images, extractor=extractor, machine=machine)
        prepared = prepare_validation(val_records, machine=machine, extractor=extractor, watcher=watcher)
        classes = sorted({image.given for image in images})
        guidance = _read_guidance(images, classes=classes, config=config)
    run.save_backbone(extractor.backbone)
    noise = _report_noise(images, classes=classes) if config.data.noise is not None else None
    trained_on = len(images)
    # It opens every file: only where something is searched, and once.
    know = cache(lambda: gather_known(images, source.centre.cpu().numpy(), records=dataset.records))
    phases = _Phases(
        run, images, source, classes=classes, config=config, machine=machine, watcher=watcher, know=know
    )
    method, trial = config.loss.method, None
    if config.selection.trial and config.loss.trains and guidance is None:
        with clock.measure("trial"):
            trial = phases.try_out()
        watcher.on_trial(trial)
        phases.hold(FIRM_HOLD if trial["hold"] is None else trial["hold"])  # there was too little to try it on
    beliefs = phases.believe(clock)
    embedding_dim = phases.settle_width(beliefs)
    believed = phases.summarise(beliefs)
    if believed is not None:
        watcher.on_beliefs(believed)
    # A benchmark's test part, which a protocol validates on, only reports.
    by_val = prepared is not None and config.data.protocol == "folder"
    verdict = phases.ask_holdout(trial) if config.loss.trains else None
    if verdict is not None and verdict["exported"] != TRAINED and not by_val:
        method = verdict["exported"]
    if method in RIVALS:
        with clock.measure("projection"), _discarding(run, when_new=is_new):
            fitted = phases.images(beliefs, reads_labels=method == CLASS_WHITENED)
            head: Head = fit_rival(method, fitted, embedding_dim=embedding_dim)
    else:
        validation = None if prepared is None else prepared[0]
        head, trained_on = phases.train(validation, beliefs=beliefs, guidance=guidance, clock=clock)
    searches, rivals = None, dict[str, Head]()
    if prepared is not None:
        searches = plan_searches(*prepared, know())
        rivals = fit_rivals(phases.images(beliefs), embedding_dim=embedding_dim)
    network, trained = None, head
    if config.network.trains:
        with clock.measure("network"):
            result = phases.train_network(extractor, method=method, beliefs=beliefs, guidance=guidance)
        network, trained = result.report, result.head or head
    scores = {} if searches is None else {name: searches.score(rival) for name, rival in rivals.items()}
    if searches is not None and trained is not head:
        rivals[FROZEN_HEAD], scores[FROZEN_HEAD] = head, searches.score(head)
        seen = prepare_validation(val_records, machine=machine, extractor=extractor, watcher=watcher)
        assert seen is not None
        searches = searches.seen_as(seen[0].features, training=result.features)
    if searches is not None and (trained is not head or method not in RIVALS):
        scores[TRAINED] = searches.score(trained)
    if trained is not head and verdict is not None:
        verdict = add_network(verdict)
    if by_val and prepared is not None and TRAINED in scores:
        question = ask_validation(prepared[1].labels, trained=classes)
        heads = {TRAINED: trained, **rivals}
        by_images = _ask_validation(scores, question=question, heads=heads, config=config)
        if by_images is not None:  # the holdout did not compare a network
            verdict = choose_verdict(by_images, verdict if trained is head else None)
    exported = TRAINED if verdict is None else verdict["exported"]
    found = scores[exported if exported in scores else method] if scores else None
    if trained is not head and exported == TRAINED:
        head, method = trained, config.network_loss.method
        run.save_backbone(extractor.backbone)
    elif trained is not head and network is not None:  # copies are told by the backbone that is exported
        network = {**network, "ships": False, "left_by": VAL}
        extractor = open_extractor(
            load_backbone(config.backbone, config.weights, seed=config.seed, side=config.input.crop), config.input,
            view=config.input.view, pooling=config.input.pooling, machine=machine,
        )  # fmt: skip
    if exported in rivals and exported != FROZEN_HEAD:
        head, method = rivals[exported], exported
    if method not in UNTRAINED_METHODS and (network is None or not network["ships"]):
        run.save_untrained_head(phases.fit_untrained())
    run.save_head(head, method=method, class_count=len(classes))
    picture = None
    if config.picture.copies:
        with clock.measure(PICTURE_PHASE):
            picture = phases.train_picture(extractor)
    baselines = {
        name: {"embedding_dim": {TRAINED: trained, **rivals}[name].embedding_dim, **one.to_json()}
        for name, one in scores.items()
        if name != exported or name in RIVALS
    }
    report = {
        "run": str(out),
        "seconds": time.perf_counter() - started,
        "phases": {name: {"seconds": seconds} for name, seconds in clock.seconds.items()},
        "val": None if found is None else found.to_json(),
        "val_scenes": None if searches is None or searches.scenes is None else searches.scenes.to_json(),
        "baselines": None if searches is None else baselines,
        "verdict": verdict,
        "images": len(images),
        "trained_on": trained_on,
        "classes": len(classes),
        "skipped": run.count_skipped(),
        "noise": noise,
        "method": method,
        "embedding_dim": head.embedding_dim,
        "feature_choice": run.read_feature_choice(),
        "trial": trial,
        "network": network,
        "picture": picture,
        "beliefs": believed,
    }
    run.write_json("report.json", report)
    watcher.on_report(report := run.read_json("report.json"))  # as a resume of the finished run gives it
    return report


def _read_guidance(
    images: Sequence[LabelledImage], *, classes: Sequence[str], config: TrainConfig
) -> Guidance | None:
    path = getattr(config.loss.options, "guidance", None)
    if path is None:
        return None
    return load_guidance(Path(path), classes=classes, sha256=[image.sha256 for image in images])


def _report_noise(images: Sequence[LabelledImage], *, classes: Sequence[str]) -> dict[str, Any]:
    numbers = {label: number for number, label in enumerate(classes)}
    given, used = (
        np.array([numbers[getattr(image, column)] for image in images], dtype=np.int64)
        for column in ("given", "used")
    )
    return describe_noise(given, used, classes=classes)


@contextmanager
def _discarding(run: RunFolder, *, when_new: bool) -> Iterator[None]:
    try:
        yield
    except InputError:
        if when_new:
            run.discard()
        raise


class _Phases:
    """The two phases of a run over one feature source, with their checkpoints and metrics."""

    def __init__(
        self,
        run: RunFolder,
        images: Sequence[LabelledImage],
        source: FeatureSource,
        *,
        classes: Sequence[str],
        config: TrainConfig,
        machine: Machine,
        watcher: Watcher,
        know: Callable[[], KnownImages],
    ) -> None:
        self._run, self._images, self._source, self._classes = run, images, source, classes
        self._know = know
        self._config, self._machine, self._device, self._watcher = config, machine, machine.device, watcher
        numbers = {label: number for number, label in enumerate(classes)}
        self._labels = torch.tensor([numbers[image.used] for image in images], device=machine.device)
        checkpoints = {
            "confidence": run.confidence_checkpoint,
            "embedding": run.embedding_checkpoint,
            "validation": run.embedding_checkpoint,
            NETWORK: run.network_checkpoint,
        }
        run.begin_metrics(
            epochs={
                phase: load_checkpoint(path)[1]["epoch"] for phase, path in checkpoints.items() if path.exists()
            }
        )

    def _context(self, checkpoint: Path) -> PhaseContext:
        return PhaseContext(
            seed=self._config.seed, device=self._device, checkpoint=checkpoint, on_epoch=self._note_epoch
        )

    def _note_epoch(self, report: EpochReport) -> None:
        self._run.append_metrics(report.to_json())
        self._watcher.on_epoch(report)
        if report.phase == "embedding" and report.epoch == 1:
            judge = self._config.confidence.confidences
            warn_of_unsuitable_lambda(report, class_count=len(self._classes), judge=judge)

    def images(self, beliefs: Beliefs | None, *, reads_labels: bool = True) -> LabelledFeatures:
        """What methods without a step of training are fitted on; what leave-one-out has found is not found again."""
        features, labels = self._source.centre.cpu().numpy(), self._labels.cpu().numpy()
        if beliefs is not None and self._leaves_out:
            return LabelledFeatures(features, labels, weights=beliefs.weights.cpu().numpy())
        return LabelledFeatures(features, labels, self._copies if reads_labels else None)

    def fit_untrained(self) -> Head:
        """The projection of the frozen features that labels are judged by in a gallery."""
        features = self._source.centre.cpu().numpy()
        return fit_untrained("pca", features, embedding_dim=min(UNTRAINED_DIM, count_directions(features)))

    @property
    def _leaves_out(self) -> bool:
        return self._config.confidence.confidences == "leave-one-out"

    @cached_property
    def _copies(self) -> Ids:
        """(N,) int64, the same for images that must not vouch for each other's labels."""
        hashes = [image.sha256 for image in self._images]
        if len(hashes) > MOST_COMPARED:
            return np.unique(hashes, return_inverse=True)[1].astype(np.int64)
        features, labels = self._source.centre.cpu().numpy(), self._labels.cpu().numpy()
        return find_duplicates(features, labels, hashes=hashes).groups

    @cached_property
    def _scenes(self) -> Ids | None:
        """(N,) int64, the same for photos of one scene, copies among them; None where nothing points to scenes."""
        return find_trial_scenes(self._know(), copies=self._copies)

    def try_out(self) -> dict[str, Any]:
        if not (self._run.path / "trial.json").exists():
            features, labels = self._source.centre.cpu().numpy(), self._labels.cpu().numpy()
            trial = run_trial(
                TrialData(features, labels, self._copies, self._scenes),
                config=self._config,
                device=self._device,
                progress=lambda done, total: self._watcher.on_images("trial", done, total),
            )
            self._run.write_json("trial.json", trial.to_json())
        return self._run.read_json("trial.json")

    def ask_holdout(self, trial: Mapping[str, Any] | None) -> dict[str, Any]:
        """The verdict by the holdout, once the width is settled."""
        part = None if trial is None else trial["deciding"]
        width, feature_dim = self._config.embedding.width, self._source.centre.shape[1]
        return reach_verdict(
            None if trial is None or part is None else trial[part], by=HOLDOUT, question=QUESTIONS.get(part or "", ""),
            chooses=self._config.selection.select == "auto",
            widths={TRAINED: width, **dict.fromkeys(RIVALS, width), "raw": feature_dim},
            contradicted_on=None if trial is None else QUESTIONS.get(trial["contradicted_on"]),
        )  # fmt: skip

    def hold(self, hold: float | None) -> None:
        """Train with the hold that the trial chose, where the run left that open."""
        self._config = replace(self._config, embedding=replace(self._config.embedding, hold=hold))

    def believe(self, clock: _Clock) -> Beliefs | None:
        """Phase 1, where the method asks for it; where a rival ships too, as it tells which labels to mend."""
        if not self._config.needs_beliefs:
            return None
        with clock.measure("confidence"):
            beliefs = find_beliefs(
                self._source,
                self._labels,
                class_count=len(self._classes),
                config=self._config,
                context=self._context(self._run.confidence_checkpoint),
                groups=torch.from_numpy(self._copies).to(self._device) if self._leaves_out else None,
            )
            self._run.write_confidences(self._confidence_rows(beliefs))
        return beliefs

    def settle_width(self, beliefs: Beliefs | None) -> int:
        """The embedding's width: the given one, else the usual one if the images that train span so many directions."""
        rows = choose_rows(beliefs, config=self._config)
        centre = self._source.centre
        spanned = min(centre.shape[1], (len(centre) if rows is None else len(rows)) - 1)
        self._config = replace(self._config, embedding=self._config.embedding.wide(spanned))
        return self._config.embedding.width

    def summarise(self, beliefs: Beliefs | None) -> dict[str, Any] | None:
        """What was believed, for the report."""
        if beliefs is None:
            return None
        weights, labels = beliefs.weights.cpu().numpy(), self._labels.cpu().numpy()
        return summarise_beliefs(weights, labels, classes=self._classes)

    def train(
        self,
        validation: ValidationSet | None,
        *,
        beliefs: Beliefs | None,
        guidance: Guidance | None,
        clock: _Clock,
    ) -> tuple[Head, int]:
        """Phase 2; the head, and how many images it saw."""
        with clock.measure("embedding"):
            return train_head(
                self._source,
                self._labels,
                class_count=len(self._classes),
                config=self._config,
                context=self._context(self._run.embedding_checkpoint),
                beliefs=beliefs,
                guidance=guidance,
                on_head=lambda epoch, head: self._validate(epoch, head, validation),
            )

    def train_network(
        self,
        extractor: Extractor,
        *,
        method: str,
        beliefs: Beliefs | None,
        guidance: Guidance | None,
    ) -> StageResult:
        """Phase 3, beside the run's frozen embedding by `method`."""
        features, labels = self._source.centre.cpu().numpy(), self._labels.cpu().numpy()
        given = StageInput(
            self._images, features, labels, len(self._classes), self._copies, self._scenes, beliefs,
            method, guidance,
        )  # fmt: skip
        return train_network(
            self._run, given, extractor=extractor, config=self._config, machine=self._machine,
            context=self._context(self._run.network_checkpoint), on_images=self._watcher.on_images,
            on_note=self._watcher.on_note,
        )  # fmt: skip

    def train_picture(self, extractor: Extractor) -> dict[str, Any]:
        """The second output, saved, on the features of the network that ships; its report."""
        head, report = train_picture(
            self._images, self._copies, extractor=extractor, machine=self._machine, watcher=self._watcher,
            picture_dim=self._config.picture.picture_dim, seed=self._config.seed,
        )  # fmt: skip
        self._run.save_picture_head(head, threshold=report["threshold"], is_kept=report["is_kept"])
        return report

    def _confidence_rows(self, beliefs: Beliefs) -> Iterator[list[object]]:
        top = min(3, len(self._classes))
        for rows, confidences in beliefs.confidences.blocks():
            values, numbers = confidences.topk(top, dim=1)
            for row, v, n in zip(rows.tolist(), values.tolist(), numbers.tolist(), strict=True):
                image = self._images[row]
                suggestions = [
                    x for number, value in zip(n, v, strict=True) for x in (self._classes[number], f"{value:.6f}")
                ]
                yield [image.path, image.given, image.used, f"{beliefs.own[row].item():.6f}", *suggestions]

    def _validate(self, epoch: int, head: TrainedHead, validation: ValidationSet | None) -> None:
        if validation is not None and epoch % self._config.validate_every == 0:
            recall = validation.score(embed_features(head, validation.features)).recall
            self._run.append_metrics({"phase": "validation", "epoch": epoch, "recall": recall})
            self._watcher.on_validation(epoch, recall)


def warn_of_unsuitable_lambda(report: EpochReport, *, class_count: int, judge: str) -> None:
    """Say so where the confidences separate nothing: most classes positive for a sample, or none for most samples.

    `judge` is that of `--confidences`, of which only the module learns more or less by its options.
    """
    positives, without = report.positives_per_sample, report.share_without_positive
    if positives is None or without is None:
        return
    if positives > class_count / 2 and class_count > 2:
        advice = (
            "raise --confidence-epochs or --confidence-lr, or lower --batch-size"
            if judge == "module"
            else "raise --lambda"
        )
        logger.warning(
            "a sample is positive for %.1f of %d classes on average: the confidences separate too little; %s",
            positives, class_count, advice,
        )  # fmt: skip
    elif without > 0.5:
        advice = "lower --lambda, or raise --confidence-epochs" if judge == "module" else "lower --lambda"
        logger.warning(
            "%.0f %% of the samples are positive for no class and only push proxies away: %s",
            100 * without,
            advice,
        )


def _ask_validation(
    scores: Mapping[str, SearchScores],
    *,
    question: str,
    heads: Mapping[str, Head],
    config: TrainConfig,
) -> dict[str, Any] | None:
    """The verdict by --val; None where its images only find those of their own scene."""
    found = {name: telling for name, one in scores.items() if (telling := one.telling) is not None}
    if TRAINED not in found:
        return None
    comparison = compare_validation(found, seed=config.seed)
    return reach_verdict(
        comparison.to_json(), by=VAL, question=question,
        chooses=config.selection.select == "auto", widths={name: head.embedding_dim for name, head in heads.items()},
    )  # fmt: skip
