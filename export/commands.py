"""`retrieval export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from export.public import MAX_RECALL_DROP, PRECISIONS
from export.public import export as write_model
from index.commands.console import emit, output_options, progress_bar, refuse_unused
from training.options.backbone_libraries import IN_THE_BOX
from training.options.config import POOLINGS, USUAL_DIM, VIEWS
from training.public import default_cache

if TYPE_CHECKING:
    from export.to_onnx import ExportReport


@click.command(short_help="Write one ONNX file.")
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="MODEL.onnx", help="File to write.")
@click.option(
    "--backbone", help="Without RUN: any torchvision classification model, timm:NAME, open_clip:NAME, or box."
)
@click.option("--weights", metavar="pretrained|none|FILE", help="Without RUN: the backbone's weights.")
@click.option(
    "--whiten", type=click.Path(path_type=Path), metavar="FOLDER", help="Without RUN: PCA-whiten on these images."
)
@click.option(
    "--embedding-dim",
    type=click.IntRange(min=1),
    show_default=f"{USUAL_DIM}, less where images or backbone allow no more",
    help="With --whiten: width of the embedding.",
)
@click.option(
    "--resize",
    type=click.IntRange(min=1),
    show_default="the backbone's own",
    metavar="PIXELS",
    help="Without RUN: stretch images to this.",
)
@click.option(
    "--crop", type=click.IntRange(min=1), show_default="the backbone's own", metavar="PIXELS",
    help="Without RUN: centre crop to this.",
)  # fmt: skip
@click.option(
    "--view", type=click.Choice(VIEWS), show_default="crop",
    help="Without RUN: what the backbone sees: the crop, the whole image, or both, averaged.",
)  # fmt: skip
@click.option(
    "--pooling", type=click.Choice(POOLINGS), show_default="own",
    help="Without RUN: the backbone's own pooling, generalised mean, or several layers.",
)  # fmt: skip
@click.option(
    "--cache", type=click.Path(path_type=Path), default=default_cache, show_default="your cache folder",
    help="With --whiten: folder of backbone features.",
)  # fmt: skip
@click.option(
    "--precision",
    type=click.Choice(tuple(PRECISIONS)),
    default="fp32",
    show_default=True,
    help="Of the weights, and with int8 of the layers; what it costs is measured.",
)
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    metavar="FOLDER|TABLE",
    show_default="those of RUN, or of --whiten",
    help="Labelled images on which the precision is measured.",
)
@click.option(
    "--max-recall-drop", type=click.FloatRange(0, 1), default=MAX_RECALL_DROP, show_default=True,
    help="Write nothing where the precision costs more Recall@1, as a share: 0.01 is one point.",
)  # fmt: skip
@output_options
@click.pass_context
def export(
    context: click.Context, run: Path | None, out: Path, backbone: str | None, weights: str | None, whiten: Path | None,
    embedding_dim: int | None, resize: int | None, crop: int | None, view: str | None, pooling: str | None, cache: Path,
    precision: str, images: Path | None, max_recall_drop: float, as_json: bool,
) -> None:  # fmt: skip
    """Write a trained RUN, or a backbone without any training, to one portable ONNX file.

    A RUN is a folder of `retrieval train`. For --precision int8 it may be a model file too, or `box`, the model in the
    box.

    The file takes uint8 images, normalises them itself, gives unit vectors, and carries a JSON contract. It is written
    only if ONNX Runtime agrees with torch on real images.

    Another --precision is compared with fp32 on images that it was not made with: Recall@1 by their labels, and the
    cosine of embeddings less their mean. int8 is the fastest on a CPU and a quarter of the size; the layers that do not
    bear it stay in fp32. fp16 and bf16 halve the file, and are computed with as fp32.

    \b
    Examples:
      retrieval export run --out model.onnx
      retrieval export run --out model-int8.onnx --precision int8
      retrieval export box --out box-int8.onnx --precision int8 --images photos
      retrieval export --backbone resnet50 --weights imagenet --out raw.onnx
      retrieval export --backbone resnet50 --weights imagenet --whiten photos/ --embedding-dim 128 --out white.onnx
    """
    if (run is None) == (backbone is None):
        raise click.UsageError("give either a RUN folder, or --backbone NAME with --weights")
    if run is not None:
        others = ("weights", "whiten", "embedding_dim", "resize", "crop", "view", "pooling", "cache")
        refuse_unused(context, *others, needs="--backbone")
    elif weights is None and backbone != IN_THE_BOX:
        raise click.UsageError("--backbone needs --weights pretrained, none or a FILE")
    elif whiten is None:
        refuse_unused(context, "embedding_dim", "cache", needs="--whiten")
    if precision == "fp32":
        refuse_unused(context, "images", "max_recall_drop", needs="--precision fp16, bf16 or int8")
    with progress_bar("features" if precision == "fp32" else "images") as progress:
        report = write_model(
            run, out, backbone=backbone, weights=weights, whiten=whiten, embedding_dim=embedding_dim, resize=resize,
            crop=crop, view=view, pooling=pooling, cache=cache, precision=precision, images=images,
            max_recall_drop=max_recall_drop, progress=progress,
        )  # fmt: skip
    emit(report.to_json(), as_json=as_json, text=_format(report))


def _format(report: ExportReport) -> str:
    text = f"{report.model}: {report.embedding_dim}-d, {report.bytes / 1e6:.1f} MB, sha256 {report.sha256[:16]}…"
    if report.min_cosine is not None:
        text += (
            "\nONNX Runtime agrees with torch on the check images, one by one and in a batch: "
            f"lowest cosine {report.min_cosine:.8f}"
        )
    if (found := report.measured) is not None:
        left = f"; {found.float_layers} layers stay in float32" if found.float_layers else ""
        text += (
            f"\n{report.precision}: Recall@1 {100 * found.recall_at_1:.2f} % where float32 has "
            f"{100 * found.recall_at_1_float32:.2f} %, on {found.images:,} images; cosine with its embeddings, less "
            f"their mean, {found.centred_cosine:.4f}{left}"
        )
    return text
