"""Several processes that train one network, as torchrun starts them: who is which, and what they tell each other.

Rank 0 is the run: it lists, chooses, trains heads, judges and writes. The others wait for it in `Team.first_does`, and
do what it asks for meanwhile. Alone, as every process is that torchrun has not started, nobody is told anything: each
function gives back what it is given.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from index.errors import InputError, RetrievalError, RunError

STEP_WAIT_S = 600.0
"""How long a step waits for the other processes, which take it at the same time."""
_FIRST_WAIT = timedelta(days=1)  # for what rank 0 does alone; who has died is noticed at once
_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_FAILED = "training/failed"
_GO_ON = "what was done is kept: start the same command again with --resume"

Value = TypeVar("Value")


class AnotherFailedError(RunError):
    """Another process has failed before this one, and says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which of `size` processes this is, and which of those on its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> Place:
        """As torchrun's variables have it; alone without them.

        Raises:
            InputError: some are missing, or are no numbers.
        """
        if variables.get("WORLD_SIZE", "1") == "1":
            return cls()
        if missing := [name for name in _VARIABLES if name not in variables]:
            raise InputError(
                f"WORLD_SIZE={variables['WORLD_SIZE']} says that several processes train, but {', '.join(missing)} "
                "is not set: start them with torchrun --nproc-per-node N -m training ..., or unset WORLD_SIZE"
            )
        try:
            return cls(*(int(variables[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
        except ValueError as error:
            raise InputError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers: {error}") from error


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
        control: the group for all but steps, on the CPU.
    """

    def __init__(self, place: Place | None = None, control: dist.ProcessGroup | None = None) -> None:
        self._place, self._control = place or Place(), control

    @property
    def rank(self) -> int:
        return self._place.rank

    @property
    def size(self) -> int:
        return self._place.size

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def first_does(self, act: Callable[[], Value]) -> Value:
        """What `act` gives on rank 0, where alone it is called; the others do what it asks for meanwhile."""
        if self.size == 1:
            return act()
        if self.is_first:
            value = act()
            self._send(_Told(value))
            return value
        while True:
            message = self._receive()
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
        """Refuse processes that were started with different options.

        Raises:
            InputError: naming what differs.
        """
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

    def _receive(self) -> Any:
        message: list[Any] = [None]
        dist.broadcast_object_list(message, 0, group=self._control)
        return message[0]

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
def join_processes(place: Place, *, device: torch.device, wait_s: float = STEP_WAIT_S) -> Iterator[Team]:
    """Let the processes find each other, by gloo on the CPU and NCCL on GPUs, each of which has one process.

    Of all that fail, the first one says why: the others end by `AnotherFailedError`.

    Raises:
        InputError: there are fewer GPUs than processes on this machine.
        RunError: another process has ended, or keeps this one waiting for longer than `wait_s`.
    """
    global _joined
    if place.size == 1:
        yield ALONE
        return
    if device.type == "cuda":
        _choose_gpu(place)
    limit = timedelta(seconds=wait_s)
    store, _, _ = next(iter(dist.rendezvous("env://", timeout=limit)))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        with _heeding_termination():
            dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=limit)
            control = dist.new_group(backend="gloo", timeout=_FIRST_WAIT)
            assert isinstance(control, dist.ProcessGroup)
            _joined = Team(place, control)
            yield _joined
            dist.destroy_process_group()  # not where something failed: to take leave of the dead takes for ever
    except Exception as error:
        reason = _explain(error, place)
        if not _is_first_to_fail(store):
            raise AnotherFailedError(f"rank {place.rank}: another process failed before") from error
        if reason is None:
            raise
        raise reason from error
    finally:
        _joined = ALONE


def _choose_gpu(place: Place) -> None:
    if place.local_rank >= torch.cuda.device_count():
        raise InputError(
            f"--device cuda: every process needs a GPU of its own, and this machine has {torch.cuda.device_count()}: "
            "lower --nproc-per-node"
        )
    torch.cuda.set_device(place.local_rank)


@contextmanager
def _heeding_termination() -> Iterator[None]:
    """Let SIGTERM, by which torchrun ends the processes that are left, be an error like others."""

    def stop(*_: object) -> None:
        raise RunError(f"ended by SIGTERM, as torchrun does where another process has ended; {_GO_ON}")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _explain(error: Exception, place: Place) -> RetrievalError | None:
    """The error in one line with the rank that has it; None where it is none that a user can mend."""
    if isinstance(error, RetrievalError):
        return error if place.rank == 0 else RunError(f"rank {place.rank}: {error}")
    if not _is_lost(error):
        return None
    what = (str(error).splitlines() or [""])[0].rpartition("] ")[2] if "] " in str(error) else str(error)
    return RunError(
        f"rank {place.rank}: another of the {place.size} processes has ended or keeps the others waiting ({what}); "
        f"what it said itself tells why; {_GO_ON}"
    )


def _is_lost(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and (
        isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection closed by peer" in str(error)
    )


def _is_first_to_fail(store: dist.Store) -> bool:
    try:
        return store.add(_FAILED, 1) == 1
    except RuntimeError:  # its process has ended too
        return True


def _sum_gradients(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
