"""The commands `retrieval index`, `retrieval search` and `retrieval evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.ahead import usable_cores
from index.build_config import BuildConfig
from index.console import (
    NumberList,
    build_config,
    config_options,
    emit,
    output_options,
    progress_bar,
    progress_bars,
)

if TYPE_CHECKING:
    from index.build import BuildReport
    from index.console import BeginBar
    from index.evaluate import Evaluation
    from index.gallery import Hit

_PATH = click.Path(path_type=Path, readable=False)  # what cannot be read gets our own message
_K_SET_NAMES = "webvision, tiny-imagenet, cub-200-2011, cars-196, sop, in-shop"
_WORST_LABELS = 5
_MIN_LABELS_TO_RANK = 6  # below it a list of the worst would be nearly all labels


@click.group(name="index")
def index_group() -> None:
    """Build searchable galleries from folders of images, and check them."""


@index_group.command(name="build")
@click.argument("model", type=_PATH)
@click.argument("folder", type=_PATH)
@click.option("--out", type=_PATH, required=True, metavar="GALLERY", help="The gallery folder to make or update.")
@click.option(
    "--labels",
    "labels_file",
    type=_PATH,
    metavar="FILE",
    help="CSV or Parquet file with the columns path,label. Without it, the first folder below FOLDER is the label.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 1 where any file was skipped (the gallery is made all the same).",
)
@click.option(
    "--moved",
    is_flag=True,
    help="The folder was moved: take FOLDER as the place of this gallery's photos.",
)
@config_options(BuildConfig)
@output_options
@click.pass_context
def build(
    context: click.Context,
    /,
    *,
    model: Path,
    folder: Path,
    out: Path,
    labels_file: Path | None,
    strict: bool,
    moved: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Embed every image below FOLDER with MODEL and make the gallery.

    Files that cannot be used are skipped and recorded with the reason. A build that was stopped continues when it
    is run again; a finished gallery is brought up to date, and only new or changed images are embedded. Of the
    older versions only the one before the new one is kept: a program that has it open keeps working.

    \b
    Examples:
      retrieval index build model.onnx photos --out gallery
      retrieval index build model.onnx photos --out gallery --labels labels.csv --strict
      retrieval index build model.onnx /new/place/photos --out gallery --moved
    """
    from index.build import build_gallery

    config = build_config(BuildConfig, options)
    with progress_bar("Indexing", unit="files") as progress:
        report = build_gallery(
            model_path=model,
            folder=folder,
            out=out,
            labels_file=labels_file,
            moved=moved,
            config=config,
            progress=progress,
        )
    emit(report.to_json(), as_json=as_json, text=_describe_build(report, out=out))
    if strict and report.skipped:
        context.exit(1)


@index_group.command(name="verify")
@click.argument("gallery", type=_PATH)
@output_options
@click.pass_context
def verify(context: click.Context, /, *, gallery: Path, as_json: bool) -> None:
    """Check every byte of GALLERY against its manifest, and its parts against each other.

    Exits with 1, and lists every problem, where something is damaged.

    \b
    Examples:
      retrieval index verify gallery
      retrieval index verify gallery --json
    """
    from index.images import printable_path
    from index.verify import verify_gallery

    files, problems = verify_gallery(gallery)
    shown = printable_path(str(gallery))
    text = "\n".join(problems) if problems else f"{shown}: {files} files match"
    emit({"gallery": shown, "problems": problems}, as_json=as_json, text=text)
    if problems:
        context.exit(1)


@index_group.command(name="skipped")
@click.argument("gallery", type=_PATH)
@output_options
def skipped(*, gallery: Path, as_json: bool) -> None:
    """List the files that GALLERY could not use, each with its reason.

    \b
    Examples:
      retrieval index skipped gallery
      retrieval index skipped gallery --json
    """
    from index.catalog import read_catalog
    from index.gallery import find_version
    from index.images import printable_path
    from index.versions import CATALOG_NAME

    with read_catalog(find_version(gallery) / CATALOG_NAME) as catalog:
        files = [
            (row.reason or "", printable_path(row.path), row.detail or "")
            for row in catalog.rows(status="skipped")
        ]
    document = [{"path": path, "reason": reason, "detail": detail} for reason, path, detail in files]
    text = (
        "\n".join(_align([("reason", "path", "detail"), *files], right=set())) if files else "no file was skipped"
    )
    emit({"skipped": document}, as_json=as_json, text=text)


@click.command(name="search")
@click.argument("gallery", type=_PATH)
@click.argument("image", type=_PATH)
@click.option(
    "-k", "--count", "k", type=click.IntRange(min=1), default=10, show_default=True, help="Results wanted."
)
@output_options
def search(*, gallery: Path, image: Path, k: int, as_json: bool) -> None:
    """Find the images of GALLERY that are most similar to IMAGE.

    \b
    Examples:
      retrieval search gallery query.jpg
      retrieval search gallery query.jpg -k 50 --json
    """
    from index.gallery import Gallery
    from index.images import read_image

    opened = Gallery.open(gallery)
    embedder = opened.embedder
    loaded = read_image(image, target_side=embedder.contract.preprocess.resize)
    hits = opened.search(embedder.embed_image(loaded.image, name=str(image)), k=k)
    emit({"results": [hit.to_json() for hit in hits]}, as_json=as_json, text=_describe_hits(hits))


class _KList(NumberList):
    """`1,2,4`, or the K that the literature reports on a dataset, by the dataset's name."""

    expected = f"neither a list of whole numbers like 1,2,4,8 nor one of {_K_SET_NAMES}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        from index.metrics import K_SETS

        named = K_SETS.get(value) if isinstance(value, str) else None
        return super().convert(value, param, ctx) if named is None else named


@click.command(name="evaluate")
@click.argument("gallery", type=_PATH, required=False)
@click.option("--model", type=_PATH, help="Score this model on --data instead of a finished gallery.")
@click.option(
    "--data",
    type=_PATH,
    metavar="SOURCE",
    help="Labelled images for --model: a folder with one folder for each label, or a file of path,label.",
)
@click.option(
    "--query",
    type=_PATH,
    metavar="SOURCE",
    help="Labelled images that ask, given like --data; without it, every image asks once.",
)
@click.option(
    "--k",
    "ks",
    type=_KList(),
    default="1,2,4,8,16",
    show_default=True,
    help=f"The K of Recall@K, to which 1 always belongs, or those of a dataset: {_K_SET_NAMES}.",
)
@click.option(
    "--nmi",
    "with_nmi",
    is_flag=True,
    help="Also cluster the labelled images that ask, by k-means into as many clusters as they have labels, and say "
    "how well clusters and labels agree (normalised mutual information).",
)
@output_options
def evaluate(
    *, gallery: Path | None, model: Path | None, data: Path | None, query: Path | None, ks: tuple[int, ...],
    with_nmi: bool, as_json: bool,
) -> None:  # fmt: skip
    """Say how good retrieval is: Recall@K, MAP@R and R-precision over labelled images.

    Every labelled image is a query among all the others, by exact search. With --query the images of that source
    ask instead. Recall@1 and MAP@R come with 95 % intervals over queries. Recall@1 is also averaged over the
    labels; --json gives that of each.

    \b
    Examples:
      retrieval evaluate gallery
      retrieval evaluate gallery --query held_out --k 1,5,10
      retrieval evaluate --model model.onnx --data test_images --k sop --nmi --json
    """
    if (gallery is None) == (model is None) or (model is None) != (data is None):
        raise click.UsageError("give either a GALLERY, or both --model and --data")
    with progress_bars() as begin:
        evaluation = _evaluate(gallery, model=model, data=data, query=query, ks=ks, with_nmi=with_nmi, begin=begin)
    emit(evaluation.to_json(), as_json=as_json, text=_describe_evaluation(evaluation))


def _evaluate(
    gallery: Path | None,
    *,
    model: Path | None,
    data: Path | None,
    query: Path | None,
    ks: tuple[int, ...],
    with_nmi: bool,
    begin: BeginBar,
) -> Evaluation:
    from index.evaluate import evaluate_gallery, evaluate_model
    from index.gallery import Gallery

    progress, scoring = begin("Embedding", unit="images"), begin("Scoring", unit="queries")
    if model is not None and data is not None:
        return evaluate_model(
            model, data=data, query=query, ks=ks, with_nmi=with_nmi, progress=progress, scoring=scoring
        )
    if gallery is None:
        raise click.UsageError("give either a GALLERY, or both --model and --data")
    opened = Gallery.open(gallery, threads=usable_cores())
    return evaluate_gallery(opened, query=query, ks=ks, with_nmi=with_nmi, progress=progress, scoring=scoring)


def _describe_build(report: BuildReport, *, out: Path) -> str:
    from index.images import REASONS, printable_path

    shown = printable_path(str(out))
    state = "built" if report.changed else "already up to date:"
    speed = f", {report.new_images:,} new at {report.images_per_second:,.0f} images/s" if report.new_images else ""
    lines = [f"{shown}: {state} version {report.version}, {report.indexed:,} images{speed}"]
    if report.skipped:
        lines.append(f"skipped files: {report.skipped:,}; list them: retrieval index skipped {shown}")
        rows = [(f"{count:,}", reason, REASONS[reason]) for reason, count in report.skipped_by_reason.items()]
        lines += ["  " + line for line in _align(rows, right={0})]
    return "\n".join(lines)


def _describe_hits(hits: Sequence[Hit]) -> str:
    from index.images import printable_path

    rows = [("rank", "score", "label", "path")]
    for hit in hits:
        label = "-" if hit.label is None else printable_path(hit.label)
        rows.append((str(hit.rank), f"{hit.score:.4f}", label, printable_path(hit.path)))
    return "\n".join(_align(rows, right={0, 1}))


def _describe_evaluation(evaluation: Evaluation) -> str:
    scores = evaluation.scores
    rows = [(f"Recall@{k}", _percent(value), "") for k, value in scores.recall.items()]
    rows[0] = (*rows[0][:2], _interval(evaluation.recall_interval))
    rows.append(("MAP@R", _percent(float(scores.average_precision.mean())), _interval(evaluation.map_interval)))
    rows.append(("R-precision", _percent(float(scores.r_precision.mean())), ""))
    classes = len(evaluation.per_class)
    rows.append(("Class mean", _percent(scores.mean_class_recall(1)), f"of Recall@1 over {classes:,} labels"))
    if evaluation.nmi is not None:
        rows.append(("NMI", _percent(evaluation.nmi), "of k-means clusters and labels"))
    lone = f" ({scores.lone_queries:,} more have no other image of their label)" if scores.lone_queries else ""
    lines = [*_align(rows, right={1}), f"over {scores.queries:,} queries{lone}; in brackets 95 % intervals"]
    if evaluation.skipped:
        lines.append(f"skipped files: {evaluation.skipped:,}")
    if classes >= _MIN_LABELS_TO_RANK:
        lines += [f"lowest Recall@1 of {classes:,} labels:", *_list_worst(evaluation)]
    return "\n".join(lines)


def _list_worst(evaluation: Evaluation) -> list[str]:
    from index.images import printable_path

    worst = sorted(evaluation.per_class.items(), key=lambda item: (item[1].recall_at_1, item[0]))[:_WORST_LABELS]
    rows = [
        (_percent(score.recall_at_1), f"{score.queries:,} queries", printable_path(name)) for name, score in worst
    ]
    return ["  " + line for line in _align(rows, right={0, 1})]


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _interval(bounds: tuple[float, float]) -> str:
    return f"[{100 * bounds[0]:.2f}, {100 * bounds[1]:.2f}]"


def _align(rows: Sequence[tuple[str, ...]], *, right: set[int]) -> list[str]:
    """Rows as lines of aligned columns; those in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
