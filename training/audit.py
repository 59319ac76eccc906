"""A run's labels under suspicion: its images and features again, and what all images say of each but itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from index.errors import InputError, RunError
from index.exact import NO_ID, Floats, Ids
from index.images import printable_path
from index.progress import Progress
from training.audit_report import AuditedImage, AuditReport, ClassNoise, Neighbour, PairNoise
from training.duplicates import find_duplicates
from training.features import Extractor, extract_features, open_store
from training.machine import Machine
from training.neighbours import Nearest, find_agreeing, find_disagreeing
from training.projection import normalise_rows
from training.run_folder import LabelledImage, RunFolder
from training.second_look import judge_twice
from training.suspicion import suspect_labels
from training.validate import embed_features
from training.verdicts import give_verdicts

NEIGHBOURS = 3
SUGGESTIONS = 3
_LEAST_IMAGES = 0.5  # pairs of classes with fewer estimated mistakes are not listed

StepProgress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""


def audit_labels(run: RunFolder, *, machine: Machine, progress: StepProgress = lambda *_: None) -> AuditReport:
    """What the labels of a run look like from all images but the one that is judged, and its copies.

    Args:
        run: of any method, finished or not, once its features are made.
        machine: device, feature cache, decoding threads; the precision is the run's own.
        progress: told of the steps "features" and "confidences", both in images.

    Raises:
        RunError: the run has not come as far as its features, or its images are not what they were.
        InputError: it trains with one label only.
    """
    images = read_images(run)
    classes = sorted({image.used for image in images})
    if len(classes) < 2:
        raise InputError(f"{run.path}: an audit compares labels, but all images are labelled {classes[0]!r}")
    numbers = {label: number for number, label in enumerate(classes)}
    labels = np.array([numbers[image.used] for image in images], dtype=np.int64)
    features = _load_features(run, images, machine=machine, progress=progress)
    duplicates = find_duplicates(features, labels, hashes=[image.sha256 for image in images])
    confidences = _judge(
        features,
        labels,
        class_count=len(classes),
        groups=duplicates.groups,
        device=machine.device,
        progress=lambda done, total: progress("confidences", done, total),
    )
    suspicion = suspect_labels(confidences, labels)
    verdicts, new_labels = give_verdicts(
        confidences, labels, wrong=suspicion.wrong, duplicate_of=duplicates.other_label
    )
    unit = _embed(run, features)
    agreeing = _neighbours(find_agreeing(unit, labels, k=NEIGHBOURS))
    disagreeing = _neighbours(find_disagreeing(unit, labels, k=NEIGHBOURS))
    suggestions = _suggestions(confidences, classes)
    audited = tuple(
        AuditedImage(
            path=image.path,
            sha256=image.sha256,
            label=image.used,
            wrong=float(suspicion.wrong[row]),
            confidence=float(confidences[row, labels[row]]),
            suggestions=suggestions[row],
            verdict=verdicts[row],
            new_label=None if new_labels[row] == NO_ID else classes[new_labels[row]],
            agreeing=agreeing[row],
            disagreeing=disagreeing[row],
            duplicate_of=None if (copy := duplicates.other_label[row]) == NO_ID else int(copy),
        )
        for row, image in enumerate(images)
    )
    counts = np.bincount(labels, minlength=len(classes))
    return AuditReport(
        run=run.path,
        images=audited,
        classes=_class_noise(suspicion.noise, counts=counts, classes=classes),
        pairs=_pair_noise(suspicion.noise, counts=counts, classes=classes),
        noise_rate=float(counts @ (1 - suspicion.noise.diagonal()) / len(images)),
    )


def read_images(run: RunFolder) -> list[LabelledImage]:
    """The run's images with their labels.

    Raises:
        RunError: the run was stopped before they were chosen.
    """
    images = run.read_labels()
    if images is None or not (run.path / "backbone.safetensors").exists():
        raise RunError(f"{run.path}: its features are not made yet; continue it with `retrieval train … --resume`")
    return images


def _load_features(
    run: RunFolder, images: Sequence[LabelledImage], *, machine: Machine, progress: StepProgress
) -> Floats:
    """(N, F) float32 backbone features of the centre crops, from the cache where the run left them."""
    described = run.read_json("features.json")
    extractor = Extractor(
        run.load_backbone(), run.preprocess(), device=machine.device, precision=described["precision"]
    )
    views = described["views"]
    store = open_store(machine.cache, extractor, views=views)
    extracted = extract_features(
        [image.path for image in images],
        store=store,
        extractor=extractor,
        views=views,
        workers=machine.workers,
        progress=lambda done, total: progress("features", done, total),
    )
    seen = dict(zip(extracted.rows.tolist(), extracted.hashes, strict=True))
    changed = [image.path for row, image in enumerate(images) if seen.get(row) != image.sha256]
    if changed:
        raise RunError(
            f"{run.path}: {len(changed)} of {len(images)} images have changed or vanished since the run, the first is "
            f"{printable_path(str(changed[0]))}; put them back, or train a new run and audit that"
        )
    return np.ascontiguousarray(store.load([image.sha256 for image in images])[:, 0])


def _judge(
    features: Floats, labels: Ids, *, class_count: int, groups: Ids, device: torch.device, progress: Progress
) -> Floats:
    """(N, C) float32 confidences, each from the images of all other groups."""
    confidences = judge_twice(
        torch.from_numpy(features).to(device),
        torch.from_numpy(labels).to(device),
        class_count=class_count,
        groups=torch.from_numpy(groups).to(device),
    )
    progress(len(labels), len(labels))
    return confidences.cpu().numpy()


def _embed(run: RunFolder, features: Floats) -> Floats:
    """(N, D) float32 unit rows: the run's own embedding, or the features where it is not trained yet."""
    if not (run.path / "head.safetensors").exists():
        return normalise_rows(features)
    return embed_features(run.load_trained()[1], features)


def _neighbours(nearest: Nearest) -> list[tuple[Neighbour, ...]]:
    return [
        tuple(Neighbour(row, cosine) for row, cosine in zip(rows, cosines, strict=True) if row != NO_ID)
        for rows, cosines in zip(nearest.rows.tolist(), nearest.cosines.tolist(), strict=True)
    ]


def _suggestions(confidences: Floats, classes: Sequence[str]) -> list[tuple[tuple[str, float], ...]]:
    best = np.argsort(-confidences, axis=1, kind="stable")[:, :SUGGESTIONS]
    values = np.take_along_axis(confidences, best, axis=1)
    return [
        tuple((classes[number], value) for number, value in zip(*pair, strict=True))
        for pair in zip(best.tolist(), values.tolist(), strict=True)
    ]


def _class_noise(noise: npt.NDArray[np.float64], *, counts: Ids, classes: Sequence[str]) -> tuple[ClassNoise, ...]:
    found = [ClassNoise(c, int(counts[i]), float(1 - noise[i, i])) for i, c in enumerate(classes)]
    return tuple(sorted(found, key=lambda noisy: -noisy.noise_rate))


def _pair_noise(noise: npt.NDArray[np.float64], *, counts: Ids, classes: Sequence[str]) -> tuple[PairNoise, ...]:
    images = noise * counts[:, None]
    np.fill_diagonal(images, 0)
    found = [
        PairNoise(classes[i], classes[j], float(noise[i, j]), float(images[i, j]))
        for i, j in np.argwhere(images >= _LEAST_IMAGES)
    ]
    return tuple(sorted(found, key=lambda pair: -pair.images))
