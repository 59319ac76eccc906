"""Backbone weights: downloaded by a library, or read from a file without executing it."""

import logging
import pickle
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from index.errors import InputError
from training.options.known_models import describe_licence

logger = logging.getLogger(__name__)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random weights by a seed, without a change of torch's own generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def fetch_weights(backbone: str, *, licence: str | None = None, card: str | None = None) -> Iterator[None]:
    """Log the licence before a library's download, and turn every failure of it into one error."""
    logger.info("weights of %s: %s", backbone, describe_licence(backbone, licence=licence, card=card))
    try:
        with hushed_library():
            yield
    except (OSError, RuntimeError, ValueError) as error:
        told = " ".join(str(error).split())
        raise InputError(
            f"the pretrained weights of {backbone} could not be fetched ({told}); fetch them on a connected machine "
            "and pass the file: --weights FILE"
        ) from error


@contextmanager
def hushed_library() -> Iterator[None]:
    """Keep a library's messages off stdout, and logging as it is configured."""
    root, hub, nothing = logging.getLogger(), logging.getLogger("huggingface_hub"), logging.NullHandler()
    level = hub.level
    hub.setLevel(logging.ERROR)
    root.addHandler(nothing)  # a module's function of `logging` would configure a root without handlers
    try:
        with redirect_stdout(sys.stderr):  # stdout is for results
            yield
    finally:
        root.removeHandler(nothing)
        hub.setLevel(level)


# What the readers of weights raise when damaged files are fed to them.
_UNREADABLE = (
    SafetensorError,
    OSError,
    RuntimeError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
)


def load_weights(
    module: nn.Module, state: Mapping[str, Tensor], *, path: Path, of: str, dropped: Iterable[str] = ()
) -> None:
    """Load a file's tensors into a model, one by one.

    Args:
        state: from `read_weights`.
        of: name of the architecture, for the error.
        dropped: modules that the file may have and the model lacks.
    """
    prefixes = tuple(f"{part}." for part in dropped)
    state = {key: value for key, value in state.items() if not key.startswith(prefixes)}
    own = module.state_dict()
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    unknown = [key for key in state if key not in own]
    shapes = [key for key in own if key in state and own[key].shape != state[key].shape]
    for what, keys in (("lacks", missing), ("has unknown", unknown), ("has other shapes for", shapes)):
        if keys:
            raise InputError(
                f"{path}: these are not weights of {of}: the file {what} {len(keys)} of "
                f"{len(own)} tensors ({', '.join(keys[:3])}, …); name the right --backbone"
            )
    module.load_state_dict(state, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file or a torch state dict, by name."""
    if not path.is_file():
        raise InputError("no such weights file; --weights takes pretrained, none or a file", at=path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path}: not a safetensors file or torch state dict, or one that holds more than weights; "
            "save only the state dict: torch.save(model.state_dict(), FILE)"
        ) from error
    except _UNREADABLE as error:
        raise InputError(f"not a safetensors file or torch state dict: {error}", at=path) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"expected a dictionary of tensors (a state dict), got {type(state).__name__}", at=path)
    return state
