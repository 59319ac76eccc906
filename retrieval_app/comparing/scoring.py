"""Evaluation of candidates on the same queries, with intervals and paired differences, as one report."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from index.arrays import Ids
from index.evaluation.comparison import PairedDifference, Scores, paired_bootstrap
from index.evaluation.evaluate import Evaluation, LabelledImages, evaluate_images
from index.evaluation.groups import Groups
from index.progress import Progress, no_progress
from index.text import valid_text
from retrieval_app.comparing.embedding import Images
from retrieval_app.comparing.public import Candidate

_SEED = 0  # of the resampling
_FEWEST_DIFFERENT = 6  # queries or groups: fewer would all favour one side by chance in 1 of 32 cases


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidates on the same images, with every image as a query for the others of its label.

    Attributes:
        queries: (Q,) rows of the images that have another one of their label.
        evaluations: of each candidate.
        pairs: places of two candidates in rising order, as the pairs of the report.
        report: as `--json` prints it.
    """

    images: Images
    candidates: Sequence[Candidate]
    queries: Ids
    evaluations: Sequence[Evaluation]
    pairs: Sequence[tuple[int, int]]
    report: dict[str, Any]


def evaluate_candidates(
    images: Images, candidates: Sequence[Candidate], *, ks: Sequence[int], progress: Progress = no_progress
) -> Comparison:
    """Evaluate all candidates on the same images, grouped as the first candidate's vectors tell.

    Raises:
        InputError: no query has another image of its label to find.
    """
    labels, sources = [item.label for item in images.items], images.group_sources()
    groups: Groups | None = None
    evaluations = list[Evaluation]()
    for candidate in candidates:
        members = LabelledImages(candidate.vectors, labels, np.arange(len(labels)), sources)
        evaluations.append(evaluate_images(members, groups=groups, ks=ks))
        if len(evaluations) == 1 and (grouped := evaluations[0].grouped) is not None:
            groups = grouped.groups
        progress(len(evaluations), len(candidates))
    queries = np.flatnonzero([label in evaluations[0].per_class for label in labels])
    # Only groups that somebody gave, or that names or times show, are units of the resampling.
    clusters = groups.numbers[queries] if groups is not None and groups.is_certain else None
    pairs = list(combinations(range(len(candidates)), 2))
    found_groups = None
    if groups is not None:
        found_groups = {**groups.to_json(), "flattered": any(one.is_flattered for one in evaluations)}
    report = {
        "images": valid_text(images.source),
        "count": len(labels),
        "queries": len(queries),
        "lone_queries": evaluations[0].scores.lone_queries,
        "labels": len(set(labels)),
        "skipped": dict(sorted(images.skipped.items())),
        "candidates": [_describe(*one, clusters) for one in zip(candidates, evaluations, strict=True)],
        "pairs": [
            {"first": valid_text(candidates[first].name), "second": valid_text(candidates[second].name)}
            | _compare(evaluations[first], evaluations[second], clusters)
            for first, second in pairs
        ],
        "intervals_over": "queries" if clusters is None else "groups",
        "groups": found_groups,
    }
    return Comparison(images, candidates, queries, evaluations, pairs, report)


def _describe(candidate: Candidate, evaluation: Evaluation, clusters: Ids | None) -> dict[str, Any]:
    scores, grouped = evaluation.scores, evaluation.grouped

    def describe(values: Scores) -> dict[str, Any]:
        found = paired_bootstrap(values, np.zeros_like(values), seed=_SEED, clusters=clusters)
        return {"value": found.mean, "interval": [found.low, found.high]}

    return {
        "name": valid_text(candidate.name),
        "kind": candidate.kind,
        "path": valid_text(str(candidate.path)),
        "width": int(candidate.vectors.shape[1]),
        "images_per_second": candidate.per_second,
        "embedded": candidate.embedded,
        "from_cache": candidate.from_cache,
        "from_gallery": candidate.from_gallery,
        "trained_on": candidate.trained_on,
        "run_id": candidate.run_id,
        "recall": {str(k): describe(hits) for k, hits in scores.hits.items()},
        "map_at_r": describe(scores.average_precision),
        "r_precision": describe(scores.r_precision),
        "recall_at_1_grouped": None if grouped is None or grouped.scores is None else grouped.scores.recall[1],
    }


def _compare(first: Evaluation, second: Evaluation, clusters: Ids | None) -> dict[str, Any]:
    """The second's scores less the first's on the same queries; `better` and `worse` is the second."""
    one, other = first.scores, second.scores
    recall = paired_bootstrap(other.hits[1], one.hits[1], seed=_SEED, clusters=clusters)
    precision = paired_bootstrap(other.average_precision, one.average_precision, seed=_SEED, clusters=clusters)
    is_right, is_other_right = one.hits[1] > 0, other.hits[1] > 0
    differ = is_right != is_other_right
    is_enough = (differ.sum() if clusters is None else len(np.unique(clusters[differ]))) >= _FEWEST_DIFFERENT
    verdict = "not clear"
    if is_enough and not recall.low <= 0 <= recall.high:
        verdict = "better" if recall.low > 0 else "worse"
    return {
        "recall_at_1": _describe_difference(recall),
        "map_at_r": _describe_difference(precision),
        "only_first_right": int((is_right & ~is_other_right).sum()),
        "only_second_right": int((is_other_right & ~is_right).sum()),
        "both_right": int((is_right & is_other_right).sum()),
        "both_wrong": int((~is_right & ~is_other_right).sum()),
        "verdict": verdict,
        "enough_differ": bool(is_enough),
    }


def _describe_difference(found: PairedDifference) -> dict[str, Any]:
    return {"value": found.mean, "interval": [found.low, found.high], "p_value": found.p_value}
