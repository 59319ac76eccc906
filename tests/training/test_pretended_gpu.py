"""Whole runs keep their tensors on one device: as far as a machine without a GPU can tell, they run on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from index.errors import RunError
from tests.training.conftest import make_config, make_machine
from tests.training.pretended_gpu import GPU, DeviceError, PretendedGpu
from tests.training.run.network.test_stage import network_config
from tests.training.runs import InterruptionError, interrupt_at, weights
from training.options.config import TrainConfig
from training.run.train import train

RUNS: dict[str, tuple[TrainConfig, str]] = {
    "a head on fixed views": (make_config(features="cached:2"), "embedding"),
    "a head on live views": (make_config(features="live"), "confidence"),
    "a whole network": (network_config(unfreeze="all", network_chunk=7), "network"),
    "some blocks on kept views": (network_config(network_views=1), "network"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name == "a head on live views" else name for name in RUNS],
)
def test_a_run_and_its_resume_keep_to_the_device_and_are_as_on_the_cpu(
    pictures: Path, other_pictures: Path, cache: Path, tmp_path: Path, name: str
) -> None:
    config, phase = RUNS[name]
    train(pictures, tmp_path / "cpu", config=config, machine=make_machine(cache))
    with PretendedGpu():
        machine = make_machine(cache, device=GPU, workers=2)
        with pytest.raises(InterruptionError):
            train(pictures, tmp_path / "run", config=config, machine=machine, val=other_pictures,
                  watcher=interrupt_at(phase, 1))  # fmt: skip
        report = train(pictures, tmp_path / "run", config=config, machine=machine, val=other_pictures, resume=True)
    assert report["val"] is not None
    assert weights(tmp_path / "run") == weights(tmp_path / "cpu")


@pytest.mark.slow
def test_a_plan_for_a_time_keeps_to_the_device(pictures: Path, cache: Path, tmp_path: Path) -> None:
    config = network_config(unfreeze=None, network_epochs=None, time_budget="20s")
    with PretendedGpu():
        machine = make_machine(cache, device=GPU, workers=2)
        report = train(pictures, tmp_path / "run", config=config, machine=machine)
    assert report["network"]["plan"]["epochs"] > 0


@pytest.mark.parametrize(
    "method",
    [
        "spa",
        *(
            pytest.param(method, marks=pytest.mark.slow)
            for method in ("proxy-nca", "multi-similarity", "procsim", "superloss", "soft-triple")
        ),
    ],
)
def test_every_kind_of_loss_keeps_to_the_device(pictures: Path, cache: Path, tmp_path: Path, method: str) -> None:
    config = network_config(network_method=method, network_epochs=1)
    with PretendedGpu():
        train(pictures, tmp_path / "run", config=config, machine=make_machine(cache, device=GPU))


def test_a_gpu_without_memory_ends_the_run_in_words(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")

    monkeypatch.setattr("training.run.network.fit.backward_in_chunks", refuse)
    with pytest.raises(
        RunError, match=r"no memory for a batch of the network .CUDA out of memory.: add --network-chunk 16"
    ):
        train(pictures, tmp_path / "run", config=network_config(), machine=make_machine(cache))


def _add(there: Any, here: Any) -> None:
    there + here


@pytest.mark.parametrize(
    "mistake",
    [
        _add,
        lambda there, here: here[there],
        lambda there, here: np.asarray(there),
        lambda there, here: there.numpy(),
        lambda there, here: there.float().index_add_(0, here, here.float()),
        lambda there, here: torch.rand(2, device=GPU, generator=torch.Generator()),
        lambda there, here: torch.nn.Linear(3, 1).to(GPU)(here.float()),
    ],
)
def test_what_a_gpu_would_refuse_is_refused(mistake: Any) -> None:
    with PretendedGpu(), pytest.raises(DeviceError):
        mistake(torch.arange(3).to(GPU), torch.arange(3))


def test_what_a_gpu_does_is_done() -> None:
    with PretendedGpu():
        layer = torch.nn.Linear(3, 2).to(GPU)
        layer(torch.ones(4, 3, device=GPU)).sum().backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.device == layer.weight.device == GPU
        assert torch.arange(3).to(GPU)[torch.tensor([0])].device == GPU
        assert layer.weight.detach().cpu().numpy().shape == (2, 3)
