"""Demo of the whole job offline, on photos of the package: search, make labels wrong, train, export, audit."""

from __future__ import annotations

import csv
import json
import shlex
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.durable import create_durably
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.images.image_files import read_image
from index.labels.decisions import CHANGE, KEEP
from index.marks import is_vacant
from index.outputs import KIND, PICTURE
from retrieval_app import audit, build, evaluate, export, open_gallery, train
from retrieval_app.demo.demo_page import Question, write_demo_page
from training.audit.report import AuditReport
from training.data.datasets import list_dataset
from training.data.label_noise import add_uniform_noise
from training.data.transforms import Edit, compress, cut, draw_copy, mirror, recolour, turn
from training.options.losses import RIVALS
from training.run.phases import Watcher

WRONG_SHARE = 0.3
ON_AUDIT_PAGE = 400
ASKED = 48  # photos that are edited and looked for
_EDITS: Sequence[tuple[float, Edit]] = (
    (1, partial(cut, least=0.6)), (0.5, mirror), (1, partial(turn, degrees=12)), (1, partial(recolour, strength=0.3)),
    (1, compress),
)  # fmt: skip
_SIDE = 512  # pixels, above which files are read at less than their size
Say = Callable[[str], None]
ADDRESS = "http://127.0.0.1:7860/"
"""Where `retrieval serve` serves unless it is told otherwise."""


PHOTOS = Path(__file__).with_name("photos.tar")


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Sizes of the demo. The defaults take one to two minutes on two cores.

    Attributes:
        kinds: of things in the photos, of which every other one trains; None for all.
    """

    kinds: int | None = None
    photos_per_kind: int = 18
    seed: int = 0


class DemoFolder:
    """Where everything of the demo lies; a second call goes on with what is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.training = path / "photos" / "training"
        self.unseen = path / "photos" / "unseen"
        self.labels = path / "photos" / "labels.csv"
        self.edited = path / "edited"
        self.cache = path / "cache"
        self.run = path / "run"
        self.model = path / "model.onnx"
        self.gallery = path / "gallery"
        self.trained_gallery = path / "gallery-trained"

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

    with step("unpack", "Unpacking photos of clothes and groceries; every other kind trains"):
        _unpack(folder, config)
    with step("index", "Indexing the other kinds with the model that comes with the package") as watcher:
        progress = partial(watcher.on_images, "index")
        built = build(None, folder.unseen, folder.gallery, cache=False, progress=progress)
    with step("questions", "Asking both questions: what is of the same kind, and where is this very picture?"):
        gallery = open_gallery(folder.gallery)
        questions = _ask(folder, gallery, seed=config.seed)
    with step("train", f"Training on labels of which {WRONG_SHARE:.0%} are wrong") as watcher:
        trained = train(
            folder.labels, folder.run, val=folder.unseen, resume=(folder.run / "config.json").exists(),
            cache=folder.cache, workers=2, seed=config.seed, view="whole",
            pooling="own", watcher=watcher,
        )  # fmt: skip
    with step("export", "Exporting what was trained to ONNX, and indexing with that"):
        exported = export(folder.run, folder.model)
        build(folder.model, folder.unseen, folder.trained_gallery, cache=False)
        evaluated = evaluate(folder.trained_gallery)
    with step("audit", "Auditing the training labels") as watcher:
        outcome = audit(folder.run, limit=ON_AUDIT_PAGE, cache=folder.cache, workers=2, progress=watcher.on_images)
    report = {
        "out": str(out),
        "seconds": time.perf_counter() - started,
        "step_seconds": seconds,
        "found_first": {
            "asked": len(questions),
            **{
                output: sum(question.answers[output][0].id == question.original.id for question in questions)
                for output in (KIND, PICTURE)
            },
        },
        "recall_at_1": {
            name: {"recall": scores["recall"]["1"], "interval": list(scores["recall_at_1_interval"])}
            for name, scores in {
                "default": trained["val"],
                **{name: trained["baselines"][name] for name in RIVALS},
            }.items()
        },
        "verdict": trained["verdict"],
        "exports": trained["method"],
        "embedding_dim": trained["embedding_dim"],
        "wrong_labels": judge_confidences(folder.run / "confidences.csv"),
        "audit": {**judge_audit(outcome.report), "page": str(folder.run / "audit" / "audit.html")},
        "model": exported.to_json(),
        "gallery": {**built.to_json(), "evaluation": evaluate(gallery).to_json()},
        "trained_gallery": evaluated.to_json(),
        "page": str(out / "demo.html"),
    }
    write_demo_page(
        out / "demo.html", _list_findings(report), confidences=folder.run / "confidences.csv", gallery=gallery,
        questions=questions[:6], trained=open_gallery(folder.trained_gallery),
    )  # fmt: skip
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _unpack(folder: DemoFolder, config: DemoConfig) -> None:
    if folder.labels.exists():
        return
    with tarfile.open(PHOTOS) as archive:
        members = archive.getmembers()
        kinds = sorted({Path(member.name).parent.name for member in members})[: config.kinds]
        for number, kind in enumerate(kinds):
            target = folder.unseen if number % 2 else folder.training
            of_kind = [member for member in members if Path(member.name).parent.name == kind]
            archive.extractall(target, of_kind[: config.photos_per_kind], filter="data")
    records = list_dataset(folder.training).records
    classes = sorted({record.label for record in records})
    labels = np.array([classes.index(record.label) for record in records], dtype=np.int64)
    noisy = add_uniform_noise(labels, class_count=len(classes), rate=WRONG_SHARE, seed=config.seed)
    with folder.labels.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for record, number in zip(records, noisy, strict=True):
            writer.writerow([record.path.relative_to(folder.labels.parent.resolve()), classes[number]])


def _ask(folder: DemoFolder, gallery: Gallery, *, seed: int) -> list[Question]:
    """Photos cut, turned and recoloured, and what they find by either output."""
    asking = gallery.sample(ASKED, seed=seed)
    folder.edited.mkdir(exist_ok=True)
    questions = []
    for number, image in enumerate(asking):
        path = folder.edited / f"{number:02}.jpg"
        photo = read_image(gallery.place(image.id).file, target_side=_SIDE).image
        draw_copy(photo, np.random.default_rng((seed, number)), edits=_EDITS).save(path)
        answers = {output: gallery.by(output).search(path, k=3) for output in (KIND, PICTURE)}
        questions.append(Question(path, image, answers))
    return questions


def judge_confidences(table: Path) -> dict[str, Any]:
    """How many of the known wrong labels a run's confidences.csv believes least, and what it suggests for them."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wrong = np.array([_truth(row["path"]) != row["label"] for row in rows])
    suggested = np.array([_truth(row["path"]) == row["suggestion_1"] for row in rows])
    confidence = np.array([float(row["confidence"]) for row in rows])
    lowest = np.argsort(confidence, kind="stable")[: int(wrong.sum())]
    return {
        "labels": len(rows),
        "wrong": int(wrong.sum()),
        "wrong_among_least_confident": int(wrong[lowest].sum()),
        "wrong_with_true_label_suggested": int((wrong & suggested).sum()),
    }


def judge_audit(report: AuditReport) -> dict[str, Any]:
    """How the audit's verdicts compare with the truth."""
    suspects = [image for image in report.images if image.verdict != KEEP]
    relabelled = [image for image in suspects if image.verdict == CHANGE]
    return {
        "noise_rate": report.noise_rate,
        "suspects": len(suspects),
        "wrong_suspects": sum(image.label != _truth(image.path) for image in suspects),
        "relabelled": len(relabelled),
        "relabelled_to_truth": sum(image.new_label == _truth(image.path) for image in relabelled),
    }


def format_report(report: dict[str, Any], *, program: str = "retrieval") -> str:
    """The report for people; `program` is how they call the command line."""
    lines = [
        *_list_findings(report),
        f"Audit page: {report['audit']['page']}",
        f"Pictures: {report['page']}",
        f"{report['seconds']:.0f} s. Browse the photos: {program} serve {shlex.quote(report['out'] + '/gallery')}",
        f"  then the page is at {ADDRESS}, and as a Gradio app at {ADDRESS}gradio/",
    ]
    return "\n".join(lines)


def _list_findings(report: dict[str, Any]) -> list[str]:
    found, audit, asked = report["wrong_labels"], report["audit"], report["found_first"]
    count, boxed = report["gallery"]["indexed"], report["gallery"]["evaluation"]["recall"]["1"]
    trained = report["trained_gallery"]["recall"]["1"]
    return [
        f"Of {asked['asked']} photos that were cut, turned and recoloured, {asked['picture']} find the one that they "
        f"were made of first by picture, {asked['kind']} by kind, among {count}.",
        f"Recall@1 on these {count} photos, of kinds that were not trained on: {100 * boxed:.1f} % by the model that "
        f"comes with the package, {100 * trained:.1f} % by the one that was trained on its features.",
        "In training, on the same photos, in %, with 95 % intervals over queries:",
        *(
            f"  {name:<18}{100 * row['recall']:6.1f}   [{100 * row['interval'][0]:.1f}, {100 * row['interval'][1]:.1f}]"
            for name, row in report["recall_at_1"].items()
        ),
        f"  (default exports {report['exports']}; the others took no step of training; raw is the "
        f"backbone at full width, the others are {report['embedding_dim']}-d)",
        f"The verdict of the training: {report['verdict']['text']}",
        f"Wrong labels: {found['wrong']} of {found['labels']}. Of the {found['wrong']} labels that the default recipe "
        f"believes least, {found['wrong_among_least_confident']} are wrong; it suggests the true label for "
        f"{found['wrong_with_true_label_suggested']} of the wrong ones.",
        f"The audit estimates that {audit['noise_rate']:.0%} of the labels are wrong. It suspects {audit['suspects']}, "
        f"of which {audit['wrong_suspects']} are wrong, and would relabel {audit['relabelled']}, "
        f"{audit['relabelled_to_truth']} of them to the true label.",
    ]


def _truth(path: str | Path) -> str:
    return Path(path).parent.name
