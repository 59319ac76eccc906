"""The lines of logs: one for every request, another for each that searched slowly; no token, no name of a photo.

{"time": "2026-01-31T12:00:00.123Z", "event": "request", "request_id": "9f…", "method": "GET", …}
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from retrieval_app.api.answered import Answered, Observer, hide_typed
from retrieval_app.server.log_config import STDOUT, LogConfig
from retrieval_app.server.log_writer import LogWriter
from retrieval_app.server.refusals import MoreRefusals, Refusal

MOST_SEARCHES = 8  # of one request that are told one by one
_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class Logs:
    """What is to be told.

    Attributes:
        observers: of requests that were answered.
        write_refusal: of what was sent away before; None where nothing is to be told of that.
    """

    observers: Sequence[Observer] = ()
    write_refusal: Callable[[Refusal | MoreRefusals], None] | None = None


@contextmanager
def open_logs(config: LogConfig) -> Iterator[Logs]:
    """What is to be told; SIGHUP opens the files anew.

    Raises:
        InputError: a file cannot be opened.
    """
    if config.access_log is None and config.slow_query_ms is None:
        yield Logs()
        return
    place = _STDERR if config.access_log is None else _STDOUT if config.access_log == STDOUT else config.access_log
    writer = LogWriter(place, render=_render, tell_dropped=_tell_dropped, capacity=config.log_lines_waiting)
    observers: list[Observer] = []
    if config.access_log is not None:
        observers.append(writer.write)
    if config.slow_query_ms is not None:
        observers.append(_SlowSearches(writer, least_ms=config.slow_query_ms))
    try:
        with _reopening_on_hangup(writer):
            yield Logs(observers, None if config.access_log is None else writer.write)
    finally:
        writer.close()


class _SlowSearches:
    """Writes down the searches that took longer than so many milliseconds; the arriving of bodies does not count."""

    def __init__(self, writer: LogWriter, *, least_ms: float) -> None:
        self._writer, self._least_ms = writer, least_ms

    def __call__(self, answered: Answered) -> None:
        watch = answered.watch
        ms = (answered.seconds - watch.body_s) * 1000
        if watch.searches and ms > self._least_ms:
            told = [one.to_json() for one in watch.searches[:MOST_SEARCHES]]
            self._writer.write({
                "time": _show_time(answered.at_s), "event": "slow_search", "request_id": answered.request_id,
                **_name_gallery(answered), "route": answered.route, "status": answered.status, "ms": round(ms, 3),
                "body_ms": round(watch.body_s * 1000, 3), "embed_ms": round(watch.embed_s * 1000, 3),
                "searches_count": watch.count, "searches": told,
            })  # fmt: skip


def _render(item: Answered | Refusal | MoreRefusals | dict[str, Any]) -> bytes:
    if isinstance(item, Answered):
        item = _describe(item)
    elif isinstance(item, Refusal):
        item = {"time": _show_time(item.at_s), "event": "refused", **_without_time(item)}
    elif isinstance(item, MoreRefusals):
        item = {"time": _show_time(item.at_s), "event": "more_refused", **_without_time(item)}
    return orjson.dumps(item)


def _without_time(item: Refusal | MoreRefusals) -> dict[str, Any]:
    return {name: value for name, value in asdict(item).items() if name != "at_s"}


def _describe(answered: Answered) -> dict[str, Any]:
    visitor = answered.visitor
    return {
        "time": _show_time(answered.at_s), "event": "request", "request_id": answered.request_id,
        **_name_gallery(answered), "method": answered.method, "route": answered.route,
        "query": hide_typed(answered.query_string),
        "status": answered.status, "bytes": answered.sent_bytes, "ms": round(answered.seconds * 1000, 3),
        "address": visitor.address, "name": visitor.name, "has_token": visitor.has_token,
    }  # fmt: skip


def _name_gallery(answered: Answered) -> dict[str, str]:
    """Which of several galleries it was; nothing where there is one only."""
    return {} if answered.gallery is None else {"gallery": answered.gallery}


def _tell_dropped(count: int) -> bytes:
    now = datetime.now(UTC).timestamp()
    return orjson.dumps({"time": _show_time(now), "event": "dropped", "lines": count})


def _show_time(seconds: float) -> str:
    """UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def _reopening_on_hangup(writer: LogWriter) -> Iterator[None]:
    is_possible = hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()
    if not is_possible:
        yield
        return
    before = signal.signal(signal.SIGHUP, lambda *_: writer.reopen())
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
