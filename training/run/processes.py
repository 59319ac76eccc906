"""Processes of one training, as torchrun starts them: how they find each other, and checks that they started alike."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import PIL
import torch
import torch.distributed as dist

from index.errors import InputError, RetrievalError, RunError
from index.text import printable_path
from training.data.datasets import Record
from training.options.config import TrainConfig
from training.options.machine import Machine
from training.run.distributed import ALONE, Team, current_team, using_team
from training.run.run_folder import flatten


def require_same_start(team: Team, *, config: TrainConfig, others: Mapping[str, Any]) -> None:
    """Refuse processes with different options or versions, and more of them than a batch has images.

    Args:
        others: what else was given, by name.

    Raises:
        InputError: naming what differs, or does not fit.
    """
    if team.size == 1:
        return
    versions = {"torch": torch.__version__, "pillow": PIL.__version__}
    team.require_same({**flatten(asdict(config)), **others, **versions})
    require_shares(config, processes=team.size)


def require_shares(config: TrainConfig, *, processes: int) -> None:
    """Refuse what several processes cannot part among themselves."""
    if not config.network.trains:
        return
    if config.network.network_batch_size < processes:
        raise InputError(
            f"--network-batch-size {config.network.network_batch_size} has no image for each of {processes} "
            "processes: raise it, or start fewer"
        )
    if config.network.network_batch_norm == "train":
        raise InputError(
            "--network-batch-norm train takes one process: statistics of a part are not those of its batch; leave "
            "it out, or start without torchrun"
        )


def require_same_files(records: Sequence[Record]) -> None:
    """Refuse to go on where another process does not have the images that rank 0 has listed.

    Raises:
        InputError: naming the first that is missing there, or has another size.
    """
    team = current_team()
    if team.size > 1:
        paths = [record.path for record in records]
        sizes = [_size(path) for path in paths]
        team.ask(_compare_files, paths, sizes)
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


STEP_WAIT_S = 600.0
"""How long a step waits for the other processes, which take it at the same time."""
_FIRST_WAIT = timedelta(days=1)  # for what rank 0 does alone; who has died is noticed at once
_VARIABLES = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_FAILED = "training/failed"
_GO_ON = "what was done is kept: start the same command again with --resume"


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
        """As torchrun's variables have it; alone without them."""
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


@contextmanager
def join_processes(place: Place, *, machine: Machine, wait_s: float = STEP_WAIT_S) -> Iterator[Team]:
    """Let the processes find each other, by gloo on the CPU and NCCL on GPUs, each of which has one process.

    Of all that fail, the first one says why: the others end by `AnotherFailedError`.
    """
    if place.size == 1:
        yield ALONE
        return
    limit = timedelta(seconds=wait_s)
    store = _find_store(limit)
    backend = "cpu:gloo,cuda:nccl" if machine.device.type == "cuda" else "gloo"
    try:
        with _heeding_termination():
            if machine.device.type == "cuda":
                _choose_gpu(place)
            dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=limit)
            control = dist.new_group(backend="gloo", timeout=_FIRST_WAIT)
            assert isinstance(control, dist.ProcessGroup)
            team = Team(place.rank, place.size, control=control, machine=machine)
            with using_team(team):
                yield team
            dist.destroy_process_group()  # not where something failed: to take leave of the dead takes for ever
    except Exception as error:
        reason = _explain(error, place)
        if not _is_first_to_fail(store):
            raise AnotherFailedError(f"rank {place.rank}: another process failed before") from error
        if reason is None:
            raise
        raise reason from error


def _find_store(limit: timedelta) -> dist.Store:
    try:
        store: dist.Store = next(iter(dist.rendezvous("env://", timeout=limit)))[0]
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RunError(
            f"{where} (MASTER_ADDR and MASTER_PORT) cannot be reached, where the processes find each other: {error}; "
            "start them with torchrun, which sets these"
        ) from error
    return store


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


def _explain(error: Exception, place: Place) -> RetrievalError | None:
    """The error in one line with the rank that has it; None where it is none that a user can mend."""
    if isinstance(error, RetrievalError):
        named = place.rank == 0 or str(error).startswith("rank ")
        return error if named else RunError(f"rank {place.rank}: {error}")
    is_lost = (
        isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection closed by peer" in str(error)
    )
    if not isinstance(error, RuntimeError) or not is_lost:
        return None
    what = (str(error).splitlines() or [""])[0].rpartition("] ")[2] if "] " in str(error) else str(error)
    return RunError(
        f"rank {place.rank}: another of the {place.size} processes has ended or keeps the others waiting ({what}); "
        f"what it said itself tells why, as does torchrun; {_GO_ON}"
    )


def _is_first_to_fail(store: dist.Store) -> bool:
    try:
        return store.add(_FAILED, 1) == 1
    except RuntimeError:  # its process has ended too
        return True
