"""The whole story offline: draw a catalogue, make labels wrong, train, export, index, evaluate, audit, report."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.durable import create_durably
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.images.image_files import read_image
from index.images.preprocess import resize_image
from index.marks import is_vacant
from retrieval_app import audit, build, evaluate, export, open_gallery, train
from retrieval_app.demo.demo_report import judge_audit, judge_confidences
from retrieval_app.demo.drawing.catalogue import KINDS, draw_catalogue
from retrieval_app.demo.sheets import draw_sheet, find_suspects, neighbour_tiles, suspect_tiles
from training.backbone.pretrain import PretrainConfig, pretrain_backbone
from training.data.datasets import list_dataset
from training.label_noise.noise import add_uniform_noise
from training.options.backbone_libraries import preprocess_for
from training.options.losses import RIVALS
from training.run.checkpoint import save_checkpoint
from training.run.phases import EpochReport, Watcher

TRAINING_KINDS, UNSEEN_KINDS = KINDS[0::2], KINDS[1::2]
HEADS = {  # run by run; the first is the one that is exported and audited
    "default": "the default recipe",
    "spa": "Smooth Proxy-Anchor as its paper has it",
    "proxy-anchor": "Proxy-Anchor, its baseline",
}
WRONG_SHARE = 0.3
ON_AUDIT_PAGE = 400
Say = Callable[[str], None]


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


def run_demo(
    out: Path,
    *,
    config: DemoConfig,
    say: Say = lambda _: None,
    watch: Callable[[], AbstractContextManager[Watcher]] = lambda: nullcontext(Watcher()),
) -> dict[str, Any]:
    """Run all steps that are not done yet, and give the report.

    Args:
        out: folder of everything the demo makes.
        say: told a sentence at every step.
        watch: what shows the progress of a step while the step runs.

    Raises:
        InputError: the folder is taken or cannot be written.
    """
    started, folder = time.perf_counter(), DemoFolder(out)
    folder.claim(config)
    seconds: dict[str, float] = {}

    @contextmanager
    def step(name: str, text: str) -> Iterator[Watcher]:
        say(text)
        begun = time.perf_counter()
        with watch() as watcher:
            yield watcher
        seconds[name] = time.perf_counter() - begun

    kinds = config.kinds
    with step("draw", f"Drawing {2 * kinds} kinds of object, {config.pictures_per_kind} pictures each") as watcher:
        _draw(folder, config, watcher)
    with step(
        "pretrain", f"Training a small backbone on {kinds} kinds, {WRONG_SHARE:.0%} of the labels wrong"
    ) as watcher:
        _pretrain(folder, config, watcher)
    reports = {}
    for head, text in HEADS.items():
        with step(head, f"Training the embedding by {text}") as watcher:
            reports[head] = _train(folder, config, watcher, head=head)
    with step("export", "Exporting the default recipe's model to ONNX"):
        exported = export(folder.run("default"), folder.model)
    with step("index", f"Indexing the pictures of {kinds} kinds that no training has seen") as watcher:
        progress = partial(watcher.on_images, "index")
        built = build(folder.model, folder.unseen, folder.gallery, progress=progress)
    with step("evaluate", "Evaluating, and drawing what was found"):
        gallery = open_gallery(folder.gallery)
        evaluated = evaluate(gallery)
        _draw_sheets(folder, gallery)
    with step("audit", "Auditing the training labels") as watcher:
        audited = _audit(folder, watcher)
    report = {
        "out": str(out),
        "seconds": time.perf_counter() - started,
        "step_seconds": seconds,
        "recall_at_1": {name: _row(scores) for name, scores in _rows(reports).items()},
        "trial": reports["default"]["trial"],
        "ships": reports["default"]["method"],
        "wrong_labels": judge_confidences(folder.run("default") / "confidences.csv"),
        "audit": audited,
        "model": exported.to_json(),
        "gallery": {**built.to_json(), "evaluation": evaluated.to_json()},
        "pictures": [str(out / "suspects.png"), str(out / "results.png")],
    }
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _draw(folder: DemoFolder, config: DemoConfig, watcher: Watcher) -> None:
    for target, kinds in ((folder.training, TRAINING_KINDS), (folder.unseen, UNSEEN_KINDS)):
        draw_catalogue(
            target,
            kinds=kinds[: config.kinds],
            pictures_per_kind=config.pictures_per_kind,
            seed=config.seed,
            progress=partial(watcher.on_images, f"draw {target.name}"),
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


def _pretrain(folder: DemoFolder, config: DemoConfig, watcher: Watcher) -> None:
    if folder.backbone.exists():
        return
    preprocess = preprocess_for(config.pretrain.backbone, resize=config.resize, crop=config.crop)
    records = list_dataset(folder.labels).records
    images = np.stack(
        [resize_image(read_image(record.path, target_side=config.resize).image, preprocess) for record in records]
    )
    labels = np.unique([record.label for record in records], return_inverse=True)[1].astype(np.int64)
    begun, epochs = time.perf_counter(), config.pretrain.epochs

    def report(epoch: int, loss: float) -> None:
        seconds = time.perf_counter() - begun
        speed = epoch * len(images) / seconds
        watcher.on_epoch(EpochReport("backbone", epoch, epochs, loss, seconds / epoch, speed))

    backbone = pretrain_backbone(
        images, labels, config=config.pretrain, preprocess=preprocess, seed=config.seed, on_epoch=report
    )
    save_checkpoint(folder.backbone, backbone.module.state_dict(), state={"name": backbone.name})


def _train(folder: DemoFolder, config: DemoConfig, watcher: Watcher, *, head: str) -> dict[str, Any]:
    run = folder.run(head)
    options: dict[str, Any] = {}
    if head != "default":
        epochs = config.paper_epochs
        options = {"recipe": "paper", "method": head, "epochs": epochs, "trial": False}
        if head == "spa":
            options |= {"confidence_epochs": epochs, "confidence_lr": 1e-3}
    options |= {
        "view": "crop",  # the backbone learnt from crops, and all are compared on the same features
        "pooling": "own",
        "backbone": config.pretrain.backbone,
        "weights": str(folder.backbone.resolve()),
        "seed": config.seed,
        "validate_every": config.paper_epochs,
        "resize": config.resize,
        "crop": config.crop,
        "embedding_dim": config.embedding_dim,
    }
    return train(
        folder.labels, run, val=folder.unseen, resume=(run / "config.json").exists(), cache=folder.cache, workers=2,
        watcher=watcher, **options,
    )  # fmt: skip


def _rows(reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    untrained = reports["default"]["baselines"]
    return {
        **{head: reports[head]["val"] for head in HEADS},
        **{name: untrained[name] for name in RIVALS},
    }


def _row(scores: dict[str, Any]) -> dict[str, Any]:
    return {"recall": scores["recall"]["1"], "interval": list(scores["recall_at_1_interval"])}


def _audit(folder: DemoFolder, watcher: Watcher) -> dict[str, Any]:
    run = folder.run("default")
    outcome = audit(run, limit=ON_AUDIT_PAGE, cache=folder.cache, workers=2, progress=watcher.on_images)
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
