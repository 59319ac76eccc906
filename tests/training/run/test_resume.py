"""Runs that are interrupted or killed, and go on to the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from index.errors import RunError
from tests.training.conftest import FinishedRun, make_config, make_machine
from tests.training.runs import InterruptionError, figures, interrupt_at, read_csv, weights
from training.backbone.backbones import load_backbone
from training.run.phases import EpochReport, Watcher
from training.run.train import train


def test_a_run_that_is_interrupted_in_every_epoch_arrives_at_the_same_bits(
    finished_run: FinishedRun, cache: Path, tmp_path: Path
) -> None:
    config, machine = make_config(label_noise="uniform:0.25"), make_machine(cache)
    out = tmp_path / "run"
    seen: set[tuple[str, int]] = set()

    def stop_at_news(report: EpochReport) -> None:
        if (report.phase, report.epoch) not in seen:
            seen.add((report.phase, report.epoch))
            raise InterruptionError

    for attempt in range(7):
        with pytest.raises(InterruptionError):
            train(
                finished_run.data, out, config=config, machine=machine, val=finished_run.val, resume=attempt > 0,
                watcher=Watcher(on_epoch=stop_at_news),
            )  # fmt: skip
    report = train(finished_run.data, out, config=config, machine=machine, val=finished_run.val, resume=True)
    assert weights(out) == weights(finished_run.path)
    assert figures(out) == figures(finished_run.path)
    assert (out / "confidences.csv").read_text() == (finished_run.path / "confidences.csv").read_text()
    for name in ("val", "baselines", "images", "classes", "skipped"):
        assert report[name] == finished_run.report[name]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.training.conftest import make_config, make_machine
from training.run.phases import Watcher
from training.run.train import train
def on_epoch(report):
    if (report.phase, report.epoch) == ("embedding", 3):
        os.kill(os.getpid(), signal.SIGKILL)
data, out, cache, val = map(Path, sys.argv[1:])
train(data, out, config=make_config(label_noise="uniform:0.25"), machine=make_machine(cache), val=val,
      watcher=Watcher(on_epoch=on_epoch))
"""


@pytest.mark.slow
def test_a_killed_process_leaves_a_run_that_goes_on_to_the_same_bits(
    finished_run: FinishedRun, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    arguments = [str(path) for path in (finished_run.data, out, cache, finished_run.val)]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (out / "head.safetensors").exists()
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "validation", "epoch": 4, "recall": {"1": 0.5}')  # torn while it was written
    config = make_config(label_noise="uniform:0.25")
    train(finished_run.data, out, config=config, machine=make_machine(cache), val=finished_run.val, resume=True)
    assert weights(out) == weights(finished_run.path)
    assert figures(out) == figures(finished_run.path)


def test_resuming_a_finished_run_gives_its_report_and_touches_nothing(
    finished_run: FinishedRun, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")}
    report = train(
        finished_run.data, finished_run.path, config=make_config(label_noise="uniform:0.25"),
        machine=make_machine(tmp_path / "unused"), val=finished_run.val, resume=True,
    )  # fmt: skip
    assert report == finished_run.report
    assert {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")} == before
    assert not (tmp_path / "unused").exists()


def test_resuming_where_there_is_no_run_is_refused(tmp_path: Path, pictures: Path, cache: Path) -> None:
    with pytest.raises(RunError, match="no training run here"):
        train(pictures, tmp_path / "run", config=make_config(), machine=make_machine(cache), resume=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("changes", [{"seed": 1}, {"lambda_": 0.2}, {"label_noise": None}, {"pooling": "gem"}])
def test_resuming_with_another_option_is_refused_by_name(
    finished_run: FinishedRun, cache: Path, changes: dict[str, Any]
) -> None:
    config = make_config(**({"label_noise": "uniform:0.25"} | changes))
    ((name, value),) = changes.items()
    with pytest.raises(RunError, match=rf"cannot resume with other options: {name} was .*, is {value!r}"):
        train(finished_run.data, finished_run.path, config=config, machine=make_machine(cache), resume=True,
              val=finished_run.val)  # fmt: skip


def test_resuming_with_other_data_or_validation_images_is_refused_by_name(
    finished_run: FinishedRun, cache: Path
) -> None:
    config, machine = make_config(label_noise="uniform:0.25"), make_machine(cache)
    with pytest.raises(RunError, match=r"data was .*, is "):
        train(
            finished_run.val, finished_run.path, config=config, machine=machine, val=finished_run.val, resume=True
        )
    with pytest.raises(RunError, match=r"val was .*, is None"):
        train(finished_run.data, finished_run.path, config=config, machine=machine, resume=True)


@pytest.fixture
def half_run(pictures: Path, cache: Path, tmp_path: Path) -> Path:
    """A run that was interrupted in phase 2."""
    out = tmp_path / "half"
    with pytest.raises(InterruptionError):
        train(
            pictures, out, config=make_config(), machine=make_machine(cache), watcher=interrupt_at("embedding", 2)
        )
    return out


def test_resuming_in_another_precision_is_refused_by_name(half_run: Path, pictures: Path, cache: Path) -> None:
    with pytest.raises(RunError, match="precision was 'float32', is 'bfloat16'"):
        train(
            pictures,
            half_run,
            config=make_config(),
            machine=make_machine(cache, precision="bfloat16"),
            resume=True,
        )


def test_resuming_with_other_weights_is_refused_by_name(
    half_run: Path, pictures: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = load_backbone("squeezenet1_1", "none", seed=9)
    monkeypatch.setattr("training.run.train.load_backbone", lambda *_, **__: other)
    with pytest.raises(RunError, match="weights_sha256 was"):
        train(pictures, half_run, config=make_config(), machine=make_machine(cache), resume=True)


def test_resuming_after_images_changed_is_refused(pictures: Path, cache: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    shutil.copytree(pictures, data)
    with pytest.raises(InterruptionError):
        train(data, out, config=make_config(), machine=make_machine(cache), watcher=interrupt_at("confidence", 1))
    victim = sorted(data.rglob("*.jpg"))[3]
    victim.write_bytes(sorted(data.rglob("*.jpg"))[4].read_bytes())
    with pytest.raises(RunError, match="images have changed or vanished"):
        train(data, out, config=make_config(), machine=make_machine(cache), resume=True)


def test_images_that_appear_after_the_start_do_not_join_a_resumed_run(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(pictures, data)
    config, machine = make_config(method="proxy-anchor", epochs=2), make_machine(cache)
    straight = train(data, tmp_path / "straight", config=config, machine=machine)
    with pytest.raises(InterruptionError):
        train(data, tmp_path / "run", config=config, machine=machine, watcher=interrupt_at("embedding", 1))
    first = sorted(data.rglob("*.jpg"))[0]
    shutil.copy(first, first.with_name("a-new-one.jpg"))
    resumed = train(data, tmp_path / "run", config=config, machine=machine, resume=True)
    assert resumed["images"] == straight["images"]
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")


def test_unusable_images_are_skipped_counted_and_still_known_after_a_resume(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    shutil.copytree(pictures, data)
    kind = sorted(path for path in data.iterdir())[0]
    (kind / "broken.jpg").write_bytes(b"")
    (kind / "dangling.jpg").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InterruptionError):
        train(data, out, config=make_config(), machine=make_machine(cache), watcher=interrupt_at("embedding", 1))
    report = train(data, out, config=make_config(), machine=make_machine(cache), resume=True)
    assert (report["images"], report["skipped"]) == (48, 2)
    found = {(Path(row["path"]).name, row["reason"]) for row in read_csv(out / "skipped.csv")}
    assert found == {("broken.jpg", "empty-file"), ("dangling.jpg", "dangling-link")}


@pytest.mark.parametrize("features", ["live", pytest.param("cached:3", marks=pytest.mark.slow)])
def test_other_sources_of_features_train_and_resume_to_the_same_bits(
    pictures: Path, cache: Path, tmp_path: Path, features: str
) -> None:
    config, machine = make_config(features=features, epochs=2, confidence_epochs=2), make_machine(cache, workers=2)
    plain = make_config(epochs=2, confidence_epochs=2)
    train(pictures, tmp_path / "plain", config=plain, machine=machine)
    train(pictures, tmp_path / "straight", config=config, machine=machine)
    with pytest.raises(InterruptionError):
        train(pictures, tmp_path / "run", config=config, machine=machine, watcher=interrupt_at("embedding", 1))
    train(pictures, tmp_path / "run", config=config, machine=machine, resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")
    assert weights(tmp_path / "run") != weights(tmp_path / "plain")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("features", ["live", "cached:2"])
def test_on_a_gpu_an_interrupted_run_goes_on_to_the_same_bits(
    pictures: Path, other_pictures: Path, tmp_path: Path, features: str
) -> None:
    config = make_config(features=features)
    machine = make_machine(tmp_path / "cache", device=torch.device("cuda"), precision="auto")
    train(pictures, tmp_path / "straight", config=config, machine=machine, val=other_pictures)
    with pytest.raises(InterruptionError):
        train(pictures, tmp_path / "run", config=config, machine=machine, val=other_pictures,
              watcher=interrupt_at("embedding", 2))  # fmt: skip
    train(pictures, tmp_path / "run", config=config, machine=machine, val=other_pictures, resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")
