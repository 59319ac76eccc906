"""Export for Python programs: one portable ONNX file. Loads nothing heavy before it works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from index.config_fields import as_path
from index.errors import InputError, naming_extras
from index.progress import Progress, no_progress
from index.threads import usable_cores
from training.options.backbone_libraries import IN_THE_BOX
from training.public import default_cache

if TYPE_CHECKING:
    from export.precision import Lowered
    from export.to_onnx import ExportReport

PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
"""Names that people type, and those of the contract."""
FULL = PRECISIONS["fp32"]
MAX_RECALL_DROP = 0.003  # of Recall@1, 0..1: what a lower precision may cost


def export(
    run: str | Path | None = None,
    out: str | Path = "model.onnx",
    *,
    backbone: str | None = None,
    weights: str | None = None,
    whiten: str | Path | None = None,
    embedding_dim: int | None = None,
    resize: int | None = None,
    crop: int | None = None,
    view: str | None = None,
    pooling: str | None = None,
    cache: str | Path | None = None,
    precision: str = "fp32",
    images: str | Path | None = None,
    max_recall_drop: float = MAX_RECALL_DROP,
    progress: Progress = no_progress,
) -> ExportReport:
    """Write a trained run, or a backbone without any training, to one ONNX file.

    The file takes uint8 images, normalises them itself, gives unit vectors, and carries a JSON contract. It is written
    only if ONNX Runtime agrees with torch on real images.

    Args:
        run: folder of a finished training run.
        out: the file to write.
        backbone: in place of a run, any torchvision classification model, `timm:NAME`, `open_clip:NAME`, or `box`.
        weights: of that backbone: `pretrained`, `none` or a file.
        whiten: images to fit a PCA whitening on, `embedding_dim` wide; without it, features stay as they are.
        embedding_dim: width of the whitened embedding; None is 512, or what images and backbone allow.
        resize: of a backbone without a run: images are stretched to so many pixels a side,
        crop: and cut to so many in their middle; None is the backbone's own size.
        view: of a backbone without a run: `crop`, `whole` or `both`, as in training; None is `crop`.
        pooling: of a backbone without a run: `own`, `gem` or `layers`, as in training; None is `own`.
        cache: folder of backbone features for `whiten`; None is your cache folder.
        precision: `fp32`, `fp16`, `bf16` or `int8`; what another than `fp32` costs is measured, and stands in the
            file's contract.
        images: labelled images that it is measured on; None takes those of the run, or of `whiten`.
        max_recall_drop: nothing is written where it costs more Recall@1, 0..1, than this.
        progress: called with (done, total) images to whiten on, or to measure the precision on.

    Returns:
        What was written, and how closely both runtimes agree.

    Raises:
        RunError: no run, or one that is not finished.
        InputError: neither a run nor a backbone with weights, an option that would do nothing, or something that
            cannot be used or written.
        ParityError: ONNX Runtime disagrees with torch.
    """
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if not isinstance(max_recall_drop, int | float) or not 0 <= max_recall_drop <= 1:
        raise InputError(f"max_recall_drop must be between 0 and 1, got {max_recall_drop!r}")
    if images is not None and precision == "fp32":
        raise InputError("images: only a precision other than fp32 is measured on them")
    if (run is None) == (backbone is None):
        raise InputError("give either a run, or backbone with weights")
    if run is not None:
        without = {
            "weights": weights, "whiten": whiten, "resize": resize, "crop": crop, "view": view, "pooling": pooling,
        }  # fmt: skip
        if unused := [name for name, value in without.items() if value is not None]:
            raise InputError(f"{unused[0]}: needs backbone, and would do nothing with a run")
        with naming_extras("exporting"):
            from export.exports import export_again, export_run
            from index.model.in_the_box import find_box

        folder = as_path(run, "run")
        if str(run) == IN_THE_BOX and not folder.exists():
            folder = find_box()
        lowered = _lowered(precision, images, max_recall_drop, progress)
        if folder.suffix == ".onnx" and folder.is_file():
            return export_again(folder, as_path(out, "out"), lowered=lowered)
        return export_run(folder, as_path(out, "out"), lowered=lowered)
    if backbone == IN_THE_BOX and weights is None:
        weights = "pretrained"
    if backbone is None or weights is None:
        raise InputError("backbone needs weights: pretrained, none or a file")
    if embedding_dim is not None and (not isinstance(embedding_dim, int) or embedding_dim < 1):
        raise InputError(f"embedding_dim must be a whole number of at least 1, got {embedding_dim!r}")
    with naming_extras("exporting"):
        from export.exports import export_untrained

    return export_untrained(
        as_path(out, "out"),
        backbone=backbone,
        weights=str(weights),
        whiten=None if whiten is None else as_path(whiten, "whiten"),
        embedding_dim=embedding_dim,
        resize=resize,
        crop=crop,
        view="crop" if view is None else view,
        pooling="own" if pooling is None else pooling,
        cache=default_cache() if cache is None else as_path(cache, "cache"),
        workers=usable_cores(),
        lowered=_lowered(precision, images, max_recall_drop, progress),
        progress=progress,
    )


def _lowered(
    precision: str, images: str | Path | None, max_recall_drop: float, progress: Progress
) -> Lowered | None:
    """What is asked of a precision; None of the usual one."""
    if precision == "fp32":
        return None
    from export.precision import Lowered

    return Lowered(
        PRECISIONS[precision],
        None if images is None else as_path(images, "images"),
        float(max_recall_drop),
        usable_cores(),
        progress,
    )
