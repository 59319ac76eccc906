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
from index.paths import below
from index.sources.local_source import FileSource, FolderSource, GlobSource, ListSource, matches_pattern
from index.sources.source import ImageSource
from index.text import printable_path
from index.writing.build_config import WatchConfig
from index.writing.publishing import BuildReport

_LOOK_S = 0.25  # between two looks at what has to be done
_RECENT_S = 600.0  # after its last change a file may still be written, or copied with an old time
_RETRY_S, _OLD_RETRY_S, _MOST_RETRY_S = 5.0, 3600.0, 86_400.0  # delays: the first, that of old files, the longest
_LIMITS = Path("/proc/sys/fs/inotify")
_TREES = (FolderSource, GlobSource)  # everything below their root is watched
_NOTICED = (*_TREES, FileSource, ListSource)

_Watched = dict[ImageSource, tuple[int, int] | None]
"""Sources, each with the device and inode of its root: another folder there has to be watched anew."""

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
    said, own = set[str](), os.path.realpath(gallery)

    def say_once(message: str) -> None:
        if message not in said:
            said.add(message)
            say(message)

    watched = _find_watched(gallery, config=config, say=say_once)
    schedule, retries = Schedule(config, now=time.monotonic()), Retries()
    retry_all, urgent_at, problem = True, math.inf, ""
    while True:
        is_fresh, is_lost = True, False
        with closing(_listen(list(watched), pause_s=config.scan_every, say=say_once)) as looks:
            for paths in looks:
                now = time.monotonic()
                is_lost |= any(source.root in paths for source in watched)  # removed, and perhaps made again
                if any(_tells_of(path, source, own=own) for path in paths for source in watched):
                    schedule.change(now)
                if not (is_fresh or schedule.is_due(now, has_retries=now >= urgent_at)):
                    continue
                schedule.begin()
                try:
                    current = _find_watched(gallery, config=config, say=say_once)
                    if not is_fresh and (is_lost or current != watched):
                        watched = current
                        break  # watch them first, then update: no change is missed in between
                    is_fresh = False
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


def _find_watched(gallery: Path, *, config: WatchConfig, say: Callable[[str], None]) -> _Watched:
    """The sources to take notices of; says which are scanned alone."""
    with read_current_catalog(gallery) as catalog:
        added = catalog.added_source()  # whose images the server adds itself
        sources = [source for number, source in catalog.sources().items() if number != added]
    noticed = [source for source in sources if config.notices and isinstance(source, _NOTICED)]
    watched: _Watched = {source: _identify(source.root) for source in noticed}
    if scanned := [source for source in sources if source not in noticed]:
        named = ", ".join(printable_path(source.location) for source in scanned)
        say(f"{named}: without notices; scanned every {config.scan_every:g} seconds")
    return watched


def _identify(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _tells_of(path: str, source: ImageSource, *, own: str) -> bool:
    """Whether a notice of a path may be of a source's items; never below the gallery's own folder."""
    root = source.root
    if path == root or not isinstance(source, _TREES):
        return path in (root, source.location)
    if _is_below(path, own) and not _is_below(root, own):
        return False
    if not isinstance(source, GlobSource):
        return _is_below(path, root)
    name, parts = below(root, path), Path(below(root, source.location)).parts
    fixed = parts[: parts.index("**")] if "**" in parts else parts
    return _is_below(path, root) and (
        matches_pattern(name, parts)
        or (not os.path.isfile(path) and matches_pattern(name, fixed[: name.count("/") + 1]))  # a folder, or gone
    )


def _is_below(path: str, folder: str) -> bool:
    return path == folder or below(folder, path) != path


def _listen(
    sources: Sequence[ImageSource], *, pause_s: float, say: Callable[[str], None]
) -> Generator[set[str], None, None]:
    """The paths that have changed, several times a second, without end; none where there are no notices."""
    while sources:
        try:
            yield from _take_notices(sources)
        except MissingDependencyError as error:
            say(f"scanned every {pause_s:g} seconds; {error}")
            break
        except (OSError, RuntimeError, UnicodeError) as error:  # watchfiles' own, and a path that is not UTF-8
            say(f"{_explain(error)}; until then scanned every {pause_s:g} seconds")
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            time.sleep(_LOOK_S)
            yield set()
    while True:
        yield set()
        time.sleep(_LOOK_S)


def _take_notices(sources: Sequence[ImageSource]) -> Iterator[set[str]]:
    """Notices of all below folders, and of a single file by its folder, which knows when another takes its place."""
    try:
        from watchfiles import watch
    except ModuleNotFoundError as error:
        purpose = "a notice of every change"
        raise MissingDependencyError(package="watchfiles", extra="watch", purpose=purpose) from error
    sources = [source for source in sources if os.path.exists(source.root)] or sources
    trees = {source.root for source in sources if isinstance(source, _TREES)}
    folders = {source.root for source in sources if not isinstance(source, _TREES)}
    look_ms = round(1000 * _LOOK_S)
    options: dict[str, Any] = {"debounce": look_ms, "step": look_ms, "rust_timeout": look_ms, "yield_on_timeout": True}
    for is_lenient in (False, True):  # leaves out folders without permission, but would not tell of the system's limit
        options |= {"watch_filter": None, "ignore_permission_denied": is_lenient}
        try:
            watches = [watch(*roots, recursive=roots is trees, **options) for roots in (trees, folders) if roots]
            for looks in zip(*watches, strict=True):
                yield {path for changes in looks for _, path in changes}
        except PermissionError:
            if is_lenient:
                raise


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
