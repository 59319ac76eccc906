"""A whole training run: images to features, the two phases, and the report beside the untrained baselines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from index.errors import InputError, RunError
from index.images import printable_path, read_image
from index.metrics import RetrievalScores, bootstrap_interval
from index.preprocess import PreprocessConfig, resize_image
from training.checkpoint import load_checkpoint
from training.config import TrainConfig
from training.datasets import (
    Record,
    SkippedImage,
    cap_classes,
    check_trainable,
    keep_usable_classes,
    list_dataset,
    require_two_classes,
)
from training.features import ExtractedSet, Extractor, extract_features, open_store
from training.fit import EpochReport, PhaseContext, fit_confidence, fit_embedding, report_line
from training.losses.methods import NEEDS_CONFIDENCES
from training.model import Backbone, ConfidenceModule, EmbeddingHead, load_backbone, require_input_size
from training.noise import add_uniform_noise
from training.run_folder import PARITY_IMAGES, LabelledImage, RunFolder
from training.sources import CachedSource, FeatureSource, LiveSource
from training.validate import ValidationSet, embed_features, score_baselines

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run computes and keeps features; none of it changes what the run is.

    `precision` is of the backbone pass, `workers` the decoding threads.
    """

    cache: Path
    device: torch.device
    workers: int
    precision: str = "auto"


@dataclass(frozen=True, slots=True)
class Watcher:
    """What a run tells while it goes on; every callback may be left out.

    `on_images(description, done, total)`, `on_epoch(report)`, `on_validation(epoch, recall by K)`.
    """

    on_images: Callable[[str, int, int], None] = lambda *_: None
    on_epoch: Callable[[EpochReport], None] = lambda _: None
    on_validation: Callable[[int, dict[int, float]], None] = lambda *_: None


@dataclass(slots=True)
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - started


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU.

    Raises:
        InputError: `cuda` where there is none, or an unknown name.
    """
    available = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not available:
        raise InputError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def train(
    data: Path,
    out: Path,
    *,
    config: TrainConfig,
    machine: Machine,
    val: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    backbone: Backbone | None = None,
) -> dict[str, Any]:
    """Train on a folder of class folders or a CSV, into a run folder.

    Args:
        data: the images and their labels.
        out: the run folder; new, or begun with the same options where `resume`.
        config: the run's options.
        machine: device, cache and threads.
        val: other labelled images for Recall@K; reported, never used to choose.
        resume: continue a run that was interrupted; a finished one gives its report again.
        watcher: told of progress.
        backbone: used instead of loading `config.backbone` with `config.weights`.

    Returns:
        The report: {"run", "seconds", "phases", "val", "baselines", "images", "classes", "skipped"}.

    Raises:
        InputError: data, weights or options that cannot be used.
        RunError: a run folder in the way, missing, or begun with other options.
    """
    started, clock, watcher = time.perf_counter(), _Clock(), watcher or Watcher()
    run = RunFolder.open(out) if resume else None
    if run is not None:
        run.check_same(config=config, data=data, val=val)
        if (out / "report.json").exists():
            return run.read_json("report.json")
    dataset = list_dataset(data)
    records = cap_classes(dataset.records, max_per_class=config.data.max_per_class, seed=config.seed)
    check_trainable(records, data=data)
    val_records = () if val is None else _list_validation(val)
    backbone = backbone or load_backbone(config.backbone, config.weights, seed=config.seed)
    preprocess = PreprocessConfig(resize=config.input.resize, crop=config.input.crop)
    require_input_size(backbone, preprocess.crop)
    extractor = Extractor(backbone, preprocess, device=machine.device, precision=machine.precision)
    if run is None:
        run = RunFolder.create(out, config=config, data=data, val=val)
    run.fix_features(extractor.describe(views=config.input.cached_views or 1))
    with clock.measure("features"):
        images, source = _prepare_training(
            run,
            records,
            listed=dataset.skipped,
            data=data,
            config=config,
            machine=machine,
            extractor=extractor,
            watcher=watcher,
        )
        validation = _prepare_validation(val_records, machine=machine, extractor=extractor, watcher=watcher)
    run.save_backbone(backbone)
    classes = sorted({image.given for image in images})
    trained = _Phases(run, images, source, classes=classes, config=config, machine=machine, watcher=watcher)
    confidence = None
    if config.loss.method in NEEDS_CONFIDENCES:
        with clock.measure("confidence"):
            confidence = trained.train_confidence()
    with clock.measure("embedding"):
        head = trained.train_embedding(confidence, validation)
    report = {
        "run": str(out),
        "seconds": time.perf_counter() - started,
        "phases": {name: {"seconds": seconds} for name, seconds in clock.seconds.items()},
        **_score(head, validation, train_features=source.centre.cpu().numpy(), config=config),
        "images": len(images),
        "classes": len(classes),
        "skipped": run.count_skipped(),
    }
    run.save_head(head, state={"method": config.loss.method, "class_count": len(classes)})
    run.write_report(report)
    return report


def _list_validation(val: Path) -> Sequence[Record]:
    records = list_dataset(val).records
    labels = [record.label for record in records]
    if not keep_usable_classes(labels)[0].any():
        raise InputError(f"{printable_path(str(val))}: Recall@K needs a class with two images; none has")
    return records


def _prepare_training(
    run: RunFolder,
    records: Sequence[Record],
    *,
    listed: Sequence[SkippedImage],
    data: Path,
    config: TrainConfig,
    machine: Machine,
    extractor: Extractor,
    watcher: Watcher,
) -> tuple[list[LabelledImage], FeatureSource]:
    """The run's images with their labels, fixed once, and the features they train from.

    `listed` are the files that could not even be opened; they join those that do not decode in skipped.csv.
    """
    images = run.read_labels()
    paths = [record.path for record in records] if images is None else [image.path for image in images]
    views = config.input.cached_views or 1
    store = open_store(machine.cache, extractor, views=views)
    extracted = extract_features(
        paths,
        store=store,
        extractor=extractor,
        views=views,
        workers=machine.workers,
        progress=lambda done, total: watcher.on_images("features", done, total),
    )
    if images is None:
        images = _choose_images(records, extracted, data=data, config=config)
        run.save_parity_images(_parity_images([image.path for image in images], extractor.preprocess))
        run.write_skipped([*listed, *extracted.skipped])
        run.write_labels(images)  # last: its presence says that the choice is made
    elif extracted.hashes != tuple(image.sha256 for image in images):
        raise RunError(f"{run.path}: images have changed or vanished since the run began; start a new run")
    features = torch.from_numpy(store.load([image.sha256 for image in images])).to(machine.device)
    if config.input.cached_views is not None:
        return images, CachedSource(features)
    live = LiveSource(
        [image.path for image in images], centre=features[:, 0], extractor=extractor, workers=machine.workers
    )
    return images, live


def _choose_images(
    records: Sequence[Record], extracted: ExtractedSet, *, data: Path, config: TrainConfig
) -> list[LabelledImage]:
    usable = [records[row] for row in extracted.rows]
    given = [record.label for record in usable]
    require_two_classes(given, data=data)
    keep, dropped = keep_usable_classes(given)
    for label in dropped:
        logger.warning("class %r has fewer than two usable images and is left out", label)
    usable = [record for record, kept in zip(usable, keep, strict=True) if kept]
    hashes = [sha256 for sha256, kept in zip(extracted.hashes, keep, strict=True) if kept]
    classes = sorted({record.label for record in usable})
    numbers = {label: number for number, label in enumerate(classes)}
    labels = np.array([numbers[record.label] for record in usable], dtype=np.int64)
    used = add_uniform_noise(labels, class_count=len(classes), rate=config.data.noise_rate, seed=config.seed)
    return [
        LabelledImage(record.path, sha256, record.label, classes[number])
        for record, sha256, number in zip(usable, hashes, used, strict=True)
    ]


def _parity_images(paths: Sequence[Path], preprocess: PreprocessConfig) -> list[np.ndarray]:
    chosen = np.linspace(0, len(paths) - 1, num=min(PARITY_IMAGES, len(paths))).round().astype(int)
    return [resize_image(read_image(paths[i], target_side=preprocess.resize).image, preprocess) for i in chosen]


def _prepare_validation(
    records: Sequence[Record], *, machine: Machine, extractor: Extractor, watcher: Watcher
) -> ValidationSet | None:
    if not records:
        return None
    store = open_store(machine.cache, extractor, views=1)
    extracted = extract_features(
        [record.path for record in records],
        store=store,
        extractor=extractor,
        views=1,
        workers=machine.workers,
        progress=lambda done, total: watcher.on_images("validation features", done, total),
    )
    if not extracted.hashes:
        raise InputError(f"none of the {len(records)} validation images is readable")
    if extracted.skipped:
        logger.warning("%d validation images cannot be used and are left out", len(extracted.skipped))
    names = [records[row].label for row in extracted.rows]
    if not keep_usable_classes(names)[0].any():
        raise InputError("Recall@K needs a class with two validation images; none has two that are readable")
    labels = np.unique(names, return_inverse=True)[1].astype(np.int64)
    return ValidationSet(store.load(extracted.hashes)[:, 0], labels)


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
    ) -> None:
        self._run, self._images, self._source, self._classes = run, images, source, classes
        self._config, self._device, self._watcher = config, machine.device, watcher
        numbers = {label: number for number, label in enumerate(classes)}
        self._labels = torch.tensor([numbers[image.used] for image in images], device=machine.device)
        checkpoints = {
            "confidence": run.confidence_checkpoint,
            "embedding": run.embedding_checkpoint,
            "validation": run.embedding_checkpoint,
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
        self._run.append_metrics(report_line(report))
        self._watcher.on_epoch(report)

    def train_confidence(self) -> ConfidenceModule:
        """Phase 1, and the confidences of every training image in confidences.csv."""
        confidence = fit_confidence(
            self._source,
            self._labels,
            class_count=len(self._classes),
            config=self._config.confidence,
            batch_size=self._config.embedding.batch_size,
            weight_decay=self._config.embedding.weight_decay,
            context=self._context(self._run.confidence_checkpoint),
        )
        self._run.write_confidences(self._confidence_rows(confidence))
        return confidence

    @torch.inference_mode()
    def _confidence_rows(self, confidence: ConfidenceModule) -> Iterator[list[object]]:
        top = min(3, len(self._classes))
        position = 0
        for features, labels in zip(self._source.centre.split(4096), self._labels.split(4096), strict=True):
            confidences: Tensor = confidence(features)
            own = confidences.gather(1, labels[:, None])[:, 0].tolist()
            values, numbers = confidences.topk(top, dim=1)
            for row, (v, n) in enumerate(zip(values.tolist(), numbers.tolist(), strict=True)):
                image = self._images[position + row]
                suggestions = [
                    x for pair in zip(n, v, strict=True) for x in (self._classes[pair[0]], f"{pair[1]:.6f}")
                ]
                yield [image.path, image.given, image.used, f"{own[row]:.6f}", *suggestions]
            position += len(labels)

    def train_embedding(
        self, confidence: ConfidenceModule | None, validation: ValidationSet | None
    ) -> EmbeddingHead:
        """Phase 2, with Recall@K on the validation images every few epochs."""

        def validate(epoch: int, head: EmbeddingHead) -> None:
            if validation is not None and epoch % self._config.validate_every == 0:
                recall = validation.score(embed_features(head, validation.features)).recall
                self._run.append_metrics({"phase": "validation", "epoch": epoch, "recall": recall})
                self._watcher.on_validation(epoch, recall)

        return fit_embedding(
            self._source,
            self._labels,
            class_count=len(self._classes),
            loss_config=self._config.loss,
            config=self._config.embedding,
            confidence=confidence,
            context=self._context(self._run.embedding_checkpoint),
            on_head=validate,
        )


def _score(
    head: EmbeddingHead, validation: ValidationSet | None, *, train_features: np.ndarray, config: TrainConfig
) -> dict[str, Any]:
    if validation is None:
        return {"val": None, "baselines": None}
    baselines = score_baselines(
        validation, train_features=train_features, embedding_dim=config.embedding.embedding_dim
    )
    trained = validation.score(embed_features(head, validation.features))
    return {
        "val": _describe_scores(trained),
        "baselines": {name: _describe_scores(scores) for name, scores in baselines.items()},
    }


def _describe_scores(scores: RetrievalScores) -> dict[str, Any]:
    """The scores, with a 95 % bootstrap interval over queries for Recall@1."""
    return {**scores.to_json(), "recall_at_1_interval": list(bootstrap_interval(scores.hits[1], seed=0))}
