"""Whole runs of losses with a state, and of methods without training."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.training.conftest import Trainer
from tests.training.runs import epochs, figures
from training.run.phases import EpochReport, Watcher
from training.run.run_folder import RunFolder


def _checkpoint(run: Path) -> dict[str, list[float]]:
    tensors = load_file(run / "checkpoints" / "embedding.safetensors")
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "prism"},
        {"method": "adaptive-proxy-anchor", "margins": "per-class"},
        {"method": "spa", "min_confidence": 0.25},
    ],
    ids=lambda changes: " ".join(str(value) for value in changes.values()),
)
def test_a_loss_with_a_state_resumes_in_phase_two_to_the_same_bits(trainer: Trainer, changes: dict[str, Any]) -> None:
    options = {**changes, "label_noise": "uniform:0.3", "head_epochs": 3}
    trainer("straight", **options)
    trainer("resumed", stop=("embedding", 2), **options)
    trainer("resumed", resume=True, **options)
    straight, resumed = trainer.folder / "straight", trainer.folder / "resumed"
    assert trainer.weights("resumed") == trainer.weights("straight")
    assert figures(resumed) == figures(straight)
    assert _checkpoint(resumed) == _checkpoint(straight)
    assert [epoch for phase, epoch in epochs(straight) if phase == "embedding"] == [1, 2, 3]


@pytest.mark.parametrize("method", ["raw", "wccn"])
def test_untrained_methods_have_no_phase_but_a_baseline(trainer: Trainer, other_pictures: Path, method: str) -> None:
    out, reports, width = trainer.folder / "run", list[EpochReport](), 512 if method == "raw" else 8
    options = {"method": method, "label_noise": "uniform:0.5", "val": other_pictures}
    report = trainer(watcher=Watcher(on_epoch=reports.append), **options)
    assert reports == []
    assert set(report["phases"]) == {"features", "projection"}
    assert {**report["val"], "embedding_dim": width} == report["baselines"][method]
    assert not list((out / "checkpoints").iterdir())
    assert not (out / "metrics.jsonl").exists()
    assert not (out / "confidences.csv").exists()
    state = RunFolder.open(out).load_trained()[2]
    assert state == {"method": method, "class_count": 4, "embedding_dim": width}
    assert trainer(resume=True, **options) == report


def test_untrained_methods_do_not_see_the_labels(trainer: Trainer) -> None:
    for name, noise in (("clean", None), ("noisy", "uniform:1")):
        trainer(name, method="pca-whitened", label_noise=noise)
    assert trainer.weights("clean") == trainer.weights("noisy")
