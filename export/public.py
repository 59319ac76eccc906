"""Export for Python programs: one portable ONNX file. Imports nothing heavy before it works."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.config_fields import as_config, as_path, check_fields, option, refuse_given
from index.errors import InputError, missing_imports_as_dependency_errors
from index.progress import Progress, no_progress
from training.options.backbone_libraries import BUILTIN, OnnxSettings, is_onnx_file, names_weights
from training.options.config import POOLINGS, USUAL_DIM, VIEWS

if TYPE_CHECKING:
    from export.to_onnx import ExportedModel

PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
"""Names that people type, and those of the contract."""
FULL = PRECISIONS["fp32"]
MAX_RECALL_DROP = 0.003  # of Recall@1, 0..1: what a lower precision may cost


@dataclass(frozen=True, slots=True)
class ExportConfig(OnnxSettings):
    """Backbone to export without a run, and the precision"""

    backbone: str | None = option(
        None,
        "Without RUN: any torchvision classification model, timm:NAME, open_clip:NAME, FILE.onnx, hf:ORG/NAME, "
        "or builtin.",
    )
    weights: str | None = option(None, "Without RUN: the backbone's weights.", metavar="pretrained|imagenet|none|FILE")
    whiten: Path | None = option(None, "Without RUN: half-whitened PCA on these images.", metavar="FOLDER")
    embedding_dim: int | None = option(
        None,
        "With --whiten: width of the embedding.",
        at_least=1,
        usual=f"{USUAL_DIM}, less where images or backbone allow no more",
    )
    resize: int | None = option(
        None, "Without RUN: stretch images to this.", usual="the backbone's own", metavar="PIXELS", at_least=1
    )
    crop: int | None = option(
        None, "Without RUN: centre crop to this.", usual="the backbone's own", metavar="PIXELS", at_least=1
    )
    view: str = option(
        "crop", "Without RUN: what the backbone sees: the crop, the whole image, or both, averaged.", choices=VIEWS
    )
    pooling: str = option(
        "own", "Without RUN: the backbone's own pooling, generalised mean, or several layers.", choices=POOLINGS
    )
    cache: Path | None = option(None, "With --whiten: folder of backbone features.", usual="your cache folder")
    precision: str = option(
        "fp32", "Of the weights, and with int8 of the layers; what it costs is measured.", choices=tuple(PRECISIONS)
    )
    images: Path | None = option(
        None,
        "Labelled images on which the precision is measured.",
        metavar="FOLDER|TABLE",
        usual="those of RUN, or of --whiten",
    )
    with_text: bool = option(
        False, "With open_clip:NAME or hf:ORG/NAME: write the text tower beside the model, for queries by words."
    )
    text_model: Path | None = option(
        None, "Of an ONNX --backbone: the text model that shares its space.", metavar="FILE.onnx"
    )
    tokenizer: Path | None = option(None, "Of --text-model: its tokenizer.json.", metavar="FILE")
    max_recall_drop: float = option(
        MAX_RECALL_DROP,
        "Write nothing where the precision costs more Recall@1, as a share: 0.01 is one point.",
        at_least=0,
        at_most=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.backbone is None:
            others = ("weights", "whiten", "embedding_dim", "resize", "crop", "view", "pooling", "cache")
            refuse_given(self, *others, needs="--backbone")
        elif self.weights is None and self.backbone != BUILTIN and not names_weights(self.backbone):
            raise InputError("--backbone needs --weights pretrained, none or a FILE")
        if self.backbone is None or not is_onnx_file(self.backbone):
            refuse_given(self, "preprocessor", "mean", "std", "output", "tokens", needs="--backbone FILE.onnx")
        self._check_text()
        for name in ("mean", "std"):
            self.three(name)
        if self.whiten is None:
            refuse_given(self, "embedding_dim", "cache", needs="--whiten")
        if self.precision == "fp32":
            refuse_given(self, "images", "max_recall_drop", needs="--precision fp16, bf16 or int8")

    @property
    def has_text(self) -> bool:
        """Whether a text tower is exported."""
        return self.with_text or self.text_model is not None

    def _check_text(self) -> None:
        if (self.text_model is None) != (self.tokenizer is None):
            raise InputError("--text-model FILE.onnx and --tokenizer tokenizer.json go together")
        flag = "--with-text" if self.with_text else "--text-model"
        if not self.has_text:
            return
        if self.backbone is None:
            raise InputError(
                f"{flag} goes with --backbone: a trained run adds a head, and embeddings leave the space of texts"
            )
        if self.whiten is not None or self.pooling != "own":
            other = (
                "--whiten adds a head" if self.whiten is not None else f"--pooling {self.pooling} takes other features"
            )
            raise InputError(
                f"{flag}: {other}, and embeddings leave the space that images and texts share; leave it out"
            )


def export(
    run: str | Path | None = None,
    out: str | Path = "model.onnx",
    config: ExportConfig | None = None,
    *,
    progress: Progress = no_progress,
    **options: Any,
) -> ExportedModel:
    """Write a trained run, or a backbone without any training, to one ONNX file.

    The file takes uint8 images, normalises them, returns unit vectors, and carries a JSON contract. It is written only
    if ONNX Runtime agrees with torch on real images.

    Args:
        run: folder of a finished training run; None with the option `backbone`.
        config: the options, which may be given as keywords instead.
        progress: called with (done, total) images to whiten on, or to measure the precision on.
        **options: the fields of `ExportConfig`, as in `retrieval export`.

    Raises:
        RunError: no run, or an unfinished one.
        InputError: invalid options, images or output.
        ParityError: ONNX Runtime disagrees with torch.
    """
    config = as_config(ExportConfig, config, options)
    if (run is None) == (config.backbone is None):
        raise InputError("give either a RUN folder, or --backbone NAME with --weights")
    target = as_path(out, "out")
    with missing_imports_as_dependency_errors("exporting"):
        from export.exports import export_again, export_run, export_untrained
        from index.model.builtin import find_named_model
    if run is None:
        return export_untrained(target, config, progress=progress)
    folder = find_named_model(as_path(run, "run"))
    write = export_again if folder.suffix == ".onnx" and folder.is_file() else export_run
    return write(folder, target, config, progress=progress)
