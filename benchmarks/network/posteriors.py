"""Picture of label posteriors while the network trains: `retrieval train` on clothes with wrong labels.

python -m benchmarks.network.posteriors --out bench/posteriors --noise uniform:0.3
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps

import training.run.finetuning.fit as loop
import training.run.finetuning.stage as stage
from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.network.cells import write_records
from benchmarks.noise.splits import list_split
from retrieval_app import train
from training.run.display import watch_training
from training.run.finetuning.data import FinetuneData, LossConfidences, reestimate_confidences
from training.run.run_folder import RunFolder

PHOTOS, SIDE, GAP = 5, 190, 20
LABEL, TRUTH = "firebrick", "seagreen"


def record_posteriors(found: list[tuple[np.ndarray, np.ndarray]]) -> Any:
    """`reestimate_confidences` that keeps (rows, posteriors) of the images that train."""

    def estimate(features: torch.Tensor, data: FinetuneData, loss: Any) -> LossConfidences:
        estimated = reestimate_confidences(features, data, loss)
        assert isinstance(estimated.confidences, torch.Tensor)
        found.append((data.split.train, estimated.confidences[data.split.train].numpy()))
        return estimated

    return estimate


def choose_photos(first: np.ndarray, last: np.ndarray, given: np.ndarray, true: np.ndarray) -> list[int]:
    """Rows of a right label, of wrong ones (found at once, found later, never found), and of a right one in doubt."""
    own = np.arange(len(given))
    before, after, wrong = first[own, true], last[own, true], given != true
    asked = [
        np.where(wrong, -1, before), np.where(wrong, before, -1), np.where(wrong, after - before, -1),
        np.where(wrong, -after, -2), np.where(wrong, -2, -after),
    ]  # fmt: skip
    return [int(scores.argmax()) for scores in asked]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run and the picture")
    parser.add_argument("--dataset", default="clothing-disjoint", help="as of benchmarks.noise; photos are shown")
    parser.add_argument("--noise", default="uniform:0.3")
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON", help="of retrieval_app.train")
    options = parser.parse_args(arguments)
    with ending_in_words("network.posteriors"):
        print_machine([0])
        draw(options, **options.options)


def draw(options: argparse.Namespace, **given: Any) -> None:
    """Train, and draw."""
    records = list_split(options.dataset, work=options.out / "cache").train
    data, found = write_records(records, options.out / "data.csv"), list[tuple[np.ndarray, np.ndarray]]()
    estimate = record_posteriors(found)
    with (
        mock.patch.object(loop, "reestimate_confidences", estimate),
        mock.patch.object(stage, "reestimate_confidences", estimate),
        watch_training() as watcher,
    ):
        report = train(
            data, options.out / "run", cache=options.out / "cache", label_noise=options.noise, watcher=watcher, **given
        )
    images = RunFolder.open(options.out / "run").read_labels() or []
    classes = sorted({image.used for image in images})
    rows = found[0][0]
    labels, true = (
        np.array([classes.index(getattr(images[row], name)) for row in rows]) for name in ("used", "given")
    )  # fmt: skip
    series = [values for _, values in found]
    plot(options.out / "posteriors.png", series, labels, true, [images[row].path for row in rows], classes)
    own = np.arange(len(rows))
    means = [
        {"right": float(q[own, labels][labels == true].mean()), "wrong": float(q[own, labels][labels != true].mean()),
         "true_class": float(q[own, true].mean())}
        for q in series
    ]  # fmt: skip
    print(means)
    results = {"posterior_of_given_labels": means, "confidences": report["confidences"]}
    write_record(options.out / "posteriors.json", settings=vars(options), results=results)


def plot(
    path: Path, series: list[np.ndarray], labels: np.ndarray, true: np.ndarray, photos: list[Path], classes: list[str]
) -> None:  # fmt: skip
    """Photos above the posteriors of their label (red) and their true class (green), by estimate from left to right."""
    picture = Image.new("RGB", (PHOTOS * (SIDE + GAP) + GAP, 2 * SIDE + 60), "white")
    pen = ImageDraw.Draw(picture)
    for number, row in enumerate(choose_photos(series[0], series[-1], labels, true)):
        left, top, bottom = GAP + number * (SIDE + GAP), 44, 2 * SIDE + 50
        with Image.open(photos[row]) as image:
            photo = ImageOps.fit(ImageOps.exif_transpose(image).convert("RGB"), (SIDE, SIDE))
        picture.paste(photo, (left, top))
        pen.text((left, 4), f"label: {classes[labels[row]]}", fill=LABEL, font_size=14)
        pen.text((left, 22), f"truth: {classes[true[row]]}", fill=TRUTH, font_size=14)
        pen.rectangle((left, bottom - SIDE, left + SIDE, bottom), outline="grey")
        step = SIDE / max(1, len(series) - 1)
        for name, colour in {int(true[row]): TRUTH, int(labels[row]): LABEL}.items():
            points = [(left + at * step, bottom - (SIDE - 8) * q[row, name] - 4) for at, q in enumerate(series)]
            pen.line(points, fill=colour, width=3)
    picture.save(path)


if __name__ == "__main__":
    main()
