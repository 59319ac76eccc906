"""The same task on many arguments, in processes that do not outlive their parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import wait
from typing import Any
from unittest.mock import patch

from index.commands.console import progress_bar


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

        def tell(done: int) -> None:
            """Also a line for every tenth of the work where no bar is seen."""
            progress(done, len(arguments))
            if not sys.stderr.isatty() and done * 10 // len(arguments) > (done - 1) * 10 // len(arguments):
                print(f"{what} {done}/{len(arguments)}", file=sys.stderr, flush=True)

        if workers == 1:
            import torch  # workers that do not use it start without it

            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                for done, each in enumerate(arguments, start=1):
                    task(*each)
                    tell(done)
            finally:
                torch.set_num_threads(before)
            return
        # Read when a worker imports its libraries; without it every process would start a thread for every core.
        with patch.dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="PASSIVE"):
            _run_in_processes(task, arguments, tell, workers=workers)


def _run_in_processes(
    task: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    tell: Callable[[int], None],
    *,
    workers: int,
) -> None:
    count, context = min(workers, len(arguments)), multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_start_worker)
    try:
        futures = [pool.submit(task, *each) for each in arguments]
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            tell(done)
    except BaseException:
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
