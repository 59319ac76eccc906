"""Runs that are interrupted or killed, and go on to the same bits."""

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from index.errors import RunError
from tests.forked import run
from tests.training.conftest import FinishedRun, Trainer, make_config, make_machine
from tests.training.runs import InterruptionError, figures, kill_at, read_csv, weights
from training.backbone.backbones import load_backbone
from training.run.checkpoint import load_checkpoint, pack_optimizer, save_checkpoint, unpack_optimizer
from training.run.phases import EpochReport, Watcher
from training.run.run_folder import RunFolder
from training.run.train import train

NOISY = {"label_noise": "uniform:0.25"}
"""What the finished run was given."""


def test_a_run_that_is_interrupted_in_every_epoch_arrives_at_the_same_bits(finished_run, trainer) -> None:
    out, seen = trainer.folder / "run", set[tuple[str, int]]()

    def stop_at_news(report: EpochReport) -> None:
        if (report.phase, report.epoch) not in seen:
            seen.add((report.phase, report.epoch))
            raise InterruptionError

    for attempt in range(7):
        with pytest.raises(InterruptionError):
            trainer(val=finished_run.val, resume=attempt > 0, watcher=Watcher(on_epoch=stop_at_news), **NOISY)
    report = trainer(val=finished_run.val, resume=True, **NOISY)
    assert weights(out) == weights(finished_run.path)
    assert figures(out) == figures(finished_run.path)
    assert (out / "confidences.csv").read_text() == (finished_run.path / "confidences.csv").read_text()
    for name in ("val", "baselines", "images", "classes", "skipped"):
        assert report[name] == finished_run.report[name]


def train_until_killed() -> None:
    """In a process of its own, which is killed after the third epoch of the head."""
    threads, *paths = sys.argv[1:]
    torch.set_num_threads(int(threads))
    data, out, cache, val = map(Path, paths)
    train(data, out, config=make_config(**NOISY), machine=make_machine(cache), val=val, watcher=kill_at("embedding", 3))


@pytest.mark.slow
def test_a_killed_process_leaves_a_run_that_goes_on_to_the_same_bits(finished_run, trainer) -> None:
    out = trainer.folder / "run"
    arguments = (torch.get_num_threads(), finished_run.data, out, trainer.cache, finished_run.val)
    killed = run(arguments, function=train_until_killed)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (out / "head.safetensors").exists()
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "embedding", "epoch": 4, "loss": 0.5')  # torn while it was written
    trainer(val=finished_run.val, resume=True, **NOISY)
    assert weights(out) == weights(finished_run.path)
    assert figures(out) == figures(finished_run.path)


def test_resuming_a_finished_run_gives_its_report_and_touches_nothing(finished_run, tmp_path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")}
    again = Trainer(finished_run.path.parent, finished_run.data, tmp_path / "unused")
    assert again(val=finished_run.val, resume=True, **NOISY) == finished_run.report
    assert {path: path.stat().st_mtime_ns for path in finished_run.path.rglob("*")} == before
    assert not (tmp_path / "unused").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_an_interrupted_run_goes_on_to_the_same_bits(trainer, other_pictures) -> None:
    machine = make_machine(trainer.folder / "cache", device=torch.device("cuda"), precision="auto")
    options = {"val": other_pictures, "machine": machine}
    trainer("straight", **options)
    trainer(stop=("embedding", 2), **options)
    trainer(resume=True, **options)
    assert trainer.weights() == trainer.weights("straight")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "cannot resume with other options: seed was .*, is 1"),
        ({"label_noise": None}, "label_noise was .*, is None"),
        ({"pooling": "gem"}, "pooling was .*, is 'gem'"),
        ({"data": "val"}, "data was .*, is "),
        ({"val": None}, "val was .*, is None"),
    ],
)
def test_resuming_with_another_option_or_other_images_is_refused_by_name(
    finished_run: FinishedRun, cache: Path, changes: dict[str, Any], said: str
) -> None:
    again = Trainer(finished_run.path.parent, finished_run.val if "data" in changes else finished_run.data, cache)
    options = {name: value for name, value in changes.items() if name != "data"}
    with pytest.raises(RunError, match=said):
        again(resume=True, **{**NOISY, "val": finished_run.val, **options})


def test_a_run_of_another_format_is_refused(finished_run: FinishedRun, tmp_path: Path) -> None:
    document = json.loads((finished_run.path / "config.json").read_text()) | {"format_version": 2}
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match="format version 2, expected 1; train anew"):
        RunFolder.open(tmp_path)


def test_a_run_that_lacks_a_newer_option_opens(finished_run: FinishedRun, tmp_path: Path) -> None:
    document = json.loads((finished_run.path / "config.json").read_text())
    del document["config"]["eval_every"]
    (tmp_path / "config.json").write_text(json.dumps(document))
    shutil.copy(finished_run.path / "labels.csv", tmp_path)
    assert RunFolder.open(tmp_path).read_labels() == RunFolder.open(finished_run.path).read_labels()


def test_resuming_where_there_is_no_run_or_with_other_features_is_refused(trainer, monkeypatch) -> None:
    with pytest.raises(RunError, match="no training run here"):
        trainer(resume=True)
    assert not (trainer.folder / "run").exists()
    trainer(stop=("embedding", 2))
    with pytest.raises(RunError, match="precision was 'float32', is 'bfloat16'"):
        trainer(machine=make_machine(trainer.cache, precision="bfloat16"), resume=True)
    other = load_backbone("squeezenet1_1", "none", seed=9)
    monkeypatch.setattr("training.run.prepare.load_backbone", lambda *_, **__: other)
    with pytest.raises(RunError, match="weights_sha256 was"):
        trainer(resume=True)


def test_a_resumed_run_knows_what_was_skipped_takes_no_new_images_and_refuses_changed_ones(trainer) -> None:
    data = trainer.copy_pictures()
    first, second = sorted(data.rglob("*.jpg"))[:2]
    first.with_name("broken.jpg").write_bytes(b"")
    first.with_name("dangling.jpg").symlink_to(data / "nowhere")
    options = {"data": data, "method": "proxy-anchor", "head_epochs": 2}
    trainer("straight", **options)
    trainer(stop=("embedding", 1), **options)
    shutil.copytree(trainer.folder / "run", trainer.folder / "other")
    shutil.copy(first, first.with_name("a-new-one.jpg"))
    report = trainer(resume=True, **options)
    assert (report["images"], report["skipped"]) == (48, 2)
    assert trainer.weights() == trainer.weights("straight")
    found = {(Path(row["path"]).name, row["reason"]) for row in read_csv(trainer.folder / "run" / "skipped.csv")}
    assert found == {("broken.jpg", "empty-file"), ("dangling.jpg", "dangling-link")}
    second.write_bytes(first.read_bytes())
    with pytest.raises(RunError, match="images have changed or vanished"):
        trainer("other", resume=True, **options)


def _make(memory_format: torch.memory_format) -> tuple[torch.nn.Parameter, torch.optim.AdamW]:
    start = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    parameter = torch.nn.Parameter(start.to(memory_format=memory_format))
    return parameter, torch.optim.AdamW([parameter], lr=0.1, fused=True)


def _step(parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer, seed: int) -> None:
    parameter.grad = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(seed)).to(
        memory_format=torch.channels_last
    )
    optimizer.step()


def test_an_optimizer_of_weights_with_channels_last_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Files keep tensors in one order; a fused step reads weights and averages side by side in memory."""
    straight, optimizer = _make(torch.channels_last)
    _step(straight, optimizer, 1)
    save_checkpoint(tmp_path / "half.safetensors", pack_optimizer(optimizer), state={})
    resumed, again = _make(torch.channels_last)
    with torch.no_grad():
        resumed.copy_(straight)
    unpack_optimizer(again, load_checkpoint(tmp_path / "half.safetensors")[0])
    _step(straight, optimizer, 2)
    _step(resumed, again, 2)
    assert torch.equal(resumed, straight)


def test_a_checkpoint_is_safetensors_and_replaced_whole(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", {"a": torch.ones(2)}, state={"epoch": 1})
    save_checkpoint(tmp_path / "c", {"b": torch.zeros(3)[::2]}, state={"epoch": 2})
    with safe_open(tmp_path / "c", framework="pt") as file:
        assert list(file.keys()) == ["b"]
    assert load_checkpoint(tmp_path / "c")[1] == {"epoch": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("content", [b"", b"torn", None])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "c").write_bytes(content)
    with pytest.raises(RunError, match="c: not a readable checkpoint"):
        load_checkpoint(tmp_path / "c")
