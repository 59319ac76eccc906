"""A network from one of its modules on, run on what that module was given before: what comes earlier is not run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_CANNOT = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
_CLOSE, _HALF_CLOSE = 1e-5, 1e-2  # of the largest feature: as computed, and as kept


class _ReachedError(Exception):
    """Ends a pass where the tail begins."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tensor's shape by the number of images: that of one, and what every further image adds."""

    one: tuple[int, ...]
    more: tuple[int, ...]

    @classmethod
    def between(cls, one: Tensor, two: Tensor) -> _Shape:
        return cls(tuple(one.shape), tuple(b - a for a, b in zip(one.shape, two.shape, strict=True)))

    def of(self, images: int) -> tuple[int, ...]:
        return tuple(a + (images - 1) * b for a, b in zip(self.one, self.more, strict=True))


class Tail:
    """Of a network, what runs from a module on.

    What runs before it is not replaced but kept from computing: it gives zeros of the shape that it would give, so that
    what the network itself does between its modules (joining a class token, adding positions) has something to do it
    with. Then the module takes a kept input in the place of what that made. Where the rest reads anything else of the
    front, as through a skip around the module, it reads zeros: `agrees` tells.

    Inputs are kept in float16, scaled by a power of two so that the largest of some images is about 1.

    Args:
        module: (B, 3, side, side) images to (B, F) features; its weights may change.
        front: that run before `first`, in order.
        first: whose input is kept: a tensor, the first thing that it is called with, once a pass.

    Raises:
        ValueError: it is called otherwise.
    """

    def __init__(self, module: nn.Module, front: Sequence[nn.Module], first: nn.Module, *, side: int) -> None:
        self._module, self._first, self._side = module, first, side
        self._device = next(module.parameters()).device
        one, two = (self._record([*front, first], images) for images in (1, 2))
        if len(one[first][0]) != 1:
            raise ValueError(f"{type(first).__name__} runs {len(one[first][0])} times in a pass")
        self._entry = _Shape.between(one[first][0][0], two[first][0][0])
        batched = [axis for axis, more in enumerate(self._entry.more) if more]
        if len(batched) != 1 or self._entry.one[batched[0]] != self._entry.more[batched[0]]:
            raise ValueError(f"{type(first).__name__} takes {self._entry.one} of one image")
        self._axis = batched[0]
        self._outputs = {
            unit: _Shape.between(one[unit][1][0], two[unit][1][0])
            for unit in front
            if len(one[unit][1]) == 1
            and isinstance(one[unit][1][0], Tensor)  # what runs twice may be the tail's too
        }
        self._blank = torch.zeros((), device=self._device)
        self._scale = 1.0

    @property
    def scale(self) -> float:
        """What kept inputs are multiplied by, see `agrees`."""
        return self._scale

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is kept of an image."""
        views, others = self._entry.one[self._axis], list(self._entry.one)
        del others[self._axis]
        return (views, *others)

    def capture(self, images: Tensor) -> Tensor:
        """(B, *shape): what `first` is given of (B, 3, side, side) images. The rest of the pass is not run."""
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
        views = self._entry.one[self._axis]
        return caught[0].unflatten(self._axis, (views, len(images))).movedim((self._axis + 1, self._axis), (0, 1))

    def run(self, inputs: Tensor) -> Tensor:
        """(B, F) features by the weights as they are now, of (B, *shape) inputs."""
        entry = inputs.movedim((0, 1), (self._axis + 1, self._axis)).flatten(self._axis, self._axis + 1)
        if entry.ndim == 4:
            entry = entry.contiguous(memory_format=torch.channels_last)
        images = self._blank.expand(len(inputs), 3, self._side, self._side)
        with self._standing_in(len(inputs), entry):
            return self._module(images)

    def keep(self, images: Tensor) -> Tensor:
        """(B, *shape) float16 of (B, 3, side, side) images."""
        return (self.capture(images).float() * self._scale).half()

    def run_kept(self, kept: Tensor) -> Tensor:
        """(B, F) features of (B, *shape) float16."""
        return self.run(kept.float() / self._scale)

    @torch.inference_mode()
    def agrees(self, images: Tensor) -> bool:
        """Whether the tail gives the features of whole passes over (B, 3, side, side) images, in any order of them.

        They settle the scale.
        """
        try:
            whole = self._module(images).flip(0)
            captured = self.capture(images)
            self._scale = 2.0 ** -round(math.log2(captured.abs().max().item()))
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
        """What each unit takes first, and gives, in every call of a pass."""
        found: dict[nn.Module, tuple[list[Any], list[Any]]] = {unit: ([], []) for unit in units}

        def note(unit: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            found[unit][0].append(inputs[0] if inputs else None)
            found[unit][1].append(output)

        hooks = [unit.register_forward_hook(note) for unit in units]
        try:
            self._module(torch.zeros(images, 3, self._side, self._side, device=self._device))
        finally:
            for hook in hooks:
                hook.remove()
        return found

    @contextmanager
    def _standing_in(self, images: int, entry: Tensor) -> Iterator[None]:
        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (entry, *inputs[1:])

        hook = self._first.register_forward_pre_hook(enter)
        try:
            for unit, shape in self._outputs.items():
                zeros = self._blank.expand(shape.of(images))
                unit.__dict__["forward"] = lambda *_, zeros=zeros, **__: zeros
            yield
        finally:
            hook.remove()
            for unit in self._outputs:
                unit.__dict__.pop("forward", None)


def find_tail(
    module: nn.Module, front: Sequence[nn.Module], first: nn.Module, *, side: int, images: Tensor
) -> Tail | None:
    """The tail from `first` on, where it gives what the whole network gives.

    Args:
        module, front, first, side: as of `Tail`.
        images: (B, 3, side, side) float32, real ones, on which that is tried.
    """
    try:
        tail = Tail(module, front, first, side=side)
    except _CANNOT:
        return None
    return tail if tail.agrees(images) else None
