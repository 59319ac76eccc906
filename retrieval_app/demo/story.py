"""Offline demo on photos of the package: search, train on partly wrong labels, export, audit."""

from __future__ import annotations

import csv
import json
import shlex
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
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
from index.outputs import COPY, SEMANTIC
from retrieval_app import audit, build, evaluate, export, open_gallery, train
from retrieval_app.demo.demo_page import Question, write_demo_page
from training.audit.report import AuditReport
from training.data.datasets import list_dataset
from training.data.label_noise import add_label_noise
from training.data.transforms import Edit, compress, cut, draw_copy, mirror, recolour, turn
from training.options.config import LabelNoise
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
"""The default address of `retrieval serve`."""
PHOTOS = Path(__file__).with_name("photos.tar")
_PHOTOS_PER_KIND = 18


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    say: Say = lambda _: None,
    watch: Callable[[], AbstractContextManager[Watcher]] = lambda: nullcontext(Watcher()),
) -> dict[str, Any]:
    """Run the steps that are not done yet; the report. It takes one to two minutes on two cores.

    Args:
        out: folder of all files; a second call goes on with what is there.
        say: called with a sentence at every step.
        watch: shows the progress of a step while the step runs.
    """
    started, seconds = time.perf_counter(), dict[str, float]()
    _claim(out, seed=seed)
    unseen, labels, run, cache = out / "photos/unseen", out / "photos/labels.csv", out / "run", out / "cache"

    @contextmanager
    def step(name: str, text: str) -> Iterator[Watcher]:
        say(text)
        begun = time.perf_counter()
        with watch() as watcher:
            yield watcher
        seconds[name] = time.perf_counter() - begun

    with step("unpack", "Unpacking photos of clothes and groceries; half of the kinds are for training"):
        if not labels.exists():
            _unpack(labels, unseen, seed=seed)
    with step("index", "Indexing the other kinds with the built-in model") as watcher:
        built = build(None, unseen, out / "gallery", cache=False, progress=partial(watcher.on_images, "index"))
    with step("questions", "Searching by semantic similarity and for copies"):
        gallery = open_gallery(out / "gallery")
        questions = _ask(out / "edited", gallery, seed=seed)
    with step("train", f"Training on labels, {WRONG_SHARE:.0%} of them wrong") as watcher:
        trained = train(
            labels, run, val=unseen, resume=(run / "config.json").exists(), cache=cache, workers=2, seed=seed,
            view="whole", pooling="own", watcher=watcher,
        )  # fmt: skip
    with step("export", "Exporting the trained model to ONNX, and indexing with it"):
        exported = export(run, out / "model.onnx")
        build(out / "model.onnx", unseen, out / "gallery-trained", cache=False)
        evaluated = evaluate(out / "gallery-trained")
    with step("audit", "Auditing the training labels") as watcher:
        outcome = audit(run, limit=ON_AUDIT_PAGE, cache=cache, workers=2, progress=watcher.on_images)
    scores = {"default": trained["val"], **{name: trained["baselines"][name] for name in RIVALS}}
    found_first = {
        output: sum(question.answers[output][0].id == question.original.id for question in questions)
        for output in (SEMANTIC, COPY)
    }
    report = {
        "out": str(out),
        "seconds": time.perf_counter() - started,
        "step_seconds": seconds,
        "found_first": {"asked": len(questions), **found_first},
        "recall_at_1": {
            name: {"recall": one["recall"]["1"], "interval": list(one["recall_at_1_interval"])}
            for name, one in scores.items()
        },
        "verdict": trained["verdict"],
        "exports": trained["method"],
        "embedding_dim": trained["embedding_dim"],
        "wrong_labels": _check_confidences(run / "confidences.csv"),
        "audit": {**_check_audit(outcome.report), "page": str(run / "audit" / "audit.html")},
        "model": exported.to_json(),
        "gallery": {**asdict(built), "evaluation": evaluate(gallery).to_json()},
        "trained_gallery": evaluated.to_json(),
        "page": str(out / "demo.html"),
    }
    write_demo_page(
        out / "demo.html", _list_findings(report), confidences=run / "confidences.csv", gallery=gallery,
        questions=questions[:6], trained=open_gallery(out / "gallery-trained"),
    )  # fmt: skip
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _claim(out: Path, *, seed: int) -> None:
    """Mark the folder as this demo's; an InputError where it holds something else, or a demo of another seed."""
    stamp, marker = f"seed {seed}\n", out / "demo.txt"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not marker.exists() and is_vacant(out):
            create_durably(marker, stamp.encode())
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error}") from error
    if not marker.exists() or marker.read_text() != stamp:
        raise InputError(f"{out}: holds something else than this demo; choose another --out")


def _unpack(labels: Path, unseen: Path, *, seed: int) -> None:
    """Unpack half of the kinds into `unseen`, the others beside it with a label file that is partly wrong."""
    training = unseen.with_name("training")
    with tarfile.open(PHOTOS) as archive:
        by_kind: dict[str, list[tarfile.TarInfo]] = {}
        for member in archive.getmembers():
            by_kind.setdefault(_truth(member.name), []).append(member)
        for number, kind in enumerate(sorted(by_kind)):
            archive.extractall(unseen if number % 2 else training, by_kind[kind][:_PHOTOS_PER_KIND], filter="data")
    records = list_dataset(training).records
    classes = sorted({record.label for record in records})
    given = np.array([classes.index(record.label) for record in records], dtype=np.int64)
    noisy = add_label_noise(given, noise=LabelNoise("uniform", WRONG_SHARE), classes=classes, seed=seed)
    with labels.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for record, number in zip(records, noisy, strict=True):
            writer.writerow([record.path.relative_to(labels.parent.resolve()), classes[number]])


def _ask(folder: Path, gallery: Gallery, *, seed: int) -> list[Question]:
    """Edited photos with their results by either output."""
    folder.mkdir(exist_ok=True)
    questions = []
    for number, image in enumerate(gallery.sample(ASKED, seed=seed)):
        path = folder / f"{number:02}.jpg"
        photo = read_image(gallery.place(image.id).file, target_side=_SIDE)
        draw_copy(photo, np.random.default_rng((seed, number)), edits=_EDITS).save(path)
        answers = {output: gallery.by(output).search(path, k=3) for output in (SEMANTIC, COPY)}
        questions.append(Question(path, image, answers))
    return questions


def _check_confidences(table: Path) -> dict[str, Any]:
    """Counts of the wrong labels among those of the lowest confidence, and of correct suggestions."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wrong = np.array([_truth(row["path"]) != row["label"] for row in rows])
    suggested = np.array([_truth(row["path"]) == row["suggestion_1"] for row in rows])
    lowest = np.argsort([float(row["confidence"]) for row in rows], kind="stable")[: int(wrong.sum())]
    return {
        "labels": len(rows),
        "wrong": int(wrong.sum()),
        "wrong_among_least_confident": int(wrong[lowest].sum()),
        "wrong_with_true_label_suggested": int((wrong & suggested).sum()),
    }


def _check_audit(report: AuditReport) -> dict[str, Any]:
    """The audit's verdicts compared with the true labels."""
    issues = [image for image in report.images if image.verdict != KEEP]
    relabelled = [image for image in issues if image.verdict == CHANGE]
    return {
        "noise_rate": report.noise_rate,
        "issues": len(issues),
        "wrong_issues": sum(image.label != _truth(image.path) for image in issues),
        "relabelled": len(relabelled),
        "relabelled_to_truth": sum(image.new_label == _truth(image.path) for image in relabelled),
    }


def format_report(report: dict[str, Any], *, program: str = "retrieval") -> str:
    """The report as text; `program` is the name of the command line."""
    lines = [
        *_list_findings(report),
        f"Audit page: {report['audit']['page']}",
        f"Images: {report['page']}",
        f"{report['seconds']:.0f} s. Browse the photos: {program} serve {shlex.quote(report['out'] + '/gallery')}",
        f"  then the page is at {ADDRESS}, and as a Gradio app at {ADDRESS}gradio/",
    ]
    return "\n".join(lines)


def _list_findings(report: dict[str, Any]) -> list[str]:
    found, audit, asked = report["wrong_labels"], report["audit"], report["found_first"]
    count, boxed = report["gallery"]["indexed"], report["gallery"]["evaluation"]["recall"]["1"]
    trained = report["trained_gallery"]["recall"]["1"]
    return [
        f"Edited copies (cut, turned, recoloured) of {asked['asked']} among {count} photos: {asked['copy']} find their "
        f"original first by copy detection, {asked['semantic']} by semantic similarity.",
        f"Recall@1 on these {count} photos, whose kinds training has not seen: {100 * boxed:.1f} % with the built-in "
        f"model, {100 * trained:.1f} % with the model trained on its features.",
        "Recall@1 in training on the same photos, in %, with 95 % intervals over queries:",
        *(
            f"  {name:<18}{100 * row['recall']:6.1f}   [{100 * row['interval'][0]:.1f}, {100 * row['interval'][1]:.1f}]"
            for name, row in report["recall_at_1"].items()
        ),
        f"  (default exports {report['exports']}; the others are not trained; raw is the backbone at full width, "
        f"the others are {report['embedding_dim']}-d)",
        f"The verdict of the training: {report['verdict']['text']}",
        f"Wrong labels: {found['wrong']} of {found['labels']}. Of the {found['wrong']} labels that the default recipe "
        f"is least confident of, {found['wrong_among_least_confident']} are wrong; it suggests the true label for "
        f"{found['wrong_with_true_label_suggested']} of the wrong ones.",
        f"The audit estimates that {audit['noise_rate']:.0%} of the labels are wrong. It flags {audit['issues']}, "
        f"of which {audit['wrong_issues']} are wrong, and would relabel {audit['relabelled']}, "
        f"{audit['relabelled_to_truth']} of them to the true label.",
    ]


def _truth(path: str | Path) -> str:
    return Path(path).parent.name
