"""The exports: a trained run, a backbone without training, and a model file in another precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from export.embedding_model import EmbeddingModel
from export.measured_images import LabelledPaths
from export.options import FULL, MAX_RECALL_DROP
from export.precision import lower_precision
from export.to_onnx import HALF, ExportReport, export_model, require_onnx_name
from export.untrained_models import check_images, make_raw, make_whitened
from index.errors import InputError
from index.images.preprocess import Pixels
from index.model.backends.names import USUAL_BACKEND
from index.model.contract import ModelContract
from index.model.embedder import Embedder
from index.progress import Progress, no_progress
from training.backbone.backbones import load_backbone, require_input_size, with_features
from training.backbone.extract import Extractor
from training.backbone.pixel_model import PixelModel
from training.options.backbone_libraries import preprocess_for
from training.options.resolve import resolve_input
from training.run.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Lowered:
    """A precision that is not float32, and what it is measured on and may cost.

    Attributes:
        precision: of the contract.
        images: folder or table of labelled images; None takes those of the run, or of the whitening.
        max_recall_drop: 0..1, of Recall@1.
    """

    precision: str
    images: Path | None = None
    max_recall_drop: float = MAX_RECALL_DROP
    workers: int = 1
    progress: Progress = no_progress


def export_run(run_path: Path, out: Path, *, lowered: Lowered | None = None) -> ExportReport:
    """Export the last weights of a finished training run, checked on the run's own images.

    Raises:
        RunError: no run, or one that is not finished.
        InputError: the file cannot be written, or the precision costs too much.
        ParityError: ONNX Runtime disagrees with torch.
    """
    run = RunFolder.open(run_path)
    backbone, head, state = run.load_trained()
    preprocess = run.preprocess()
    second = run.load_picture_head()
    picture, threshold = (None, 0.0) if second is None else second
    untrained = run.load_untrained_head()
    contract = ModelContract(
        backbone=backbone.name,
        method=state["method"],
        embedding_dim=head.embedding_dim,
        preprocess=preprocess,
        run_id=run.run_id,
        class_count=state["class_count"],
        view=backbone.view,
        pooling=backbone.pooling,
        picture_dim=0 if picture is None else picture.picture_dim,
        picture_threshold=threshold,
        untrained_dim=0 if untrained is None else untrained.embedding_dim,
    )
    images = check_images(run.parity_paths(), preprocess)
    model = EmbeddingModel(
        backbone, head, preprocess, others=[one for one in (picture, untrained) if one is not None]
    )
    return _write(
        model, out, contract=contract, images=images, lowered=lowered, own=partial(LabelledPaths.of_run, run)
    )


def export_untrained(
    out: Path,
    *,
    backbone: str,
    weights: str,
    whiten: Path | None,
    embedding_dim: int | None,
    resize: int | None = None,
    crop: int | None = None,
    view: str = "crop",
    pooling: str = "own",
    cache: Path,
    workers: int,
    lowered: Lowered | None = None,
    progress: Progress = no_progress,
) -> ExportReport:
    """Export a backbone's raw features, or their PCA whitening on a folder (`embedding_dim` wide).

    Images have the backbone's own size unless `resize` and `crop` are given; `view` and `pooling` are as in training.

    Raises:
        InputError: weights, folder, width or output that cannot be used, or a precision that costs too much.
        ParityError: ONNX Runtime disagrees with torch.
    """
    sizes = {name: size for name, size in (("resize", resize), ("crop", crop)) if size is not None}
    images = resolve_input(backbone, view=view, pooling=pooling, **sizes)
    preprocess = preprocess_for(backbone, resize=images.resize, crop=images.crop, view=view)
    network = load_backbone(backbone, weights, side=images.crop)
    require_input_size(network, images.crop)
    loaded = with_features(network, view=view, pooling=pooling, side=images.crop)
    if whiten is None:
        made = make_raw(loaded, preprocess)
    else:
        extractor = Extractor(loaded, preprocess, device=torch.device("cpu"))
        made = make_whitened(
            extractor, whiten, embedding_dim=embedding_dim, cache=cache, workers=workers, progress=progress
        )
    contract = ModelContract(
        backbone=loaded.name,
        method=made.method,
        embedding_dim=made.embedding_dim,
        preprocess=preprocess,
        view=view,
        pooling=pooling,
    )
    model = EmbeddingModel(loaded, made.head, preprocess)
    own = None if whiten is None else partial(LabelledPaths.of_folder, whiten)
    return _write(model, out, contract=contract, images=made.check_images, lowered=lowered, own=own)


def export_again(model: Path, out: Path, *, lowered: Lowered | None = None) -> ExportReport:
    """Write a model file again in int8, all its outputs.

    Raises:
        ModelFileError: it is no model of ours.
        InputError: it is to be anything but int8 or in its own place, no images are given, or it costs too much.
    """
    require_onnx_name(out)
    if out.exists() and model.exists() and out.samefile(model):
        raise InputError(
            f"{out}: is the model that is read, which int8 would take the place of; give another --out"
        )
    embedder = Embedder(model, backend=USUAL_BACKEND)
    contract = embedder.contract
    if lowered is None or lowered.precision != "int8" or contract.precision not in (FULL, HALF):
        raise InputError(
            f"{model}: of a model file in fp32 or fp16 one in int8 can be made, by --precision int8; others are made "
            "of the run"
        )
    if lowered.images is None:
        raise InputError("what int8 costs is measured on images with labels: give a folder of them by --images")
    measured = LabelledPaths.of_folder(lowered.images).draw(contract.preprocess, workers=lowered.workers)
    size = model.stat().st_size
    report = ExportReport(str(model), embedder.sha256, contract.embedding_dim, None, size, contract.precision)
    return lower_precision(
        report, out, lowered.precision, images=measured, max_recall_drop=lowered.max_recall_drop,
        progress=lowered.progress,
    )  # fmt: skip


def _write(
    model: PixelModel,
    out: Path,
    *,
    contract: ModelContract,
    images: Pixels,
    lowered: Lowered | None,
    own: Callable[[], LabelledPaths] | None,
) -> ExportReport:
    """Write the model as it is, or in a lower precision by way of float32, measured on `own` images or those given."""
    if lowered is None:
        return export_model(model, contract=contract, out=out, check_images=images)
    require_onnx_name(out)
    if lowered.images is not None:
        paths = LabelledPaths.of_folder(lowered.images)
    elif own is not None:
        paths = own()
    else:
        raise InputError(
            f"what {lowered.precision} costs is measured on images with labels: give a folder of them by --images"
        )
    measured = paths.draw(contract.preprocess, workers=lowered.workers)
    with TemporaryDirectory() as folder:
        in_float = replace(contract, precision=FULL)
        report = export_model(model, contract=in_float, out=Path(folder) / "float32.onnx", check_images=images)
        return lower_precision(
            report, out, lowered.precision, images=measured, max_recall_drop=lowered.max_recall_drop,
            progress=lowered.progress,
        )  # fmt: skip
