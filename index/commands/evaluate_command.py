"""The command `retrieval evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import (
    PATH,
    GroupedCommand,
    backend_option,
    emit,
    help_all_option,
    output_options,
    progress_bars,
    read_numbers,
    where_option,
)
from index.commands.images_or_gallery import ensure_gallery
from index.public import evaluate as evaluate_retrieval
from index.public import open_gallery
from index.text import align, printable_path

if TYPE_CHECKING:
    from index.evaluation.evaluate import Evaluation

_WORST_LABELS = 5
_MIN_LABELS_TO_RANK = 6  # below it a list of the worst would be nearly all labels


@click.command(
    name="evaluate",
    cls=GroupedCommand,
    common=("model", "data", "query", "where", "groups", "k", "as_json", "help_all"),
)
@click.argument("gallery", type=PATH, required=False)
@click.option("--model", type=PATH, help="Evaluate this model, or builtin, on --data, without a gallery.")
@click.option(
    "--data",
    type=PATH,
    metavar="SOURCE",
    help="Labelled images for --model: a folder with one folder for each label, or a file of path,label.",
)
@click.option(
    "--query",
    type=PATH,
    metavar="SOURCE",
    help="Labelled images as queries, given like --data. Without it, every image is a query.",
)
@where_option("Only images of GALLERY that match this are queries; all are searched.")
@click.option(
    "--groups",
    metavar="NAME",
    help="Metadata of a gallery, or column of --data, that defines the groups of the grouped evaluation.  [default: "
    "`group`, where there is one; else found by names, times and similarity]",
)
@click.option(
    "--k",
    type=read_numbers,
    metavar="K,...",
    default="1,2,4,8,16",
    show_default=True,
    help="The K of Recall@K, 1 always included.",
)
@click.option("--exact", is_flag=True, help="Ask all queries, also if there are more than 20,000.")
@backend_option
@output_options
@help_all_option
def evaluate(*, gallery: Path | None, model: Path | None, as_json: bool, **options: Any) -> None:
    """Measure how well a gallery or a model finds images of the same label: Recall@K, MAP@R and R-precision.

    Every labelled image is a query for all others, by exact search; of more than 20,000 a sample, of each label in
    proportion. With --query, the images of that source are the queries. Recall@1 and MAP@R have 95 % intervals over
    queries. --json has the Recall@1 of each label.

    Photos of one scene find each other whatever they show. So where groups are known or found, Recall@1 is also given
    grouped: no image finds one of its own group.

    GALLERY may also be images: their gallery is then made beside them, once.

    \b
    Examples:
      retrieval evaluate gallery
      retrieval evaluate gallery --query held_out --k 1,5,10
      retrieval evaluate --model model.onnx --data test_images --json
    """
    from index.model.builtin import find_named_model
    from index.model.contract import find_contract

    if (gallery is None) == (model is None) or (model is None) != (options["data"] is None):
        raise click.UsageError("give either a GALLERY, or both --model and --data")
    model = None if model is None else find_named_model(model)
    opened = None if gallery is None else open_gallery(ensure_gallery(gallery))
    with progress_bars() as begin:
        evaluation = evaluate_retrieval(
            opened,
            model=model,
            progress=begin("Embedding", unit="images"),
            scoring=begin("Scoring", unit="queries"),
            **options,
        )
    text = _describe_evaluation(evaluation)
    if options["query"] is None:
        contract = opened.find_contract() if opened is not None else find_contract(model) if model is not None else None
        if contract is not None and contract.run_id:  # the file does not have the images that it was trained on
            text += (
                "\nnote: `retrieval train` made this model: for images that it was trained on the figures are too "
                "good; --query takes photos that it has not seen"
            )
    emit(evaluation.to_json(), as_json=as_json, text=text)


def _describe_evaluation(evaluation: Evaluation) -> str:
    scores = evaluation.scores
    rows = [(f"Recall@{k}", _percent(value), "") for k, value in scores.recall.items()]
    rows[0] = (*rows[0][:2], _interval(scores.recall_interval))
    rows.append(("MAP@R", _percent(float(scores.average_precision.mean())), _interval(scores.map_interval)))
    rows.append(("R-precision", _percent(float(scores.r_precision.mean())), ""))
    classes = len(evaluation.per_class)
    rows.append(("Class mean", _percent(scores.mean_class_recall(1)), f"of Recall@1 over {classes:,} labels"))
    lone = f" ({scores.lone_queries:,} more have no other image of their label)" if scores.lone_queries else ""
    every = evaluation.sampled_from
    sample = "" if every is None else f", a sample of {every:,} (--exact asks all)"
    lines = [*align(rows, right={1}), f"over {scores.queries:,} queries{sample}{lone}; in brackets 95 % intervals"]
    lines += _describe_grouped(evaluation)
    if evaluation.skipped:
        lines.append(f"skipped files: {evaluation.skipped:,}")
    if classes >= _MIN_LABELS_TO_RANK:
        worst = sorted(evaluation.per_class.items(), key=lambda item: (item[1].recall_at_1, item[0]))[:_WORST_LABELS]
        table = [
            (_percent(score.recall_at_1), f"{score.queries:,} queries", printable_path(name)) for name, score in worst
        ]
        lines.append(f"lowest Recall@1 of {classes:,} labels:")
        lines += ["  " + line for line in align(table, right={0, 1})]
    return "\n".join(lines)


def _describe_grouped(evaluation: Evaluation) -> list[str]:
    """Lines about the grouped evaluation, none for copies that change little; a warning where only its figure holds."""
    grouped = evaluation.grouped
    from index.evaluation.groups import COPIES

    if grouped is None or (grouped.groups.found_by == COPIES and not evaluation.is_flattered):
        return []
    groups = grouped.groups
    found = f"{groups.images:,} images in {groups.count:,} groups, by {groups.found_by}"
    if grouped.scores is None:
        return [f"warning: every image finds only its own group ({found}): no figure tells how new photos will fare"]
    recall, lone = grouped.scores.recall[1], grouped.scores.lone_queries
    alone = f"; {lone:,} queries have no other of their label" if lone else ""
    lines = [
        f"grouped: Recall@1 {_percent(recall)} where no image finds one of its own group ({found}{alone})",
        "  a group is shots of one scene, or copies of a photo, which find each other whatever they show",
    ]
    if evaluation.is_flattered:
        certain, likely = "shots of a group find each other", "photos find others that may be of one group"
        what = certain if groups.is_certain else likely
        lines.append(f"warning: Recall@1 above mostly says that {what}; for new photos expect the grouped figure")
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _interval(bounds: tuple[float, float]) -> str:
    return f"[{100 * bounds[0]:.2f}, {100 * bounds[1]:.2f}]"
