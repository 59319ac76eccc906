"""Machine of a run: cache folder, device, threads and precision."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.config_fields import check_fields, option
from index.errors import InputError
from index.paths import user_cache
from index.threads import usable_cores

if TYPE_CHECKING:
    import torch

PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine"""

    cache: Path = option(user_cache, "Cache folder of backbone features, shared by runs.", usual="your cache folder")
    device: Any = option("auto", "Device for training.", choices=("auto", "cpu", "cuda"))  # then a `torch.device`
    workers: int = option(usable_cores, "Decoding threads.", usual="cores", at_least=1)
    precision: str = option(
        "auto",
        "Precision of the backbone; auto is bfloat16 where the hardware supports it, in fine-tuning only if it "
        "is measured to be faster.",
        choices=PRECISIONS,
    )

    def __post_init__(self) -> None:
        if isinstance(self.device, str):
            check_fields(self)
            object.__setattr__(self, "device", resolve_device(self.device))
        else:
            replace(self, device="cpu")  # which checks the other options


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    import torch

    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")
