"""Features of a frozen backbone by its ONNX graph: written below the cache folder, and opened by another runtime."""

from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from index.durable import write_durably
from index.errors import ModelFileError
from index.images.preprocess import Pixels
from index.model.backends.registry import open_backend
from index.model.checksum import ModelFile, read_model_file
from index.model.contract import ModelContract
from index.threads import usable_cores
from training.backbone.extract import Extractor, folder_name, name_content
from training.backbone.graphs import PixelModel, serialize_model, write_graph
from training.backbone.onnx_form import OPSET

RUNTIMES = ("torch", "onnxruntime", "openvino")


class GraphExtractor(Extractor):
    """An extractor computed by a runtime with the backbone's graph, on all cores or on as many as torch may use."""

    def __init__(self, extractor: Extractor, runtime: str, *, cache: Path) -> None:
        super().__init__(
            extractor.backbone, extractor.preprocess, device=extractor.device, precision=extractor.precision
        )
        threads, graph = torch.get_num_threads(), keep_graph(extractor, cache=cache)
        self.graph = open_backend(graph, name=runtime, threads=None if threads >= usable_cores() else threads)

    def extract(self, pixels: Pixels) -> Tensor:
        return torch.from_numpy(self.graph.run(pixels)).to(self.device)

    def describe(self, *, views: int = 1) -> dict[str, object]:
        """Features of two runtimes differ in the last bits even in one precision, so that each has its own store."""
        precision = "bfloat16" if self.graph.precision == "bfloat16" else "float32"
        return {**super().describe(views=views), "precision": precision, "runtime": self.graph.name}


def keep_graph(extractor: Extractor, *, cache: Path) -> ModelFile:
    """Graph of an extractor, written unless the cache has it.

    Its contract names the extractor's precision, for runtimes with a choice. The (N, F) float32 features are of any
    length, so it is no model for searching.
    """
    description = {**extractor.describe(), "torch": torch.__version__, "opset": OPSET}
    path = cache / "graphs" / f"{folder_name(extractor.backbone)}-{name_content(description)}.onnx"
    with suppress(ModelFileError):  # none yet, or a damaged one
        return read_model_file(path)
    backbone = extractor.backbone
    contract = ModelContract(
        backbone=backbone.short_name,
        method="features",
        embedding_dim=backbone.feature_dim,
        preprocess=extractor.preprocess,
        precision=extractor.precision,
        view=backbone.view,
        pooling=backbone.pooling,
    )
    # A copy, as torch keeps its own weights in the memory layout of convolutions.
    network = deepcopy(backbone.module).to(device="cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model = PixelModel(network, nn.Flatten(1), preprocess=extractor.preprocess)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, serialize_model(write_graph(model.eval().float(), contract), contract))
    return read_model_file(path)
