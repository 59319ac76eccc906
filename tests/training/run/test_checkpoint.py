"""Checkpoints: an optimizer goes on from one as if nothing had been, however its tensors lie in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from index.errors import RunError
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
