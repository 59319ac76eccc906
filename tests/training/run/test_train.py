"""Whole runs on drawn pictures: what they leave behind, how they stop and go on, and what they refuse."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from index.errors import InputError, RunError
from tests.training.conftest import FinishedRun, make_config, make_machine
from tests.training.runs import epochs, read_csv, read_metrics, weights
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.options.config import TrainConfig
from training.options.losses import RIVALS
from training.options.machine import resolve_device
from training.run.phases import EpochReport, Watcher
from training.run.run_folder import RunFolder
from training.run.train import train, warn_of_unsuitable_lambda


def test_a_run_folder_holds_all_that_was_promised(finished_run: FinishedRun) -> None:
    names = {
        path.relative_to(finished_run.path).as_posix() for path in finished_run.path.rglob("*") if path.is_file()
    }
    assert names == {
        "config.json", "features.json", "labels.csv", "skipped.csv", "environment.json", "metrics.jsonl",
        "checkpoints/confidence.safetensors", "checkpoints/embedding.safetensors",
        "backbone.safetensors", "untrained.safetensors", "head.safetensors", "confidences.csv", "runtime.json",
        "report.json",
        *(f"parity/{number:02}.png" for number in range(16)),
    }  # fmt: skip


def test_the_report_says_what_was_done_and_what_training_bought(finished_run: FinishedRun) -> None:
    report = finished_run.report
    assert set(report) == {
        "run", "seconds", "phases", "val", "val_scenes", "baselines", "images", "trained_on", "classes", "skipped",
        "noise", "method", "embedding_dim", "verdict", "feature_choice", "trial", "network", "picture", "beliefs",
    }  # fmt: skip
    assert (report["run"], report["images"], report["classes"], report["skipped"]) == (
        str(finished_run.path), 48, 4, 0,
    )  # fmt: skip
    assert set(report["phases"]) == {"features", "confidence", "embedding"}
    assert report["seconds"] >= sum(phase["seconds"] for phase in report["phases"].values())
    assert set(report["baselines"]) == set(RIVALS)
    for scores in (report["val"], *report["baselines"].values()):
        assert list(scores["recall"]) == ["1", "2", "4", "8", "16"]
        values = list(scores["recall"].values())
        assert values == sorted(values)
        assert all(0 <= value <= 1 for value in values)
        assert scores["queries"] == 18
    assert json.loads((finished_run.path / "report.json").read_text()) == report


def test_every_epoch_stands_once_in_the_metrics(finished_run: FinishedRun) -> None:
    assert epochs(finished_run.path) == [
        ("confidence", 1), ("confidence", 2), ("confidence", 3),
        ("embedding", 1), ("embedding", 2), ("validation", 2),
        ("embedding", 3), ("embedding", 4), ("validation", 4),
    ]  # fmt: skip
    lines = read_metrics(finished_run.path)
    assert all(line["loss"] > 0 for line in lines if line["phase"] != "validation")
    assert all("held_out_loss" in line for line in lines if line["phase"] == "confidence")
    assert all(0 <= line["share_without_positive"] <= 1 for line in lines if line["phase"] == "embedding")
    assert lines[-1]["recall"] == finished_run.report["val"]["recall"]


def test_the_labels_file_has_the_given_and_the_used_label(finished_run: FinishedRun) -> None:
    rows = read_csv(finished_run.path / "labels.csv")
    assert len(rows) == 48
    assert all(Path(row["path"]).parent.name == row["given"] for row in rows)
    assert sum(row["given"] != row["label"] for row in rows) == 12, "exactly a quarter was made wrong"
    assert {row["label"] for row in rows} <= {row["given"] for row in rows}


def test_the_confidences_are_those_of_the_used_label_beside_three_suggestions(finished_run: FinishedRun) -> None:
    rows = read_csv(finished_run.path / "confidences.csv")
    assert [(row["path"], row["given"], row["label"]) for row in rows] == [
        (row["path"], row["given"], row["label"]) for row in read_csv(finished_run.path / "labels.csv")
    ]
    for row in rows:
        top = [float(row[f"suggestion_confidence_{rank}"]) for rank in (1, 2, 3)]
        assert 1 >= top[0] >= top[1] >= top[2] >= 0
        assert len({row[f"suggestion_{rank}"] for rank in (1, 2, 3)}) == 3
        for rank in (1, 2, 3):
            if row[f"suggestion_{rank}"] == row["label"]:
                assert row[f"suggestion_confidence_{rank}"] == row["confidence"]
        assert float(row["confidence"]) <= top[0]


def test_config_and_environment_are_on_record(finished_run: FinishedRun) -> None:
    config = json.loads((finished_run.path / "config.json").read_text())
    assert config["data"] == str(finished_run.data.resolve())
    assert config["val"] == str(finished_run.val.resolve())
    assert len(config["run_id"]) == 16
    assert config["config"]["seed"] == 0
    assert config["config"]["data"]["label_noise"] == "uniform:0.25"
    environment = json.loads((finished_run.path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["timm"] == importlib.metadata.version("timm")
    features = json.loads((finished_run.path / "features.json").read_text())
    assert features["precision"] == "float32"


def test_parity_images_are_whole_resized_pictures(finished_run: FinishedRun) -> None:
    for path in RunFolder.open(finished_run.path).parity_paths():
        with Image.open(path) as image:
            assert (image.size, image.mode) == ((40, 40), "RGB")


def test_the_trained_parts_come_back_from_the_folder(finished_run: FinishedRun) -> None:
    backbone, head, state = RunFolder.open(finished_run.path).load_trained()
    assert backbone.hash_weights() == load_backbone("squeezenet1_1", "none", seed=0).hash_weights()
    assert (head.linear.in_features, head.linear.out_features) == (512, 8)
    assert state == {"method": "spa", "class_count": 4, "embedding_dim": 8}


def test_an_existing_run_is_never_overwritten(finished_run: FinishedRun, pictures: Path, cache: Path) -> None:
    with pytest.raises(RunError, match="exists already; continue this run with --resume"):
        train(pictures, finished_run.path, config=make_config(), machine=make_machine(cache))


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_something_else_in_the_way_is_never_overwritten(
    tmp_path: Path, pictures: Path, cache: Path, kind: str
) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
        (out / "thesis.tex").write_text("precious")
    else:
        out.write_text("precious")
    with pytest.raises(RunError, match="exists already and is no training run"):
        train(pictures, out, config=make_config(), machine=make_machine(cache))


def test_a_class_left_with_one_usable_image_is_dropped_with_a_warning(
    pictures: Path, cache: Path, tmp_path: Path, caplog
) -> None:
    data = tmp_path / "data"
    shutil.copytree(pictures, data)
    kind = sorted(path for path in data.iterdir())[0]
    for path in sorted(kind.iterdir())[1:]:
        path.write_bytes(b"hello")
    report = train(data, tmp_path / "run", config=make_config(method="raw"), machine=make_machine(cache))
    assert (report["classes"], report["images"], report["skipped"]) == (3, 36, 11)
    assert (report["val"], report["baselines"], report["noise"]) == (None, None, None)
    assert f"class '{kind.name}' has fewer than two usable images" in caplog.text


def test_a_column_of_scenes_is_heeded_in_validation_and_its_search_of_the_training_images(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    """Of every four pictures, which are one scene but the first, two validate and two train."""
    parts: dict[str, list[str]] = {"train": [], "val": []}
    for number, path in enumerate(sorted(pictures.rglob("*.jpg"))):
        part = "val" if number % 4 < 2 else "train"
        parts[part].append(f"{path},{path.parent.name},{'' if number < 4 else number // 4}")
    for part, rows in parts.items():
        (tmp_path / f"{part}.csv").write_text("\n".join(["path,label,group", *rows]) + "\n")
    report = train(
        tmp_path / "train.csv", tmp_path / "run", config=make_config(trial=True), machine=make_machine(cache),
        val=tmp_path / "val.csv",
    )  # fmt: skip
    assert report["val_scenes"] == {"found_by": "the column 'group'", "scenes": 11, "images": 22}
    assert report["trial"] is not None
    for scores in (report["val"], *report["baselines"].values()):
        assert scores["queries"] == scores["apart"]["queries"] == scores["against_training"]["queries"] == 24
        assert scores["apart"]["r_precision"] != scores["r_precision"]


def test_the_seed_changes_the_result_and_not_the_features(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file(load_backbone("squeezenet1_1", "none").module.state_dict(), tmp_path / "weights.safetensors")
    weights_file = str(tmp_path / "weights.safetensors")
    train(pictures, tmp_path / "0", config=make_config(weights=weights_file), machine=make_machine(cache))

    def compute_nothing(*_: object) -> torch.Tensor:
        raise AssertionError("the features are in the cache")

    monkeypatch.setattr(Extractor, "extract", compute_nothing)
    for name, seed in (("1", 1), ("again", 0)):
        train(
            pictures,
            tmp_path / name,
            config=make_config(seed=seed, weights=weights_file),
            machine=make_machine(cache),
        )
    assert weights(tmp_path / "0") == weights(tmp_path / "again")
    assert weights(tmp_path / "0") != weights(tmp_path / "1")


def test_random_weights_of_the_backbone_follow_the_seed(pictures: Path, cache: Path, tmp_path: Path) -> None:
    shas = []
    for seed in (0, 1):
        config = make_config(seed=seed, method="raw")
        train(pictures, tmp_path / str(seed), config=config, machine=make_machine(cache))
        shas.append(json.loads((tmp_path / str(seed) / "features.json").read_text())["weights_sha256"])
    assert shas[0] != shas[1]


def test_proxy_anchor_makes_no_confidences(
    pictures: Path, other_pictures: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    config = make_config(method="proxy-anchor")
    report = train(pictures, out, config=config, machine=make_machine(cache), val=other_pictures)
    assert set(report["phases"]) == {"features", "embedding"}
    assert not (out / "confidences.csv").exists()
    assert not (out / "checkpoints" / "confidence.safetensors").exists()
    assert {phase for phase, _ in epochs(out)} == {"embedding", "validation"}
    assert RunFolder.open(out).load_trained()[2]["method"] == "proxy-anchor"


def test_the_checkpoint_holds_weights_and_proxies_of_the_training_classes(finished_run: FinishedRun) -> None:
    with safe_open(finished_run.path / "checkpoints" / "embedding.safetensors", framework="pt") as file:
        assert file.get_tensor("loss.proxies").shape == (4, 8)
        head = file.get_tensor("head.linear.weight")
    with safe_open(finished_run.path / "head.safetensors", framework="pt") as file:
        assert list(file.keys()) == ["head.linear.bias", "head.linear.weight"]
        assert torch.equal(file.get_tensor("head.linear.weight"), head), "the last weights are kept"


@pytest.mark.parametrize("problem", ["unreadable", "lone", "missing"])
def test_validation_images_that_cannot_be_scored_are_refused_before_training(
    pictures: Path, cache: Path, tmp_path: Path, problem: str
) -> None:
    val = tmp_path / "val"
    if problem != "missing":
        val.mkdir()
    source = sorted(pictures.rglob("*.jpg"))[0]
    for name in {"unreadable": ("a/1", "a/2", "b/1"), "lone": ("a/1", "b/1")}.get(problem, ()):
        (val / name).parent.mkdir(exist_ok=True)
        shutil.copy(source, val / name)
    if problem == "unreadable":
        (val / "a/2").write_bytes(b"hello")
    epochs: list[EpochReport] = []
    with pytest.raises(InputError):
        train(
            pictures, tmp_path / "run", config=make_config(), machine=make_machine(cache), val=val,
            watcher=Watcher(on_epoch=epochs.append),
        )  # fmt: skip
    assert epochs == []


def test_an_output_that_cannot_be_written_is_named_before_any_features(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="the run folder cannot be written"):
        train(pictures, tmp_path / "file" / "run", config=make_config(), machine=make_machine(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("changes", [{"backbone": "alexnet"}, {"resize": 5000}, {"weights": "nowhere.pth"}])
def test_options_that_only_show_later_leave_no_run_folder_behind(
    pictures: Path, cache: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config: TrainConfig = make_config(**changes)
    with pytest.raises(InputError):
        train(pictures, tmp_path / "run", config=config, machine=make_machine(cache))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("place", "flag"), [("run", "--out"), ("cache", "--cache")])
def test_nothing_is_written_into_the_images(pictures: Path, tmp_path: Path, place: str, flag: str) -> None:
    shutil.copytree(pictures, tmp_path / "photos")
    before = sorted((tmp_path / "photos").rglob("*"))
    places = {"run": tmp_path / "run", "cache": tmp_path / "cache"} | {place: tmp_path / "photos" / place}
    with pytest.raises(InputError, match=f"{flag} .* lies inside the images"):
        train(tmp_path / "photos", places["run"], config=make_config(), machine=make_machine(places["cache"]))
    assert sorted((tmp_path / "photos").rglob("*")) == before


def test_validating_on_the_training_images_is_pointed_out(
    pictures: Path, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(pictures, tmp_path / "run", config=make_config(method="raw"), machine=make_machine(cache), val=pictures)
    assert "--val is the training data itself" in caplog.text


def test_a_run_whose_images_turn_out_unusable_is_not_in_the_way_of_the_next(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    shutil.copytree(pictures, tmp_path / "photos")
    kinds = sorted((tmp_path / "photos").iterdir())
    for kind in kinds[1:]:
        for picture in sorted(kind.iterdir())[1:]:
            picture.write_bytes(b"no picture")
    for _ in range(2):
        with pytest.raises(InputError, match="at least two classes"):
            train(tmp_path / "photos", tmp_path / "run", config=make_config(), machine=make_machine(cache))
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("positives", "without", "judge", "advice"),
    [
        (12.0, 0.0, "module", "--confidence-lr"),
        (12.0, 0.0, "leave-one-out", "too little; raise --lambda"),
        (0.3, 0.7, "module", "lower --lambda, or raise --confidence-epochs"),
        (0.3, 0.7, "leave-one-out", "push proxies away: lower --lambda"),
        (1.2, 0.1, "module", None),
        (None, None, "module", None),
    ],
)
def test_confidences_that_separate_nothing_are_pointed_out(
    caplog: pytest.LogCaptureFixture,
    positives: float | None,
    without: float | None,
    judge: str,
    advice: str | None,
) -> None:
    report = EpochReport(
        phase="embedding", epoch=1, epochs=2, loss=1.0, seconds=1.0, images_per_second=1.0,
        positives_per_sample=positives, share_without_positive=without,
    )  # fmt: skip
    warn_of_unsuitable_lambda(report, class_count=20, judge=judge)
    assert (advice in caplog.text) if advice else not caplog.records
    if judge == "leave-one-out":
        assert "--confidence-" not in caplog.text, "leave-one-out does not look at the module's options"


def test_a_device_that_is_not_there_is_refused() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="--device must be"):
        resolve_device("tpu")
    if not torch.cuda.is_available():
        assert resolve_device("auto") == torch.device("cpu")
        with pytest.raises(InputError, match="use --device cpu"):
            resolve_device("cuda")
