"""Several processes that train one network, as torchrun starts them: what they tell each other.

Rank 0 is the run: it lists, chooses, trains heads, judges and writes. The others wait for it in `Team.first_does`, and
do what it asks for meanwhile. Alone, as every process is that torchrun has not started, nobody is told anything: each
function gives back what it is given.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from index.errors import InputError
from training.options.machine import Machine

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Told:
    value: Any


@dataclass(frozen=True, slots=True)
class _Task:
    function: Callable[..., object]
    arguments: tuple[Any, ...]


class Team:
    """The processes that train together; all call the same functions in the same order.

    Args:
        rank: which of `size` processes this one is.
        control: the group for all but steps, on the CPU.
        machine: this process's own, of which the others are told nothing.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, *, control: dist.ProcessGroup | None = None,
        machine: Machine | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.size, self._control, self._machine = rank, size, control, machine
        self.is_first = rank == 0

    @property
    def machine(self) -> Machine:
        """Where this process computes what rank 0 asks for."""
        assert self._machine is not None, "nobody is asked who is alone"
        return self._machine

    def first_does(self, act: Callable[[], Value]) -> Value:
        """What `act` gives on rank 0, where alone it is called; the others do what it asks for meanwhile."""
        if self.size == 1:
            return act()
        if self.is_first:
            value = act()
            self._send(_Told(value))
            return value
        while True:
            received: list[Any] = [None]
            dist.broadcast_object_list(received, 0, group=self._control)
            message = received[0]
            if isinstance(message, _Told):
                told: Value = message.value
                return told
            message.function(*message.arguments)

    def ask(self, function: Callable[..., object], *arguments: Any) -> None:
        """On rank 0: have the others, which wait in `first_does`, call this. It says nothing of what comes of it."""
        if self.size > 1:
            self._send(_Task(function, arguments))

    def gather_values(self, value: Value) -> list[Value]:
        """Those of all ranks, in their order."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._control)
        return found

    def collect_values(self, value: Value) -> list[Value]:
        """The same on rank 0; nothing on the others."""
        if self.size == 1:
            return [value]
        found: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(value, found, group=self._control)
        return found or []

    def hand_out(self, values: list[Value] | None) -> Value:
        """One of those that rank 0 has, which are as many as ranks."""
        if self.size == 1:
            assert values is not None
            return values[0]
        own: list[Any] = [None]
        dist.scatter_object_list(own, values, src=0, group=self._control)
        handed: Value = own[0]
        return handed

    def part_of(self, count: int, *, rank: int | None = None) -> slice:
        """The rank's share of `count` things in order, as even as may be: of fewer things than ranks some have none."""
        place = self.rank if rank is None else rank
        return slice(count * place // self.size, count * (place + 1) // self.size)

    def collect_rows(self, own: Tensor, count: int) -> Tensor:
        """(count, …) on rank 0, from the (n, …) that each rank has of its part; no rows on the others. On the CPU."""
        if self.size == 1:
            return own
        padded = self._pad(own, count)
        parts = [torch.empty_like(padded) for _ in range(self.size)] if self.is_first else None
        dist.gather(padded, parts, group=self._control)
        return own[:0] if parts is None else torch.cat(self._cut(parts, count))

    def with_others(self, own: Tensor, count: int) -> Tensor:
        """(count, …) on all ranks, from the (n, …) that each has of its part; gradients reach the rank's own ones.

        Every rank takes the loss of the whole batch, so that the gradients of all, summed by `share`, are those of one
        process with this batch.
        """
        if self.size == 1:
            return own
        padded = self._pad(own.detach(), count)
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        rows = self._cut(parts, count)
        rows[self.rank] = own
        return torch.cat(rows)

    def add_up(self, own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The sum over the ranks."""
        if self.size == 1:
            return own
        total = torch.from_numpy(np.array(own))
        dist.all_reduce(total, group=self._control)
        return total.numpy()

    def share(self, model: nn.Module, *, has_unused: bool = False) -> nn.Module:
        """The model, whose gradients are from now on the sums over the ranks; its weights become those of rank 0.

        Args:
            has_unused: whether a pass leaves out parameters that train.
        """
        if self.size == 1:
            return model
        with warnings.catch_warnings():  # later versions of torch call the second argument otherwise
            warnings.simplefilter("ignore", FutureWarning)
            shared = DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=has_unused)
        shared.register_comm_hook(
            None, lambda state, bucket: _sum_gradients(bucket)
        )  # would be the mean otherwise
        return shared

    def agree(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give all ranks the gradients of rank 0: of what each has computed from the same numbers."""
        if self.size > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    dist.broadcast(parameter.grad, 0)

    def require_same(self, options: Mapping[str, Any]) -> None:
        """Refuse processes that were started with different options."""
        first, *others = self.gather_values(dict(options))
        for rank, found in enumerate(others, 1):
            if different := [
                f"{name} is {found.get(name)!r}, of rank 0 {first.get(name)!r}"
                for name in {**first, **found}
                if found.get(name) != first.get(name)
            ]:
                raise InputError(
                    f"rank {rank} was started otherwise than rank 0: {'; '.join(different)}; start all processes "
                    "with the same command and versions"
                )

    def _send(self, message: _Told | _Task) -> None:
        dist.broadcast_object_list([message], 0, group=self._control)

    def _pad(self, own: Tensor, count: int) -> Tensor:
        padded = own.new_zeros(-(-count // self.size), *own.shape[1:])
        padded[: len(own)] = own
        return padded

    def _cut(self, parts: list[Tensor], count: int) -> list[Tensor]:
        slices = (self.part_of(count, rank=rank) for rank in range(self.size))
        return [part[: own.stop - own.start] for part, own in zip(parts, slices, strict=True)]


ALONE = Team()
_joined = ALONE


def current_team() -> Team:
    """The processes that this one trains with."""
    return _joined


@contextmanager
def using_team(team: Team) -> Iterator[None]:
    """Let `current_team` give this one while the block runs."""
    global _joined
    _joined = team
    try:
        yield
    finally:
        _joined = ALONE


def _sum_gradients(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
