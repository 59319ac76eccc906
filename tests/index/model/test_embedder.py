from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from index.durable import hash_file
from index.errors import ImageError, ModelFileError
from index.model.builtin import BUILTIN_MODEL, builtin_sha256, find_builtin, find_named_model
from index.model.embedder import Embedder
from index.outputs import COPY, SEMANTIC
from tests.conftest import draw_image
from tests.models import COPY_DIM, EMBEDDING_DIM, PREPROCESS, write_tiny_model, write_two_output_model


def random_pixels(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, PREPROCESS.crop, PREPROCESS.crop, 3), dtype=np.uint8)


@pytest.mark.parametrize("count", [0, 7])
def test_the_outputs_that_are_wanted_lie_side_by_side(tmp_path: Path, count: int) -> None:
    both = Embedder(write_two_output_model(tmp_path / "two.onnx"), threads=1).with_outputs("semantic", "copy")
    pixels = random_pixels(count)
    vectors = both.embed_batch(pixels)
    assert (both.width, vectors.shape) == (EMBEDDING_DIM + COPY_DIM, (count, EMBEDDING_DIM + COPY_DIM))
    assert np.array_equal(vectors[:, :EMBEDDING_DIM], both.with_outputs("semantic").embed_batch(pixels))
    assert np.array_equal(vectors[:, EMBEDDING_DIM:], both.with_outputs("copy").embed_batch(pixels))
    assert both.are_usable(vectors).all()


def test_a_row_is_usable_where_each_of_its_outputs_is_a_unit_vector(tmp_path: Path) -> None:
    both = Embedder(write_two_output_model(tmp_path / "two.onnx"), threads=1).with_outputs("semantic", "copy")
    vectors = both.embed_batch(random_pixels(4))
    vectors[1, 0], vectors[2, -1] = np.nan, 3
    vectors[3] /= np.sqrt(2)  # as a whole of norm 1
    assert both.are_usable(vectors).tolist() == [True, False, False, False]


@pytest.mark.parametrize("count", [0, 4, 5])
def test_a_short_batch_is_run_at_the_full_size_and_gives_only_its_own_rows(tmp_path: Path, count: int) -> None:
    fussy = Embedder(write_tiny_model(tmp_path / "fussy.onnx", only_batches_of=5), threads=1)
    plain = Embedder(write_tiny_model(tmp_path / "plain.onnx"), threads=1)
    pixels = random_pixels(count)
    vectors = fussy.embed_padded(pixels, batch_size=5)
    assert vectors.shape == (count, EMBEDDING_DIM)
    assert np.allclose(vectors, plain.embed_batch(pixels), atol=1e-6)
    with pytest.raises(ValueError, match="6 images are more than a batch of 5"):
        fussy.embed_padded(random_pixels(6), batch_size=5)


def test_another_model_than_the_one_expected_is_refused(tiny_model: Path) -> None:
    assert Embedder(tiny_model, threads=1, sha256=hash_file(tiny_model)).sha256 == hash_file(tiny_model)
    with pytest.raises(ModelFileError, match=r"tiny\.onnx: another file than expected"):
        Embedder(tiny_model, threads=1, sha256="0" * 64)


def test_a_file_and_its_decoded_image_give_the_same_vector(tiny_model: Path, tmp_path: Path) -> None:
    embedder, image = Embedder(tiny_model, threads=1), draw_image((50, 90, 200), seed=0)
    image.save(tmp_path / "a.png")
    pixels = embedder.preprocess((tmp_path / "a.png").read_bytes(), name="a.png")
    assert np.array_equal(embedder.embed_batch(pixels[None])[0], embedder.embed_image(image, name="a"))
    assert embedder.sha256 == hash_file(tiny_model)


def test_a_zero_vector_is_no_embedding(tmp_path: Path) -> None:
    embedder = Embedder(write_tiny_model(tmp_path / "blind.onnx", blind_to_black=True), threads=1)
    with pytest.raises(ImageError) as caught:
        embedder.embed_image(Image.new("RGB", (40, 40), "black"), name="black.png")
    assert caught.value.reason == "bad-embedding"
    assert embedder.embed_image(Image.new("RGB", (40, 40), "white"), name="white.png").shape == (EMBEDDING_DIM,)


def test_it_answers_by_semantic_and_by_copy_in_a_few_megabytes() -> None:
    model = Embedder(find_builtin())
    assert list(model.contract.widths) == [SEMANTIC, COPY]
    assert 0 < model.contract.copy_threshold < 1
    assert BUILTIN_MODEL.stat().st_size <= 13_000_000


def test_where_the_built_in_model_is_damaged_the_package_is_to_be_installed_again(tmp_path: Path) -> None:
    copy, data = tmp_path / "builtin.onnx", bytearray(BUILTIN_MODEL.read_bytes())
    data[len(data) // 2] ^= 1
    for _ in ("missing", "one bit"):
        with pytest.raises(ModelFileError, match=r"builtin\.onnx: .*install that again, or name another model"):
            find_builtin(copy)
        builtin_sha256.cache_clear()
        assert builtin_sha256(copy) is None  # a gallery of another model is none of it, and is served
        copy.write_bytes(data)


def test_builtin_is_the_built_in_model_unless_a_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_named_model("builtin") == BUILTIN_MODEL
    assert find_named_model("model.onnx") == Path("model.onnx")
    Path("builtin").write_bytes(b"a model of another name")
    assert find_named_model("builtin") == Path("builtin")
