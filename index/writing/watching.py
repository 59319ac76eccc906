"""Watching the sources of a gallery: what changes there becomes a new version, by notices and by scans."""

import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from index.catalog.rows import REMOVED, SKIPPED_IF
from index.errors import MissingDependencyError, RetrievalError
from index.labels.decided_labels import read_current_catalog
from index.network.remote_store import has_time
from index.sources.local_source import FileSource, FolderSource, GlobSource, ListSource
from index.sources.source import ImageSource
from index.text import printable_path
from index.writing.build_config import WatchConfig
from index.writing.publishing import BuildReport

_LOOK_S = 0.25  # between two looks at what has to be done
_RECENT_S = 600.0  # after its last change a file may still be written, or copied with an old time
_RETRY_S, _OLD_RETRY_S, _MOST_RETRY_S = 5.0, 3600.0, 86_400.0  # delays: the first, that of old files, the longest
_LIMITS = Path("/proc/sys/fs/inotify")

FailedItem = tuple[int, int, int]
"""Id, size and modification time of a skipped item."""
Update = Callable[[Sequence[int] | None], BuildReport]
"""Updates the gallery; of the skipped items it tries those with these ids again, or all."""


class Schedule:
    """When to update: soon after changes, once none follows, and every so often; times are of one clock."""

    def __init__(self, config: WatchConfig, *, now: float) -> None:
        self._config, self._scan_at = config, now
        self._first: float | None = None
        self._last = now

    def change(self, now: float) -> None:
        """Take note of a change."""
        self._first, self._last = now if self._first is None else self._first, now

    def is_due(self, now: float, *, has_retries: bool = False) -> bool:
        """Whether to update now; failed items wait for changes that go on."""
        if self._first is None:
            return has_retries or now >= self._scan_at
        return now >= min(self._last + self._config.quiet_s, self._first + self._config.most_s)

    def begin(self) -> None:
        """An update begins: changes from now on are for the next one."""
        self._first = None

    def end(self, now: float) -> None:
        """An update has ended."""
        self._scan_at = now + self._config.scan_every


class Retries:
    """Items that failed, and when each is tried again: soon while it may still be written, then ever more rarely."""

    def __init__(self) -> None:
        self._tries: dict[FailedItem, tuple[float, float]] = {}  # the moment of the next one, and the delay before it

    def due(self, now: float) -> list[int]:
        """Ids of the items to try again now."""
        return [item[0] for item, (moment, _) in self._tries.items() if moment <= now]

    def find_urgent(self, *, below_s: float) -> float:
        """When the first item is due that has a delay below a limit; others wait for the next update."""
        return min((moment for moment, delay in self._tries.values() if delay < below_s), default=math.inf)

    def record(self, failed: Iterable[FailedItem], *, now: float, clock_s: float) -> None:
        """Take the failed items after an update; `clock_s` is the time of the modification times."""
        before, self._tries = self._tries, {}
        for item in failed:
            moment, delay = before.get(item, (now, 0.0))
            if moment <= now:  # it was new, or was tried
                is_recent = has_time(item[2]) and abs(clock_s - item[2] / 1e9) < _RECENT_S
                delay = min(max(2 * delay, _RETRY_S if is_recent else _OLD_RETRY_S), _MOST_RETRY_S)
                moment = now + delay
            self._tries[item] = (moment, delay)


def watch_gallery(
    gallery: Path, *, update: Update, config: WatchConfig, say: Callable[[str], None]
) -> Iterator[BuildReport]:
    """Update a gallery now and after every change of its sources, without end; gives the report of each new version.

    A failed update, of a disk that is not mounted for instance, is said once, and tried again with the next scan.
    """
    places = _find_noticed(gallery, config=config, say=say)
    schedule, retries = Schedule(config, now=time.monotonic()), Retries()
    retry_all, urgent_at, problem = True, math.inf, ""
    with closing(_listen(places, pause_s=config.scan_every, say=say)) as looks:
        for has_changed in looks:
            now = time.monotonic()
            if has_changed:
                schedule.change(now)
            if not schedule.is_due(now, has_retries=now >= urgent_at):
                continue
            schedule.begin()
            try:
                report = update(None if retry_all else retries.due(now))
                failed = _read_failed(gallery)
            except (RetrievalError, OSError) as error:
                if str(error) != problem:
                    say(f"not updated, the next scan tries again: {error}")
                problem, retries, retry_all = str(error), Retries(), True
            else:
                problem, retry_all = "", False
                retries.record(failed, now=time.monotonic(), clock_s=time.time())
                if report.changed:
                    yield report
            urgent_at = retries.find_urgent(below_s=config.scan_every)
            schedule.end(time.monotonic())


def _read_failed(gallery: Path) -> list[FailedItem]:
    with read_current_catalog(gallery) as catalog:
        skipped = catalog.rows(status="skipped")
        kept_out = (REMOVED, SKIPPED_IF)
        return [(row.id, row.size_bytes, row.mtime_ns) for row in skipped if row.reason not in kept_out]


def _find_noticed(gallery: Path, *, config: WatchConfig, say: Callable[[str], None]) -> list[str]:
    """The folders and files to take notices of; says which sources are scanned alone."""
    with read_current_catalog(gallery) as catalog:
        added = catalog.added_source()  # whose images the server adds itself
        sources = [source for number, source in catalog.sources().items() if number != added]
    noticed = [_find_place(source) if config.notices else None for source in sources]
    scanned = [source for source, place in zip(sources, noticed, strict=True) if place is None]
    if scanned:
        named = ", ".join(printable_path(source.location) for source in scanned)
        say(f"{named}: without notices; scanned every {config.scan_every:g} seconds")
    return [place for place in noticed if place is not None]


def _find_place(source: ImageSource) -> str | None:
    if isinstance(source, FolderSource | GlobSource):
        return source.root
    return source.location if isinstance(source, FileSource | ListSource) else None


def _listen(places: Sequence[str], *, pause_s: float, say: Callable[[str], None]) -> Generator[bool, None, None]:
    """Whether something has changed, several times a second, without end; always False where there are no notices."""
    said = set[str]()
    while places:
        try:
            yield from _take_notices(places)
        except MissingDependencyError as error:
            say(f"scanned every {pause_s:g} seconds; {error}")
            break
        except (OSError, RuntimeError) as error:  # watchfiles' own error is a RuntimeError
            problem = _explain(error)
            if problem not in said:
                said.add(problem)
                say(f"{problem}; until then scanned every {pause_s:g} seconds")
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            time.sleep(_LOOK_S)
            yield False
    while True:
        yield False
        time.sleep(_LOOK_S)


def _take_notices(places: Sequence[str]) -> Iterator[bool]:
    try:
        from watchfiles import watch
    except ModuleNotFoundError as error:
        purpose = "a notice of every change"
        raise MissingDependencyError(package="watchfiles", extra="watch", purpose=purpose) from error
    places = [place for place in places if os.path.exists(place)] or places
    look_ms = round(1000 * _LOOK_S)
    options: dict[str, Any] = {"debounce": look_ms, "step": look_ms, "rust_timeout": look_ms, "yield_on_timeout": True}
    try:
        yield from map(bool, watch(*places, watch_filter=None, ignore_permission_denied=False, **options))
    except PermissionError:  # of one folder; the other way, which leaves it out, would not tell of the system's limit
        yield from map(bool, watch(*places, watch_filter=None, ignore_permission_denied=True, **options))


def _explain(error: Exception) -> str:
    """Why there are no notices, and what to do."""
    for sign, name in (("watch limit", "max_user_watches"), ("os error 24", "max_user_instances")):
        if sign in str(error):
            limit = int((_LIMITS / name).read_text())
            what = "folders" if name == "max_user_watches" else "programs"
            return (
                f"no notices: the system's limit of {limit:,} watched {what} a user is reached; raise it: "
                f"sudo sysctl fs.inotify.{name}={max(4 * limit, 524_288 if what == 'folders' else 1024)}"
            )
    return f"no notices: {error}"
