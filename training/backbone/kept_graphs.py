"""A frozen backbone's graph, written once and kept below the cache folder, and the runtimes that open it."""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from pathlib import Path

import torch
from torch import nn

from index.durable import write_durably
from index.errors import InputError, ModelFileError
from index.model.backends.registry import open_backend
from index.model.contract import ModelContract
from index.model.seal import SealedModel, read_sealed
from index.threads import usable_cores
from training.backbone.extract import Extractor, folder_name
from training.backbone.onnx_writing import OPSET, seal_graph, write_graph
from training.backbone.pixel_model import PixelModel

_FOLDER = "graphs"


def keep_graph(extractor: Extractor, *, cache: Path) -> SealedModel:
    """The graph of what an extractor computes in torch, written unless the cache has it whole.

    Its contract says how the features are to be computed where a runtime has a choice: in the extractor's precision.
    They are (N, F) float32 and of any length, which no model for searching has: it is for this folder alone.

    Raises:
        NoGraphError: the backbone cannot be had as ONNX.
        InputError: the cache cannot be written.
    """
    description = {**extractor.describe(views=1), "torch": torch.__version__, "opset": OPSET}
    key = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    path = cache / _FOLDER / f"{folder_name(extractor.backbone)}-{key}.onnx"
    try:
        return read_sealed(path)
    except ModelFileError:  # none yet, or a damaged one
        data = _write(extractor)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, data)
    except OSError as error:
        raise InputError(f"{path}: the graph cannot be kept ({error}); choose another --cache") from error
    return read_sealed(path)


def _write(extractor: Extractor) -> bytes:
    """The weights are copied: torch keeps its own as its convolutions are fastest, of which the graph knows nothing."""
    backbone = extractor.backbone
    contract = ModelContract(
        backbone=backbone.name, method="features", embedding_dim=backbone.feature_dim,
        preprocess=extractor.preprocess, precision=extractor.precision, view=backbone.view, pooling=backbone.pooling,
    )  # fmt: skip
    network = deepcopy(backbone.module).to(device="cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model = PixelModel(nn.Sequential(network, nn.Flatten(1)), extractor.preprocess)
    return seal_graph(write_graph(model.eval().float(), contract), contract)


def compute_by_graph(extractor: Extractor, runtime: str, graph: SealedModel) -> Extractor:
    """The extractor, whose features a runtime computes from now on: on all cores, or on as many as torch may use.

    Raises:
        ModelFileError: the runtime cannot use the graph, or would run it on a GPU.
        MissingDependencyError: the runtime is not installed.
    """
    threads = torch.get_num_threads()  # torchrun gives each of several processes its share
    backend = open_backend(graph, name=runtime, threads=None if threads >= usable_cores() else threads)
    if backend.on_gpu:
        raise ModelFileError(str(graph.path), f"{runtime} would run it on a GPU, where torch is the one that runs")
    return extractor.computed_by(backend)
