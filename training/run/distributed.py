"""Distributed training under torchrun: process groups and the calls between processes.

Rank 0 runs the training: it lists, selects, trains heads, evaluates and writes. The other processes wait in
`Team.run_on_rank0` and do what it asks for. A process without torchrun is alone: each function returns its argument.
"""

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import PIL
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from index.errors import InputError, RetrievalError, RunError
from index.text import printable_path
from training.data.datasets import Record
from training.options.config import TrainConfig
from training.options.machine import Machine

Value = TypeVar("Value")
_FIRST_WAIT = timedelta(days=1)  # for what rank 0 does alone; a process that died is noticed at once
_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_FAILED = "training/failed"
_GO_ON = "what was done is kept: start the same command again with --resume"


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """Rank of this process among `size`, and on its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def read(cls, variables: Mapping[str, str] = os.environ) -> "ProcessRank":
        """Rank by torchrun's environment variables; without them the only process."""
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


class AnotherFailedError(RunError):
    """Another process failed first, and reports its error."""


class Team:
    """Processes that train together; all call the same functions in the same order.

    `control` is the process group for everything but steps, on the CPU; `machine` is that of this process.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, *, control: dist.ProcessGroup | None = None, machine: Machine | None = None
    ) -> None:
        self.rank, self.size, self._control, self._machine = rank, size, control, machine
        self.is_first = rank == 0

    @property
    def machine(self) -> Machine:
        """Machine of this process, where several train together."""
        assert self._machine is not None
        return self._machine

    def run_on_rank0(self, act: Callable[[], Value]) -> Value:
        """Result of `act`, which only rank 0 calls; the other ranks execute its `call_on_others` meanwhile."""
        if self.size == 1:
            return act()
        if self.is_first:
            value = act()
            self.call_on_others(None, value)
            return value
        while True:
            received: list[Any] = [None]
            dist.broadcast_object_list(received, 0, group=self._control)
            ((function, arguments),) = received
            if function is None:
                (value,) = arguments
                return value
            function(*arguments)

    def call_on_others(self, function: Callable[..., object] | None, *arguments: Any) -> None:
        """Call a function on the other ranks, from rank 0; they wait in `run_on_rank0`. None ends the wait."""
        if self.size > 1:
            dist.broadcast_object_list([(function, arguments)], 0, group=self._control)

    def gather_values(self, value: Value) -> list[Value]:
        """Values of all ranks, in order."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._control)
        return found

    def collect_values(self, value: Value) -> list[Value]:
        """Values of all ranks, in order, on rank 0; an empty list on the others."""
        if self.size == 1:
            return [value]
        found: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(value, found, group=self._control)
        return found or []

    def scatter(self, values: list[Value] | None) -> Value:
        """This rank's value of the list on rank 0, which has one value per rank."""
        own: list[Any] = [None]
        dist.scatter_object_list(own, values, src=0, group=self._control)
        handed: Value = own[0]
        return handed

    def part_of(self, count: int, *, rank: int | None = None) -> slice:
        """Slice of this rank in `count` things, as even as possible; it may be empty."""
        own = self.rank if rank is None else rank
        return slice(count * own // self.size, count * (own + 1) // self.size)

    def gather_rows(self, own: Tensor, count: int) -> Tensor:
        """(count, …) on all ranks, from the (n, …) of each rank; gradients reach the rank's own rows.

        Every rank computes the loss of the whole batch, so that gradients summed by `share` equal those of one process.
        """
        if self.size == 1:
            return own
        padded = own.new_zeros(-(-count // self.size), *own.shape[1:])
        padded[: len(own)] = own.detach()
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded)
        rows = []
        for rank, part in enumerate(gathered):
            there = self.part_of(count, rank=rank)
            rows.append(own if rank == self.rank else part[: there.stop - there.start])
        return torch.cat(rows)

    def share(self, model: nn.Module, *, has_unused: bool = False) -> nn.Module:
        """The model with gradients summed over the ranks, and the weights of rank 0.

        `has_unused`: a pass leaves out parameters that train.
        """
        if self.size == 1:
            return model
        with warnings.catch_warnings():  # later versions of torch call the second argument otherwise
            warnings.simplefilter("ignore", FutureWarning)
            shared = DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=has_unused)
        # It would be the mean otherwise; a lambda, as torch refuses annotations that are text.
        shared.register_comm_hook(None, lambda _, bucket: _sum_gradients(bucket))
        return shared

    def broadcast_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Broadcast the gradients of rank 0 to all ranks."""
        if self.size > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    dist.broadcast(parameter.grad, 0)

    def require_same(self, options: Mapping[str, Any]) -> None:
        """Refuse processes with different options."""
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


ALONE = Team()
_joined = ALONE


def current_team() -> Team:
    """Processes of this training."""
    return _joined


def _sum_gradients(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


def require_same_start(team: Team, *, config: TrainConfig, others: Mapping[str, Any]) -> None:
    """Refuse different options or versions in processes, and more processes than images in a batch."""
    if team.size > 1:
        versions = {"torch": torch.__version__, "pillow": PIL.__version__}
        team.require_same({**config.options(), **others, **versions})
        batch_size = config.finetuning.batch_size
        if config.finetuning.trains and batch_size < team.size:
            raise InputError(
                f"--batch-size {batch_size} has no image for each of {team.size} processes: raise it, or start fewer"
            )


def require_same_files(records: Sequence[Record]) -> None:
    """Refuse to continue where another process lacks images that rank 0 has listed."""
    team = current_team()
    if team.size > 1:
        paths = [record.path for record in records]
        sizes = [_size(path) for path in paths]
        team.call_on_others(_compare_files, paths, sizes)
        _compare_files(paths, sizes)


def _compare_files(paths: Sequence[Path], sizes: Sequence[int | None]) -> None:
    team = current_team()
    different = [path for path, size in zip(paths, sizes, strict=True) if _size(path) != size]
    for rank, (count, first) in enumerate(team.gather_values((len(different), different[:1]))):
        if count:
            raise InputError(
                f"rank {rank} does not see {count} of the {len(paths)} images as rank 0 does, the first is "
                f"{printable_path(str(first[0]))}: every machine needs the same files at the same paths"
            )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


@contextmanager
def join_processes(process: ProcessRank, *, machine: Machine, wait_s: float) -> Iterator[Team]:
    """Join the processes by gloo on the CPU, or NCCL with one GPU each; `current_team` is this team in the block.

    The first process that fails reports its error; the others end by `AnotherFailedError`.
    """
    global _joined
    if process.size == 1:
        yield ALONE
        return
    limit = timedelta(seconds=wait_s)
    try:
        store: dist.Store = next(iter(dist.rendezvous("env://", timeout=limit)))[0]
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RunError(
            f"{where} (MASTER_ADDR and MASTER_PORT) cannot be reached, where the processes find each other: {error}; "
            "start them with torchrun, which sets these"
        ) from error
    backend = "cpu:gloo,cuda:nccl" if machine.device.type == "cuda" else "gloo"
    try:
        with _heeding_termination():
            if machine.device.type == "cuda":
                if process.local_rank >= (count := torch.cuda.device_count()):
                    raise InputError(
                        f"--device cuda: every process needs a GPU of its own, and this machine has {count}: lower "
                        "--nproc-per-node"
                    )
                torch.cuda.set_device(process.local_rank)
            dist.init_process_group(backend, store=store, rank=process.rank, world_size=process.size, timeout=limit)
            control = dist.new_group(backend="gloo", timeout=_FIRST_WAIT)
            assert isinstance(control, dist.ProcessGroup)
            _joined = Team(process.rank, process.size, control=control, machine=machine)
            yield _joined
            dist.destroy_process_group()  # not where something failed: shutdown hangs after a rank has ended
    except Exception as error:
        reason, is_first = _explain(error, process), True
        with suppress(RuntimeError):  # the store's process has ended too
            is_first = store.add(_FAILED, 1) == 1
        if not is_first:
            raise AnotherFailedError(f"rank {process.rank}: another process failed before") from error
        if reason is None:
            raise
        raise reason from error
    finally:
        _joined = ALONE


@contextmanager
def _heeding_termination() -> Iterator[None]:
    """Raise an error on SIGTERM, by which torchrun ends the remaining processes."""

    def stop(*_: object) -> None:
        raise RunError(f"ended by SIGTERM, as torchrun ends the others where one process has ended; {_GO_ON}")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends by itself, after it has said why
        raise
    signal.signal(signal.SIGTERM, before)


def _explain(error: Exception, process: ProcessRank) -> RetrievalError | None:
    """The error in one line with its rank; None for an error that a user cannot fix."""
    if isinstance(error, RetrievalError):
        named = process.rank == 0 or str(error).startswith("rank ")
        return error if named else RunError(f"rank {process.rank}: {error}")
    is_lost = isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection closed by peer" in str(error)
    if not isinstance(error, RuntimeError) or not is_lost:
        return None
    what = (str(error).splitlines() or [""])[0].rpartition("] ")[2] if "] " in str(error) else str(error)
    return RunError(
        f"rank {process.rank}: another of the {process.size} processes has ended or keeps the others waiting ({what}); "
        f"what it said itself tells why, as does torchrun; {_GO_ON}"
    )
