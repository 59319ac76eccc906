"""A student of two outputs, exported: one file, half the bytes, and what torch gives by either output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from export.half_weights import keep_in_half
from export.public import export
from index.images.image_files import read_image
from index.images.preprocess import preprocess_image
from index.model.embedder import Embedder
from tests.photos import KINDS, write_photos
from tests.training.distill.test_distill_run import run
from training.backbone.backbones import normalise_images
from training.distill.run import load_student


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("student")
    write_photos(at / "photos", kinds=KINDS[:3], pictures_per_kind=8, seed=0)
    run(at / "photos", at / "out", epochs=1)
    return at / "out"


@pytest.fixture(scope="module")
def exported(folder: Path) -> Path:
    export(folder, folder / "student.onnx")
    return folder / "student.onnx"


def test_both_outputs_are_what_torch_gives(folder: Path, exported: Path) -> None:
    embedder = Embedder(exported, threads=1)
    photo = next(folder.parent.rglob("photos/*/*.jpg"))
    sizes = embedder.contract.preprocess
    pixels = preprocess_image(read_image(photo, target_side=sizes.resize).image, sizes)[None]
    mean, std = (255 * torch.tensor(values).view(1, 3, 1, 1) for values in (sizes.mean, sizes.std))
    with torch.inference_mode():
        expected = load_student(folder)[0](normalise_images(torch.from_numpy(pixels.copy()), mean, std))
    for output, values in zip(("kind", "picture"), expected, strict=True):
        found = embedder.giving(output).embed_batch(pixels)
        assert float((found * values.numpy()).sum()) > 0.9999, output


def test_the_file_says_that_it_has_both_and_from_where_on_pictures_are_copies(
    folder: Path, exported: Path
) -> None:
    contract, made = Embedder(exported, threads=1).contract, load_student(folder)[1]
    assert contract.widths == {"kind": 8, "picture": 8}
    assert (contract.method, contract.precision, contract.view) == ("distilled", "float16", "whole")
    assert contract.picture_threshold == made["picture_threshold"]


def test_weights_take_half_the_bytes(exported: Path) -> None:
    weights = onnx.load(exported).graph.initializer
    halves = sum(len(one.raw_data) for one in weights if one.data_type == onnx.TensorProto.FLOAT16)
    whole = sum(len(one.raw_data) for one in weights if one.data_type == onnx.TensorProto.FLOAT)
    assert halves > 10 * whole


def test_what_float16_cannot_hold_stays_as_it_is() -> None:
    large = onnx.numpy_helper.from_array(np.full(300, 1e6, dtype=np.float32), "large")
    small = onnx.numpy_helper.from_array(np.full(3, 0.1, dtype=np.float32), "small")
    whole = onnx.numpy_helper.from_array(np.arange(300), "whole")
    proto = onnx.ModelProto()
    proto.graph.initializer.extend([large, small, whole])
    keep_in_half(proto, "float16")
    assert list(proto.graph.initializer) == [large, small, whole]
    assert not proto.graph.node
