"""A new user's afternoon with a crawl of known truth: train, audit, accept, train again; what the program says of it.

The crawl has 60 classes of at most 27 photos, 18 % of their labels replaced by any other class's, 80 photos of other
classes of the data set with random labels, 24 copies under other labels (half of them edited), five placeholders and
three broken files. Commands run at their defaults, with the built-in backbone.

    python -m benchmarks.labels.afternoon --out bench/afternoon --dataset cars
    python -m benchmarks.labels.afternoon --out bench/afternoon --dataset groceries --frozen
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from benchmarks.common.record import ending_in_words, print_machine, run_retrieval, write_record
from benchmarks.common.tables import format_table
from benchmarks.labels.known_labels import PARTS, list_images
from index.gallery.gallery import Gallery
from index.labels.decided_labels import LabelProbabilities, read_label_probabilities
from retrieval_app.review.exports import stream_label_file

CLASSES, IMAGES, WRONG, FOREIGN, COPIES, PLACEHOLDERS, BROKEN = 60, 27, 0.18, 80, 24, 5, 3
COLUMNS = ("step", "images kept", "share kept", "right", "said right", "wrong", "said wrong")


@dataclass(frozen=True, slots=True)
class Truth:
    """A file of the crawl: its label there, and the right one; None where it shows none of the classes."""

    given: str
    right: str | None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for images, runs, galleries and tables")
    parser.add_argument("--dataset", choices=("cars", "groceries"), default="cars")
    parser.add_argument("--part", choices=PARTS, default="report", help="of the data set (default: report)")
    parser.add_argument("--seed", type=int, default=0, help="of the crawl (default: 0)")
    parser.add_argument("--frozen", action="store_true", help="train the head alone")
    parser.add_argument("--time-budget", default="10m", help="of fine-tuning (default: 10m)")
    options = parser.parse_args(arguments)
    with ending_in_words("afternoon"):
        print_machine([options.seed])
        folder = options.out / f"{options.dataset}-{options.part}-{options.seed}"
        truth = make_crawl(options.dataset, options.part, folder, seed=options.seed, images=options.out / "images")
        how = ["--frozen"] if options.frozen else ["--time-budget", options.time_budget]
        rows = play(folder, truth, how)
        text = format_table(COLUMNS, [[str(cell) for cell in row] for row in rows])
        print(f"\n{text}")
        write_record(folder / "afternoon.json", settings=vars(options), results={"rows": rows}, text=text)


def make_crawl(dataset: str, part: str, folder: Path, *, seed: int, images: Path) -> dict[Path, Truth]:
    """The files of the crawl below `folder/crawl`, made anew, and the truth of each."""
    paths, columns = list_images(dataset, part, images)
    random, by_label = np.random.default_rng(seed), dict[str, list[Path]]()
    for path, label in zip(paths, columns["right"], strict=True):
        by_label.setdefault(label, []).append(path)
    order = random.permutation(sorted(by_label)).tolist()
    known, others = sorted(order[:CLASSES]), order[CLASSES:]
    shutil.rmtree(folder / "crawl", ignore_errors=True)
    truth: dict[Path, Truth] = {}

    def draw(but: str | None = None) -> str:
        return str(random.choice([label for label in known if label != but]))

    def place(given: str, name: str, right: str | None) -> Path:
        path = folder / "crawl" / given.replace("/", "_") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        truth[path.resolve()] = Truth(given.replace("/", "_"), None if right is None else right.replace("/", "_"))
        return path

    photos = [
        (by_label[label][row], label)
        for label in known
        for row in random.permutation(len(by_label[label]))[:IMAGES].tolist()
    ]
    for number, (path, label) in enumerate(photos):
        given = draw(label) if random.random() < WRONG else label
        shutil.copyfile(path, place(given, f"{number:05d}{path.suffix}", label))
    foreign = [path for label in others for path in by_label[label]]
    for number, row in enumerate(random.permutation(len(foreign))[:FOREIGN].tolist()):
        shutil.copyfile(foreign[row], place(draw(), f"other{number}{foreign[row].suffix}", None))
    for number, row in enumerate(random.permutation(len(photos))[:COPIES].tolist()):
        path, label = photos[row]
        if number % 2:
            shutil.copyfile(path, place(draw(label), f"copy{number}{path.suffix}", label))
        else:
            edit(path, place(draw(label), f"copy{number}.jpg", label))
    for number in range(PLACEHOLDERS):
        Image.new("RGB", (120, 90), (230, 230, 230)).save(place(known[number], f"placeholder{number}.png", None))
    for number in range(BROKEN):
        (folder / "crawl" / known[number].replace("/", "_") / f"broken{number}.jpg").write_bytes(b"\xff\xd8\xff broken")
    return truth


def edit(path: Path, out: Path) -> None:
    """Nine tenths of the image, a tenth brighter, saved as JPEG of quality 80."""
    with Image.open(path) as image:
        width, height = image.size
        box = (width // 20, height // 20, width - width // 20, height - height // 20)
        ImageEnhance.Brightness(image.convert("RGB").crop(box)).enhance(1.1).save(out, "JPEG", quality=80)


def play(folder: Path, truth: Mapping[Path, Truth], how: list[str]) -> list[list[Any]]:
    """A row of `COLUMNS` for each step."""
    crawl, gallery, run, cleaned = (folder / name for name in ("crawl", "gallery", "run", "cleaned.csv"))
    for old in ("gallery", "run", "run-cleaned", "fresh"):
        shutil.rmtree(folder / old, ignore_errors=True)
    given = {path: one.given for path, one in truth.items()}
    run_retrieval("index", "build", crawl, "--out", gallery)
    rows = [describe("as crawled: gallery", given, truth, wrong=issues_of(gallery)["noise_rate"])]
    accepted = run_retrieval("labels", "accept", gallery).document
    saved = folder / "labels.csv"
    opened = Gallery.open(gallery)
    trust: LabelProbabilities = read_label_probabilities(gallery)
    saved.write_bytes(b"".join(stream_label_file(opened, trust, counts=Counter())))
    left = issues_of(gallery)["errors_left"]
    labels = read_label_file(saved)
    rows.append(
        describe("gallery: labels accept", labels, truth, right=accepted["kept"]["share"], wrong=left / len(labels))
    )
    run_retrieval("train", crawl, "--out", run, *how)
    audited = run_retrieval("audit", run, "--apply", cleaned).document
    rows.append(describe("as crawled: audit", given, truth, wrong=audited["noise_rate"]))
    labels, said = read_label_file(cleaned), audited["cleaned"]["expected_right"]["share"]
    rows.append(describe("audit --apply", labels, truth, right=said))
    trained = run_retrieval("train", cleaned, "--out", folder / "run-cleaned", *how).document
    rows.append(describe("train on it", labels, truth, wrong=trained["confidences"]["noise_rate"]))
    again = run_retrieval("audit", folder / "run-cleaned").document
    rows.append(describe("audit of that", labels, truth, wrong=again["noise_rate"]))
    run_retrieval("index", "build", crawl, "--labels", cleaned, "--out", folder / "fresh")
    rows.append(describe("fresh gallery", labels, truth, wrong=issues_of(folder / "fresh")["noise_rate"]))
    return rows


def issues_of(gallery: Path) -> dict[str, Any]:
    return run_retrieval("labels", "issues", gallery, "--limit", 1).document


def read_label_file(path: Path) -> dict[Path, str]:
    with path.open(newline="", encoding="utf-8") as file:
        return {(path.parent / row["path"]).resolve(): row["label"] for row in csv.DictReader(file)}


def describe(
    step: str,
    labels: Mapping[Path, str],
    truth: Mapping[Path, Truth],
    *,
    right: float | None = None,
    wrong: float | None = None,
) -> list[Any]:
    """A row: how many of the labels are right, and what the program says of it."""
    is_right = float(np.mean([label == truth[path].right for path, label in labels.items()]))
    row = [
        step,
        len(labels),
        round(len(labels) / len(truth), 3),
        round(is_right, 3),
        right and round(right, 3),
        round(1 - is_right, 3),
        wrong if wrong is None else round(wrong, 3),
    ]
    print(*row, file=sys.stderr, flush=True)
    return row


if __name__ == "__main__":
    main()
