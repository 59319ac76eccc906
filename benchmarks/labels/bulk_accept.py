"""Accepting verdicts in bulk in a gallery, against `audit --apply`: wrong labels before and after, right labels lost.

A fifth of the labels become any other class. Ten images are copied byte by byte with another label, and ten are edited
(cropped, brightened, saved again) with their right label. `audit --apply` follows a training at its defaults with the
same backbone. The galleries are of the untrained MobileNetV2 and of the built-in model; verdicts are accepted as
`POST /v1/labels/accept` does it, at each threshold anew. Wrong labels that were dropped are not left.

    python -m benchmarks.labels.bulk_accept --out bench/bulk --dataset groceries --part choose
    python -m benchmarks.labels.bulk_accept --out bench/bulk --dataset cars
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from benchmarks.common.record import ending_in_words, find_weights, print_machine, run_retrieval, write_record
from benchmarks.common.tables import format_table
from benchmarks.labels.known_labels import DATASETS, PARTS, list_images
from index.labels.decisions import CHANGE, DROP
from retrieval_app.api.issue_list import apply_verdicts, page_issues
from retrieval_app.api.schemas import AcceptVerdicts, LabelIssuePage
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import LiveGallery

WRONG, COPIES, EDITS = 0.2, 10, 10
THRESHOLDS = (0.5, 0.6, 0.8, 0.9, 0.7)
COLUMNS = ("dataset", "seed", "way", "threshold", "images", "wrong", "left wrong", "changed", "dropped",
           "right changed", "right dropped", "copies left", "expected wrong", "open wrong", "said")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Photo:
    """An image, its label and the right one; `is_copy` of the ten with the bytes of another."""

    path: Path
    sha256: str
    given: str
    right: str
    is_copy: bool


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for images, runs, galleries and tables")
    parser.add_argument("--dataset", choices=DATASETS, default="cars")
    parser.add_argument("--part", choices=PARTS, default="report", help="of the dataset (default: report)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of mistakes and copies")
    parser.add_argument("--classes", type=int, default=60, help="the first so many (default: 60)")
    parser.add_argument("--images", type=int, default=25, help="of a class at most (default: 25)")
    options = parser.parse_args(arguments)
    with ending_in_words("bulk_accept"):
        print_machine(options.seeds)
        rows: list[list[Any]] = []
        for seed in options.seeds:
            photos, table = make_photos(options, seed)
            for row in measure(photos, table, options.out):
                rows.append([options.dataset, seed, *row])
                print(*rows[-1], file=sys.stderr, flush=True)
        text = format_table(COLUMNS, [[str(cell) for cell in row] for row in rows])
        print(f"\n{text}")
        name = f"bulk_accept-{options.dataset}-{options.part}.json"
        write_record(options.out / name, settings=vars(options), results={"rows": rows}, text=text)


def make_photos(options: argparse.Namespace, seed: int) -> tuple[list[Photo], Path]:
    """The images with mistakes and copies, and their table of path and label."""
    paths, columns = list_images(options.dataset, options.part, options.out / "images")
    seen: dict[str, int] = {}
    chosen = []
    for path, label in zip(paths, columns["right"], strict=True):
        if label not in seen and len(seen) == options.classes:
            continue
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= options.images:
            chosen.append((path, label))
    random, classes = np.random.default_rng(seed), sorted(seen)

    def mistaken(label: str) -> str:
        return classes[(classes.index(label) + int(random.integers(1, len(classes)))) % len(classes)]

    given = [mistaken(label) if random.random() < WRONG else label for _, label in chosen]
    folder = options.out / f"{options.dataset}-{options.part}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(path, label, right, False) for (path, right), label in zip(chosen, given, strict=True)]
    for number, place in enumerate(random.permutation(len(chosen))[: COPIES + EDITS].tolist()):
        path, right = chosen[place]
        copy = folder / f"copy-{number}{path.suffix}"
        if number < COPIES:
            shutil.copyfile(path, copy)
            rows.append((copy, mistaken(right), right, True))
        else:
            edit(path, copy)
            rows.append((copy, right, right, False))
    table = folder / "labels.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label"), *((path.resolve(), label) for path, label, _, _ in rows)])
    return [
        Photo(path.resolve(), hashlib.sha256(path.read_bytes()).hexdigest(), label, right, is_copy)
        for path, label, right, is_copy in rows
    ], table


def edit(path: Path, out: Path) -> None:
    """Nine tenths of the image, a fifth brighter, saved as JPEG of quality 80."""
    with Image.open(path) as image:
        width, height = image.size
        box = (width // 20, height // 20, width - width // 20, height - height // 20)
        ImageEnhance.Brightness(image.convert("RGB").crop(box)).enhance(1.2).save(out, "JPEG", quality=80)


def measure(photos: list[Photo], table: Path, out: Path) -> list[list[Any]]:
    """A row for `audit --apply`, and one for each gallery and threshold."""
    weights, backbone = ("--weights", find_weights()), ("--backbone", "mobilenet_v2")
    run, cleaned = table.parent / "run", table.parent / "cleaned.csv"
    cache = ("--cache", out / "cache")
    if not cleaned.exists():
        run_retrieval("train", table, "--out", run, "--frozen", *weights, *backbone, *cache)
        run_retrieval("audit", run, "--apply", cleaned, *cache)
    with cleaned.open(newline="", encoding="utf-8") as file:
        labels = {(cleaned.parent / row["path"]).resolve(): row["label"] for row in csv.DictReader(file)}
    rows = [["audit --apply", 0.5, *score(photos, {photo: labels.get(photo.path) for photo in photos}), "", "", ""]]
    model = out / "mobilenet_v2.onnx"
    if not model.exists():
        run_retrieval("export", *backbone, *weights, "--out", model)
    for name, given in (("mobilenet_v2", [model]), ("builtin", [])):
        gallery = table.parent / f"{name}-gallery"
        if not gallery.exists():
            run_retrieval("index", "build", *given, table, "--out", gallery, "--no-cache")
        rows += [[name, *row] for row in accept_at_thresholds(photos, gallery)]
    return rows


def accept_at_thresholds(photos: list[Photo], path: Path) -> list[list[Any]]:
    """A row for each threshold; every step is undone before the next. The last one's list is ranked anew."""
    live, review, rows = LiveGallery(path), ReviewStore.of_gallery(path), []
    snapshot = live.current
    snapshot.insights.wait("label_issues")
    page = LabelIssuePage(state="open", limit=1)
    for threshold in THRESHOLDS:
        counted = apply_verdicts(snapshot, review, AcceptVerdicts(threshold=threshold))
        body = AcceptVerdicts(threshold=threshold, digest=counted["digest"])
        done = apply_verdicts(snapshot, review, body)
        decisions = review.label_decisions()
        labels = {photo: decide(photo, decisions) for photo in photos}
        rows.append([threshold, *score(photos, labels), round(done["expected_wrong"]), "", ""])
        if threshold == THRESHOLDS[-1]:
            open_wrong = sum(p.given != p.right and (p.sha256, p.given) not in decisions for p in photos)
            said = page_issues(snapshot, review, page=page)
            first = round(said["left"]["errors"])
            while said["decisions_used"] != len(decisions):
                time.sleep(0.5)  # the list is ranked anew beside
                said = page_issues(snapshot, review, page=page)
            rows[-1][-2:] = [open_wrong, f"{first}, anew {said['left']['errors']:.0f}"]
        review.undo()
    live.close()
    return rows


def decide(photo: Photo, decisions: Mapping[tuple[str, str | None], Any]) -> str | None:
    """The label after the decisions; None where the image was dropped."""
    decision = decisions.get((photo.sha256, photo.given))
    if decision is not None and decision.decision == DROP:
        return None
    return decision.new_label if decision is not None and decision.decision == CHANGE else photo.given


def score(photos: list[Photo], labels: Mapping[Photo, str | None]) -> list[int]:
    """The counts of `COLUMNS` from `images` to `copies left`."""
    wrong = [photo for photo in photos if photo.given != photo.right]
    right = [photo for photo in photos if photo.given == photo.right]
    return [
        len(photos), len(wrong), sum(labels[photo] not in (photo.right, None) for photo in photos),
        sum(labels[photo] not in (photo.given, None) for photo in photos),
        sum(labels[photo] is None for photo in photos),
        sum(labels[photo] not in (photo.given, None) for photo in right), sum(labels[photo] is None for photo in right),
        sum(photo.is_copy and labels[photo] not in (photo.right, None) for photo in photos),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
