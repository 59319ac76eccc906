"""Copy-detection stage of a run (--copy-head): the second output and its threshold."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from index.arrays import Floats, Ids
from training.backbone.extract import Extractor
from training.head.copy_head import CopyHead, fit_copy_head
from training.run.features import extract_together
from training.run.phases import TrainingJob
from training.run.run_folder import LabelledImage

PRECISION = 0.99  # share of true copies among pairs above the threshold


def choose_threshold(copies: Floats, others: Floats, *, precision: float = PRECISION) -> float:
    """Least cosine threshold with this precision at it and at every higher one; 1 if no threshold has it.

    `copies` (n,) are cosines of images with their copies, `others` (m,) with the nearest other image.
    """
    candidates = np.sort(np.unique(copies))
    found = len(copies) - np.searchsorted(np.sort(copies), candidates)
    wrong = len(others) - np.searchsorted(np.sort(others), candidates)
    holds = found >= precision * (found + wrong)
    fails = np.flatnonzero(~holds)
    first = 0 if not len(fails) else int(fails[-1]) + 1
    return min(1.0, float(candidates[first])) if first < len(candidates) else 1.0  # rounding makes cosines above 1


LEAST_CALLED = 0.05  # least share of held-out copies above the threshold; below it the model gets no second output
VIEWS = 6  # views of each image: itself and five edited copies
MIN_COPY_HEAD_IMAGES = 40
_HELD_OUT, _LEAST_HELD, _MOST_HELD = (20, 100, 1000)  # images held out for the threshold: one in 20, at least, at most
COPY_PHASE = "copy head"
COPY_STATE = ("threshold", "copy_dim", "is_kept")  # fields of the report that are stored with the weights


def train_copy_head(
    job: TrainingJob, images: Sequence[LabelledImage], groups: Ids, *, extractor: Extractor
) -> tuple[CopyHead, dict[str, Any]]:
    """Train the copy head on a part of the images, and choose its threshold by the others.

    `groups` (N,) int64 are the same for copies of one image in the data. In the report, `found_first` and
    `called_copies` are shares of the copies of held-out images.
    """
    copy_dim, seed = job.config.copy_dim, job.config.seed
    store, extracted = extract_together(
        [image.path for image in images],
        extractor=extractor,
        views=VIEWS,
        machine=job.machine,
        progress=partial(job.watcher.on_images, "copies"),
    )
    views, groups = store.load(list(extracted.hashes)), groups[extracted.rows]
    # Whole groups are held out: some twentieth of the images, more where that are few, about half at most.
    wanted = min(max(len(groups) // _HELD_OUT, min(_LEAST_HELD, len(groups) // 2)), _MOST_HELD)
    sizes, chosen, count = np.bincount(groups), list[int](), 0
    for group in np.random.default_rng(seed).permutation(np.unique(groups)).tolist():
        if count + sizes[group] <= wanted:
            chosen.append(group)
            count += sizes[group]
    held: np.ndarray = np.isin(groups, chosen)
    head = fit_copy_head(
        views[~held], groups[~held], copy_dim=copy_dim, seed=seed, progress=partial(job.watcher.on_images, "copy head")
    )
    report = {"copy_dim": copy_dim, **_evaluate(head, views, groups, held)}
    return head, {**report, "is_kept": report["called_copies"] >= LEAST_CALLED}


def _evaluate(head: CopyHead, views: Floats, groups: Ids, held: np.ndarray) -> dict[str, Any]:
    """Threshold and report figures, from copies of held-out images searched among all images."""
    with torch.inference_mode():
        originals = head(torch.from_numpy(views[:, 0])).numpy()  # (N, D)
        copies = head(torch.from_numpy(views[held, 1:])).numpy()  # (n, V - 1, D)
    if not len(copies):  # one image is nearly all there is
        return {"threshold": 1.0, "held_out": 0, "found_first": 0.0, "called_copies": 0.0}
    others = groups[held][:, None] != groups[None]
    right = (originals[held][:, None] * copies).sum(axis=2)
    wrong = [np.where(others, of_view @ originals.T, -1).max(axis=1) for of_view in copies.swapaxes(0, 1)]
    nearest = np.where(others, originals[held] @ originals.T, -1).max(axis=1)
    threshold = choose_threshold(right.ravel(), np.repeat(nearest, copies.shape[1]))
    return {
        "threshold": threshold,
        "held_out": len(copies),
        "found_first": float((right > np.stack(wrong, axis=1)).mean()),
        "called_copies": float((right >= threshold).mean()),
    }


def describe_copy_head(report: dict[str, Any] | None) -> list[str]:
    """Lines of the run's report; empty without a copy head."""
    if report is None:
        return []
    lines = [
        f"copy detection: of strong edits of {report['held_out']} held-out images, {report['found_first']:.1%} find "
        f"the original first; {report['called_copies']:.1%} reach the threshold, a cosine of {report['threshold']:.2f}"
    ]
    if not report["is_kept"]:
        lines.append(
            f"warning: --copy-head did not work: {report['called_copies']:.1%} reach the threshold, expected at least "
            f"{LEAST_CALLED:.0%}; the model gets no second output. Give more images, fine-tune the network "
            "(leave out --frozen), or detect copies with the built-in model"
        )
    return lines
