"""Graphs of frozen backbones give torch's features; what has no graph is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.common.graph_features import RUNTIMES, GraphExtractor
from index.images.preprocess import PreprocessConfig
from tests.photos import KINDS, read_photo
from tests.training.conftest import BACKBONE
from training.backbone import graphs
from training.backbone.backbones import Backbone, load_backbone, with_features
from training.backbone.extract import Extractor, open_store
from training.backbone.graphs import NoGraphError

CPU = torch.device("cpu")


class _ReadsItsInput(nn.Conv2d):
    def forward(self, images: Tensor) -> Tensor:
        maps = super().forward(images).mean(dim=(2, 3))
        return -maps if float(images.numpy().sum()) > 0 else maps


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES[1:])
def test_features_by_the_graph_are_those_of_torch_in_a_store_of_their_own(runtime: str, tmp_path: Path) -> None:
    seeing = with_features(load_backbone(BACKBONE, "none"), view="both", pooling="layers", side=32)
    extractor = Extractor(seeing, PreprocessConfig(resize=40, crop=40), device=CPU, precision="float32")
    by_graph = GraphExtractor(extractor, runtime, cache=tmp_path)
    pixels = np.stack([np.asarray(read_photo(kind, 0, size=40)) for kind in KINDS[:3]])
    torch.testing.assert_close(by_graph.extract(pixels), extractor.extract(pixels), rtol=0, atol=1e-4)
    assert open_store(tmp_path, by_graph).folder != open_store(tmp_path, extractor).folder


def test_a_backbone_without_a_graph_is_refused_in_words(tmp_path: Path, monkeypatch) -> None:
    backbone = Backbone("small", _ReadsItsInput(3, 8, 3).eval().requires_grad_(False), 8)
    extractor = Extractor(backbone, PreprocessConfig(resize=40, crop=32), device=CPU, precision="float32")
    with pytest.raises(NoGraphError, match="torch cannot write --backbone small as ONNX: "):
        GraphExtractor(extractor, "onnxruntime", cache=tmp_path)
    monkeypatch.setattr(graphs, "MAX_WEIGHT_BYTES", 100)
    with pytest.raises(NoGraphError, match=r"small: .* GB of weights do not fit into one ONNX file"):
        GraphExtractor(extractor, "onnxruntime", cache=tmp_path)
