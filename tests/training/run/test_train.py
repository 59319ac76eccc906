"""Whole runs on drawn images: what they leave behind, how they stop and go on, and what they refuse."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from index.errors import InputError, RunError
from tests.training.conftest import FinishedRun, Trainer, make_machine
from tests.training.runs import epochs, read_csv, read_metrics
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.options.losses import RIVALS
from training.options.machine import Machine, resolve_device
from training.run.phases import EpochReport, Watcher


def test_every_epoch_stands_once_in_the_metrics(finished_run: FinishedRun) -> None:
    assert epochs(finished_run.path) == [
        *(("confidence", 1), ("confidence", 2), ("confidence", 3), ("embedding", 1), ("embedding", 2)),
        *(("embedding", 3), ("embedding", 4)),
    ]
    lines = read_metrics(finished_run.path)
    assert all(line["loss"] > 0 for line in lines)
    assert all("held_out_loss" in line for line in lines if line["phase"] == "confidence")
    assert all(0 <= line["share_without_positive"] <= 1 for line in lines if line["phase"] == "embedding")


def test_a_class_left_with_one_usable_image_is_dropped_with_a_warning(trainer: Trainer, caplog) -> None:
    data = trainer.copy_pictures()
    kind = sorted(data.iterdir())[0]
    for path in sorted(kind.iterdir())[1:]:
        path.write_bytes(b"hello")
    report = trainer(data=data, method="raw")
    assert (report["classes"], report["images"], report["skipped"]) == (3, 36, 11)
    assert (report["val"], report["baselines"], report["noise"]) == (None, None, None)
    assert f"class '{kind.name}' has fewer than two usable images" in caplog.text


def test_a_column_of_groups_is_heeded_in_validation_and_its_search_of_the_training_images(trainer) -> None:
    """Of every four images, which are one group but the first, two validate and two train."""
    parts: dict[str, list[str]] = {"train": [], "val": []}
    for number, path in enumerate(sorted(trainer.pictures.rglob("*.jpg"))):
        part = "val" if number % 4 < 2 else "train"
        parts[part].append(f"{path},{path.parent.name},{'' if number < 4 else number // 4}")
    for part, rows in parts.items():
        (trainer.folder / f"{part}.csv").write_text("\n".join(["path,label,group", *rows]) + "\n")
    report = trainer(data=trainer.folder / "train.csv", val=trainer.folder / "val.csv", holdout=True)
    assert report["val_groups"] == {"found_by": "the column 'group'", "groups": 11, "images": 22}
    assert report["holdout"] is not None
    for scores in (report["val"], *report["baselines"].values()):
        assert scores["queries"] == scores["grouped"]["queries"] == scores["against_training"]["queries"] == 24
        assert scores["grouped"]["r_precision"] != scores["r_precision"]


def test_an_output_that_cannot_be_written_is_named_before_any_features(trainer: Trainer) -> None:
    (trainer.folder / "file").write_text("")
    with pytest.raises(RunError, match="the run folder cannot be written"):
        trainer("file/run", machine=make_machine(trainer.folder / "cache"))
    assert not (trainer.folder / "cache").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"backbone": "alexnet"},
        {"resize": 5000},
        {"weights": "nowhere.pth"},
        {"embedding_dim": 48, "init": "wccn"},
        {"embedding_dim": 48, "select": "auto", "holdout": True},
    ],
)
def test_options_that_only_show_later_are_refused_before_any_features_and_leave_no_run_folder(trainer, changes) -> None:
    with pytest.raises(InputError):
        trainer(**changes, machine=make_machine(trainer.folder / "cache"))
    assert not list(trainer.folder.iterdir())


@pytest.mark.parametrize(("place", "flag"), [("run", "--out"), ("cache", "--cache")])
def test_nothing_is_written_into_the_images(trainer: Trainer, place: str, flag: str) -> None:
    data = trainer.copy_pictures()
    before = sorted(data.rglob("*"))
    cache = (data if place == "cache" else trainer.folder) / "cache"
    with pytest.raises(InputError, match=f"{flag} .* lies inside the images"):
        trainer("photos/run" if place == "run" else "run", data=data, machine=make_machine(cache))
    assert sorted(data.rglob("*")) == before


def test_validating_on_the_training_images_is_pointed_out(trainer: Trainer, caplog) -> None:
    trainer(method="raw", val=trainer.pictures)
    assert "--val is the training data itself" in caplog.text


def test_a_run_whose_images_turn_out_unusable_is_not_in_the_way_of_the_next(trainer: Trainer) -> None:
    data = trainer.copy_pictures()
    for kind in sorted(data.iterdir())[1:]:
        for picture in sorted(kind.iterdir())[1:]:
            picture.write_bytes(b"no image")
    for _ in range(2):
        with pytest.raises(InputError, match="at least two classes"):
            trainer(data=data)
        assert not (trainer.folder / "run").exists()


def test_a_device_that_is_not_there_is_refused() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="--device must be"):
        Machine(device="tpu")
    with pytest.raises(InputError, match="--workers must be"):
        Machine(device=torch.device("cpu"), workers=0)
    if not torch.cuda.is_available():
        assert resolve_device("auto") == torch.device("cpu")
        with pytest.raises(InputError, match="use --device cpu"):
            resolve_device("cuda")


def test_the_report_says_what_training_bought_and_lists_labels_with_confidences(finished_run: FinishedRun) -> None:
    report = finished_run.report
    assert (report["run"], report["images"], report["classes"], report["skipped"]) == (str(finished_run.path), 48, 4, 0)
    assert set(report["baselines"]) == set(RIVALS)
    for scores in (report["val"], *report["baselines"].values()):
        values = list(scores["recall"].values())
        assert values == sorted(values)
        assert scores["queries"] == 18
    assert json.loads((finished_run.path / "report.json").read_text()) == report
    labels, rows = (read_csv(finished_run.path / name) for name in ("labels.csv", "confidences.csv"))
    assert all(Path(row["path"]).parent.name == row["given"] for row in labels)
    assert sum(row["given"] != row["label"] for row in labels) == 12, "exactly a quarter was made wrong"
    named = ("path", "given", "label")
    assert [[row[key] for key in named] for row in rows] == [[row[key] for key in named] for row in labels]
    for row in rows:
        top = [float(row[f"suggestion_confidence_{rank}"]) for rank in (1, 2, 3)]
        assert 1 >= top[0] >= top[1] >= top[2] >= 0
        assert float(row["confidence"]) <= top[0]
        by_name = {row[f"suggestion_{rank}"]: row[f"suggestion_confidence_{rank}"] for rank in (1, 2, 3)}
        assert len(by_name) == 3
        assert by_name.get(row["label"], row["confidence"]) == row["confidence"]


@pytest.mark.parametrize("kind", ["run", "folder", "file"])
def test_what_is_in_the_way_is_never_overwritten(trainer: Trainer, finished_run: FinishedRun, kind: str) -> None:
    out = trainer.folder / "run"
    if kind == "run":
        out.symlink_to(finished_run.path)
    elif kind == "folder":
        out.mkdir()
        (out / "thesis.tex").write_text("precious")
    else:
        out.write_text("precious")
    said = "continue this run with --resume" if kind == "run" else "and is not a training run"
    with pytest.raises(RunError, match=f"exists already.* {said}"):
        trainer()


def test_the_seed_changes_the_result_and_only_random_backbones(trainer: Trainer, monkeypatch) -> None:
    file = trainer.folder / "weights.safetensors"
    save_file(load_backbone("squeezenet1_1", "none").module.state_dict(), file)
    shas = []
    for seed in (0, 1):
        trainer(f"random{seed}", seed=seed, method="raw")
        features = json.loads((trainer.folder / f"random{seed}" / "features.json").read_text())
        shas.append(features["weights_sha256"])
    assert shas[0] != shas[1]
    trainer("0", weights=str(file))
    monkeypatch.setattr(Extractor, "extract", lambda *_: pytest.fail("the features are in the cache"))
    trainer("again", weights=str(file))
    trainer("1", weights=str(file), seed=1)
    assert trainer.weights("again") == trainer.weights("0") != trainer.weights("1")


@pytest.mark.parametrize("problem", ["unreadable", "lone", "missing"])
def test_validation_images_that_cannot_be_scored_are_refused_before_training(trainer, problem) -> None:
    val, epochs = trainer.folder / "val", list[EpochReport]()
    source = sorted(trainer.pictures.rglob("*.jpg"))[0]
    for name in {"unreadable": ("a/1", "a/2", "b/1"), "lone": ("a/1", "b/1")}.get(problem, ()):
        (val / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, val / name)
    if problem == "unreadable":
        (val / "a/2").write_bytes(b"hello")
    with pytest.raises(InputError):
        trainer(val=val, watcher=Watcher(on_epoch=epochs.append))
    assert epochs == []
