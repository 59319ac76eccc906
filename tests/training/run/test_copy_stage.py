"""`retrieval train --copy-head`: a second output from the run's own backbone, its threshold, and the model file."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from export.exports import export_run
from index.errors import InputError, RunError
from index.gallery.gallery import Gallery
from index.model.embedder import Embedder
from index.outputs import COPY, SEMANTIC
from index.writing.build import build_gallery
from tests.photos import KINDS, write_photos
from tests.training.conftest import Trainer, make_config, make_machine
from training.backbone.extract import Extractor
from training.head.copy_head import fit_copy_head
from training.run.copy_stage import describe_copy_head
from training.run.run_folder import RunFolder
from training.run.train import train

CONFIG = make_config(copy_head=True, copy_dim=16)


@pytest.fixture(scope="module", autouse=True)
def keep_any() -> Iterator[None]:
    """Keeps the output of a backbone with random weights, which calls hardly anything a copy, after some steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.run.copy_stage.LEAST_CALLED", 0.0)
        patch.setattr("training.run.copy_stage.fit_copy_head", partial(fit_copy_head, steps=100))
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos") / "photos"
    write_photos(folder, kinds=KINDS[:4], pictures_per_kind=16, seed=0, size=64)
    return folder


@pytest.fixture(scope="module")
def run(photos: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("run") / "run"
    return out, train(photos, out, config=CONFIG, machine=make_machine(cache))


@pytest.mark.slow
def test_copies_of_what_was_held_out_are_looked_for(run: tuple[Path, dict[str, Any]]) -> None:
    report = run[1]["copy_head"]
    assert report["held_out"] == 32, "half of so few images"
    assert report["found_first"] >= 2 / 64, "by chance it is 1 / 64, and the backbone's weights are random"
    assert -1 <= report["threshold"] <= 1
    assert "the original first" in describe_copy_head(report)[0]


@pytest.mark.slow
def test_the_exported_model_answers_by_both_outputs(run, photos, tmp_path) -> None:
    exported = Path(export_run(run[0], tmp_path / "model.onnx").model)
    model, folder = Embedder(exported), RunFolder.open(run[0])
    assert (model.contract.widths[SEMANTIC], model.contract.widths[COPY]) == (model.contract.embedding_dim, 16)
    assert model.contract.copy_threshold == pytest.approx(run[1]["copy_head"]["threshold"])
    sizes = model.contract.preprocess
    pixels = np.random.default_rng(0).integers(256, size=(3, sizes.crop, sizes.crop, 3), dtype=np.uint8)
    extractor = Extractor(folder.load_backbone(), sizes, device=torch.device("cpu"), precision="float32")
    expected = folder.load_copy_head()[0](extractor.extract(pixels)).numpy()
    np.testing.assert_allclose(model.with_outputs(COPY).embed_batch(pixels), expected, atol=1e-4)
    build_gallery(model_path=exported, sources=[photos], out=tmp_path / "gallery")
    hit = Gallery.open(tmp_path / "gallery").view(COPY).search(next(photos.rglob("*.jpg")), k=1)[0]
    assert hit.score == pytest.approx(1, abs=1e-4)


def test_an_output_that_calls_too_few_copies_is_warned_of_and_left_out(run, tmp_path) -> None:
    weak = RunFolder.open(shutil.copytree(run[0], tmp_path / "run"))
    head, threshold = weak.load_copy_head() or (None, 0.0)
    weak.save_module("copy_head", head, threshold=threshold, copy_dim=head.copy_dim, is_kept=False)
    export_run(weak.path, tmp_path / "model.onnx")
    assert COPY not in Embedder(tmp_path / "model.onnx").contract.widths
    told = describe_copy_head({**run[1]["copy_head"], "called_copies": 0.018, "is_kept": False})
    assert told[1].startswith("warning: --copy-head did not work")


def test_too_few_images_are_refused_before_any_work(trainer: Trainer) -> None:
    write_photos(trainer.folder / "few", kinds=KINDS[:2], pictures_per_kind=8, seed=0, size=64)
    with pytest.raises(InputError, match="--copy-head needs at least 40 different usable images, got 16"):
        trainer(data=trainer.folder / "few", config=CONFIG)
    assert not (trainer.folder / "run").exists()


def test_a_killed_stage_is_gone_on_with_and_not_exported_before(run, photos, trainer) -> None:
    out = shutil.copytree(run[0], trainer.folder / "run")
    for name in ("copy_head.safetensors", "report.json"):  # as a kill in the stage leaves it
        (out / name).unlink()
    with pytest.raises(RunError, match="copy_head was True, is False"):
        RunFolder.open(out).check_same(config=make_config(), data=photos)
    with pytest.raises(RunError, match="the output of --copy-head is not trained"):
        export_run(out, trainer.folder / "model.onnx")
    assert trainer(data=photos, config=CONFIG, resume=True)["copy_head"] == run[1]["copy_head"]


@pytest.mark.slow
def test_where_one_picture_is_nearly_all_there_is_it_still_ends(trainer: Trainer) -> None:
    photos = trainer.folder / "photos"
    write_photos(photos, kinds=KINDS[:2], pictures_per_kind=30, seed=0, size=64)
    first, *others = sorted((photos / KINDS[0]).iterdir())
    for number, other in enumerate(others):
        Image.open(first).save(other, quality=95 - number % 20, comment=str(number))  # other bytes, one image
    report = trainer(data=photos, config=CONFIG)
    assert 0 <= report["copy_head"]["held_out"] <= 30
    assert describe_copy_head(report["copy_head"])
