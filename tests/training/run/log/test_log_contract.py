"""What every kind of `--log` has of a training, read back from its own store: whole and killed."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.forked import run
from tests.training.conftest import FinishedRun
from tests.training.run.log import tell_runs
from tests.training.run.log.stores import Curves, Stored
from tests.training.runs import read_metrics, weights
from training.options.log_targets import KINDS
from training.run.loggers import report_figures

pytestmark = pytest.mark.slow  # processes that train and tell three programs
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@dataclass(frozen=True, slots=True)
class ToldRuns:
    """The folder of the runs `whole`, `killed` and `later`, and the stores by kind and run."""

    folder: Path
    stores: dict[str, dict[str, Stored]]


@pytest.fixture(scope="module")
def told(finished_run: FinishedRun, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> ToldRuns:
    """Told by processes of their own, one of which was killed. Not to be written to."""
    store, runs = tmp_path_factory.mktemp("stores"), tmp_path_factory.mktemp("told")
    words = (finished_run.data, finished_run.val, cache, store, runs)
    homes = ("HOME", "WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR")
    environment = {**os.environ, "WANDB_MODE": "offline", **dict.fromkeys(homes, str(store))}
    for option, code in (["--kill"], -signal.SIGKILL), ([], 0):
        ran = run([*words, *option], function=tell_runs.main, env=environment, timeout=280)
        assert ran.returncode == code, ran.stderr
    found = json.loads((runs / "stores.json").read_text())
    stores = {kind: [Stored(**one) for one in all_of_it] for kind, all_of_it in found.items()}
    for kind, all_of_it in stores.items():
        assert len(all_of_it) == len({one.name for one in all_of_it}) == 3, kind
    return ToldRuns(runs, {kind: {one.name: one for one in all_of_it} for kind, all_of_it in stores.items()})


def curves_of(run: Path) -> Curves:
    """What metrics.jsonl has, as a store should."""
    curves: Curves = {}
    for line in read_metrics(run):
        figures = line | {f"recall_at_{k}": value for k, value in line.get("recall", {}).items()}
        for name in figures.keys() - {"phase", "epoch", "epochs", "recall"}:
            curves.setdefault(f"{line['phase']}/{name}", []).append((line["epoch"], figures[name]))
    return curves


def assert_same_curves(seen: Curves, expected: Curves, *, timed: bool = True) -> None:
    """To the float32 of TensorBoard; after a kill the times of the epoch that it hit are of another try."""
    assert seen.keys() == expected.keys()
    for name, points in expected.items():
        assert [epoch for epoch, _ in seen[name]] == [epoch for epoch, _ in points], name
        if timed or not name.endswith(("/seconds", "/images_per_second")):
            assert [value for _, value in seen[name]] == pytest.approx([value for _, value in points]), name


@EVERY_KIND
def test_a_store_has_every_epoch_the_options_and_the_main_figures(kind, told, finished_run) -> None:
    stored = told.stores[kind]["whole"]
    assert_same_curves(stored.curves, curves_of(told.folder / "whole"))
    expected = report_figures(json.loads((told.folder / "whole" / "report.json").read_text()))
    assert {"val/recall_at_1", "val/untrained/raw/recall_at_1", "confidences/mean", "seconds/total"} <= {*expected}
    assert {name: stored.outcome[name] for name in expected} == pytest.approx(expected)
    assert stored.options["loss.method"] == "spa"
    assert float(stored.options["embedding.head_epochs"]) == 4
    assert stored.options["data.label_noise"] == "uniform:0.25"
    assert stored.options["data"] == str(finished_run.data)


@EVERY_KIND
def test_the_holdout_is_told_by_question_and_method(kind: str, told: ToldRuns) -> None:
    stored = told.stores[kind]["whole"]
    report = json.loads((told.folder / "whole" / "report.json").read_text())
    found = report["holdout"]["unseen"]["recall_at_1"]
    assert {"trained", "raw", "pca"} <= set(found)
    assert {method: stored.outcome[f"holdout/new_classes/{method}"] for method in found} == pytest.approx(found)


@EVERY_KIND
def test_a_run_that_goes_on_has_every_epoch_once(kind: str, told: ToldRuns) -> None:
    stored = told.stores[kind]["killed"]
    assert_same_curves(stored.curves, curves_of(told.folder / "killed"), timed=False)
    assert "val/recall_at_1" in stored.outcome


@EVERY_KIND
def test_a_finished_run_can_be_told_afterwards(kind: str, told: ToldRuns) -> None:
    assert_same_curves(told.stores[kind]["later"].curves, curves_of(told.folder / "whole"))
    assert told.stores[kind]["later"].outcome == told.stores[kind]["whole"].outcome


@pytest.mark.parametrize("name", ["whole", "killed"])
def test_being_told_changes_nothing_of_the_training(name: str, told: ToldRuns, finished_run: FinishedRun) -> None:
    assert weights(told.folder / name) == weights(finished_run.path)
