"""Runs that choose their view and pooling: by what is there to be seen, once, and everywhere the same after that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from export.exports import export_run
from index.errors import RunError
from index.model.embedder import Embedder
from tests.training.conftest import make_config, make_machine
from tests.training.runs import InterruptionError, weights
from training.audit.run_audit import audit_labels
from training.options.config import TrainConfig
from training.run import look_sample
from training.run.phases import Watcher
from training.run.run_folder import RunFolder
from training.run.train import train

SIDE, CLASSES, OF_EACH = 64, 6, 8


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise in frames whose colour is the class; the middle, all that a crop of half the side sees, tells nothing."""
    folder = tmp_path_factory.mktemp("framed")
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"{label}").mkdir()
        for number in range(OF_EACH):
            pixels = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
            pixels[:] = [60 + 190 * (label >> channel & 1) for channel in range(3)]
            inner = slice(SIDE // 8, -SIDE // 8)
            pixels[inner, inner] = rng.integers(0, 256, (SIDE * 3 // 4, SIDE * 3 // 4, 3))
            Image.fromarray(pixels).save(folder / f"{label}" / f"{number}.png")
    return folder


@pytest.fixture(scope="module", autouse=True)
def affordable() -> Iterator[None]:
    """Let these few images be tried, of which no run of theirs would have the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look_sample, "SHARE", 10.0)
        yield


def look_config(**changes: Any) -> TrainConfig:
    quick = {"recipe": "default", "trial": True, "steps": 3, "resize": SIDE, "crop": SIDE // 2}
    return make_config(**(quick | {"view": "auto", "pooling": "auto"} | changes))


@pytest.fixture(scope="module")
def run(framed: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has to see the frames. Not to be written to."""
    out = tmp_path_factory.mktemp("look") / "run"
    train(framed, out, config=look_config(), machine=make_machine(cache), val=framed)
    return RunFolder.open(out)


def test_the_whole_image_is_taken_where_the_crop_shows_nothing(run: RunFolder, framed: Path) -> None:
    report = run.read_json("report.json")
    choice = report["feature_choice"]
    assert choice == run.read_json("feature_choice.json")
    assert (choice["view"], choice["passes"], choice["images"]) == ("whole", 1, CLASSES * OF_EACH)
    assert len(choice["tried"]) == 6
    means = {
        view: [one["recall_at_1"] for one in choice["tried"] if one["view"] == view] for view in ("crop", "whole")
    }
    assert min(means["whole"]) > max(means["crop"]) + 0.3
    assert report["val"]["recall"]["1"] > 0.9
    config = run.read_json("config.json")["config"]["input"]
    assert (config["view"], config["pooling"]) == ("auto", "auto"), "what was asked for stays on record"


def test_everything_after_the_look_sees_what_was_chosen(run: RunFolder, cache: Path, tmp_path: Path) -> None:
    choice = run.read_json("feature_choice.json")
    assert (run.preprocess().resize, run.preprocess().crop) == (SIDE // 2, SIDE // 2)
    for path in run.parity_paths():
        with Image.open(path) as image:
            assert image.size == (SIDE // 2, SIDE // 2)
    assert run.read_json("features.json")["preprocess"]["resize"] == SIDE // 2
    assert len(audit_labels(run, machine=make_machine(cache)).images) == CLASSES * OF_EACH
    contract = Embedder(Path(export_run(run.path, tmp_path / "m.onnx").model)).contract
    assert (contract.view, contract.pooling) == ("whole", choice["pooling"])


@pytest.mark.parametrize("stop", ["look", "features"])
def test_a_run_that_ends_before_or_after_its_choice_goes_on_to_the_same_bits(
    run: RunFolder, framed: Path, tmp_path: Path, stop: str
) -> None:
    def on_images(name: str, done: int, total: int) -> None:
        if name == stop and done == total // 2:
            raise InterruptionError

    machine = make_machine(tmp_path / "cache")
    with pytest.raises(InterruptionError):
        train(framed, tmp_path / "run", config=look_config(), machine=machine, val=framed,
              watcher=Watcher(on_images=on_images))  # fmt: skip
    stopped = RunFolder.open(tmp_path / "run")
    assert (stopped.read_feature_choice() is None) == (stop == "look")
    if stop == "look":
        with pytest.raises(RunError, match=r"gone through yet.* --resume"):
            stopped.preprocess()
    train(framed, tmp_path / "run", config=look_config(), machine=machine, val=framed, resume=True)
    assert stopped.read_feature_choice() == run.read_feature_choice()
    assert weights(stopped.path) == weights(run.path)
    with pytest.raises(RunError, match="view was 'auto', is 'whole'"):
        train(framed, tmp_path / "run", config=look_config(view="whole", resize=SIDE // 2), machine=machine,
              val=framed, resume=True)  # fmt: skip


def test_a_resumed_run_keeps_its_choice_whatever_a_look_would_say_now(
    run: RunFolder, framed: Path, cache: Path, tmp_path: Path
) -> None:
    def on_images(name: str, done: int, total: int) -> None:
        if name == "features":
            raise InterruptionError

    with pytest.raises(InterruptionError):
        train(framed, tmp_path / "run", config=look_config(), machine=make_machine(cache),
              watcher=Watcher(on_images=on_images))  # fmt: skip
    choice = json.loads((tmp_path / "run" / "feature_choice.json").read_text())
    other = {**choice, "view": "crop", "pooling": "gem", "feature_dim": 512}
    (tmp_path / "run" / "feature_choice.json").write_text(json.dumps(other))
    (tmp_path / "run" / "features.json").unlink(missing_ok=True)
    report = train(framed, tmp_path / "run", config=look_config(), machine=make_machine(cache), resume=True)
    assert report["feature_choice"] == other
    assert "look" in report["phases"]
    assert RunFolder.open(tmp_path / "run").preprocess().resize == SIDE


def test_two_classes_of_two_images_are_too_few_to_choose_by(framed: Path, cache: Path, tmp_path: Path) -> None:
    table = tmp_path / "few.csv"
    rows = [f"{framed}/{label}/{number}.png,{label}" for label in range(2) for number in range(2)]
    table.write_text("\n".join(["path,label", *rows]) + "\n")
    config = look_config(embedding_dim=2, select="trained")
    report = train(table, tmp_path / "run", config=config, machine=make_machine(cache))
    choice = report["feature_choice"]
    assert (choice["view"], choice["pooling"], choice["tried"]) == ("crop", "own", [])


def test_untrained_methods_may_be_told_to_look_too(framed: Path, cache: Path, tmp_path: Path) -> None:
    config = make_config(recipe="default", method="pca", view="auto", resize=SIDE, crop=SIDE // 2)
    report = train(framed, tmp_path / "run", config=config, machine=make_machine(cache))
    assert (report["method"], report["feature_choice"]["view"]) == ("pca", "whole")
