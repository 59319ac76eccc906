"""Offline demo on photos of the package: search for new photos before training, after it, and with cleaned labels."""

import csv
import json
import shlex
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Vectors
from index.durable import create_durably
from index.errors import InputError
from index.evaluation.comparison import paired_bootstrap
from index.gallery.any_query import make_vector
from index.gallery.gallery import Gallery
from index.gallery.ranking import Hit
from index.labels.decisions import KEEP
from index.labels.issues import LabelIssues
from index.markers import is_vacant
from retrieval_app import audit, build, export, open_gallery, train
from training.data.datasets import list_dataset
from training.data.label_noise import add_label_noise
from training.options.config import LabelNoise
from training.run.phases import Watcher

WRONG_SHARE = 0.3
ON_AUDIT_PAGE = 400
Say = Callable[[str], None]
PHOTOS = Path(__file__).with_name("photos.tar")
_NEW = 6  # photos of each product that are not labelled
_TRAINING: Mapping[str, Any] = {"view": "whole", "pooling": "own", "frozen": True}
BEFORE, TRAINED, CLEANED = "before", "after training", "after cleaning"


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    say: Say = lambda _: None,
    watch: Callable[[], AbstractContextManager[Watcher]] = lambda: nullcontext(Watcher()),
) -> dict[str, Any]:
    """Run the steps that are not done yet; the report. `say` gets a sentence at every step, `watch` shows progress."""
    started = time.perf_counter()
    _claim(out, seed=seed)
    labels, run, cache = out / "photos/labels.csv", out / "run", out / "cache"
    model, cleaned = out / "model.onnx", out / "cleaned.csv"
    folders = {BEFORE: out / "gallery", TRAINED: out / "gallery-trained", CLEANED: out / "gallery-cleaned"}
    say(f"Unpacking photos of products; {WRONG_SHARE:.0%} of the labels for training are made wrong")
    if not labels.exists():
        _unpack(labels, seed=seed)
    photos = sorted((out / "photos/new").glob("*/*.jpg"))
    say("Indexing the labelled photos with the built-in model, and searching it")
    with watch() as watcher:
        build(None, labels, folders[BEFORE], cache=cache, progress=partial(watcher.on_images, "index"))
    gallery = open_gallery(folders[BEFORE])
    answers = {BEFORE: _find_nearest(gallery, _embed(gallery, photos))}
    say("Training on these labels")
    with watch() as watcher:
        options = {**_TRAINING, "val": out / "photos/unseen", "resume": (run / "config.json").exists()}
        trained = train(labels, run, cache=cache, workers=2, seed=seed, watcher=watcher, **options)
    say("Exporting the trained model to ONNX, and indexing with it")
    exported = export(run, model)
    build(model, labels, folders[TRAINED], cache=cache)
    vectors = _embed(open_gallery(folders[TRAINED]), photos)
    answers[TRAINED] = _find_nearest(open_gallery(folders[TRAINED]), vectors)
    say("Auditing the labels, and indexing with the cleaned ones")
    with watch() as watcher:
        outcome = audit(run, limit=ON_AUDIT_PAGE, cache=cache, workers=2, apply_to=cleaned, progress=watcher.on_images)
    build(model, cleaned, folders[CLEANED], cache=cache)
    answers[CLEANED] = _find_nearest(open_gallery(folders[CLEANED]), vectors)
    report = {
        "out": str(out),
        "new_photos": {name: _score(photos, hits) for name, hits in answers.items()},
        "labels": _check_labels(outcome.audited, cleaned),
        "example": photos[-1].parent.name.replace("-", " "),
        "verdict": trained["verdict"],
        "audit_page": str(run / "audit" / "audit.html"),
        "model": exported.to_json(),
        "seconds": time.perf_counter() - started,
    }
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
        raise InputError(f"cannot be written: {error}", at=out) from error
    if not marker.exists() or marker.read_text() != stamp:
        raise InputError("holds something else than this demo; choose another --out", at=out)


def _unpack(labels: Path, *, seed: int) -> None:
    """Unpack half of the kinds as `labelled` and `new` photos, the others as `unseen`; write labels, some wrong."""
    photos, generator = labels.parent, np.random.default_rng(seed)
    with tarfile.open(PHOTOS) as archive:
        by_kind: dict[str, list[tarfile.TarInfo]] = {}
        for member in archive.getmembers():
            by_kind.setdefault(Path(member.name).parent.name, []).append(member)
        for number, kind in enumerate(sorted(by_kind)):
            members = by_kind[kind]
            if number % 2:
                archive.extractall(photos / "unseen", members, filter="data")
                continue
            start = int(generator.integers(len(members)))
            turned = members[start:] + members[:start]  # photos in a row may show one scene
            archive.extractall(photos / "new", turned[:_NEW], filter="data")
            archive.extractall(photos / "labelled", turned[_NEW:], filter="data")
    records = list_dataset(photos / "labelled").records
    classes = sorted({record.label for record in records})
    given = np.array([classes.index(record.label) for record in records], dtype=np.int64)
    noisy = add_label_noise(given, noise=LabelNoise("uniform", WRONG_SHARE), class_count=len(classes), seed=seed)
    with labels.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for record, number in zip(records, noisy, strict=True):
            writer.writerow([record.path.relative_to(photos.resolve()), classes[number]])


def _embed(gallery: Gallery, photos: Sequence[Path]) -> Vectors:
    """(N, D) float32 unit vectors of photos by the gallery's model."""
    return np.stack([make_vector(path, dim=gallery.width, open_embedder=lambda: gallery.embedder) for path in photos])


def _find_nearest(gallery: Gallery, vectors: Vectors) -> list[Hit]:
    return [hits[0] for hits in gallery.search_many(vectors, k=1)]


def _score(photos: Sequence[Path], hits: Sequence[Hit]) -> dict[str, Any]:
    """Shares of new photos whose nearest labelled photo shows, and is labelled as, their product; over kinds."""
    kinds = [path.parent.name for path in photos]
    clusters = np.unique(kinds, return_inverse=True)[1]
    found = {
        "product": [Path(hit.path).parent.name == kind for hit, kind in zip(hits, kinds, strict=True)],
        "label": [hit.label == kind for hit, kind in zip(hits, kinds, strict=True)],
    }
    scored: dict[str, Any] = {"asked": len(photos)}
    for name, right in found.items():
        scores = np.array(right, dtype=np.float64)
        bounds = paired_bootstrap(scores, np.zeros_like(scores), seed=0, clusters=clusters)
        scored[name] = {"recall": bounds.mean, "interval": [bounds.low, bounds.high]}
    return scored


def _check_labels(audited: LabelIssues, cleaned: Path) -> dict[str, Any]:
    """The audit's verdicts and the cleaned labels compared with the true ones."""
    issues = [image for image in audited.items if image.outcome != KEEP]
    with cleaned.open(newline="", encoding="utf-8") as file:
        kept = [row["label"] == Path(row["path"]).parent.name for row in csv.DictReader(file)]
    return {
        "given": len(audited.items),
        "wrong": sum(image.label != Path(image.path).parent.name for image in audited.items),
        "issues": len(issues),
        "wrong_issues": sum(image.label != Path(image.path).parent.name for image in issues),
        "noise_rate": audited.noise_rate,
        "cleaned": len(kept),
        "wrong_cleaned": len(kept) - sum(kept),
    }


def format_report(report: dict[str, Any]) -> str:
    """The report as text."""
    out = shlex.quote(report["out"])
    options = " ".join(f"--{name}" if value is True else f"--{name} {value}" for name, value in _TRAINING.items())
    lines = [
        *list_findings(report),
        "The same by commands, on the photos of the demo; `evaluate` gives the shares of right labels:",
        f"  retrieval train {out}/photos/labels.csv --val {out}/photos/unseen --out my-run {options}",
        "  retrieval export my-run --out my-model.onnx",
        f"  retrieval index build my-model.onnx {out}/photos/labels.csv --out my-gallery",
        f"  retrieval evaluate my-gallery --query {out}/photos/new",
        "  retrieval audit my-run --apply cleaned.csv",
        "  retrieval index build my-model.onnx cleaned.csv --out my-cleaned",
        f"  retrieval evaluate my-cleaned --query {out}/photos/new",
        f"Audit page: {report['audit_page']}",
        f"{report['seconds']:.0f} s. Browse the photos: retrieval serve {out}/gallery",
        f"  or with Gradio: retrieval gradio {out}/gallery",
        f"Search by words: retrieval search {out}/gallery {shlex.quote(report['example'])}",
    ]
    return "\n".join(lines)


def list_findings(report: Mapping[str, Any]) -> list[str]:
    """The findings, a line each."""
    labels, stages = report["labels"], report["new_photos"]

    def percent(row: Mapping[str, Any]) -> str:
        low, high = row["interval"]
        return f"{100 * row['recall']:.1f} % [{100 * low:.0f}, {100 * high:.0f}]"

    return [
        f"{labels['wrong']} of {labels['given']} labels are wrong. {stages[BEFORE]['asked']} new photos of the same "
        "products were searched. Their nearest labelled photo (95 % intervals over products):",
        *(
            f"  {name + ':':<16}shows the right product in {percent(row['product'])}, has its label in "
            f"{percent(row['label'])}"
            for name, row in stages.items()
        ),
        f"Cleaning: the audit flags {labels['issues']} labels, {labels['wrong_issues']} of them wrong. Of the "
        f"{labels['cleaned']} labels that are left, {labels['wrong_cleaned']} are wrong.",
        f"Verdict of the training: {report['verdict']['text']}",
    ]
