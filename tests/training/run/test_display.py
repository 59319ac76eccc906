"""TensorBoard's files of a training, read back: killed and resumed, and where they cannot be written."""

import signal
import sys
from pathlib import Path

import pytest

from index.errors import InputError, MissingDependencyError
from tests.forked import run
from tests.training.conftest import FinishedRun, make_config, make_machine
from tests.training.runs import kill_at, read_metrics
from training.run.display import open_tensorboard
from training.run.phases import EpochReport
from training.run.run_folder import RunFolder
from training.run.train import train

pytest.importorskip("tensorboard", reason="needs the extra `tensorboard`")


def train_until_killed() -> None:
    data, cache, out, events = map(Path, sys.argv[1:])
    with open_tensorboard(events) as log:
        watcher = log.combined_with(kill_at("embedding", 3))
        train(data, out, config=make_config(), machine=make_machine(cache), watcher=watcher)


@pytest.mark.slow
def test_a_killed_run_that_goes_on_has_every_epoch_once(finished_run: FinishedRun, cache: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out, events = tmp_path / "run", tmp_path / "events"
    assert run((finished_run.data, cache, out, events), function=train_until_killed).returncode == -signal.SIGKILL
    with open_tensorboard(events) as log:
        train(finished_run.data, out, config=make_config(), machine=make_machine(cache), watcher=log, resume=True)
    (own,) = events.iterdir()
    found = EventAccumulator(str(own), size_guidance={"scalars": 0}).Reload()
    lines = read_metrics(out)
    assert {tag.partition("/")[0] for tag in found.Tags()["scalars"]} == {line["phase"] for line in lines}
    for phase in ("confidence", "embedding"):
        expected = [(line["epoch"], pytest.approx(line["loss"])) for line in lines if line["phase"] == phase]
        assert sorted((event.step, event.value) for event in found.Scalars(f"{phase}/loss")) == expected


def test_a_disk_that_fills_is_warned_of_once_and_does_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    def fill(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    run_folder = RunFolder.create(tmp_path / "run", config=make_config(), data=tmp_path / "images")
    with open_tensorboard(tmp_path / "events") as log:
        log.on_run(run_folder)
        monkeypatch.setattr(SummaryWriter, "flush", fill)
        for epoch in (1, 2, 3):
            log.on_epoch(EpochReport("embedding", epoch, 3, loss=1.0, seconds=1.0, images_per_second=1.0))
    (warning,) = [one.getMessage() for one in caplog.records if one.name == "training.run.display"]
    assert "No space left on device" in warning


def test_what_cannot_be_opened_is_told(
    finished_run: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(folder: Path) -> None:
        machine = make_machine(tmp_path / "unused")
        with open_tensorboard(folder) as log:
            train(finished_run.data, tmp_path / "run", config=make_config(), watcher=log, machine=machine)

    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--tensorboard.* lies inside the images"):
        begin(finished_run.data / "events")
    with pytest.raises(InputError, match=r"Not a directory.*name a folder that can be written"):
        begin(tmp_path / "file" / "events")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingDependencyError, match=r"--tensorboard needs .*retrieval-app\[tensorboard\]"):
        begin(tmp_path / "events")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
