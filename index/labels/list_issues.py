"""The list of label issues of a gallery: detection, kinds, verdicts and the nearest images."""

import logging
from collections.abc import Container
from dataclasses import replace

import numpy as np

from index.arrays import Floats, Ids, Labels, Mask, normalise_rows, rows_by_value
from index.labels.decisions import CHANGE, KEEP
from index.labels.issues import (
    ISSUES_COMPARED,
    LESS_PROBABLE,
    MIN_P_ERROR,
    NEIGHBOURS,
    NO_ISSUES,
    CheckedImages,
    LabelIssue,
    LabelIssues,
    collect_issues,
    make_issues,
    propose_labels,
    rank_classes,
)
from index.labels.kinds import LIKELY_ERROR, IssueKinds, count_groups
from index.labels.label_errors import LabelErrors, find_label_errors
from index.labels.simulated_noise import ErrorCalibration
from index.labels.verdicts import give_verdicts
from index.progress import Progress, no_progress
from index.vectors.clusters import cluster_embeddings
from index.vectors.exact import search_labels

logger = logging.getLogger(__name__)
_MOST_PROPOSALS = 100_000  # the most probable ones, as many as one step decides
_PROPOSALS_COMPARED = 10_000  # proposals with nearest images, the most probable ones
_AS_LONG = 90  # images that an image is compared with in the time of one confidence; a tenth of all are compared
# Chosen on photos of 17 kinds of clothes, 81 groceries and the 10 classes of CIFAR-10 (MobileNetV2, features of
# ImageNet): no class was split, and of 35 random pairs of classes that were given one label 22 were.
_LEAST_PART, _LEAST_SHARE = 5, 0.2  # images, and share of a label's, near-duplicates counted once
_MOST_COSINE = 0.0  # greatest cosine between the means of both parts, centred on all images
_NEARER_LABELS = 2  # other labels that are nearer to each part than the other part is


def list_label_issues(
    images: CheckedImages,
    *,
    decided: Container[int] = (),
    before: ErrorCalibration | None = None,
    progress: Progress = no_progress,
) -> tuple[LabelIssues, ErrorCalibration | None]:
    """Label issues, and their calibration; labels of a single near-duplicate group, or of all images, are not checked.

    Where no label is checked, no label is proposed either. `before` is the calibration from before the decisions;
    labels of images with the ids `decided` do not count among the estimated errors.
    """
    own, loose = images.labelled, images.unlabelled
    labels, names, total = own.labels, own.names, len(own.labels)
    can_be_checked = count_groups(labels, own.groups)[labels] > 1
    if len(names) < 2 or not can_be_checked.any():
        return NO_ISSUES, None

    def tell(start: int, end: int) -> Progress:
        """Progress of a part, as progress of the whole between two percentages."""
        return lambda done, of: progress(total * (start * of + (end - start) * done) // (100 * of), total)

    detecting = round(100 * len(names) / (len(names) + total / _AS_LONG))  # percent of the time
    errors = find_label_errors(
        own.vectors,
        labels,
        count=len(names),
        groups=own.groups,
        p_right=own.p_right,
        before=before,
        unlabelled=loose.vectors,
        progress=tell(0, detecting),
    )
    is_open = own.p_right != 1
    split = find_split_classes(own.vectors, labels, own.groups, count=len(names))
    kinds = IssueKinds(errors, labels, own.groups, count=len(names), split=split)
    verdicts, _ = give_verdicts(errors, labels, groups=own.copies, rare=kinds.rare_class, decided=~is_open)
    errors = replace(errors, p_error=np.where(can_be_checked & is_open, errors.p_error, 0.0))
    is_listed = (errors.p_error >= MIN_P_ERROR) | ((kinds.conflicting_duplicates | split) & is_open)
    order = np.lexsort((errors.own, -errors.p_error))  # ties: the least confident first
    rows = order[is_listed[order]]
    compared = rows[:ISSUES_COMPARED]
    nearest = search_labels(
        own.vectors, labels, k=NEIGHBOURS, asked=compared, groups=own.groups, progress=tell(detecting, 100)
    )
    items = make_issues(own, errors, compared, kinds=kinds, verdicts=verdicts, nearest=nearest)
    items += make_issues(own, errors, rows[ISSUES_COMPARED:], kinds=kinds, verdicts=verdicts)
    items += _list_proposals(errors, own, loose)
    progress(total, total)
    is_decided = np.array([number in decided for number in own.ids.tolist()], dtype=bool)
    found = collect_issues(
        items,
        checked=int(can_be_checked.sum()),
        errors=float(errors.p_error[~is_decided].sum()),
        confused_classes=[(names[one], names[two], amount) for one, two, amount in kinds.confused_classes],
    )
    classes, calibration = rank_classes(errors, labels, names), errors.calibration
    rows = np.flatnonzero(~is_listed & (errors.p_error >= LESS_PROBABLE))
    found = replace(found, less_probable=tuple(zip(own.ids[rows].tolist(), errors.p_error[rows].tolist(), strict=True)))
    return replace(found, classes=classes, look_alikes=calibration.look_alikes), calibration


def _list_proposals(errors: LabelErrors, images: CheckedImages, loose: CheckedImages) -> list[LabelIssue]:
    """Proposals for images without a label, the most probable first, with the nearest labelled images."""
    if not len(errors.proposed):
        return []
    order = np.argsort(-errors.p_proposed[:, 0], kind="stable")[:_MOST_PROPOSALS]
    if len(order) < len(loose.ids):
        logger.info("%d images without a label have no proposal until others are decided", len(loose.ids) - len(order))
    compared, count = order[:_PROPOSALS_COMPARED], len(images.labels)
    agreeing, disagreeing = search_labels(
        np.concatenate([images.vectors, loose.vectors[compared]]),
        np.concatenate([images.labels, errors.proposed[compared, 0]]),
        k=NEIGHBOURS,
        asked=np.arange(count, count + len(compared)),
        groups=np.concatenate([np.arange(count), np.full(len(compared), count)]),  # so they do not find each other
    )
    items, clear = [], errors.is_clear[order]
    for position, issue in enumerate(propose_labels(errors, loose.ids, images.names, order)):
        is_clear = issue.p_error >= LIKELY_ERROR and clear[position]
        issue = replace(issue, verdict=CHANGE if is_clear else KEEP)
        if position < len(compared):
            near, others = images.describe_near(agreeing, position), images.describe_others(disagreeing, position)
            issue = replace(issue, agreeing=near, disagreeing=others)
        items.append(issue)
    return items


def find_split_classes(vectors: Floats, labels: Labels, groups: Ids, *, count: int) -> Mask:
    """(N,) whether an image is of the smaller part of a label that should be split."""
    found = np.zeros(len(labels), dtype=bool)
    rows = normalise_rows(vectors)
    rows = normalise_rows(rows - rows.mean(axis=0))
    members = {int(labels[own[0]]): own for own in rows_by_value(labels)}
    means = normalise_rows(
        np.stack([rows[members[n]].mean(axis=0) if n in members else np.zeros(rows.shape[1]) for n in range(count)])
    )
    for label, own in members.items():
        if len(own) < 2 * _LEAST_PART:
            continue
        second = cluster_embeddings(rows[own], clusters=2, seed=0) == 1
        parts = own[~second], own[second]
        sizes = [len(np.unique(groups[part])) for part in parts]
        if min(sizes) < max(_LEAST_PART, _LEAST_SHARE * sum(sizes)):
            continue
        one, other = normalise_rows(np.stack([rows[part].mean(axis=0) for part in parts]))
        cosine, others = float(one @ other), np.delete(means, label, axis=0)
        nearer = min(int((others @ part > cosine).sum()) for part in (one, other))
        if cosine <= _MOST_COSINE and nearer >= _NEARER_LABELS:
            found[parts[int(np.argmin(sizes))]] = True
    return found
