"""The whole story offline: draw a catalogue, make labels wrong, train, export, index, evaluate, audit, report."""

from __future__ import annotations

import csv
import json
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
from index.console import build_config
from index.durable import create_durably
from index.errors import InputError
from index.evaluate import evaluate_gallery
from index.gallery import Gallery
from index.images import read_image
from index.marks import is_vacant
from index.metrics import DEFAULT_KS
from index.preprocess import PreprocessConfig, resize_image
from retrieval_app.audit_job import AuditJob, run_audit
from retrieval_app.demo_report import judge_audit, judge_confidences
from retrieval_app.drawing.catalogue import KINDS, draw_catalogue
from retrieval_app.sheets import draw_sheet, find_suspects, neighbour_tiles, suspect_tiles
from training.checkpoint import save_checkpoint
from training.config import TrainConfig
from training.datasets import list_dataset
from training.machine import Machine, resolve_device
from training.noise import add_uniform_noise
from training.phases import Watcher
from training.pretrain import PretrainConfig, pretrain_backbone
from training.recipes import recipe_values
from training.train import train

TRAINING_KINDS, UNSEEN_KINDS = KINDS[0::2], KINDS[1::2]
HEADS = {  # run by run; the first is the one that is exported and audited
    "default": "the default recipe",
    "spa": "Smooth Proxy-Anchor as its paper has it",
    "proxy-anchor": "Proxy-Anchor, its baseline",
}
WRONG_SHARE = 0.3
ON_AUDIT_PAGE = 400
Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Sizes of the demo. The defaults take under five minutes on two cores.

    The paper's heads train for more than its 40 epochs: 1,200 pictures are 8 steps an epoch, its 30,000 are 200.
    """

    pictures_per_kind: int = 40
    kinds: int = len(TRAINING_KINDS)
    seed: int = 0
    pretrain: PretrainConfig = field(default_factory=lambda: PretrainConfig(epochs=20))
    paper_epochs: int = 100
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

    def machine(self) -> Machine:
        """Where the heads are trained and audited."""
        return Machine(cache=self.cache, device=resolve_device("auto"), workers=2)

    def run(self, head: str) -> Path:
        """The run folder of a head."""
        return self.path / f"run-{head}"

    def claim(self, config: DemoConfig) -> None:
        """Mark the folder as this demo's.

        Raises:
            InputError: it holds something else, or a demo of other sizes or another seed.
        """
        stamp, marker = f"{config}\n", self.path / "demo.txt"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not marker.exists() and is_vacant(self.path):
                create_durably(marker, stamp.encode())
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error}") from error
        if not marker.exists() or marker.read_text() != stamp:
            raise InputError(f"{self.path}: holds something else than this demo; choose another --out")


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
    for head, text in HEADS.items():
        with step(head, f"Training the embedding by {text}"):
            reports[head] = _train(folder, config, head=head)
    with step("export", "Exporting the default recipe's model to ONNX"):
        exported = export_run(folder.run("default"), folder.model)
    with step("index", f"Indexing the pictures of {kinds} kinds that no training has seen"):
        built = build_gallery(
            model_path=folder.model,
            sources=[folder.unseen],
            out=folder.gallery,
            config=BuildConfig(),
            progress=lambda done, total: progress("index", done, total),
        )
    with step("evaluate", "Evaluating, and drawing what was found"):
        gallery = Gallery.open(folder.gallery)
        evaluated = evaluate_gallery(gallery, ks=DEFAULT_KS)
        _draw_sheets(folder, gallery)
    with step("audit", "Auditing the training labels"):
        audited = _audit(folder, progress)
    report = {
        "out": str(out),
        "seconds": time.perf_counter() - started,
        "step_seconds": seconds,
        "recall_at_1": {name: _row(scores) for name, scores in _rows(reports).items()},
        "trial": reports["default"]["trial"],
        "wrong_labels": judge_confidences(folder.run("default") / "confidences.csv"),
        "audit": audited,
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


def _train(folder: DemoFolder, config: DemoConfig, *, head: str) -> dict[str, Any]:
    run = folder.run(head)
    if head == "default":
        options = {"recipe": "default", **recipe_values("default")}
    else:
        epochs = config.paper_epochs
        options = {"recipe": "paper", "method": head, "epochs": epochs, "trial": False}
        options |= {"confidence_epochs": epochs, "confidence_lr": 1e-3}
    options |= {
        "backbone": config.pretrain.backbone,
        "weights": str(folder.backbone.resolve()),
        "seed": config.seed,
        "validate_every": config.paper_epochs,
        "resize": config.resize,
        "crop": config.crop,
        "embedding_dim": config.embedding_dim,
    }
    return train(
        folder.labels,
        run,
        config=build_config(TrainConfig, options),
        machine=folder.machine(),
        val=folder.unseen,
        resume=(run / "config.json").exists(),
        watcher=Watcher(),
    )


def _rows(reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    untrained = reports["default"]["baselines"]
    return {
        **{head: reports[head]["val"] for head in HEADS},
        **{name: untrained[name] for name in ("raw", "pca", "pca-whitened")},
    }


def _row(scores: dict[str, Any]) -> dict[str, Any]:
    return {"recall": scores["recall"]["1"], "interval": list(scores["recall_at_1_interval"])}


def _audit(folder: DemoFolder, progress: Progress) -> dict[str, Any]:
    run = folder.run("default")
    job = AuditJob(run, run / "audit", limit=ON_AUDIT_PAGE)
    outcome = run_audit(job, machine=folder.machine(), progress=progress)
    return {**judge_audit(outcome.report), "page": str(run / "audit" / "audit.html")}


def _draw_sheets(folder: DemoFolder, gallery: Gallery) -> None:
    suspects = find_suspects(folder.run("default") / "confidences.csv", count=12)
    draw_sheet(
        suspect_tiles(suspects), folder.path / "suspects.png", columns=6, title="The twelve most suspicious labels"
    )
    tiles = neighbour_tiles(gallery, gallery.sample(6, seed=3), neighbours=5)
    draw_sheet(
        tiles, folder.path / "results.png", columns=6, title="Six queries of unseen kinds and their neighbours"
    )
