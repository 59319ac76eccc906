"""Checkpoints: an optimizer goes on from one as if nothing had been, however its tensors lie in memory."""

from __future__ import annotations

from pathlib import Path

import torch

from training.run.checkpoint import load_checkpoint, pack_optimizer, save_checkpoint, unpack_optimizer


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
