"""Backbones of every library and family, every view and pooling: the file gives what training saw, up to the search."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from export.exports import export_run, export_untrained
from export.public import ExportConfig
from export.to_onnx import MIN_COSINE
from index.images.preprocess import PreprocessConfig
from index.model.embedder import Embedder
from retrieval_app.commands.cli import main
from tests.export.test_to_onnx import embed_photos
from tests.models import read_pixels
from tests.training.conftest import BACKBONE, make_config, make_machine
from tests.training.small_towers import RESNET
from training.audit.run_audit import audit_labels
from training.backbone.backbones import load_backbone, with_features
from training.backbone.extract import Extractor
from training.options.backbone_libraries import preprocess_for
from training.run.run_folder import RunFolder
from training.run.train import train

pytestmark = pytest.mark.usefixtures("small_towers")

RESIZE, CROP = 72, 64


def sizes(view: str) -> dict[str, int]:
    return {"resize": CROP if view == "whole" else RESIZE, "crop": CROP}


def check_features(
    model: Path, photos: list[Path], *, side: int = CROP, view: str = "crop", pooling: str = "own"
) -> None:
    """What a model file gives of photos is what its backbone gives in training."""
    embedder = Embedder(model, threads=1)
    contract = embedder.contract
    backbone = load_backbone(contract.backbone, "none", side=side)
    if (view, pooling) != ("crop", "own"):
        backbone = with_features(backbone, view=view, pooling=pooling, side=side)
    extractor = Extractor(backbone, contract.preprocess, device=torch.device("cpu"), precision="float32")
    pixels = np.stack([read_pixels(embedder, photo) for photo in photos])
    expected = torch.nn.functional.normalize(extractor.extract(pixels)).numpy()
    np.testing.assert_allclose(embedder.embed_batch(pixels), expected, atol=1e-4)


@pytest.mark.slow
def test_a_view_and_a_pooling_give_the_features_that_training_sees(pictures: Path, tmp_path: Path) -> None:
    config = ExportConfig(backbone=BACKBONE, weights="none", view="whole", pooling="gem", resize=CROP, crop=CROP)
    report = export_untrained(tmp_path / "m.onnx", config)
    assert report.embedding_dim == 512
    assert report.min_cosine >= MIN_COSINE
    contract = Embedder(Path(report.model)).contract
    assert (contract.view, contract.pooling) == ("whole", "gem")
    assert (contract.preprocess.resize, contract.preprocess.crop) == (CROP, CROP)
    check_features(tmp_path / "m.onnx", sorted(pictures.rglob("*.jpg"))[::12], view="whole", pooling="gem")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v3_small", f"open_clip:{RESNET}", "timm:vit_small_patch14_dinov2.lvd142m"])
def test_every_family_gives_the_features_that_training_sees(
    name: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "patch14" in name:  # two of its twelve blocks, which are alike
        import timm  # which takes seconds

        monkeypatch.setattr("timm.create_model", partial(timm.create_model, depth=2))
    if name == "mobilenet_v3_small":  # one of its eleven blocks: squeeze-and-excite, hard-swish
        from torchvision.models import MobileNetV3

        make = MobileNetV3.__init__
        monkeypatch.setattr(
            MobileNetV3, "__init__", lambda net, blocks, *rest, **more: make(net, blocks[:1], *rest, **more)
        )
    side = 56 if "patch14" in name else CROP
    report = export_untrained(tmp_path / "m.onnx", ExportConfig(backbone=name, weights="none", crop=side))
    contract = Embedder(tmp_path / "m.onnx", threads=1).contract
    assert (contract.backbone, contract.preprocess) == (name, preprocess_for(name, crop=side))
    assert report.min_cosine >= MIN_COSINE
    check_features(tmp_path / "m.onnx", sorted(pictures.rglob("*.jpg"))[::12], side=side)


@pytest.mark.slow
def test_a_run_trains_resumes_audits_exports_and_is_searched(
    pictures: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, view, pooling = "timm:test_convnext", "both", "layers"
    config = make_config(backbone=name, view=view, pooling=pooling, **sizes(view))
    report = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache), val=pictures)
    again = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache), val=pictures, resume=True)
    assert again == report
    run = RunFolder.open(tmp_path / "run")
    assert run.preprocess() == preprocess_for(name, **sizes(view), view=view)
    assert len(audit_labels(run, machine=make_machine(cache)).items) == report["images"]
    monkeypatch.setattr("training.backbone.weights_files.fetch_weights", None)  # a run holds its weights
    exported = Path(export_run(run.path, tmp_path / "m.onnx").model)
    photos = sorted(pictures.rglob("*.jpg"))
    found = embed_photos(exported, pictures)
    labels = np.array([photo.parent.name for photo in photos])
    scores = found @ found.T - 2 * np.eye(len(found))
    recall = (labels[scores.argmax(axis=1)] == labels).mean()
    assert recall == pytest.approx(report["val"]["recall"]["1"], abs=1.01 / len(photos))
    assert main(["index", "build", str(exported), str(pictures), "--out", str(tmp_path / "g")]) == 0
    capsys.readouterr()
    assert main(["search", str(tmp_path / "g"), str(photos[3]), "-k", "1", "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["results"]
    assert hit["path"].endswith(photos[3].name)
    assert hit["score"] == pytest.approx(1, abs=1e-4)


def test_a_run_goes_by_the_preprocessing_that_its_images_had(pictures: Path, tmp_path: Path, cache: Path) -> None:
    """Another version of a library may say something else of the same name."""
    config = make_config(backbone="timm:test_vit", resize=RESIZE, crop=CROP, method="raw")
    train(pictures, tmp_path / "run", config=config, machine=make_machine(cache))
    described = json.loads((tmp_path / "run" / "features.json").read_text())
    described["preprocess"]["mean"] = [0.4, 0.4, 0.4]
    (tmp_path / "run" / "features.json").write_text(json.dumps(described))
    seen = PreprocessConfig(RESIZE, CROP, "bicubic", (0.4, 0.4, 0.4), (0.5, 0.5, 0.5))
    assert RunFolder.open(tmp_path / "run").preprocess() == seen
