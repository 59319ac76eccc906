"""The whole story offline: draw a catalogue, make labels wrong, train, export, index, evaluate, report."""

from __future__ import annotations

import csv
import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from export.commands import export_run
from index.build import build_gallery
from index.build_config import BuildConfig
from index.errors import InputError
from index.evaluate import evaluate_gallery
from index.gallery import Gallery
from index.images import read_image
from index.metrics import DEFAULT_KS
from index.preprocess import PreprocessConfig, resize_image
from retrieval_app.drawing.catalogue import KINDS, draw_catalogue
from retrieval_app.sheets import draw_sheet, find_suspects, neighbour_tiles, suspect_tiles
from training.checkpoint import save_checkpoint
from training.config import (
    ConfidenceConfig,
    DataConfig,
    EmbeddingConfig,
    InputConfig,
    LossConfig,
    SelectConfig,
    TrainConfig,
)
from training.datasets import list_dataset
from training.machine import Machine, resolve_device
from training.noise import add_uniform_noise
from training.phases import Watcher
from training.pretrain import PretrainConfig, pretrain_backbone
from training.train import train

TRAINING_KINDS, UNSEEN_KINDS = KINDS[0::2], KINDS[1::2]
WRONG_SHARE = 0.3
Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Sizes of the demo. The defaults take under five minutes on two cores.

    The heads train for more epochs than the paper's 40: 1,200 pictures are 8 steps an epoch, its 30,000 are 200.
    """

    pictures_per_kind: int = 40
    kinds: int = len(TRAINING_KINDS)
    seed: int = 0
    pretrain: PretrainConfig = field(default_factory=lambda: PretrainConfig(epochs=20))
    epochs: int = 100
    confidence_epochs: int = 100
    resize: int = 80
    crop: int = 64
    embedding_dim: int = 64


class DemoFolder:
    """Where everything of the demo lies; a second call goes on with what is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.training = path / "pictures" / "training"
        self.unseen = path / "pictures" / "unseen"
        self.labels = path / "pictures" / "labels.csv"
        self.backbone = path / "backbone.safetensors"
        self.cache = path / "cache"
        self.model = path / "model.onnx"
        self.gallery = path / "gallery"

    def run(self, method: str) -> Path:
        """The run folder of a method."""
        return self.path / f"run-{method}"

    def claim(self, config: DemoConfig) -> None:
        """Mark the folder as this demo's.

        Raises:
            InputError: it holds something else, or a demo of other sizes or another seed.
        """
        stamp, marker = f"{config}\n", self.path / "demo.txt"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not marker.exists() and not any(self.path.iterdir()):
                marker.write_text(stamp)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error}") from error
        if not marker.exists() or marker.read_text() != stamp:
            raise InputError(
                f"{self.path}: holds something else than this demo; choose another --out or remove it"
            )


def run_demo(out: Path, *, config: DemoConfig, say: Say, progress: Progress) -> dict[str, Any]:
    """Run all steps that are not done yet, and give the report.

    Args:
        out: folder of everything the demo makes.
        config: sizes and seed.
        say: told a sentence at every step.
        progress: called with (step, done, total).

    Raises:
        InputError: the folder is taken or cannot be written.
    """
    started, folder = time.perf_counter(), DemoFolder(out)
    folder.claim(config)
    seconds: dict[str, float] = {}

    @contextmanager
    def step(name: str, text: str) -> Iterator[None]:
        say(text)
        begun = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - begun

    kinds = config.kinds
    with step("draw", f"Drawing {2 * kinds} kinds of object, {config.pictures_per_kind} pictures each"):
        _draw(folder, config, progress)
    with step("pretrain", f"Training a small backbone on {kinds} kinds, {WRONG_SHARE:.0%} of the labels wrong"):
        _pretrain(folder, config, progress)
    reports = {}
    for method, text in (("spa", "Smooth Proxy-Anchor"), ("proxy-anchor", "Proxy-Anchor, the baseline")):
        with step(method, f"Training the embedding with {text}"):
            reports[method] = _train(folder, config, method=method)
    with step("export", "Exporting the Smooth Proxy-Anchor model to ONNX"):
        exported = export_run(folder.run("spa"), folder.model)
    with step("index", f"Indexing the pictures of {kinds} kinds that no training has seen"):
        built = build_gallery(
            model_path=folder.model,
            folder=folder.unseen,
            out=folder.gallery,
            config=BuildConfig(),
            progress=lambda done, total: progress("index", done, total),
        )
    with step("evaluate", "Evaluating, and drawing what was found"):
        gallery = Gallery.open(folder.gallery)
        evaluated = evaluate_gallery(gallery, ks=DEFAULT_KS)
        found = _judge_confidences(folder)
        _draw_sheets(folder, gallery)
    report = {
        "out": str(out),
        "seconds": time.perf_counter() - started,
        "step_seconds": seconds,
        "recall_at_1": {name: _row(scores) for name, scores in _rows(reports).items()},
        "wrong_labels": found,
        "model": exported.to_json(),
        "gallery": {**built.to_json(), "evaluation": evaluated.to_json()},
        "pictures": [str(out / "suspects.png"), str(out / "results.png")],
    }
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _draw(folder: DemoFolder, config: DemoConfig, progress: Progress) -> None:
    for target, kinds in ((folder.training, TRAINING_KINDS), (folder.unseen, UNSEEN_KINDS)):
        draw_catalogue(
            target,
            kinds=kinds[: config.kinds],
            pictures_per_kind=config.pictures_per_kind,
            seed=config.seed,
            progress=lambda done, total: progress("draw", done, total),
        )
    records = list_dataset(folder.training).records
    classes = sorted({record.label for record in records})
    labels = np.array([classes.index(record.label) for record in records], dtype=np.int64)
    noisy = add_uniform_noise(labels, class_count=len(classes), rate=WRONG_SHARE, seed=config.seed)
    with folder.labels.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for record, number in zip(records, noisy, strict=True):
            writer.writerow([record.path.relative_to(folder.labels.parent.resolve()), classes[number]])


def _pretrain(folder: DemoFolder, config: DemoConfig, progress: Progress) -> None:
    if folder.backbone.exists():
        return
    preprocess = PreprocessConfig(resize=config.resize, crop=config.crop)
    records = list_dataset(folder.labels).records
    images = np.stack(
        [resize_image(read_image(record.path, target_side=config.resize).image, preprocess) for record in records]
    )
    labels = np.unique([record.label for record in records], return_inverse=True)[1].astype(np.int64)
    backbone = pretrain_backbone(
        images,
        labels,
        config=config.pretrain,
        preprocess=preprocess,
        seed=config.seed,
        progress=lambda done, total: progress("pretrain", done, total),
    )
    save_checkpoint(folder.backbone, backbone.module.state_dict(), state={"name": backbone.name})


def _train(folder: DemoFolder, config: DemoConfig, *, method: str) -> dict[str, Any]:
    run = folder.run(method)
    return train(
        folder.labels,
        run,
        config=TrainConfig(
            backbone=config.pretrain.backbone,
            weights=str(folder.backbone.resolve()),
            seed=config.seed,
            recipe="paper",
            validate_every=config.epochs,
            data=DataConfig(),
            input=InputConfig(resize=config.resize, crop=config.crop),
            confidence=ConfidenceConfig(confidence_epochs=config.confidence_epochs, confidence_lr=1e-3),
            loss=LossConfig(method=method),
            embedding=EmbeddingConfig(embedding_dim=config.embedding_dim, epochs=config.epochs),
            selection=SelectConfig(trial=False),
        ),
        machine=Machine(cache=folder.cache, device=resolve_device("auto"), workers=2),
        val=folder.unseen,
        resume=(run / "config.json").exists(),
        watcher=Watcher(),
    )


def _rows(reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    baselines = reports["spa"]["baselines"]
    return {
        "spa": reports["spa"]["val"],
        "proxy-anchor": reports["proxy-anchor"]["val"],
        "raw": baselines["raw"],
        "pca-whitened": baselines["pca-whitened"],
    }


def _row(scores: dict[str, Any]) -> dict[str, Any]:
    return {"recall": scores["recall"]["1"], "interval": list(scores["recall_at_1_interval"])}


def _judge_confidences(folder: DemoFolder) -> dict[str, Any]:
    """How many of the known wrong labels the confidence module found: the truth is the folder a picture lies in."""
    with (folder.run("spa") / "confidences.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wrong = np.array([Path(row["path"]).parent.name != row["label"] for row in rows])
    confidence = np.array([float(row["confidence"]) for row in rows])
    suggested = np.array([Path(row["path"]).parent.name == row["suggestion_1"] for row in rows])
    lowest = np.argsort(confidence, kind="stable")[: int(wrong.sum())]
    doubted = confidence <= LossConfig().lambda_
    return {
        "labels": len(rows),
        "wrong": int(wrong.sum()),
        "wrong_among_least_confident": int(wrong[lowest].sum()),
        "wrong_not_believed": int((wrong & doubted).sum()),
        "right_not_believed": int((~wrong & doubted).sum()),
        "wrong_with_true_label_suggested": int((wrong & suggested).sum()),
    }


def _draw_sheets(folder: DemoFolder, gallery: Gallery) -> None:
    suspects = find_suspects(folder.run("spa") / "confidences.csv", count=12)
    draw_sheet(
        suspect_tiles(suspects), folder.path / "suspects.png", columns=6, title="The twelve most suspicious labels"
    )
    tiles = neighbour_tiles(gallery, gallery.sample(6, seed=3), neighbours=5)
    draw_sheet(
        tiles, folder.path / "results.png", columns=6, title="Six queries of unseen kinds and their neighbours"
    )


def format_report(report: dict[str, Any], *, program: str = "retrieval") -> str:
    """The report for people; `program` is how they call the command line."""
    found = report["wrong_labels"]
    lines = [
        f"Recall@1 on {report['gallery']['indexed']} pictures of unseen kinds, in %, with 95 % intervals over queries:",
        *(
            f"  {name:<14}{100 * row['recall']:6.1f}   [{100 * row['interval'][0]:.1f}, {100 * row['interval'][1]:.1f}]"
            for name, row in report["recall_at_1"].items()
        ),
        "  (spa and proxy-anchor are trained heads, 64-d; raw is the backbone at full width; pca-whitened is 64-d)",
        f"Wrong labels: {found['wrong']} of {found['labels']}. Of the {found['wrong']} labels that the confidence "
        f"module trusts least, {found['wrong_among_least_confident']} are wrong; it suggests the true label for "
        f"{found['wrong_with_true_label_suggested']} of the wrong ones.",
        f"Smooth Proxy-Anchor's threshold disbelieves {found['wrong_not_believed']} wrong labels "
        f"and {found['right_not_believed']} right ones.",
        f"Pictures: {', '.join(report['pictures'])}",
        f"{report['seconds']:.0f} s. Browse the gallery: {program} serve {shlex.quote(report['out'] + '/gallery')}",
    ]
    return "\n".join(lines)
