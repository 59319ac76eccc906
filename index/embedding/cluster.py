"""Embeds items on the machines of a Ray cluster: workers on every living node, whose work others do where they die."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from index.embedding.cluster_worker import ClusterWork, ClusterWorker
from index.errors import GalleryError, InputError, RetrievalError
from index.extras import naming_extras
from index.progress import Progress, no_progress
from index.sources.items import Place
from index.telemetry import switch_off_telemetry
from index.text import printable_path

logger = logging.getLogger(__name__)

_ANSWER_S = 10.0  # that a cluster's head has to take a connection: Ray itself would try for many minutes
_LOOK_S = 1.0  # between two looks at which nodes live
_NO_WORKER_S = 60.0  # without any living worker, after which the work ends
_VISIBLE_S = (
    60.0  # that a file written elsewhere may take to be seen here: network file systems remember what was not
)
_SILENT_S = 30.0  # that the wait for a first worker is told to nobody
_QUEUED = 2  # units that a worker has, so that it does not wait for the next one
_MOST_DEATHS = 3  # of workers in a row, or at one unit


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The library Ray, connected to the cluster at HOST:PORT; None for that of `RAY_ADDRESS`, or one of this machine.

    Raises:
        MissingDependencyError: it is not installed.
        InputError: no cluster answers there.
    """
    address, ray = find_cluster(address)
    try:
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, configure_logging=False,
            include_dashboard=None if address else False,
        )  # fmt: skip
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{address or 'a Ray cluster of this machine'}: cannot be used: {problem}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def find_cluster(address: str | None) -> tuple[str | None, Any]:
    """The address of the cluster that is to be used, where something answers, and the library Ray; as `connected`.

    Raises:
        MissingDependencyError, InputError: as `connected`.
    """
    switch_off_telemetry()
    address = address or os.environ.get("RAY_ADDRESS") or None  # which Ray takes for none where it is empty, too
    if address is not None:
        _check_answers(address)
    with naming_extras("--engine ray"):
        import ray
    return address, ray


def _check_answers(address: str) -> None:
    host, separator, port = address.rpartition(":")
    if not separator or "/" in host or not port.isdigit():
        raise InputError(
            f"{address}: expected the address of a Ray cluster's head as HOST:PORT, such as head:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        advice = f"start one there with `ray start --head --port {port}`, or give the address of another"
        raise InputError(f"{address}: no Ray cluster answers there ({error}); {advice}") from error


@dataclass(slots=True, eq=False)
class _Unit:
    """Some items that are embedded at once, and how many workers have died at them."""

    keys: list[str]
    places: list[Place]
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker on a node; its units are done in order."""

    node: str
    node_name: str
    actor: Any
    is_open: bool = False
    units: list[_Unit] = field(default_factory=list)


class Crew:
    """The workers on a cluster's nodes; also nodes that join later get some.

    Args:
        ray: of `connected`.
        work: what they are told.
        threads: of a worker, and so the CPUs that it takes; 0: one worker a node, or a GPU, takes all.
    """

    def __init__(self, ray: Any, work: ClusterWork, *, threads: int = 0) -> None:
        self._ray, self._work, self._threads = ray, work, threads
        self._workers: list[_Worker] = []
        self._outstanding: dict[Any, tuple[_Worker, _Unit | None]] = {}
        self._described: dict[str, Any] | None = None
        self._looked = self._lived = time.monotonic() - _LOOK_S
        self._deaths, self._left = 0, deque[_Unit]()
        self._cause = "no node has a free processor"

    def describe(self) -> Mapping[str, Any]:
        """What vectors depend on there, of `describe_vectors`; it is the same on all nodes.

        Raises:
            RetrievalError: no worker can be had, or one cannot work.
        """
        begun, is_told = time.monotonic(), False
        while self._described is None:
            self._hire()
            self._wait()
            if time.monotonic() - begun > _SILENT_S and not is_told:
                logger.warning("still waiting for a worker: the cluster's processors may be taken by others")
                is_told = True
        return self._described

    def embed(
        self,
        items: Iterable[tuple[str, Place]],
        *,
        made_by: str,
        unit: int,
        total: int,
        progress: Progress = no_progress,
    ) -> int:
        """Embed items, given with their keys, to files of outcomes of `unit` items; the number of items.

        Args:
            total: for the progress.

        Raises:
            RetrievalError: what stops every worker; what is written stays.
        """
        given, done, at_work = iter(items), 0, 0
        while True:
            self._hire()
            for worker in self._workers:
                while worker.is_open and len(worker.units) < _QUEUED:
                    if (following := self._next(given, size=unit)) is None:
                        break
                    self._submit(worker, following, made_by=made_by)
            at_work = sum(len(worker.units) for worker in self._workers)
            if not at_work and not self._left:
                if (following := self._next(given, size=unit)) is None:
                    return done
                self._left.append(following)
            done += self._wait()
            progress(done, total)

    def _next(self, given: Iterator[tuple[str, Place]], *, size: int) -> _Unit | None:
        if self._left:
            return self._left.popleft()
        some = list(islice(given, size))
        return _Unit([key for key, _ in some], [place for _, place in some]) if some else None

    def _submit(self, worker: _Worker, unit: _Unit, *, made_by: str) -> None:
        worker.units.append(unit)
        self._outstanding[worker.actor.embed.remote(unit.keys, unit.places, made_by)] = worker, unit

    def _hire(self) -> None:
        """Let every living node have its workers."""
        if time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        for node in self._ray.nodes():
            if not node["Alive"]:
                continue
            count, options = _plan_workers(node["Resources"], threads=self._threads)
            here = sum(worker.node == node["NodeID"] for worker in self._workers)
            for _ in range(count - here):
                self._start(node, options)
        if self._workers:
            self._lived = time.monotonic()
        elif time.monotonic() - self._lived > _NO_WORKER_S:
            shown = printable_path(str(self._work.folder))
            raise GalleryError(
                shown,
                f"no node of the cluster is left to embed ({self._cause}); what is done is kept, run it again",
            )

    def _start(self, node: Mapping[str, Any], options: Mapping[str, float]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        kind = self._ray.remote(ClusterWorker).options(scheduling_strategy=place, max_restarts=0, **options)
        threads = max(1, int(options["num_cpus"]))
        actor = kind.remote(self._work, threads=threads)
        worker = _Worker(node["NodeID"], node["NodeManagerHostname"], actor)
        self._workers.append(worker)
        self._outstanding[actor.open.remote()] = worker, None

    def _wait(self) -> int:
        """Wait a moment for what is done; the number of items that it had."""
        if not self._outstanding:
            time.sleep(_LOOK_S / 4)
            return 0
        ready, _ = self._ray.wait(list(self._outstanding), num_returns=1, timeout=_LOOK_S)
        return sum(self._take(ref) for ref in ready)

    def _take(self, ref: Any) -> int:
        worker, unit = self._outstanding.pop(ref)
        causes = self._ray.exceptions
        try:
            result = self._ray.get(ref)
        except (
            causes.RayActorError, causes.OutOfMemoryError, causes.ObjectLostError, causes.ActorUnschedulableError
        ) as error:  # fmt: skip
            self._bury(worker, error)
            return 0
        except causes.RayTaskError as error:
            raise GalleryError(worker.node_name, f"a worker failed: {error.cause!r}") from error
        if isinstance(result, RetrievalError):
            raise GalleryError(f"node {worker.node_name}", str(result)) from result
        if unit is None:
            self._welcome(worker, result)
            return 0
        worker.units.remove(unit)
        self._check_visible(Path(result), worker)
        self._deaths = 0
        return len(unit.keys)

    def _welcome(self, worker: _Worker, described: dict[str, Any]) -> None:
        self._described = self._described or described
        other = [name for name in described if described[name] != self._described.get(name)]
        if other:
            raise GalleryError(
                f"node {worker.node_name}",
                f"gives other vectors than the other nodes: its {other[0]} is {described[other[0]]}, theirs "
                f"{self._described[other[0]]}; install the same on all, and use nodes of one kind",
            )
        worker.is_open = True

    def _bury(self, worker: _Worker, error: Exception) -> None:
        """A worker, or its node, has died: others get its units."""
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        self._outstanding = {ref: who for ref, who in self._outstanding.items() if who[0] is not worker}
        self._cause, self._deaths = " ".join(str(error).split())[:300], self._deaths + 1
        alive = any(node["Alive"] and node["NodeID"] == worker.node for node in self._ray.nodes())
        what = "a worker died on node" if alive else "lost the node"
        logger.warning("%s %s; others do its work", what, worker.node_name)
        if alive and worker.units:
            worker.units[0].deaths += 1
        for unit in worker.units:
            if unit.deaths >= _MOST_DEATHS:
                raise GalleryError(
                    unit.places[0].name,
                    f"{unit.deaths} workers died at this or one of the {len(unit.places) - 1} images after it: "
                    f"{self._cause}; take out what kills them, or give workers more memory; what is done is kept",
                )
        self._left.extendleft(reversed(worker.units))
        if alive and self._deaths > _MOST_DEATHS * (1 + len(self._workers)):
            raise GalleryError(f"node {worker.node_name}", f"its workers die again and again: {self._cause}")

    def _check_visible(self, path: Path, worker: _Worker) -> None:
        """See that what a node has written can be read here."""
        until = time.monotonic() + _VISIBLE_S
        while not path.is_file():
            if time.monotonic() > until:
                raise GalleryError(
                    printable_path(str(path.parent)),
                    f"what node {worker.node_name} writes there is not to be seen here; name a folder that all "
                    "machines share: --shards",
                )
            os.listdir(path.parent.parent)
            time.sleep(0.1)


def _plan_workers(resources: Mapping[str, float], *, threads: int) -> tuple[int, dict[str, float]]:
    """How many workers a node gets, and what each takes: a GPU where there is one, and processors."""
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    if not cpus:
        return 0, {"num_cpus": 0}
    if gpus:
        return gpus, {"num_gpus": 1, "num_cpus": max(1, min(threads or cpus // gpus, cpus // gpus))}
    each = min(threads or cpus, cpus)
    return cpus // each, {"num_cpus": each}
