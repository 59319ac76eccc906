"""Runs as candidates: their backbone runs once for all, and who learnt from the images is told."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

import retrieval_app
from index.commands.evaluate_command import evaluate
from retrieval_app.comparing.compare_report import format_report
from tests.index.galleries import invoke
from tests.photos import KINDS, write_photos
from training.backbone.extract import Extractor

QUICK = {
    "backbone": "squeezenet1_1",
    "weights": "none",
    "resize": 40,
    "crop": 32,
    "view": "crop",
    "pooling": "own",
    "frozen": True,
    "head_steps": 4,
}


pytestmark = pytest.mark.slow  # which trains


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four kinds of twelve photos, of which two runs of other widths have learnt from two kinds."""
    work = tmp_path_factory.mktemp("runs")
    write_photos(work / "photos", kinds=KINDS[:4], pictures_per_kind=12, seed=0, size=48)
    write_photos(work / "part", kinds=KINDS[:2], pictures_per_kind=12, seed=0, size=48)
    for width in (8, 6):
        retrieval_app.train(
            work / "part",
            work / f"run{width}",
            cache=work / "cache",
            workers=1,
            precision="float32",
            embedding_dim=width,
            **QUICK,
        )
    return work


def test_runs_of_one_backbone_share_features(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    through: list[int] = []
    extract = Extractor.extract

    def note(self: Extractor, pixels: np.ndarray) -> object:
        through.append(len(pixels))
        return extract(self, pixels)

    monkeypatch.setattr(Extractor, "extract", note)
    runs = [work / "run8", work / "run6"]
    found = retrieval_app.compare(work / "photos", runs, tmp_path / "out", cache=work / "cache", workers=1)
    assert [(one["embedded"], one["from_cache"]) for one in found["candidates"]] == [(24, 24), (0, 48)]
    assert len(through) == 1  # a batch of the 24 photos that nobody had trained on
    assert [one["width"] for one in found["candidates"]] == [8, 6]
    assert [one["trained_on"] for one in found["candidates"]] == [24, 24]
    assert "warning: run8 was trained on 24 of these images, so its scores are too good" in format_report(found)


def test_a_run_embeds_as_the_model_does_that_is_exported_from_it(work: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    retrieval_app.export(work / "run8", model)
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(work / "photos", arcname=".")
    files, packed = (
        retrieval_app.compare(images, {"run": work / "run8", "model": model}, tmp_path / "out", cache=tmp_path / "c")
        for images in (work / "photos", tmp_path / "photos.tar")
    )
    for found in (files, packed):
        run, exported = found["candidates"]
        assert (run["recall"], run["width"]) == (exported["recall"], exported["width"])
        assert run["map_at_r"]["value"] == pytest.approx(exported["map_at_r"]["value"], abs=1e-3)
        assert [one["trained_on"] for one in found["candidates"]] == [24, 24]  # the file names the run beside it
    alone = retrieval_app.compare(work / "photos", [model, "builtin"], tmp_path / "out", cache=tmp_path / "c")
    assert [one["trained_on"] for one in alone["candidates"]] == [None, None]
    assert "note: model was made by `retrieval train`" in format_report(alone)
    for more, notes in (([], 1), (["--query", work / "photos"], 0)):
        evaluated = invoke(evaluate, "--model", model, "--data", work / "photos", *more)
        assert evaluated.stdout.count("`retrieval train` made this model") == notes
