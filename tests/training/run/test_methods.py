"""Whole runs of losses with a state, of methods without training, and with guidance."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from index.errors import InputError
from tests.training.conftest import Trainer
from tests.training.runs import epochs, figures, read_csv
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


def _write_guidance(path: Path, names: list[str]) -> Path:
    vectors = np.random.default_rng(0).normal(size=(len(names), 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.savez(path, similarities=vectors @ vectors.T, classes=np.array(names))
    return path


def test_guidance_steers_procsim_by_classes_as_by_images_and_survives_an_interruption(trainer: Trainer) -> None:
    names = ["unused", *sorted((path.name for path in trainer.pictures.iterdir()), reverse=True)]
    guidance, by_image = _write_guidance(trainer.folder / "words.npz", names), trainer.folder / "images.npz"
    steered = {"method": "procsim", "omega": 2.0, "guidance": str(guidance)}
    trainer("plain", method="procsim")
    trainer("classes", **steered)
    assert trainer.weights("classes") != trainer.weights("plain")
    trainer(stop=("embedding", 2), **steered)
    trainer(resume=True, **steered)
    assert trainer.weights() == trainer.weights("classes")
    assert not [name for name in _checkpoint(trainer.folder / "run") if "guidance" in name], "the file has it"

    labels = read_csv(trainer.folder / "classes" / "labels.csv")[::-1]
    rows = [names.index(row["given"]) for row in labels]
    similarities = np.load(guidance)["similarities"][np.ix_(rows, rows)]
    np.savez(by_image, similarities=similarities, sha256=np.array([row["sha256"] for row in labels]))
    trainer("images", **steered | {"guidance": str(by_image)})
    assert trainer.weights("images") == trainer.weights("classes")


def test_a_guidance_file_that_lacks_a_class_is_refused_before_any_phase(trainer: Trainer) -> None:
    first, *others = sorted(path.name for path in trainer.pictures.iterdir())
    path, reports = _write_guidance(trainer.folder / "words.npz", others), list[EpochReport]()
    with pytest.raises(InputError, match=rf"words\.npz: 'classes' lacks 1 of the 4 that the run .*: {first}"):
        trainer(
            method="procsim",
            omega=1.0,
            guidance=str(path),
            min_confidence=0.1,
            watcher=Watcher(on_epoch=reports.append),
        )
    assert reports == []
    assert not (trainer.folder / "run").exists(), "it is not in the way of the next try"
