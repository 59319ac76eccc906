"""The same task on many arguments, in processes that do not outlive their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import torch

from index.commands.console import progress_bar
from index.progress import Progress


def run_parallel(
    task: Callable[..., None], arguments: Sequence[tuple[Any, ...]], what: str, *, workers: int, threads: int
) -> None:
    """Call the task with each of the arguments; the first error, or Ctrl-C, ends all.

    Args:
        task: picklable; what it makes, it writes.
        arguments: of its calls, begun in this order.
        what: shown before the progress bar.
        workers: processes; 1 works in this one.
        threads: of each process; together they use workers x threads cores.
    """
    if not arguments:
        return
    with progress_bar(what, unit="cells") as progress:
        if workers == 1:
            with _torch_threads(threads):
                for done, each in enumerate(arguments, start=1):
                    task(*each)
                    progress(done, len(arguments))
                    _log(what, done, len(arguments))
            return
        # Read when a worker imports its libraries; without it every process would start a thread for every core.
        with _environment(OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="PASSIVE"):
            _run_in_processes(task, arguments, what, workers=workers, threads=threads, progress=progress)


def _run_in_processes(
    task: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    what: str,
    *,
    workers: int,
    threads: int,
    progress: Progress,
) -> None:
    pool = ProcessPoolExecutor(
        min(workers, len(arguments)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(threads,),
    )
    try:
        futures = [pool.submit(task, *each) for each in arguments]
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            progress(done, len(futures))
            _log(what, done, len(futures))
    except BaseException:
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _log(what: str, done: int, total: int) -> None:
    """A line for every tenth of the work where no bar is seen."""
    if not sys.stderr.isatty() and done * 10 // total > (done - 1) * 10 // total:
        print(f"{what} {done}/{total}", file=sys.stderr, flush=True)


def _start_worker(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
