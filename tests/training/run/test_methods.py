"""Whole runs of every method: to the end, through an interruption, with images left out, with guidance."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from index.errors import InputError, MissingDependencyError, RunError
from tests.training.conftest import make_config, make_machine
from tests.training.runs import InterruptionError, epochs, figures, interrupt_at, read_csv, weights
from training.options.losses import LIBRARY_METHODS
from training.run.phases import EpochReport, Watcher
from training.run.run_folder import RunFolder
from training.run.train import train

# Losses with a state of their own; of the others tests of the losses and of the loop show the rest.
VARIANTS: dict[str, dict[str, Any]] = {
    "superloss": {"method": "superloss"},
    "cross-batch-memory": {"method": "cross-batch-memory"},
    "adaptive-per-class": {"method": "adaptive-proxy-anchor", "margins": "per-class"},
    "procsim-average": {"method": "procsim", "procsim_threshold": "global-average"},
    "trusted-spa": {"method": "spa", "min_confidence": 0.25},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_loss_with_a_state_resumes_in_phase_two_to_the_same_bits(
    pictures: Path, cache: Path, tmp_path: Path, name: str
) -> None:
    if name in LIBRARY_METHODS:
        pytest.importorskip("pytorch_metric_learning")
    config, machine = make_config(**VARIANTS[name], label_noise="bernoulli:0.3", epochs=3), make_machine(cache)
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    train(pictures, straight, config=config, machine=machine)
    with pytest.raises(InterruptionError):
        train(pictures, resumed, config=config, machine=machine, watcher=interrupt_at("embedding", 2))
    train(pictures, resumed, config=config, machine=machine, resume=True)
    assert weights(resumed) == weights(straight)
    assert figures(resumed) == figures(straight)
    assert _checkpoint(resumed) == _checkpoint(straight)
    assert [epoch for phase, epoch in epochs(straight) if phase == "embedding"] == [1, 2, 3]


def _checkpoint(run: Path) -> dict[str, list[float]]:
    tensors = load_file(run / "checkpoints" / "embedding.safetensors")
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


def test_a_library_that_is_not_installed_is_missed_before_any_features(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    config, machine = make_config(method="triplet"), make_machine(tmp_path / "cache")
    with pytest.raises(MissingDependencyError, match=r"--method triplet .*pip install"):
        train(pictures, tmp_path / "run", config=config, machine=machine)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("method", ["raw", "pca-whitened", "class-whitened"])
def test_untrained_methods_go_through_no_phase_and_score_as_their_own_baseline(
    pictures: Path, other_pictures: Path, cache: Path, tmp_path: Path, method: str
) -> None:
    out, reports = tmp_path / "run", list[EpochReport]()
    config, machine = make_config(method=method, label_noise="uniform:0.5"), make_machine(cache)
    report = train(
        pictures, out, config=config, machine=machine, val=other_pictures,
        watcher=Watcher(on_epoch=reports.append),
    )  # fmt: skip
    assert reports == []
    assert set(report["phases"]) == {"features", "projection"}
    baseline = dict(report["baselines"][method])
    assert baseline.pop("embedding_dim") == (512 if method == "raw" else 8)
    assert report["val"] == baseline
    assert not list((out / "checkpoints").iterdir())
    assert not (out / "metrics.jsonl").exists()
    assert not (out / "confidences.csv").exists()
    state = RunFolder.open(out).load_trained()[2]
    assert state == {"method": method, "class_count": 4, "embedding_dim": 512 if method == "raw" else 8}
    assert train(pictures, out, config=config, machine=machine, val=other_pictures, resume=True) == report


def test_untrained_methods_do_not_see_the_labels(pictures: Path, cache: Path, tmp_path: Path) -> None:
    for name, noise in (("clean", None), ("noisy", "uniform:1")):
        config = make_config(method="pca-whitened", label_noise=noise)
        train(pictures, tmp_path / name, config=config, machine=make_machine(cache))
    assert weights(tmp_path / "clean") == weights(tmp_path / "noisy")


def test_a_projection_wider_than_the_images_span_leaves_no_run_folder_behind(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    config = make_config(method="pca", embedding_dim=48)
    with pytest.raises(InputError, match=r"--embedding-dim 48 exceeds .* 48 images"):
        train(pictures, tmp_path / "run", config=config, machine=make_machine(cache))
    assert not (tmp_path / "run").exists()


def _drawn_rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(phase, row) of every image that any step is going to draw."""
    from training.run import fit

    seen: list[tuple[str, int]] = []
    draw = fit.draw_batches

    def note(rows: torch.Tensor, size: int, generator: torch.Generator, **together: Any):
        phase = "confidence" if not any(name == "confidence" for name, _ in seen) else "embedding"
        seen.extend((phase, row) for row in rows.tolist())
        return draw(rows, size, generator, **together)

    monkeypatch.setattr(fit, "draw_batches", note)
    return seen


def test_images_below_the_least_confidence_take_no_part_in_phase_two(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = _drawn_rows(monkeypatch)
    config = make_config(
        method="proxy-anchor", min_confidence=0.25, confidence_epochs=1, epochs=1, label_noise="uniform:0.3"
    )
    report = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache))
    rows = read_csv(tmp_path / "run" / "confidences.csv")
    trusted = [number for number, row in enumerate(rows) if float(row["confidence"]) >= 0.25]
    assert len(rows) == 48
    assert 0 < len(trusted) == report["trained_on"] < 48
    assert [row for phase, row in seen if phase == "embedding"] == trusted
    assert len([row for phase, row in seen if phase == "confidence"]) == 43, "phase 1 has all but the held out"


def test_a_least_confidence_that_no_image_has_is_refused_with_the_way_out(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    config = make_config(method="proxy-anchor", min_confidence=0.999999, confidence_epochs=1)
    with pytest.raises(RunError, match=r"no training image is left for phase 2: .*--min-confidence .* lower it"):
        train(pictures, tmp_path / "run", config=config, machine=make_machine(cache))
    assert len(read_csv(tmp_path / "run" / "confidences.csv")) == 48, "they tell what a lower bound would leave"
    assert not (tmp_path / "run" / "head.safetensors").exists()


def _write_guidance(path: Path, names: list[str], *, key: str, seed: int) -> Path:
    vectors = np.random.default_rng(seed).normal(size=(len(names), 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.savez(path, similarities=vectors @ vectors.T, **{key: np.array(names)})
    return path


def _class_names(pictures: Path) -> list[str]:
    return sorted(path.name for path in pictures.iterdir())


def test_guidance_steers_procsim_by_classes_as_by_images_and_survives_an_interruption(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    machine, names = make_machine(cache), ["unused", *reversed(_class_names(pictures))]
    guidance = _write_guidance(tmp_path / "words.npz", names, key="classes", seed=0)
    steered = make_config(method="procsim", omega=2.0, guidance=str(guidance))
    train(pictures, tmp_path / "plain", config=make_config(method="procsim"), machine=machine)
    train(pictures, tmp_path / "classes", config=steered, machine=machine)
    assert weights(tmp_path / "classes") != weights(tmp_path / "plain")
    with pytest.raises(InterruptionError):
        train(pictures, tmp_path / "run", config=steered, machine=machine, watcher=interrupt_at("embedding", 2))
    train(pictures, tmp_path / "run", config=steered, machine=machine, resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "classes")
    assert not [name for name in _checkpoint(tmp_path / "run") if "guidance" in name], "the file has it"

    labels = read_csv(tmp_path / "classes" / "labels.csv")[::-1]
    rows = [names.index(row["given"]) for row in labels]
    similarities = np.load(guidance)["similarities"][np.ix_(rows, rows)]
    by_image = tmp_path / "images.npz"
    np.savez(by_image, similarities=similarities, sha256=np.array([row["sha256"] for row in labels]))
    config = make_config(method="procsim", omega=2.0, guidance=str(by_image))
    train(pictures, tmp_path / "images", config=config, machine=machine)
    assert weights(tmp_path / "images") == weights(tmp_path / "classes")


@pytest.mark.parametrize("problem", ["missing", "no-archive", "lacks-a-class", "lacks-an-image"])
def test_a_guidance_file_that_cannot_be_used_is_refused_before_any_phase(
    pictures: Path, cache: Path, tmp_path: Path, problem: str
) -> None:
    path, names = tmp_path / "words.npz", _class_names(pictures)
    messages = {
        "missing": r"words\.npz: the similarities cannot be read",
        "no-archive": r"words\.npz: no \.npz file of plain arrays",
        "lacks-a-class": rf"words\.npz: 'classes' lacks 1 of the 4 that the run trains on: {names[0]}",
        "lacks-an-image": r"words\.npz: 'sha256' lacks 48 of the 48",
    }
    if problem == "no-archive":
        path.write_text("similar")
    elif problem == "lacks-a-class":
        _write_guidance(path, names[1:], key="classes", seed=0)
    elif problem == "lacks-an-image":
        _write_guidance(path, ["0" * 64], key="sha256", seed=0)
    reports: list[EpochReport] = []
    config = make_config(method="procsim", omega=1.0, guidance=str(path), min_confidence=0.1)
    with pytest.raises(InputError, match=messages[problem]):
        train(pictures, tmp_path / "run", config=config, machine=make_machine(cache),
              watcher=Watcher(on_epoch=reports.append))  # fmt: skip
    assert reports == []
    assert not (tmp_path / "run").exists(), "it is not in the way of the next try"
