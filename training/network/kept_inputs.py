"""Cached inputs of a network's tail: the frozen front runs once, and its outputs are kept in mapped files."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from index.progress import Progress, no_progress
from training.backbone.extract import name_content
from training.backbone.feature_maps import hooked
from training.network.decoded_images import MappedArray

_CANNOT = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
_CLOSE, _HALF_CLOSE = 1e-5, 1e-2  # of the largest feature: as computed, and as kept


class _ReachedError(Exception):
    """Ends a pass where the tail begins."""


def _growth(one: Tensor, two: Tensor) -> list[tuple[int, int]]:
    """Shape of a tensor of one image, and its increase for each further image, by the tensors of one and of two."""
    return [(size, more - size) for size, more in zip(one.shape, two.shape, strict=True)]


class NetworkTail:
    """The part of a network from a module on.

    The front before it gives zeros of the right shape without computing, so that the network's own operations between
    its modules (joining a class token, adding positions) still run. Then the module takes a cached input. Where the
    rest reads anything else of the front, as through a skip connection, it reads zeros: `agrees` tells.

    Inputs are kept in float16, scaled by a power of two so that the largest of some images is about 1.

    Args:
        module: (B, 3, side, side) images to (B, F) features; its weights may change.
        front: modules that run before `first`, in order.
        first: module whose first argument, a tensor, is cached; called once per pass, else a `ValueError`.
    """

    def __init__(self, module: nn.Module, front: Sequence[nn.Module], first: nn.Module, *, side: int) -> None:
        self._module, self._first, self._side = module, first, side
        self._device = next(module.parameters()).device
        one, two = (self._record([*front, first], images) for images in (1, 2))
        if len(one[first][0]) != 1:
            raise ValueError(f"{type(first).__name__} runs {len(one[first][0])} times in a pass")
        self._entry = one[first][0][0].shape  # of one image
        growth = _growth(one[first][0][0], two[first][0][0])
        batched = [axis for axis, (_, more) in enumerate(growth) if more]
        if len(batched) != 1 or growth[batched[0]][0] != growth[batched[0]][1]:
            raise ValueError(f"{type(first).__name__} takes {tuple(self._entry)} of one image")
        self._axis = batched[0]
        self._outputs = {
            unit: _growth(one[unit][1][0], two[unit][1][0])
            for unit in front
            if len(one[unit][1]) == 1 and isinstance(one[unit][1][0], Tensor)  # what runs twice may be the tail's too
        }
        self._blank = torch.zeros((), device=self._device)
        self.scale = 1.0  # of cached inputs, from `agrees`

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the cached input of an image."""
        return (self._entry[self._axis], *self._entry[: self._axis], *self._entry[self._axis + 1 :])

    def capture(self, images: Tensor) -> Tensor:
        """(B, *shape) input of `first` for (B, 3, side, side) images; the rest of the pass does not run."""
        caught: list[Tensor] = []

        def stop(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            caught.append(inputs[0])
            raise _ReachedError

        hook = self._first.register_forward_pre_hook(stop)
        try:
            self._module(images)
        except _ReachedError:
            pass
        finally:
            hook.remove()
        return (
            caught[0]
            .unflatten(self._axis, (self._entry[self._axis], len(images)))
            .movedim((self._axis + 1, self._axis), (0, 1))
        )

    def run(self, inputs: Tensor) -> Tensor:
        """(B, F) features by the current weights, of (B, *shape) inputs."""
        entry = inputs.movedim((0, 1), (self._axis + 1, self._axis)).flatten(self._axis, self._axis + 1)
        if entry.ndim == 4:
            entry = entry.contiguous(memory_format=torch.channels_last)
        images = self._blank.expand(len(inputs), 3, self._side, self._side)
        with self._standing_in(len(inputs), entry):
            return self._module(images)

    def keep(self, images: Tensor) -> Tensor:
        """(B, *shape) float16 of (B, 3, side, side) images."""
        return (self.capture(images).float() * self.scale).half()

    def run_kept(self, kept: Tensor) -> Tensor:
        """(B, F) features of (B, *shape) float16."""
        return self.run(kept.float() / self.scale)

    @torch.inference_mode()
    def agrees(self, images: Tensor) -> bool:
        """Whether the tail gives the features of whole passes over (B, 3, side, side) images; sets the scale."""
        try:
            whole = self._module(images).flip(0)
            captured = self.capture(images)
            self.scale = 2.0 ** -round(math.log2(captured.abs().max().item()))
            exact, kept = self.run(captured.flip(0)), self.run_kept(self.keep(images).flip(0))
        except _CANNOT:
            return False
        largest = whole.abs().max()
        return bool(
            whole.isfinite().all()
            and (exact - whole).abs().max() <= _CLOSE * largest
            and (kept - whole).abs().max() <= _HALF_CLOSE * largest
        )

    @torch.inference_mode()
    def _record(self, units: Sequence[nn.Module], images: int) -> dict[nn.Module, tuple[list[Any], list[Any]]]:
        """First input and output of each unit, in every call of a pass."""
        found: dict[nn.Module, tuple[list[Any], list[Any]]] = {unit: ([], []) for unit in units}

        def note(unit: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            found[unit][0].append(inputs[0] if inputs else None)
            found[unit][1].append(output)

        with hooked(units, note):
            self._module(torch.zeros(images, 3, self._side, self._side, device=self._device))
        return found

    @contextmanager
    def _standing_in(self, images: int, entry: Tensor) -> Iterator[None]:
        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (entry, *inputs[1:])

        hook = self._first.register_forward_pre_hook(enter)
        try:
            for unit, shape in self._outputs.items():
                zeros = self._blank.expand([size + (images - 1) * more for size, more in shape])
                unit.__dict__["forward"] = lambda *_, zeros=zeros, **__: zeros
            yield
        finally:
            hook.remove()
            for unit in self._outputs:
                unit.__dict__.pop("forward", None)


def find_tail(
    module: nn.Module, front: Sequence[nn.Module], first: nn.Module, *, side: int, images: Tensor
) -> NetworkTail | None:
    """The network from `first` on, if it gives the features of the whole on these (B, 3, side, side) images."""
    try:
        tail = NetworkTail(module, front, first, side=side)
    except _CANNOT:
        return None
    return tail if tail.agrees(images) else None


CHUNK = 32  # images at a time; kernels differ by batch size in their last bits, so it is part of what a file holds
KEPT_VERSION = 3  # raise it when what is kept, or how it is drawn, changes

Prepare = Callable[[npt.NDArray[np.int64]], Tensor]
"""Called with (n,) numbers of images; gives (n, 3, side, side) images for the network."""


@dataclass(frozen=True, slots=True)
class KeptInputs:
    """Cached inputs of a tail for N images: `array` is (N, *tail.shape) float16."""

    tail: NetworkTail
    array: MappedArray

    @classmethod
    def plan(cls, tail: NetworkTail, *, hashes: Sequence[str], how: Mapping[str, Any], cache: Path) -> "KeptInputs":
        """In a file shared by runs with the same images and `how`, which is all else that inputs depend on, as JSON."""
        known = {**how, "chunk": CHUNK, "version": KEPT_VERSION, "scale": tail.scale, "torch": torch.__version__}
        file = cache / "inputs" / f"{name_content(known, hashes)}.inputs"
        array = MappedArray(file, (len(hashes), *tail.shape), "float16", "inputs of the blocks that train")
        return cls(tail, array)

    def fill(self, prepare: Prepare, *, dtype: torch.dtype, progress: Progress = no_progress) -> None:
        """Run the front of the network on all images, in autocast to `dtype`; an interrupted call is continued."""
        count = self.array.shape[0]

        def produce(done: int) -> Iterator[npt.NDArray[np.float16]]:
            for start in range(done, count, CHUNK):
                yield self._keep(prepare(np.arange(start, min(start + CHUNK, count))), dtype)

        self.array.fill(produce, progress=progress)

    @torch.inference_mode()
    def _keep(self, images: Tensor, dtype: torch.dtype) -> npt.NDArray[np.float16]:
        with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
            return self.tail.keep(images).cpu().numpy()
