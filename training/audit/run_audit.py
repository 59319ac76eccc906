"""Label audit of a run: label issues by leave-one-out confidences, nearest images, and the cleaned label file."""

import csv
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import NO_ID, Floats, connect_rows, normalise_rows
from index.durable import check_own_files, replacing, write_csv
from index.errors import InputError, RunError
from index.labels.decision_files import HEADER, can_be_named, encode_labels
from index.labels.decisions import CHANGE, DROP, GIVEN, MAX_UNREVIEWED_P_RIGHT, P_RIGHT, SET_ASIDE
from index.labels.issue_tables import COLUMNS, Cell, describe_row
from index.labels.issues import (
    ISSUES_COMPARED,
    NEIGHBOURS,
    CheckedImages,
    LabelIssue,
    LabelIssues,
    make_issues,
    rank_classes,
)
from index.labels.kinds import LIKELY_ERROR, IssueKinds, has_rare_class
from index.labels.label_errors import LabelErrors, find_label_errors, pool_label_errors
from index.labels.verdicts import AT_LEAST_RIGHT, ExpectedRight, compare_duplicates, expect_right, give_verdicts
from index.progress import Progress, StepProgress, no_progress
from index.text import printable_path
from index.vectors.exact import search_labels
from training.backbone.backbones import Backbone
from training.backbone.extract import Extractor, extract_features, open_store
from training.confidence.duplicates import find_duplicates
from training.data.datasets import require_outside
from training.options.machine import Machine
from training.run.run_folder import LabelledImage, RunFolder
from training.run.searches import embed_features

logger = logging.getLogger(__name__)
_MORE_COLUMNS = (GIVEN, P_RIGHT, "verdict")  # of a cleaned label file
_LEAST_IMAGES = 0.5  # pairs of classes with fewer estimated mistakes are not listed
_MOST_VALUES = 1 << 30  # confidences in memory at most: 4 GB
_LEARNT = 0.5  # of the wrong labels that frozen features estimate; a network that finds fewer has learnt the others
_MOST_LABELS = 1 << 14  # of which every pair is looked at: 2 GB
_SIDES = [
    f"{side}_{name}{rank}"
    for side in ("agreeing", "disagreeing")
    for rank in range(1, NEIGHBOURS + 1)
    for name in ("", "cosine_")
]
_HEADER = ["rank", *COLUMNS, "confidence", *_SIDES, "duplicate_of"]


def audit_labels(
    run: RunFolder, *, machine: Machine, at_least_right: float = AT_LEAST_RIGHT, progress: StepProgress = no_progress
) -> LabelIssues:
    """Label audit of a run: every label is predicted from all images but its own and their near-duplicates.

    Of an unfinished run the features before fine-tuning are read. The verdicts aim at the share `at_least_right` of
    right labels among the images that stay.
    """
    images = read_images(run)
    names = sorted({image.used for image in images})
    if len(names) < 2:
        raise InputError(f"an audit compares labels, but all images are labelled {names[0]!r}", at=run.path)
    numbers = {label: number for number, label in enumerate(names)}
    labels = np.array([numbers[image.used] for image in images], dtype=np.int64)
    known = [image.p_right if image.given == image.used else None for image in images]  # not of simulated noise
    p_right = np.array(known, dtype=np.float64)  # None is NaN
    load = partial(_load_features, run, images, machine=machine)
    features = load(run.load_backbone(), progress=partial(progress, "features"))
    hashes, comparing = [image.sha256 for image in images], partial(progress, "near-duplicates")
    duplicates = find_duplicates(features, labels, hashes=hashes, progress=comparing)
    groups = duplicates.groups
    labelled = CheckedImages(features, labels, np.arange(len(images)), groups, p_right, tuple(names), groups)
    errors, features = _find_errors(run, labelled, load=load, progress=progress)
    kinds = IssueKinds(errors, labels, groups, count=len(names))
    verdicts, _ = give_verdicts(
        errors, labels, groups=groups, rare=kinds.rare_class, decided=p_right == 1, at_least_right=at_least_right
    )
    order = np.argsort(-errors.p_error, kind="stable")
    compared, searching = order[:ISSUES_COMPARED], partial(progress, "nearest images")
    nearest = search_labels(_embed(run, features), labels, k=NEIGHBOURS, asked=compared, progress=searching)
    issues = [
        *make_issues(labelled, errors, compared, kinds=kinds, verdicts=verdicts, nearest=nearest),
        *make_issues(labelled, errors, order[ISSUES_COMPARED:], kinds=kinds, verdicts=verdicts),
    ]
    issues.sort(key=lambda issue: issue.id)
    in_trouble = (errors.p_error >= LIKELY_ERROR) | kinds.conflicting_duplicates
    twins = [None if twin == NO_ID else twin for twin in duplicates.other_label.tolist()]
    items = tuple(
        replace(
            issue,
            sha256=image.sha256,
            path=str(image.path),
            kind=issue.kind if in_trouble[issue.id] else None,
            duplicate_of=twins[issue.id],
            p_right=known[issue.id],
            before=image.before,
        )
        for image, issue in zip(images, issues, strict=True)
    )
    pairs = [(names[label], names[shown], amount) for label, shown, amount in errors.pairs if amount >= _LEAST_IMAGES]
    return LabelIssues(
        items,
        checked=len(items),
        noise_rate=float(np.bincount(labels, minlength=len(names)) @ errors.rates / len(images)),
        pairs=tuple(sorted(pairs, key=lambda pair: -pair[2])),
        confused_classes=tuple((names[one], names[two], amount) for one, two, amount in kinds.confused_classes),
        classes=rank_classes(errors, labels, names),
        look_alikes=errors.calibration.look_alikes,
        at_least_right=at_least_right,
    )


def _find_errors(
    run: RunFolder, images: CheckedImages, *, load: Callable[..., Floats], progress: StepProgress
) -> tuple[LabelErrors, Floats]:
    """Label errors of a run's images, and the features that they were found by.

    They are found by the features of the backbone before fine-tuning and, if label posteriors trained the network, also
    by both kinds side by side: those after it tell similar classes apart, but have learnt some wrong labels. The mean
    of both probabilities counts. Where both kinds estimate less than half as many wrong labels, the network has learnt
    them, and the frozen features count alone. So they do if labels as given trained the network.
    """
    network = (run.find_json("report.json") or {}).get("finetuning") or {}
    is_finetuned = bool(network.get("selected") and network.get("by_posteriors"))

    def detect(features: Floats, *, begun: float) -> LabelErrors:
        def tell(done: int, total: int) -> None:
            share = begun + done / total * (0.5 if is_finetuned else 1.0)
            progress("confidences", int(len(images.ids) * share), len(images.ids))

        return find_label_errors(
            features,
            images.labels,
            count=len(images.names),
            groups=images.groups,
            p_right=images.p_right,
            most_values=_MOST_VALUES,
            most_labels=_MOST_LABELS,
            progress=tell,
        )

    errors = detect(images.vectors, begun=0.0)
    if not is_finetuned:
        return errors, images.vectors
    tuned = load(run.load_backbone(run.exported_backbone), progress=partial(progress, "fine-tuned features"))
    features = np.concatenate([normalise_rows(images.vectors), normalise_rows(tuned)], axis=1)
    both = detect(features, begun=0.5)
    if both.p_error.sum() >= _LEARNT * errors.p_error.sum():
        errors = pool_label_errors(errors, both, images.labels)
    return errors, features


def read_images(run: RunFolder) -> list[LabelledImage]:
    """The run's images with their labels."""
    images = run.read_labels()
    if images is None or not (run.path / "backbone.safetensors").exists():
        raise RunError(f"{run.path}: its features are not made yet; continue it with `retrieval train … --resume`")
    return images


def _load_features(
    run: RunFolder, images: Sequence[LabelledImage], backbone: Backbone, *, machine: Machine, progress: Progress
) -> Floats:
    """(N, F) float32 features, from the cache where it has them."""
    precision = run.read_json("features.json")["precision"]
    extractor = Extractor(backbone, run.preprocess(), device=machine.device, precision=precision)
    store = open_store(machine.cache, extractor)
    extracted = extract_features(
        [image.path for image in images], store=store, extractor=extractor, workers=machine.workers, progress=progress
    )
    seen = dict(zip(extracted.rows.tolist(), extracted.hashes, strict=True))
    changed = [image.path for row, image in enumerate(images) if seen.get(row) != image.sha256]
    if changed:
        raise RunError(
            f"{run.path}: {len(changed)} of {len(images)} images have changed or vanished since the run, the first is "
            f"{printable_path(str(changed[0]))}; put them back, or train a new run and audit that"
        )
    return np.ascontiguousarray(store.load([image.sha256 for image in images])[:, 0])


def _embed(run: RunFolder, features: Floats) -> Floats:
    """(N, D) float32 unit rows: the embedding on the frozen backbone, or the features in a run without one."""
    if run.has_finetuned or not (run.path / "head.safetensors").exists():
        return normalise_rows(features)
    return embed_features(run.load_trained()[1], features)


def write_audit_tables(audited: LabelIssues, out: Path, *, run: Path) -> list[Path]:
    """Write audit.csv and summary.json into a folder, without replacing another program's files; the paths."""
    check_audit_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / "audit.csv", out / "summary.json"]
    ranked = enumerate(rank_images(audited), start=1)
    write_csv(written[0], _HEADER, (_describe(rank, image, audited.items) for rank, image in ranked))
    with replacing(written[1]) as temporary:
        temporary.write_text(json.dumps(summarise_audit(audited, run=run), indent=2) + "\n", encoding="utf-8")
    return written


def check_audit_folder(out: Path) -> None:
    """See that an audit's files replace nothing but an audit's."""
    check_own_files(out, ("audit.csv", "summary.json", "audit.html"), header=_HEADER[:3])


def rank_images(audited: LabelIssues) -> list[LabelIssue]:
    """The images, the most probable errors first, ties by the least confidence."""
    return sorted(audited.items, key=lambda image: (-image.p_error, image.confidence))


def summarise_audit(audited: LabelIssues, *, run: Path) -> dict[str, Any]:
    """The audit of a run without its images, as plain values."""
    images = {label: count for label, count, _ in audited.classes}
    return {
        "run": str(run),
        "images": len(audited.items),
        "noise_rate": audited.noise_rate,
        "at_least_right": audited.at_least_right,
        "look_alikes": audited.look_alikes,
        "no_promise": audited.no_promise,
        "verdicts": audited.count_outcomes(),
        "kinds": audited.count_kinds(),
        "classes": [{"label": label, "images": count, "noise_rate": share} for label, count, share in audited.classes],
        "pairs": [
            {"label": label, "suggested": shown, "noise_rate": amount / images[label], "images": amount}
            for label, shown, amount in audited.pairs
        ],
        "confused_classes": [{"labels": [one, two], "images": amount} for one, two, amount in audited.confused_classes],
    }


def _describe(rank: int, image: LabelIssue, images: tuple[LabelIssue, ...]) -> list[Cell]:
    near = [*_fill(image.agreeing, images), *_fill((pair[:2] for pair in image.disagreeing), images)]
    twin = None if image.duplicate_of is None else images[image.duplicate_of].path
    cells = [rank, *describe_row(image).values(), image.confidence, *near, twin]
    return [round(cell, 6) if isinstance(cell, float) else cell for cell in cells]


def _fill(neighbours: Iterable[tuple[int, float]], images: tuple[LabelIssue, ...]) -> list[Cell]:
    """Path and cosine for every rank; those that nothing is known for stay empty."""
    cells: list[Cell] = [cell for row, cosine in neighbours for cell in (images[row].path, cosine)]
    return cells + [None] * (2 * NEIGHBOURS - len(cells))


@dataclass(frozen=True, slots=True)
class CleanedLabels:
    """How many images a cleaned label file has, how many of them with a new label, and how many it leaves out."""

    file: Path
    images: int
    relabelled: int
    set_aside: int
    left_out: int
    expected_right: ExpectedRight


def check_label_target(path: Path, *, run: RunFolder) -> None:
    """Refuse a place for cleaned labels where something else would be lost, before any long work."""
    shown, data = printable_path(path), Path(run.read_json("config.json")["data"])
    if path.suffix.lower() != ".csv":
        raise InputError(f"--apply {shown}: labels are written as CSV; name a file that ends in .csv")
    if path.resolve() == data.resolve():
        raise InputError(f"--apply {shown}: the run was trained from this file; choose another name")
    require_outside(path, data=data, flag="--apply")
    if not path.parent.is_dir():
        raise InputError(f"--apply {shown}: no such folder: {printable_path(path.parent)}")
    if path.exists() and not _is_ours(path):
        raise InputError(f"--apply {shown}: exists already and no audit wrote it; choose another name")


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return file.readline() == ",".join((*HEADER, *_MORE_COLUMNS)) + csv.excel.lineterminator


def choose_labels(images: Sequence[LabelIssue]) -> list[str | None]:
    """What each image is to be labelled, by its decision, else by its verdict; None leaves it out."""
    pairs = [(row, image.duplicate_of) for row, image in enumerate(images) if image.duplicate_of is not None]
    groups = connect_rows(np.array(pairs, dtype=np.int64).reshape(-1, 2), count=len(images))
    is_decided = np.array([image.decision is not None for image in images], dtype=bool)
    chosen = [
        # what people decided about one near-duplicate may be another verdict on the others
        image.label
        if image.duplicate_of is not None and image.decision is None
        else {CHANGE: image.new_label, SET_ASIDE: None, DROP: None}.get(image.outcome, image.label)
        for image in images
    ]
    confidences = np.array([image.confidence for image in images], dtype=np.float32)
    _, labels = np.unique([image.label or "" for image in images], return_inverse=True)
    rare = has_rare_class(labels, groups)
    _, loses = compare_duplicates(chosen, groups, confidences=confidences, decided=is_decided, rare=rare)
    return [None if loses[row] else label for row, label in enumerate(chosen)]


def write_cleaned_labels(audited: LabelIssues, path: Path) -> CleanedLabels:
    """Write path, label, the label as given, its probability of being right and the verdict of every image that stays.

    Paths are relative to the file's folder, so that it can be moved together with the images.
    """
    folder = str(path.parent.resolve())
    labels = choose_labels(audited.items)
    kept = [(image, label) for image, label in zip(audited.items, labels, strict=True) if label]
    unnamable = [image.path for image, _ in kept if not can_be_named(image.path)]
    if unnamable:
        logger.warning(
            "left out, because a label file is UTF-8 and their names are not: %d images, the first is %s; rename them",
            len(unnamable),
            printable_path(unnamable[0]),
        )
    written = [(image, label, _p_right(image, label)) for image, label in kept if can_be_named(image.path)]
    rows = (
        [os.path.relpath(image.path, folder), label, image.before or image.label or "", f"{p_right:.4f}", image.outcome]
        for image, label, p_right in written
    )
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(encode_labels(rows, more_columns=_MORE_COLUMNS))
    counts = Counter(label for _, label, _ in written)
    for label in sorted(label for label, _, _ in audited.classes if counts[label] < 2):
        logger.warning(
            "class %r keeps %s; training leaves classes with fewer than two out",
            label,
            f"{counts[label]} image" if counts[label] else "no image",
        )
    aside = sum(one.outcome == SET_ASIDE and label is None for one, label in zip(audited.items, labels, strict=True))
    return CleanedLabels(
        path,
        images=len(written),
        relabelled=sum(label != image.label for image, label, _ in written),
        set_aside=aside,
        left_out=len(audited.items) - len(written) - aside,
        expected_right=expect_right(len(written), sum(p_right for *_, p_right in written)),
    )


def _p_right(image: LabelIssue, label: str) -> float:
    """The probability that the chosen label of an image is right: 1 only where a person looked."""
    if image.decision is not None:
        return image.decision.p_right
    if label == image.label:
        return 1.0 if image.p_right == 1 else min(1 - image.p_error, MAX_UNREVIEWED_P_RIGHT)
    return min(image.p_suggested, MAX_UNREVIEWED_P_RIGHT)
