"""What becomes of a training whose watchers fail, cannot be opened, or are not there at all."""

import os
import sys
from pathlib import Path

import pytest

import retrieval_app
from index.errors import InputError
from tests.forked import run
from tests.training.conftest import BACKBONE, FinishedRun, make_config, make_machine
from tests.training.run.log.stores import read_store
from tests.training.runs import weights
from training.options.log_targets import LogTarget, parse_log_targets
from training.run.loggers import TRACKERS, WatchedRun, open_loggers, open_target
from training.run.phases import Watcher
from training.run.train import train


def test_a_store_that_breaks_is_warned_of_once_and_costs_nothing(
    finished_run: FinishedRun, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config, out = make_config(label_noise="uniform:0.25"), tmp_path / "run"

    class Breaking:
        """Stands for a server that is gone from the second epoch on."""

        where = "nowhere"
        told: list[str] = []  # noqa: RUF012

        def tell_epoch(self, phase: str, epoch: int, figures: object, *, number: int) -> None:
            self.told.append(f"{phase} {epoch}")
            if number == 2:
                raise ConnectionError("the server\nis gone")

        def tell_outcome(self, figures: object, words: object) -> None:
            self.told.append("outcome")

        def close(self, *, finished: bool) -> None:
            self.told.append("closed")

    def open_tracker(place: str | None, run: WatchedRun) -> Breaking:
        return Breaking()

    monkeypatch.setitem(TRACKERS, "wandb", open_tracker)
    targets = [LogTarget("wandb"), LogTarget("tensorboard", str(tmp_path / "events"))]
    with open_loggers(targets) as loggers:
        train(finished_run.data, out, config=config, machine=make_machine(cache), val=finished_run.val,
              watcher=loggers)  # fmt: skip
    assert weights(out) == weights(finished_run.path)
    assert Breaking.told == ["confidence 1", "confidence 2"]
    (warning,) = [one.getMessage() for one in caplog.records if one.name == "training.run.loggers"]
    assert warning.startswith("--log wandb: ConnectionError: the server is gone; it is told nothing more.")


def test_what_cannot_be_opened_is_said_before_any_work_and_leaves_no_run(finished_run, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    for place, said in (
        (finished_run.data / "events", "--log tensorboard: .* lies inside the images"),
        (tmp_path / "file" / "events", "it cannot be opened: .*Not a directory.* a folder that can be written"),
    ):
        with pytest.raises(InputError, match=said), open_loggers([LogTarget("tensorboard", str(place))]) as loggers:
            train(finished_run.data, tmp_path / "run", config=make_config(), watcher=loggers,
                  machine=make_machine(tmp_path / "unused"))  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def print_errors() -> None:
    """In a process of its own, in a folder: what opening each of the given stores says."""
    folder, *texts = sys.argv[1:]
    os.chdir(folder)
    for text in texts:
        (target,) = parse_log_targets(text)
        with pytest.raises(InputError) as caught:
            open_target(target, WatchedRun("1a", Path("run"), Path("data"), {}))
        sys.stdout.write(" ".join(str(caught.value).split()) + "\n")


@pytest.mark.slow
def test_a_store_that_cannot_be_opened_is_named_with_what_to_do(tmp_path: Path) -> None:
    expected = {
        "mlflow:postgresql://me:s3cret@host/a": "--log mlflow:postgresql://me:***@host/a: it cannot be opened",
        "mlflow:runs": "--log mlflow:runs: it cannot be opened: ",
        "wandb:mine": "--log wandb:mine: it cannot be opened: PermissionError: nobody has logged in to wandb",
    }
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
    ran = run([tmp_path, *expected], function=print_errors, env={**unset, "HOME": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line[: len(said)] for line, said in zip(lines, expected.values(), strict=True)] == [*expected.values()]


def test_python_programs_name_what_to_tell_beside_their_own_watcher(finished_run, cache, tmp_path) -> None:
    phases, notes = [], []
    retrieval_app.train(
        finished_run.data, tmp_path / "run", backbone=BACKBONE, weights="none", resize=40, crop=32, cache=cache,
        recipe="spa-paper", holdout=False, head_epochs=2, head_batch_size=16, embedding_dim=8, confidence_epochs=1,
        workers=1, frozen=True,
        device="cpu", precision="float32", log=f"tensorboard:{tmp_path / 'events'}",
        watcher=Watcher(on_phase=phases.append, on_note=notes.append),
    )  # fmt: skip
    (stored,) = read_store("tensorboard", tmp_path)
    assert stored.name == "run"
    assert [epoch for epoch, _ in stored.curves["embedding/loss"]] == [1, 2]
    assert phases == ["features", "confidence", "embedding"]
    assert notes == [f"--log tensorboard:{tmp_path / 'events'}: tensorboard --logdir {tmp_path / 'events'}"]
