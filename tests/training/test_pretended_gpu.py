"""Whole runs keep their tensors on one device: as far as a machine without a GPU can tell, they run on one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from index.errors import RunError
from tests.training.conftest import Trainer, make_config, make_machine
from tests.training.pretended_gpu import GPU, DeviceError, PretendedGpu
from tests.training.run.finetuning.test_stage import network_config
from training.options.config import TrainConfig

RUNS: dict[str, tuple[Callable[..., TrainConfig], dict[str, Any], str]] = {
    "a head": (make_config, {}, "embedding"),
    "a whole network": (network_config, {"finetune": "all", "micro_batch_size": 7}, "finetuning"),
}


@pytest.mark.parametrize("name", ["a head", *(pytest.param(name, marks=pytest.mark.slow) for name in list(RUNS)[1:])])
def test_a_run_and_its_resume_keep_to_the_device_and_are_as_on_the_cpu(
    trainer, other_pictures, name, monkeypatch
) -> None:
    monkeypatch.setattr("training.backbone.extract.find_convolutions", lambda *_, **__: ())  # only CPUs have them
    make, changes, phase = RUNS[name]
    config = make(**changes)
    trainer("cpu", config=config)
    with PretendedGpu():
        options = {"config": config, "machine": make_machine(trainer.cache, device=GPU, workers=2)}
        trainer(stop=(phase, 1), val=other_pictures, **options)
        report = trainer(val=other_pictures, resume=True, **options)
    assert report["val"] is not None
    assert trainer.weights() == trainer.weights("cpu")


def test_a_gpu_without_memory_ends_the_run_in_words(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")

    monkeypatch.setattr("training.run.finetuning.fit.backward_in_chunks", refuse)
    with pytest.raises(RunError, match=r"no memory for a batch of the network .CUDA out of memory.: add --micro-ba"):
        trainer(config=network_config())


@pytest.mark.parametrize(
    "mistake",
    [
        lambda there, here: there.add(here),
        lambda there, here: np.asarray(there),
        lambda there, here: torch.rand(2, device=GPU, generator=torch.Generator()),
        lambda there, here: torch.nn.Linear(3, 1).to(GPU)(here.float()),
    ],
)
def test_what_a_gpu_would_refuse_is_refused(mistake: Any) -> None:
    with PretendedGpu(), pytest.raises(DeviceError):
        mistake(torch.arange(3).to(GPU), torch.arange(3))
