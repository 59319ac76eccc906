"""What every runtime promises: a further one passes the same tests by its line in the registry."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from index.errors import ModelFileError
from index.model.backends.backend import INPUT_NAME, OUTPUT_NAME, GraphValue, InferenceBackend
from index.model.backends.registry import BACKENDS, USUAL_BACKEND, open_backend
from index.model.checksum import ModelFile, read_model_file
from index.model.contract import METADATA_KEY
from tests.models import EMBEDDING_DIM, PREPROCESS, tiny_contract, write_tiny_model

SIDE = PREPROCESS.crop


def draw_pixels(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)


@pytest.fixture(params=sorted(BACKENDS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(name: str, tiny_model: Path) -> InferenceBackend:
    return open_backend(read_model_file(tiny_model), threads=1, name=name)


def test_the_graph_is_described_with_its_metadata(backend: InferenceBackend) -> None:
    assert tiny_contract() == type(tiny_contract()).from_json(backend.metadata[METADATA_KEY])
    assert list(backend.inputs) == [GraphValue(INPUT_NAME, "tensor(uint8)", (None, SIDE, SIDE, 3))]
    assert list(backend.outputs) == [GraphValue(OUTPUT_NAME, "tensor(float)", (None, EMBEDDING_DIM))]


@pytest.mark.parametrize("count", [1, 9])
def test_any_number_of_images_gives_a_unit_vector_each(backend: InferenceBackend, count: int) -> None:
    vectors = backend.run(draw_pixels(count))
    assert (vectors.shape, vectors.dtype) == ((count, EMBEDDING_DIM), np.float32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_pixels_may_lie_in_memory_in_any_order(backend: InferenceBackend) -> None:
    pixels = draw_pixels(4)
    assert np.array_equal(backend.run(pixels[::-1]), backend.run(pixels[::-1].copy()))


def test_it_agrees_with_the_usual_runtime(backend: InferenceBackend, tiny_model: Path) -> None:
    usual = open_backend(read_model_file(tiny_model), threads=1, name=USUAL_BACKEND)
    cosines = (backend.run(draw_pixels(8)) * usual.run(draw_pixels(8))).sum(axis=1)
    assert cosines.min() > 0.999


def test_many_threads_get_what_one_gets(backend: InferenceBackend) -> None:
    pixels = draw_pixels(8)
    expected = backend.run(pixels)
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(found, expected) for found in pool.map(backend.run, [pixels] * 16))


def test_nothing_but_the_given_bytes_is_read(name: str, tmp_path: Path) -> None:
    model = read_model_file(write_tiny_model(tmp_path / "tiny.onnx"))
    model.path.unlink()
    assert len(open_backend(model, threads=1, name=name).run(draw_pixels(3))) == 3


def test_what_it_cannot_open_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none\.onnx: not a usable ONNX model"):
        open_backend(ModelFile(tmp_path / "none.onnx", b"", sha256=""), threads=1, name=name)


def test_a_batch_that_it_refuses_names_the_model(name: str, tmp_path: Path) -> None:
    fussy = read_model_file(write_tiny_model(tmp_path / "fussy.onnx"))
    backend = open_backend(fussy, threads=1, name=name)
    with pytest.raises(ModelFileError, match=r"fussy\.onnx: the model failed on 3 images"):
        backend.run(draw_pixels(3)[:, :-1])  # a row too few
