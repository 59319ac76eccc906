"""Machine of a run: where it computes and keeps features. None of it changes what the run is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from index.errors import InputError
from index.model.backends.names import AUTO

if TYPE_CHECKING:
    import torch

TORCH = "torch"
GRAPH_RUNTIMES = ("onnxruntime", "openvino")
"""Those that take the backbone's graph instead; on a CPU only."""
EXTRAS = {"onnxruntime": "cpu", "openvino": "fast"}
RUNTIMES = (AUTO, TORCH, *GRAPH_RUNTIMES)
"""What `--backend` takes; `auto` is the first of the graph's that agrees with torch, or torch."""
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Machine:
    """Device, feature cache and threads of a run.

    `precision` is of the backbone pass, one of `PRECISIONS`; `workers` are the decoding threads; `backend` is what
    computes the features of a frozen backbone, one of `RUNTIMES`.
    """

    cache: Path
    device: torch.device
    workers: int
    precision: str = "auto"
    backend: str = AUTO

    def __post_init__(self) -> None:
        if not isinstance(self.workers, int) or self.workers < 1:
            raise InputError(f"--workers must be a whole number of at least 1, got {self.workers!r}")
        if self.precision not in PRECISIONS:
            raise InputError(f"--precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.backend not in RUNTIMES:
            raise InputError(f"--backend must be one of {', '.join(RUNTIMES)}, got {self.backend!r}")

    @property
    def drawing_threads(self) -> int:
        """Threads that draw views while the device trains: none on a CPU, which trains on the cores that they need."""
        return self.workers if self.device.type == "cuda" else 0


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    import torch

    available = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not available:
        raise InputError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def name_device(device: torch.device) -> str:
    """`CPU`, or what the GPU is called."""
    import torch

    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return device.type.upper()
