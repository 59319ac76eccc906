"""The five commands on real photos, as a user types them, with what `--json` promises."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from retrieval_app.commands.cli import main
from training.options.losses import RIVALS

pytestmark = pytest.mark.shared_data
CLASSES = ("hat", "pants", "shoes", "skirt")
PHOTOS_PER_CLASS = 12


@pytest.fixture(scope="module")
def photos(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few real photos of four classes, and one file that is no photo."""
    folder = tmp_path_factory.mktemp("main-job") / "photos"
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for photo in sorted((shared / "data" / "clothing" / name).iterdir())[:PHOTOS_PER_CLASS]:
            shutil.copy(photo, folder / name)
    (folder / "hat" / "page.jpg").write_text("<html>not found</html>")
    return folder


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """Run a command with --json; stdout must be one JSON document and nothing else."""
    capsys.readouterr()
    code = main([*map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    document: dict[str, Any] = json.loads(captured.out)
    return document


def test_the_five_commands_take_photos_to_answers(
    photos: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = photos.parent
    weights = shared / "weights" / "mobilenet_v2_imagenet.safetensors"

    trained = call(
        capsys, "train", photos, "--val", photos, "--out", work / "run", "--cache", work / "cache",
        "--backbone", "mobilenet_v2", "--weights", weights, "--embedding-dim", 16, "--epochs", 2,
    )  # fmt: skip
    assert trained["images"] == len(CLASSES) * PHOTOS_PER_CLASS
    assert trained["skipped"] == 1
    assert set(trained["phases"]) - {"projection", "embedding"} == {"look", "features", "trial", "confidence"}
    assert set(trained["baselines"]) == set(RIVALS)
    assert trained["baselines"]["raw"]["recall"]["1"] > 0.6  # four kinds of clothes, ImageNet features

    exported = call(capsys, "export", work / "run", "--out", work / "model.onnx")
    assert set(exported) == {
        "model", "sha256", "embedding_dim", "min_cosine", "bytes", "precision", "measured"
    }  # fmt: skip
    assert exported["embedding_dim"] == 16
    assert exported["min_cosine"] >= 0.99999

    built = call(capsys, "index", "build", work / "model.onnx", photos, "--out", work / "gallery")
    assert built["indexed"] == len(CLASSES) * PHOTOS_PER_CLASS
    assert built["skipped_by_reason"] == {"not-an-image": 1}

    query = sorted((photos / "shoes").iterdir())[0]
    found = call(capsys, "search", work / "gallery", query, "-k", 3)["results"]
    assert [hit["rank"] for hit in found] == [1, 2, 3]
    assert found[0]["path"] == f"shoes/{query.name}"
    assert found[0]["label"] == "shoes"
    assert found[0]["score"] == pytest.approx(1, abs=1e-4)

    evaluated = call(capsys, "evaluate", work / "gallery", "--k", "1,4")
    assert evaluated["queries"] == len(CLASSES) * PHOTOS_PER_CLASS
    assert evaluated["lone_queries"] == 0
    assert set(evaluated["recall"]) == {"1", "4"}
    on_folder = call(capsys, "evaluate", "--model", work / "model.onnx", "--data", photos, "--k", "1,4")
    assert on_folder.pop("skipped") == 1
    assert evaluated.pop("skipped") == 0
    assert on_folder == evaluated
