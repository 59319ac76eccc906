"""`retrieval export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from export.public import ExportConfig
from export.public import export as write_model
from index.commands.console import (
    PATH,
    GroupedCommand,
    build_config,
    config_options,
    emit,
    help_all_option,
    output_options,
    progress_bars,
)
from index.text import printable_path
from training.options.backbone_libraries import OnnxSettings

if TYPE_CHECKING:
    from export.to_onnx import ExportedModel


@click.command(cls=GroupedCommand, common=("out", "backbone", "weights", "whiten", "precision", "as_json", "help_all"))
@click.argument("run", required=False, type=PATH)
@click.option("--out", required=True, type=PATH, metavar="MODEL.onnx", help="File to write.")
@config_options(ExportConfig, OnnxSettings)
@output_options
@help_all_option
def export(run: Path | None, out: Path, as_json: bool, **options: Any) -> None:
    """Write a trained run, or an untrained backbone, to one ONNX file.

    RUN is a folder of `retrieval train`; with --precision int8 it may be a model file, or `builtin`. The file takes
    uint8 images, normalises them itself, gives unit vectors, and carries a JSON contract. It is written only if ONNX
    Runtime agrees with torch, or with the ONNX file that it was made of, on images.

    A --precision below fp32 is compared with fp32 on other images: Recall@1 by their labels, and the cosine of centred
    embeddings. int8 is the fastest on a CPU and less than a third of the size; layers that lose too much stay in fp32.
    fp16 and bf16 halve the file; ONNX Runtime computes them in fp32.

    \b
    Examples:
      retrieval export run --out model.onnx
      retrieval export run --out model-int8.onnx --precision int8
      retrieval export --backbone resnet50 --weights pretrained --out raw.onnx
      retrieval export --backbone open_clip:ViT-B-32/laion2b_s34b_b79k --with-text --out clip.onnx
      retrieval export --backbone dinov2.onnx --preprocessor preprocessor_config.json --out model.onnx
    """
    if (run is None) == (options["backbone"] is None):
        raise click.UsageError(
            "give either a RUN folder, or --backbone NAME, with --weights where the name alone does not say them"
        )
    config = build_config(ExportConfig, options)
    with progress_bars() as begin:
        progress = begin("features" if config.precision == "fp32" else "images")
        report = write_model(run, out, config, progress=progress)
    emit(report.to_json(), as_json=as_json, text=_format(report))


def _format(report: ExportedModel) -> str:
    text = f"{report.model}: {report.embedding_dim}-d, {report.bytes / 1e6:.1f} MB, sha256 {report.sha256[:16]}…"
    if report.text_model is not None:
        text += f"\ntext tower: {printable_path(report.text_model)}, with its tokenizer beside it"
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
