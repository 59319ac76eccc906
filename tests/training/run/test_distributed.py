"""Processes that torchrun starts train as one with the same batches, and a run outlives any of them."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from index.errors import InputError
from tests.forked import run
from tests.proxies import find_port
from tests.training.conftest import make_machine
from tests.training.run.finetuning.test_stage import FLAGS, network_config
from tests.training.run.shared_work import CASES
from tests.training.runs import epochs, read_metrics
from training.__main__ import run as run_training
from training.options.resolve import resolve
from training.run.checkpoint import load_checkpoint
from training.run.distributed import ALONE, ProcessRank, Team, current_team, require_same_start
from training.run.run_folder import RunFolder
from training.run.train import train

EXACT, ROUNDED = 1e-12, 5e-5
"""Of weights of about 1: in float64, and of a whole run in float32, whose sums have another order."""
CONFIG, THREE = network_config(epochs=3), (*FLAGS, "--epochs", "3")


def _torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )


def _errors(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in ended.stderr.splitlines() if line.startswith("error: ")]


def _compare(one: Path, other: Path, *, within: float) -> None:
    (first, _), (second, _) = load_checkpoint(one), load_checkpoint(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        atol = 10 * within if name.startswith("confidences") else within  # posteriors are sharpened to a power
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


def _compare_runs(one: Path, other: Path) -> None:
    for file in (RunFolder(one).exported_backbone.stem, "head", "checkpoints/finetuning"):
        _compare(one / f"{file}.safetensors", other / f"{file}.safetensors", within=ROUNDED)


@pytest.fixture(scope="module")
def one_process_run(pictures: Path, other_pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run of one process. Not to be written to."""
    folder = tmp_path_factory.mktemp("one")
    machine = make_machine(folder / "cache")
    train(pictures, folder / "run", config=CONFIG, machine=machine, val=other_pictures)
    return folder / "run"


@pytest.mark.cluster
def test_steps_and_features_of_two_processes_are_those_of_one(pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures, tmp_path / "pictures")
    next((tmp_path / "pictures").rglob("*.jpg")).write_bytes(b"no image")
    work = "tests.training.run.shared_work"
    alone = subprocess.run(
        [sys.executable, "-m", work, tmp_path / "one", tmp_path / "pictures"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    together = _torchrun(work, tmp_path / "two", tmp_path / "pictures")
    assert together.returncode == 0, together.stderr
    _compare(tmp_path / "one", tmp_path / "two", within=EXACT)
    tensors, state = load_checkpoint(tmp_path / "two")
    assert {tensors[f"{case}/head.weight"].dtype for case in CASES} == {torch.float64}
    assert len(tensors["features"]) == 47
    assert (state["size"], state["skipped"]) == (2, load_checkpoint(tmp_path / "one")[1]["skipped"])
    options, files = state["refused"]
    assert options.startswith("rank 1 was started otherwise than rank 0: rank is 1, of rank 0 0; start all")
    assert files.startswith("rank 1 does not see 48 of the 48 images as rank 0 does, the first is PICTURES/")


@pytest.mark.cluster
def test_a_killed_process_ends_the_others_and_one_process_goes_on_to_the_same_weights(
    one_process_run: Path, pictures: Path, other_pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    arguments = (pictures, "--val", other_pictures, "--out", out, "--cache", tmp_path)
    killed = _torchrun("tests.training.run.dying_rank", "die", *arguments, *THREE)
    assert killed.returncode != 0
    (error,) = _errors(killed)
    assert "what was done is kept: start the same command again with --resume" in error
    assert killed.stderr.count("finetuning: begins") == 1
    assert [line["epoch"] for line in read_metrics(out) if line["phase"] == "finetuning"] == [1]
    assert not (out / "head.safetensors").exists()
    machine = make_machine(tmp_path)
    train(pictures, out, config=CONFIG, machine=machine, val=other_pictures, resume=True)
    _compare_runs(one_process_run, out)
    assert epochs(out) == epochs(one_process_run)


@pytest.mark.slow
def test_two_processes_end_as_one(one_process_run: Path, pictures: Path, other_pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = (pictures, "--val", other_pictures, "--out", out, "--cache", tmp_path)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())}  # as torchrun sets them
    places = [{**os.environ, **place, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(lambda env: run((*arguments, *THREE, "--json"), env=env, function=run_training), places))
    written = "".join(ended.stderr for ended in ranks)
    assert [ended.returncode for ended in ranks] == [0, 0], written
    _compare_runs(one_process_run, out)
    assert epochs(out) == epochs(one_process_run)
    assert json.loads("".join(ended.stdout for ended in ranks)) == json.loads((out / "report.json").read_text())
    assert written.count("finetuning: begins") == written.count("finetuning 3/3: ") == 1


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("fail", "error: rank 1: the disk of this machine is gone"),
        ("hang", "error: rank 0: another of the 2 processes has ended or keeps the others waiting (Timed out"),
    ],
)
def test_of_a_process_that_fails_or_hangs_one_line_says_what_to_do(pictures, tmp_path, how, said) -> None:
    arguments = (pictures, "--out", tmp_path / "run", "--cache", tmp_path, "--rank-timeout", "5")
    ended = _torchrun("tests.training.run.dying_rank", how, *arguments, *THREE)
    (error,) = _errors(ended)
    assert error.startswith(said)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 12])
def test_every_image_of_a_batch_has_one_process(count: int, size: int) -> None:
    parts = [Team(rank, size).part_of(count) for rank in range(size)]
    assert [row for part in parts for row in range(count)[part]] == list(range(count))
    lengths = [part.stop - part.start for part in parts]
    assert max(lengths) - min(lengths) <= 1


def test_alone_nothing_is_shared_and_everything_stays_as_it_is() -> None:
    rows, model = torch.zeros(3, 2, requires_grad=True), torch.nn.Linear(2, 2)
    assert current_team() is ALONE
    assert ALONE.gather_rows(rows, 3) is rows
    assert ALONE.share(model) is model
    assert ALONE.run_on_rank0(lambda: 7) == 7
    assert ALONE.part_of(5) == slice(0, 5)
    assert ALONE.gather_values("a") == ALONE.collect_values("a") == ["a"]


def test_what_processes_cannot_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Team, "require_same", lambda *_: None)
    many = Team(size=17)
    with pytest.raises(InputError, match="--batch-size 16 has no image for each of 17 processes"):
        require_same_start(many, config=resolve(finetune="all", batch_size=16), others={})
    require_same_start(many, config=resolve(frozen=True), others={})


def test_torchruns_variables_say_which_process_this_is() -> None:
    variables = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert ProcessRank.read(variables) == ProcessRank(rank=3, size=4, local_rank=1)
    assert ProcessRank.read({}) == ProcessRank.read({**variables, "WORLD_SIZE": "1", "RANK": "0"}) == ProcessRank()
    with pytest.raises(InputError, match=r"MASTER_ADDR, MASTER_PORT is not set: start them with torchrun"):
        ProcessRank.read({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"})
    with pytest.raises(InputError, match="must be whole numbers"):
        ProcessRank.read({**variables, "RANK": "three"})
