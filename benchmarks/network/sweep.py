"""Fine-tuning on parts of the training classes, searched with weights at several shares of the way: it chooses options.

Datasets x noise x variants x epochs x learning rates x seeds; each training is a run of `retrieval train` whose weights
are searched before an export, with within-class whitening and a trained head. The same command continues after a stop.

    python -m benchmarks.network.sweep --out bench/sweep --dataset cars-tune:30 --noise uniform:0.3 --epochs 6 10
    python -m benchmarks.network.sweep --out bench/sweep --dataset cars-tune:30 --noise uniform:0.5 \\
        --variant prism --lr 1e-3 3e-4 1e-4
"""

from __future__ import annotations

import argparse
import itertools
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.record import digest, ending_in_words, find_weights, keep, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.network.cells import BACKBONE, DEFAULT, VARIANTS, NetworkCell, write_records
from benchmarks.noise.grid import name_set
from benchmarks.noise.splits import list_split
from index.errors import RunError
from retrieval_app import train
from training.data.datasets import Dataset
from training.network.decoded_images import decode_images, place_decoded
from training.options.config import USUAL_L2_SP
from training.options.losses import WCCN
from training.run.finetuning import fit, stage
from training.run.finetuning.data import FinetuneData, read_together
from training.run.finetuning.inputs import FinetuneInputs, keep_centres
from training.run.finetuning.selection import interpolate_weights
from training.run.fit import HeadPlan
from training.run.phases import TrainingJob, Watcher
from training.run.prepare import PreparedData, prepare_validation
from training.run.searches import embed_features
from training.run.verdict import TRAINED

SHARES = (0.2, 0.35, 0.5, 0.75, 1.0)
ABLATION: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "lambda .4, beta 10": ({"lambda_": 0.4, "beta": 10.0}, ""),
    "scale 4": ({"alpha": 4.0}, ""),
    "module": ({"confidences": "module"}, ""),
    "true classes": ({}, "true"),
    "likeliest classes": ({}, "likeliest"),
    "likely labels": ({}, "labels"),
    "no refresh": ({}, "first"),
    "no p(none)": ({}, "some"),
}
"""Options of the default, and what its loss reads in place of posteriors: the true classes or the likeliest ones,
as if certain; the label where its posterior exceeds a half; posteriors by frozen features alone; without p(none)."""


class _SearchedError(Exception):
    """Ends a training whose weights are searched."""


class Trial:
    """A training whose loss reads `targets`, and what was found of its weights by head, and of its posteriors."""

    def __init__(self, targets: str) -> None:
        self.targets, self.log_q = targets, list[float]()
        self.scores: dict[str, dict[str, Any]] = {WCCN: {}, TRAINED: {}}

    def plan(self, job: TrainingJob, prepared: PreparedData, *others: Any, begun: float) -> stage.FinetuneTask:
        """`plan_task`, once the true classes are known."""
        numbers = {name: number for number, name in enumerate(prepared.training.classes)}
        self.job, self.prepared = job, prepared
        self.truth = torch.tensor([numbers[image.given] for image in prepared.training.images])
        self.task = _plan_task(job, prepared, *others, begun=begun)
        return self.task

    def estimate(
        self, features: Tensor, data: FinetuneData, loss: Any, *, initial: Tensor | None = None
    ) -> Tensor | None:
        """(N, C) targets in place of `reestimate_confidences`, whose log-probability of the true class is noted."""
        q = _reestimate(features, data, loss, initial=None if initial is None else self.initial)
        if q is None:
            return None
        assert isinstance(q, Tensor)
        rows, labels, eye = torch.from_numpy(data.split.train), torch.from_numpy(data.labels), torch.eye(q.shape[1])
        self.log_q.append(q[rows, self.truth[rows]].clamp(min=1e-6).log().mean().item())
        self.initial = first = q if initial is None else self.initial
        shows_one = q.sum(dim=1, keepdim=True)
        changed = {
            "": lambda: q,
            "true": lambda: eye[self.truth],
            "likeliest": lambda: eye[q.argmax(dim=1)] * (shows_one > 0),
            "labels": lambda: eye[labels] * (q.gather(1, labels[:, None]) > 0.5),
            "some": lambda: q / shows_one.clamp(min=1e-9),
            "first": lambda: first,
        }
        return changed[self.targets]()

    def search(self, test: Dataset, loop: fit.FinetuneLoop, data: FinetuneData, *_: Any, **__: Any) -> None:
        """In place of `load_exported`: search `test` with weights at each share."""
        if loop.ended_by == "Ctrl-C":
            raise KeyboardInterrupt
        extractor, machine, task = self.prepared.extractor, self.job.machine, self.task
        known = prepare_validation(test, machine=machine, extractor=extractor, watcher=Watcher())
        assert known is not None
        decoded = place_decoded(known.hashes, extractor.preprocess, cache=machine.cache)
        paths = [record.path for record in test.records]
        pixels = decode_images(paths, decoded, extractor.preprocess, workers=machine.workers)
        same = {"config": task.config, "cache": machine.cache, "watcher": Watcher()}
        centre = keep_centres(extractor, task.blocks, pixels, hashes=known.hashes, **same)
        inputs = FinetuneInputs(extractor, pixels, side=task.side, centre=centre)
        plan = HeadPlan(task.width, USUAL_L2_SP)
        for share in SHARES:
            fit.load_weights(loop.model, interpolate_weights(loop.start, loop.average, share))
            tuned = read_together(loop.inputs, np.arange(len(data.labels))).numpy()
            searched = inputs.read_features(np.arange(len(pixels))).numpy()
            for name, method in ((WCCN, WCCN), (TRAINED, task.config.loss.method)):
                head = stage.fit_head(
                    data.labelled(tuned), method=method, plan=plan, config=task.config, device=machine.device
                )
                assert head is not None
                found = known.ungrouped.score(embed_features(head, searched))
                self.scores[name][f"{share:g}"] = [100 * found.recall[1], 100 * float(found.average_precision.mean())]
        raise _SearchedError


_plan_task, _reestimate = stage.plan_task, stage.reestimate_confidences


def run_trial(options: argparse.Namespace, dataset: str, noise: str, variant: str, **plan: Any) -> dict[str, Any]:
    """Scores of a training's weights at each share, and the log-probability of the true class by refresh; kept."""
    start, _, most = dataset.rpartition(":")
    name = start if most.isdigit() else dataset
    given, targets = ABLATION.get(variant, ({}, ""))
    plan = {name: value for name, value in plan.items() if value is not None}
    plan |= {**given, "backbone": options.backbone, **({"max_per_class": int(most)} if most.isdigit() else {})}
    base = variant if variant in VARIANTS else DEFAULT
    cell = NetworkCell(name, noise, base, plan.pop("seed"), tuple(plan.items()))
    folder, cache = options.out, options.out / "cache"
    file = digest([dataset, variant, cell.name, options.width, WCCN, TRAINED])

    def make() -> dict[str, Any]:
        trains, test = list_split(name, work=cache)
        data = write_records(trains.records, folder / "data" / f"{name_set(name)}.csv")
        trial, run = Trial(targets), folder / "runs" / file
        shutil.rmtree(run, ignore_errors=True)
        ours = {"plan_task": trial.plan, "load_exported": partial(trial.search, test)}
        with (
            patch.multiple(stage, reestimate_confidences=trial.estimate, **ours),
            patch.object(fit, "reestimate_confidences", trial.estimate),
            suppress(_SearchedError),
        ):
            weights = find_weights(options.weights, backbone=options.backbone)
            train(data, run, cache=cache, weights=weights, **cell.options(width=options.width))
            raise RunError(f"{cell.name}: ended before its network trained")
        shutil.rmtree(run)
        return {"cell": cell.name, "scores": trial.scores, "log_q": trial.log_q}

    return keep(folder / "trials" / f"{file}.json", make)


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of runs, records and the table")
    add("--dataset", nargs="+", default=["cars-tune:30"], metavar="NAME[:N]", help="with at most N photos of a class")
    add("--noise", nargs="+", default=["uniform:0.3"], metavar="KIND:P")
    add("--variant", nargs="+", choices=(*VARIANTS, *ABLATION), default=["default"])
    add("--epochs", type=int, nargs="+", default=[10])
    add("--lr", type=float, nargs="+", default=[None], help="default: as `retrieval train`")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--backbone", default=BACKBONE, help="as of `retrieval train`")
    add("--width", type=int, default=512)
    add("--head", choices=(WCCN, TRAINED), default=WCCN, help="on the features of the network, of both that are kept")
    add("--weights", help="default: the backbone's of RETRIEVAL_SHARED")
    return parser.parse_args(arguments)


@ending_in_words("network.sweep")
def main(arguments: list[str] | None = None) -> None:
    """Train what is missing, and report."""
    options = parse_options(arguments)
    print_machine(options.seeds)
    rows, results = [], []
    axes = (options.dataset, options.noise, options.variant, options.epochs, options.lr)
    for case in itertools.product(*axes):
        *which, epochs, lr = case
        found = [run_trial(options, *which, epochs=epochs, lr=lr, seed=seed) for seed in options.seeds]
        by_head = [one["scores"][options.head] for one in found]
        scores = {share: np.mean([one[share] for one in by_head], axis=0) for share in by_head[0]}
        log_q = np.mean([one["log_q"] for one in found], axis=0)
        cells = (f"{recall:.1f} ({precision:.1f})" for recall, precision in scores.values())
        rows.append([*map(str, case), *cells, " ".join(f"{value:.2f}" for value in log_q)])
        results.append({"case": case, "seeds": options.seeds, "trials": found})
    head = ["set", "noise", "variant", "epochs", "rate", *map(str, SHARES), "log q(true) by refresh"]
    text = f"Recall@1 (MAP@R) in % by share of the way, seeds {options.seeds}\n\n{format_table(head, rows)}"
    print(text)
    name = digest([options.seeds, options.width, options.backbone, options.head, *axes])
    write_record(
        options.out / "results" / f"{name}.json", settings=vars(options), results={"cases": results}, text=text
    )


if __name__ == "__main__":
    main()
