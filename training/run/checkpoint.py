"""Atomic checkpoints in safetensors, with all that a phase needs to resume."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from index.durable import replacing
from index.errors import RunError


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], *, state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON state to one file, replaced atomically and synced to disk."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        with replacing(path) as temporary:
            save_file(contiguous, temporary, metadata={"state": json.dumps(state)})
            temporary.chmod(0o644)  # safetensors writes for the owner alone; the run's other files are not secret
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot be written ({error}); free space, then go on with --resume", at=path) from error


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state from `save_checkpoint`."""
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads((file.metadata() or {})["state"])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunError(f"not a readable checkpoint ({error}); train again into a new folder", at=path) from error


def pack_modules(**modules: nn.Module) -> dict[str, Tensor]:
    """Weights of several modules under `name.parameter` keys."""
    return {f"{name}.{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}


def unpack_module(module: nn.Module, tensors: Mapping[str, Tensor], *, name: str) -> None:
    """Load weights that `pack_modules` stored under `name`."""
    prefix = name + "."
    module.load_state_dict({key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)})


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Running statistics of an optimizer under `optimizer.index.name` keys; its options come from the config."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer.{index}.{name}": value for index, values in state.items() for name, value in values.items()}


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load statistics from `pack_optimizer` into an optimizer with the same options."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".")
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if value.shape == parameter.shape:  # fused steps read both by the order in memory, channels last or not
                values[name] = torch.empty_like(parameter).copy_(value).detach()
