"""A frozen backbone's graph gives torch's features, is written once, and is compared with torch."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from index.errors import InputError
from index.images.preprocess import PreprocessConfig
from index.model.backends.registry import Compared
from index.model.checksum import ModelFile
from tests.photos import KINDS, read_photo
from tests.training.conftest import BACKBONE
from training.backbone import graphs
from training.backbone.backbones import Backbone, load_backbone, with_features
from training.backbone.extract import Extractor, open_store
from training.backbone.graphs import NoGraphError, compute_by_graph, keep_graph
from training.options.machine import GRAPH_RUNTIMES, TORCH
from training.run.features import agrees, compare_runtimes, read_some

SMALL, CPU = PreprocessConfig(resize=40, crop=32), torch.device("cpu")
ROUNDING = 1e-4  # of features of about 1


class _Convolutions(nn.Module):
    """Two layers whose channels lie last once torch has them; `asks` reads its input as no graph can."""

    def __init__(self, *, asks: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.asks = nn.Conv2d(3, 6, 3, stride=2), nn.Conv2d(6, 8, 3, stride=2), asks
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            parameter.data.normal_(std=0.3, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.second(self.first(images).relu()).relu()
        pooled: Tensor = nn.functional.adaptive_avg_pool2d(maps, 1)  # (N, 8, 1, 1), as some networks leave it
        if self.asks and float(images.numpy().sum()) > 0:
            return -pooled
        return pooled


def _pixels(count: int, side: int = 32) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def _extractor(*, precision: str = "float32", scale: float = 1.0, asks: bool = False) -> Extractor:
    network = _Convolutions(asks=asks)
    network.first.weight.data *= scale
    backbone = Backbone("small", network.eval().requires_grad_(False), 8)
    return Extractor(backbone, SMALL, device=CPU, precision=precision)


@pytest.fixture(scope="module")
def extractor() -> Extractor:
    return _extractor()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(scope="module")
def graph(extractor: Extractor, folder: Path) -> ModelFile:
    return keep_graph(extractor, cache=folder)


@pytest.mark.parametrize("runtime", GRAPH_RUNTIMES)
def test_features_by_the_graph_are_those_of_torch(runtime: str, extractor: Extractor, graph: ModelFile) -> None:
    by_graph = compute_by_graph(extractor, runtime, graph)
    assert (by_graph.runtime, extractor.runtime) == (runtime, TORCH)
    for count in (1, 5):
        expected = extractor.extract(_pixels(count))
        found = by_graph.extract(_pixels(count))
        assert (found.shape, found.dtype) == ((count, 8), torch.float32)
        torch.testing.assert_close(found, expected, rtol=0, atol=ROUNDING)


@pytest.mark.slow
def test_a_graph_has_the_view_and_the_pooling_too(tmp_path: Path) -> None:
    seeing = with_features(load_backbone(BACKBONE, "none"), view="both", pooling="layers", side=32)
    sizes = PreprocessConfig(resize=40, crop=40)
    extractor = Extractor(seeing, sizes, device=CPU, precision="float32")
    by_graph = compute_by_graph(extractor, "onnxruntime", keep_graph(extractor, cache=tmp_path))
    pixels = np.stack([np.asarray(read_photo(kind, 0, size=40)) for kind in KINDS[:3]])
    torch.testing.assert_close(by_graph.extract(pixels), extractor.extract(pixels), rtol=0, atol=ROUNDING)


def test_a_graph_is_written_once_for_its_weights_and_precision(graph, folder, tmp_path, monkeypatch) -> None:
    written: list[object] = []
    monkeypatch.setattr(graphs, "write_graph", lambda *_: written.append(1) or onnx.load(graph.path))
    assert keep_graph(_extractor(), cache=folder).sha256 == graph.sha256
    assert not written
    others = [keep_graph(one, cache=folder) for one in (_extractor(scale=2.0), _extractor(precision="bfloat16"))]
    assert len({graph.path, *(other.path for other in others)}) == 3
    assert len(written) == 2
    (tmp_path / "graphs").write_text("a file")
    with pytest.raises(InputError, match=r"the graph cannot be kept .*choose another --cache"):
        keep_graph(_extractor(), cache=tmp_path)


def test_a_damaged_graph_is_written_again(extractor: Extractor, graph: ModelFile, folder: Path) -> None:
    data = graph.path.read_bytes()
    graph.path.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    again = keep_graph(extractor, cache=folder)
    found = compute_by_graph(extractor, "onnxruntime", again).extract(_pixels(2))
    torch.testing.assert_close(found, extractor.extract(_pixels(2)), rtol=0, atol=ROUNDING)


def test_stores_of_runtimes_lie_apart_and_say_what_they_hold(extractor, graph, tmp_path) -> None:
    extractors = [extractor, *(compute_by_graph(extractor, name, graph) for name in GRAPH_RUNTIMES)]
    assert len({open_store(tmp_path, one).folder for one in extractors}) == len(extractors)
    described = [one.describe() for one in extractors]
    assert [one.get("runtime") for one in described] == [None, *GRAPH_RUNTIMES]
    assert {one["precision"] for one in described} == {"float32"}


def test_what_no_graph_can_say_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(NoGraphError, match="torch cannot write --backbone small as ONNX: "):
        keep_graph(_extractor(asks=True), cache=tmp_path)
    assert not list(tmp_path.rglob("*.onnx"))


def test_weights_too_large_for_one_file_are_refused(extractor, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(graphs, "MAX_WEIGHT_BYTES", 100)
    with pytest.raises(NoGraphError, match=r"small: .* GB of weights do not fit into one ONNX file"):
        keep_graph(extractor, cache=tmp_path)


def test_all_that_are_installed_agree_with_torch_in_float32(
    extractor: Extractor, graph: ModelFile, pictures: Path
) -> None:
    compared = compare_runtimes(extractor, graph, sorted(pictures.rglob("*.jpg")))
    assert compared.keys() == set(GRAPH_RUNTIMES)
    assert all(one.agreement > 0.9999 and agrees(one) for one in compared.values())


def test_a_graph_of_other_weights_does_not_agree(graph: ModelFile, pictures: Path) -> None:
    other = _extractor(precision="bfloat16", scale=-1.0)
    compared = compare_runtimes(other, graph, sorted(pictures.rglob("*.jpg")))
    assert not any(agrees(compared[name]) for name in GRAPH_RUNTIMES)


@pytest.mark.parametrize(
    ("precision", "agreement", "stands"),
    [
        ("float32", 0.99995, True),
        ("as exported", 0.9995, False),
        ("bfloat16", 0.997, True),
        ("bfloat16", 0.99, False),
        ("float32", float("nan"), False),
    ],
)
def test_how_near_features_must_be_depends_on_their_precision(precision, agreement, stands) -> None:
    assert agrees(Compared("1", precision, agreement)) is stands


def test_images_come_from_all_over_the_list_without_those_that_cannot_be_read(
    extractor: Extractor, pictures: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    paths = sorted(pictures.rglob("*.jpg"))
    assert read_some(paths, extractor).shape == (16, 32, 32, 3)
    assert np.array_equal(read_some([broken, *paths[:2]], extractor), read_some(paths[:2], extractor))
    with pytest.raises(InputError, match="none of the 1 images is readable"):
        read_some([broken], extractor)
