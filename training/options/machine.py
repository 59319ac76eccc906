"""Machine of a run: where it computes and keeps features. None of it changes what the run is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.config_fields import check_fields, option
from index.errors import InputError
from index.model.backends.names import AUTO
from index.threads import usable_cores
from index.user_cache import user_cache

if TYPE_CHECKING:
    import torch

TORCH = "torch"
GRAPH_RUNTIMES = ("onnxruntime", "openvino")
"""Those that take the backbone's graph instead; on a CPU only."""
EXTRAS = {"onnxruntime": "cpu", "openvino": "fast"}
RUNTIMES = (AUTO, TORCH, *GRAPH_RUNTIMES)
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine"""

    cache: Path = option(user_cache, "Folder of backbone features, shared by runs.", usual="your cache folder")
    device: Any = option("auto", "Where to compute.", choices=("auto", "cpu", "cuda"))  # then a `torch.device`
    workers: int = option(usable_cores, "Decoding threads.", usual="cores", at_least=1)
    precision: str = option(
        "auto", "Of the backbone pass; auto takes bfloat16 where the hardware computes it.", choices=PRECISIONS
    )
    backend: str = option(
        AUTO, "What computes a frozen backbone's features on a CPU; auto takes, where there are images enough, the "
        "first that is installed and agrees with torch.", choices=RUNTIMES,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if isinstance(self.device, str):
            check_fields(self)
            object.__setattr__(self, "device", resolve_device(self.device))
        else:
            replace(self, device="cpu")  # which checks the other options

    @property
    def drawing_threads(self) -> int:
        """Threads that draw views while the device trains: none on a CPU, which trains on the cores that they need."""
        return self.workers if self.device.type == "cuda" else 0


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    import torch

    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def name_device(device: torch.device) -> str:
    """`CPU`, or what the GPU is called."""
    import torch

    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return device.type.upper()
