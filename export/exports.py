"""Exports to ONNX: a training run, an untrained backbone, or a model file in another precision."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from export.precision import CALIBRATED, MEASURED, MIN_CALIBRATION_IMAGES, lower_precision
from export.public import FULL, PRECISIONS, ExportConfig
from export.to_onnx import ExportedModel, export_model, require_onnx_name
from index.arrays import Labels
from index.errors import ImageError, InputError, missing_imports_as_dependency_errors
from index.images.image_files import read_image
from index.images.preprocess import Pixels, PreprocessConfig, preprocess_image
from index.model.backends.backend import USUAL_BACKEND
from index.model.contract import ModelContract
from index.model.embedder import Embedder
from index.model.text_encoder import copy_text_files, read_text_files
from index.paths import user_cache
from index.progress import Progress, no_progress
from index.sources.folder_walk import walk_folder
from index.sources.registry import refuse_models
from index.text import printable_path
from index.threads import usable_cores
from training.backbone import onnx_models
from training.backbone.backbones import load_backbone, require_input_size, with_features
from training.backbone.extract import Extractor, extract_features, open_store
from training.backbone.graphs import PixelModel
from training.backbone.onnx_form import draw_check_images
from training.data.datasets import Record, list_dataset
from training.head.embedding_heads import Head, RawHead
from training.head.untrained import count_directions, fit_untrained
from training.options.backbone_libraries import is_onnx_file, preprocess_for
from training.options.config import USUAL_DIM
from training.options.resolve import resolve_input
from training.run.run_folder import PARITY_IMAGES, RunFolder

_OF_A_LABEL = 20


def _fit_whitening(
    extractor: Extractor, folder: Path, *, embedding_dim: int | None, cache: Path, progress: Progress
) -> tuple[Head, Pixels]:
    """Half-whitened PCA of the features of all usable images of a folder, and images for the parity check."""
    refuse_models(str(folder))
    paths = [folder / found.path for found in walk_folder(folder) if found.problem is None]
    store = open_store(cache, extractor)
    extracted = extract_features(paths, store=store, extractor=extractor, workers=usable_cores(), progress=progress)
    if not extracted.hashes:
        raise InputError(f"none of the {len(paths)} files is a readable image", at=folder)
    features = store.load(extracted.hashes)[:, 0]
    if embedding_dim is None:
        embedding_dim = min(USUAL_DIM, count_directions(features))
    head = fit_untrained("pca-half-whitened", features, embedding_dim=embedding_dim)
    return head, read_check_images([paths[row] for row in extracted.rows], extractor.preprocess)


def read_check_images(paths: list[Path], preprocess: PreprocessConfig) -> Pixels:
    """Model inputs (N, crop, crop, 3) of the first readable images of a list, at most `PARITY_IMAGES`."""
    readable = (pixels for path in paths if (pixels := _read(path, preprocess)) is not None)
    images = list(islice(readable, PARITY_IMAGES))
    if not images:
        raise InputError(
            f"none of {len(paths)} check images is readable; an export is verified on the run's parity/*.png, "
            "or on the images of --whiten: put them back, or train again"
        )
    return np.stack(images)


def _read(path: Path, preprocess: PreprocessConfig) -> Pixels | None:
    try:
        return preprocess_image(read_image(path, target_side=preprocess.resize), preprocess)
    except ImageError:
        return None


USUAL = ExportConfig()


def export_run(
    run_path: Path, out: Path, config: ExportConfig = USUAL, *, progress: Progress = no_progress
) -> ExportedModel:
    """Export a finished training run, checked on its own images."""
    run = RunFolder.open(run_path)
    backbone, head, state = run.load_trained()
    preprocess = run.preprocess()
    second = run.load_copy_head()
    copy_head, threshold = (None, 0.0) if second is None else second
    untrained = run.load_untrained_head()
    contract = ModelContract(
        backbone=backbone.short_name,
        method=state["method"],
        embedding_dim=head.embedding_dim,
        preprocess=preprocess,
        run_id=run.run_id,
        class_count=state["class_count"],
        view=backbone.view,
        pooling=backbone.pooling,
        copy_dim=0 if copy_head is None else copy_head.copy_dim,
        copy_threshold=threshold,
        untrained_dim=0 if untrained is None else untrained.embedding_dim,
    )
    images = read_check_images(run.parity_paths(), preprocess)
    heads = [one for one in (head, copy_head, untrained) if one is not None]
    model = PixelModel(backbone.module, *heads, preprocess=preprocess)
    own = None
    if config.precision != "fp32":
        own = run.path, [Record(image.path, image.used) for image in run.read_labels() or []]
    return _write(model, out, config, contract=contract, images=images, own=own, progress=progress)


def export_untrained(out: Path, config: ExportConfig, *, progress: Progress = no_progress) -> ExportedModel:
    """Export a backbone's raw features, or their half-whitened PCA on a folder."""
    assert config.backbone is not None
    backbone, view, pooling, whiten = config.backbone, config.view, config.pooling, config.whiten
    given = (("resize", config.resize), ("crop", config.crop))
    sizes = {name: size for name, size in given if size is not None}
    own = onnx_models.describe_input(backbone, config) if is_onnx_file(backbone) else None
    images = resolve_input(backbone, own, view=view, pooling=pooling, **sizes)
    preprocess = preprocess_for(backbone, resize=images.resize, crop=images.crop, view=view, own=own)
    network = load_backbone(backbone, config.weights or "pretrained", side=images.crop, onnx=config)
    require_input_size(network, images.crop)
    loaded = with_features(network, view=view, pooling=pooling, side=images.crop)
    head: Head = RawHead(loaded.feature_dim)
    if whiten is None:
        checked = draw_check_images(preprocess.crop, count=PARITY_IMAGES)
    else:
        extractor = Extractor(loaded, preprocess, device=torch.device("cpu"))
        cache, width = config.cache or user_cache(), config.embedding_dim
        head, checked = _fit_whitening(extractor, whiten, embedding_dim=width, cache=cache, progress=progress)
    text = None
    if config.has_text:
        with missing_imports_as_dependency_errors("a text tower"):
            from export.text_towers import make_text_tower
        text = make_text_tower(config, width=head.embedding_dim)
    contract = ModelContract(
        backbone=loaded.short_name,
        method="raw" if whiten is None else "pca-half-whitened",
        embedding_dim=head.embedding_dim,
        preprocess=preprocess,
        view=view,
        pooling=pooling,
        text=None if text is None else text.tower,
    )
    own_images = None
    if whiten is not None and config.precision != "fp32" and config.images in (None, whiten):
        own_images = whiten, list_dataset(whiten).records
    model = PixelModel(loaded.module, head, preprocess=preprocess)
    report = _write(model, out, config, contract=contract, images=checked, own=own_images, progress=progress)
    return report if text is None else text.write(report)


def export_again(model: Path, out: Path, config: ExportConfig, *, progress: Progress = no_progress) -> ExportedModel:
    """Write a model file in int8, with all its outputs."""
    require_onnx_name(out)
    if out.exists() and model.exists() and out.samefile(model):
        raise InputError("is the model that is read, which int8 would take the place of; give another --out", at=out)
    embedder = Embedder(model, backend=USUAL_BACKEND)
    contract = embedder.contract
    if config.precision != "int8" or contract.precision not in (FULL, PRECISIONS["fp16"]):
        raise InputError(
            f"{model}: an fp32 or fp16 model file can only be converted to int8 (--precision int8); export the run for "
            "others"
        )
    pixels, labels = _read_measured(config, None, preprocess=contract.preprocess)
    size = model.stat().st_size
    report = ExportedModel(str(model), embedder.sha256, contract.embedding_dim, None, size, contract.precision)
    drop = config.max_recall_drop
    read_text_files(model, contract)
    report = lower_precision(report, out, "int8", pixels=pixels, labels=labels, max_recall_drop=drop, progress=progress)
    copy_text_files(model, out, contract)
    return replace(report, text_model=next((str(path) for path in contract.text_files(out)), None))


def _write(
    model: PixelModel,
    out: Path,
    config: ExportConfig,
    *,
    contract: ModelContract,
    images: Pixels,
    own: tuple[Path, Sequence[Record]] | None,
    progress: Progress,
) -> ExportedModel:
    """Write the model as it is, or in a lower precision by way of float32, checked on `images`."""
    if config.precision == "fp32":
        return export_model(model, contract=contract, out=out, check_images=images)
    require_onnx_name(out)
    pixels, labels = _read_measured(config, own, preprocess=contract.preprocess)
    with TemporaryDirectory() as folder:
        in_float = replace(contract, precision=FULL)
        report = export_model(model, contract=in_float, out=Path(folder) / "float32.onnx", check_images=images)
        precision, drop = PRECISIONS[config.precision], config.max_recall_drop
        return lower_precision(
            report, out, precision, pixels=pixels, labels=labels, max_recall_drop=drop, progress=progress
        )


def _read_measured(
    config: ExportConfig, own: tuple[Path, Sequence[Record]] | None, *, preprocess: PreprocessConfig
) -> tuple[Pixels, Labels]:
    """Images on which a precision is measured, with their labels: those of the config, else the `own` of the model.

    Up to `CALIBRATED` + `MEASURED` readable ones, always the same, in an order that mixes labels.
    """
    if config.images is not None and (own is None or config.images != own[0]):
        own = config.images, list_dataset(config.images).records
    if own is None:
        raise InputError(
            f"what {config.precision} costs is measured on images with labels: give a folder of them by --images"
        )
    place, records = own
    by_label: dict[str, list[Record]] = {}
    for record in records:
        by_label.setdefault(record.label, []).append(record)
    generator, wanted, chosen = np.random.default_rng(0), CALIBRATED + MEASURED, list[Record]()
    most = max(_OF_A_LABEL, -(-wanted // max(len(by_label), 1)))
    names = sorted(by_label)
    for number in generator.permutation(len(names)).tolist():
        of_label = by_label[names[number]]
        chosen += [of_label[row] for row in generator.permutation(len(of_label))[:most].tolist()]
        if len(chosen) >= wanted:
            break
    chosen = [chosen[row] for row in generator.permutation(len(chosen))[:wanted].tolist()]
    with ThreadPoolExecutor(usable_cores()) as pool:
        read = list(pool.map(lambda record: _read(record.path, preprocess), chosen))
    found = [(pixels, record.label) for pixels, record in zip(read, chosen, strict=True) if pixels is not None]
    if len(found) < 2 * MIN_CALIBRATION_IMAGES or len({label for _, label in found}) < 2:
        raise InputError(
            f"{printable_path(place)}: what a precision costs is measured on at least "
            f"{2 * MIN_CALIBRATION_IMAGES} readable images of two or more labels; found {len(found)} of "
            f"{len({label for _, label in found})}: give others by --images"
        )
    numbers = np.unique([label for _, label in found], return_inverse=True)[1].astype(np.int64)
    return np.stack([pixels for pixels, _ in found]), numbers
