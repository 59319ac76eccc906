"""Models of every view and pooling: what the file gives is what training saw, from export to search."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from export.exports import export_run, export_untrained
from export.parity import MIN_COSINE
from index.gallery.gallery import Gallery
from index.images.preprocess import PreprocessConfig
from index.model.embedder import Embedder
from retrieval_app.commands.cli import main
from tests.models import read_pixels
from tests.training.conftest import make_config, make_machine
from training.audit.run_audit import audit_labels
from training.backbone.backbones import load_backbone, with_features
from training.backbone.extract import Extractor
from training.run.run_folder import RunFolder
from training.run.train import train

RESIZE, CROP = 72, 64
SEEN = {"crop": (RESIZE, CROP), "whole": (CROP, CROP), "both": (RESIZE, RESIZE)}


def sizes(view: str) -> dict[str, int]:
    return {"resize": CROP if view == "whole" else RESIZE, "crop": CROP}


def embed(model: Path, photos: list[Path]) -> np.ndarray:
    embedder = Embedder(model, threads=1)
    return embedder.embed_batch(np.stack([read_pixels(embedder, photo) for photo in photos]))


@pytest.mark.parametrize(
    ("backbone", "view", "pooling", "width"),
    [
        ("mobilenet_v2", "both", "layers", 1280 + 960 + 576),
        *(
            pytest.param("resnet18", *of, marks=pytest.mark.slow)
            for of in (("crop", "layers", 512 + 512 + 256), ("whole", "gem", 512), ("both", "own", 512))
        ),
    ],
)
def test_the_file_gives_the_features_that_training_sees(
    backbone: str, view: str, pooling: str, width: int, pictures: Path, tmp_path: Path
) -> None:
    report = export_untrained(
        tmp_path / "m.onnx", backbone=backbone, weights="none", whiten=None, embedding_dim=0, view=view,
        pooling=pooling, **sizes(view), cache=tmp_path, workers=1,
    )  # fmt: skip
    assert report.embedding_dim == width
    assert report.min_cosine >= MIN_COSINE
    contract = Embedder(Path(report.model)).contract
    assert (contract.view, contract.pooling) == (view, pooling)
    assert (contract.preprocess.resize, contract.preprocess.crop) == SEEN[view]
    network = with_features(load_backbone(backbone, "none"), view=view, pooling=pooling, side=CROP)
    extractor = Extractor(network, contract.preprocess, device=torch.device("cpu"), precision="float32")
    photos = sorted(pictures.rglob("*.jpg"))[::12]
    embedder = Embedder(Path(report.model), threads=1)
    features = extractor.extract(np.stack([read_pixels(embedder, photo) for photo in photos]))
    expected = torch.nn.functional.normalize(features).numpy()
    np.testing.assert_allclose(embed(Path(report.model), photos), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("view", "pooling"), [("whole", "gem"), pytest.param("both", "layers", marks=pytest.mark.slow)]
)
def test_a_run_trains_resumes_audits_exports_and_is_searched(
    view: str, pooling: str, pictures: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(view=view, pooling=pooling, **sizes(view))
    report = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache), val=pictures)
    again = train(
        pictures, tmp_path / "run", config=config, machine=make_machine(cache), val=pictures, resume=True
    )
    assert again == report
    run = RunFolder.open(tmp_path / "run")
    assert len(audit_labels(run, machine=make_machine(cache)).images) == report["images"]
    assert run.preprocess() == PreprocessConfig(*SEEN[view])
    exported = Path(export_run(run.path, tmp_path / "m.onnx").model)
    photos = sorted(pictures.rglob("*.jpg"))
    found = embed(exported, photos)
    labels = np.array([photo.parent.name for photo in photos])
    scores = found @ found.T - 2 * np.eye(len(found))
    recall = (labels[scores.argmax(axis=1)] == labels).mean()
    assert recall == pytest.approx(report["val"]["recall"]["1"], abs=1.01 / len(photos))
    assert main(["index", "build", str(exported), str(pictures), "--out", str(tmp_path / "g")]) == 0
    assert Gallery.open(tmp_path / "g").count == len(photos)
    capsys.readouterr()
    assert main(["index", "info", str(tmp_path / "g")]) == 0
    assert f"{SEEN[view][1]} of {SEEN[view][0]} pixels, view {view}, pooling {pooling}," in capsys.readouterr().out
    assert main(["search", str(tmp_path / "g"), str(photos[3]), "-k", "1", "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["results"]
    assert hit["path"].endswith(photos[3].name)
    assert hit["score"] == pytest.approx(1, abs=1e-4)
