"""Report of a comparison: candidates evaluated on the same queries, as JSON, table of queries, and text."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.durable import write_csv
from index.evaluation.comparison import Scores, paired_bootstrap
from index.evaluation.evaluate import Evaluation, LabelledImages, evaluate_images
from index.evaluation.groups import Groups
from index.progress import Progress, no_progress
from index.text import align, printable_path, valid_text
from retrieval_app.comparing.embedding import Images
from retrieval_app.comparing.public import TABLE_START, Candidate
from retrieval_app.reports.duplicates_report import guard_cell

_SEED = 0  # of the resampling
_FEWEST_DIFFERENT = 6  # queries or groups: fewer would all favour one side by chance in 1 of 32 cases


def evaluate_candidates(
    images: Images, candidates: Sequence[Candidate], *, ks: Sequence[int], progress: Progress = no_progress
) -> tuple[dict[str, Any], Ids, list[Evaluation]]:
    """Evaluate all candidates on the same images, grouped as the first candidate's vectors tell.

    The report, the (Q,) int64 rows of the queries, which have another image of their label, and an evaluation each.
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
    # Intervals resample groups only where a column gives them, or names or times show them.
    clusters = groups.numbers[queries] if groups is not None and groups.is_certain else None
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
            for first, second in combinations(range(len(candidates)), 2)
        ],
        "intervals_over": "queries" if clusters is None else "groups",
        "groups": found_groups,
    }
    return report, queries, evaluations


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
        **{
            name: {"value": found.mean, "interval": [found.low, found.high], "p_value": found.p_value}
            for name, found in (("recall_at_1", recall), ("map_at_r", precision))
        },
        "only_first_right": int((is_right & ~is_other_right).sum()),
        "only_second_right": int((is_other_right & ~is_right).sum()),
        "both_right": int((is_right & is_other_right).sum()),
        "both_wrong": int((~is_right & ~is_other_right).sum()),
        "verdict": verdict,
        "enough_differ": bool(is_enough),
    }


def write_query_table(
    path: Path, images: Images, queries: Ids, candidates: Sequence[Candidate], evaluations: Sequence[Evaluation]
) -> None:
    """Write the table of queries: for each candidate, whether its first hit is right (1 or 0), and its MAP@R."""
    names, scores = [guard_cell(valid_text(one.name)) for one in candidates], [one.scores for one in evaluations]
    header = [*TABLE_START, *(f"{what} {name}" for name in names for what in ("right", "map_at_r"))]

    def list_rows() -> Iterator[list[object]]:
        for query, row in enumerate(queries.tolist()):
            item = images.items[row]
            cells: list[object] = [guard_cell(item.path), guard_cell(item.label or ""), images.places[row].sha256]
            for one in scores:
                cells += [int(one.hits[1][query]), round(float(one.average_precision[query]), 6)]
            yield cells

    write_csv(path, header, list_rows())


def format_report(report: Mapping[str, Any]) -> str:
    """The report for people."""
    candidates = report["candidates"]
    names, ks = [printable_path(one["name"]) for one in candidates], [*candidates[0]["recall"]]
    ks = ks[:: max(1, len(ks) - 1)]  # the first and the last
    header = ["", "width", "images/s", *(f"Recall@{k}" for k in ks), "MAP@R", "R-precision"]
    rows = [(*header, f"Recall@1 against {names[0]}")]
    differences = [""]
    for pair in report["pairs"][: len(candidates) - 1]:  # the first candidate with each other one
        few = "" if pair["enough_differ"] else ", too few differ"
        differences.append(f"{_format_bounds(pair['recall_at_1'], '+')} {pair['verdict']}{few}")
    for name, one, difference in zip(names, candidates, differences, strict=True):
        figures = [*(one["recall"][k] for k in ks), one["map_at_r"], one["r_precision"]]
        speed = "-" if one["images_per_second"] is None else f"{one['images_per_second']:,.0f}"
        rows.append((name, f"{one['width']}", speed, *map(_format_bounds, figures), difference))
    lone = f" ({report['lone_queries']:,} more have no other image of their label)" if report["lone_queries"] else ""
    lines = [
        *align(rows, right={1, 2}),
        f"%, over the same {report['queries']:,} queries among {report['count']:,} images{lone}; in brackets "
        f"95 % intervals over {report['intervals_over']}",
    ]
    if report["skipped"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report["skipped"].items())
        lines.append(f"skipped files: {reasons}")
    for name, one in zip(names, candidates, strict=True):
        lines.append(f"{name}: {one['embedded']:,} images embedded, {one['from_cache']:,} from the cache")
    return "\n".join([*lines, *_list_caveats(report), f"queries: {printable_path(report['files'][0])}"])


def _format_bounds(found: Mapping[str, Any], sign: str = "") -> str:
    """A share and its interval in percent."""
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in (found["value"], *found["interval"]))
    return f"{mean} [{low}, {high}]"


def _list_caveats(report: Mapping[str, Any]) -> list[str]:
    lines = []
    for one in report["candidates"]:
        name = printable_path(one["name"])
        if one["trained_on"]:
            lines.append(
                f"warning: {name} was trained on {one['trained_on']:,} of these images, so its scores are too good; "
                "compare on others"
            )
        elif one["trained_on"] is None and one["run_id"]:
            lines.append(
                f"note: {name} was made by `retrieval train`, and its file does not say on which images: for those its "
                "scores are too good; compare the run's folder as well, and they are counted"
            )
    if report["groups"] is not None and report["groups"]["flattered"]:
        groups, is_certain = report["groups"], report["intervals_over"] == "groups"
        grouped = ", ".join(
            f"{printable_path(one['name'])} "
            f"{'-' if one['recall_at_1_grouped'] is None else format(100 * one['recall_at_1_grouped'], '.1f')}"
            for one in report["candidates"]
        )
        kind = "photos of one group find each other" if is_certain else "photos may be of one group"
        lines.append(
            f"warning: {kind} ({groups['images']:,} images in {groups['groups']:,} groups, by {groups['found_by']}); "
            f"grouped Recall@1: {grouped}"
        )
    return lines
