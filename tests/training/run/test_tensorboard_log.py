"""What TensorBoard's files have of a training, read back: whole, killed, told afterwards, and not writable."""

import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from index.errors import InputError, MissingDependencyError
from tests.forked import run
from tests.training.conftest import FinishedRun, make_config, make_machine
from tests.training.runs import kill_at, read_metrics, weights
from training.run import tensorboard_log
from training.run.tensorboard_log import open_tensorboard, report_figures
from training.run.train import train

pytest.importorskip("tensorboard", reason="needs the extra `tensorboard`")
Curves = dict[str, list[tuple[int, float]]]
"""(epoch, value) of every figure, in the order in which they are stored."""


@dataclass(slots=True)
class Stored:
    """One run in a folder of TensorBoard."""

    curves: Curves = field(default_factory=dict)
    outcome: dict[str, float] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


def read_events(folder: Path) -> Stored:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    (own,) = folder.iterdir()
    found = EventAccumulator(str(own), size_guidance={"scalars": 0}).Reload()
    stored = Stored()
    for tag in found.Tags()["scalars"]:
        points = [(event.step, event.value) for event in found.Scalars(tag)]
        if [step for step, _ in points] == [0]:
            stored.outcome[tag] = points[0][1]
        else:
            stored.curves[tag] = sorted(points)  # two files of one second have no order
    content = found.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    for name, value in HParamsPluginData.FromString(content).session_start_info.hparams.items():
        stored.options[name] = str(getattr(value, value.WhichOneof("kind")))
    return stored


def curves_of(run_path: Path) -> Curves:
    """What metrics.jsonl has, as the folder should."""
    curves: Curves = {}
    for line in read_metrics(run_path):
        figures = line | {f"recall_at_{k}": value for k, value in line.get("recall", {}).items()}
        for name in figures.keys() - {"phase", "epoch", "epochs", "recall"}:
            curves.setdefault(f"{line['phase']}/{name}", []).append((line["epoch"], figures[name]))
    return curves


def assert_same_curves(seen: Curves, expected: Curves, *, timed: bool = True) -> None:
    """To float32; after a kill the times of the epoch that it hit are of another try."""
    assert seen.keys() == expected.keys()
    for name, points in expected.items():
        assert [epoch for epoch, _ in seen[name]] == [epoch for epoch, _ in points], name
        if timed or not name.endswith(("/seconds", "/images_per_second")):
            assert [value for _, value in seen[name]] == pytest.approx([value for _, value in points]), name


@pytest.mark.slow
def test_a_run_has_every_epoch_its_options_and_main_figures_at_once_and_afterwards(
    finished_run: FinishedRun, cache: Path, tmp_path: Path
) -> None:
    given = {
        "config": make_config(label_noise="uniform:0.25", holdout=True),
        "machine": make_machine(cache),
        "val": finished_run.val,
    }
    out = tmp_path / "run"
    with open_tensorboard(tmp_path / "events") as log:
        train(finished_run.data, out, **given, watcher=log)
    assert weights(out) == weights(finished_run.path)
    stored = read_events(tmp_path / "events")
    assert_same_curves(stored.curves, curves_of(out))
    report = json.loads((out / "report.json").read_text())
    expected = report_figures(report)
    assert {"val/recall_at_1", "val/untrained/raw/recall_at_1", "confidences/mean", "seconds/total"} <= {*expected}
    assert {name: stored.outcome[name] for name in expected} == pytest.approx(expected)
    held_out = report["holdout"]["unseen"]["scores"]
    assert {method: stored.outcome[f"holdout/new_classes/{method}"] for method in held_out} == pytest.approx(held_out)
    assert stored.options["method"] == "spa"
    assert stored.options["label_noise"] == "uniform:0.25"
    assert stored.options["data"] == str(finished_run.data)
    with open_tensorboard(tmp_path / "later") as log:
        train(finished_run.data, out, **given, watcher=log, resume=True)
    assert read_events(tmp_path / "later") == stored


def train_until_killed() -> None:
    data, cache, out, events = map(Path, sys.argv[1:])
    with open_tensorboard(events) as log:
        watcher = log.beside(kill_at("embedding", 3))
        train(data, out, config=make_config(), machine=make_machine(cache), watcher=watcher)


@pytest.mark.slow
def test_a_killed_run_that_goes_on_has_every_epoch_once(finished_run: FinishedRun, cache: Path, tmp_path: Path) -> None:
    words = (finished_run.data, cache, tmp_path / "run", tmp_path / "events")
    assert run(words, function=train_until_killed).returncode == -signal.SIGKILL
    with open_tensorboard(tmp_path / "events") as log:
        train(
            finished_run.data,
            tmp_path / "run",
            config=make_config(),
            machine=make_machine(cache),
            watcher=log,
            resume=True,
        )
    assert_same_curves(read_events(tmp_path / "events").curves, curves_of(tmp_path / "run"), timed=False)


def test_a_disk_that_fills_is_warned_of_once_and_costs_nothing(
    finished_run: FinishedRun,
    cache: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensorboard_log, "write_figures", fill)
    with open_tensorboard(tmp_path / "events") as log:
        train(
            finished_run.data,
            tmp_path / "run",
            config=make_config(label_noise="uniform:0.25"),
            val=finished_run.val,
            machine=make_machine(cache),
            watcher=log,
        )
    assert weights(tmp_path / "run") == weights(finished_run.path)
    (warning,) = [one.getMessage() for one in caplog.records if one.name == "training.run.tensorboard_log"]
    assert "No space left on device" in warning


def test_what_cannot_be_opened_is_said_before_any_work_and_leaves_no_run(
    finished_run: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(folder: Path) -> None:
        with open_tensorboard(folder) as log:
            train(
                finished_run.data,
                tmp_path / "run",
                config=make_config(),
                watcher=log,
                machine=make_machine(tmp_path / "unused"),
            )

    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--tensorboard.* lies inside the images"):
        begin(finished_run.data / "events")
    with pytest.raises(InputError, match="file/events: Not a directory; name a folder that can be written"):
        begin(tmp_path / "file" / "events")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingDependencyError, match=r"--tensorboard needs .*retrieval-app\[tensorboard\]"):
        begin(tmp_path / "events")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
