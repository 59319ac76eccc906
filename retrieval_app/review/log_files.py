"""The log of who did what to a gallery: where its lines lie, how many are kept, and reading them.

GALLERY/people/log/changes-00000001.jsonl   decisions, undoing, images added and removed, updates, evaluations, and ends
GALLERY/people/log/exports-00000001.jsonl   what was downloaded, apart, so that readers cannot push changes out
GALLERY/people/log/visits-00000001.jsonl    signing in and out, and who was refused: nor can those who guess tokens
GALLERY/people/log/restored-9f….jsonl       what `retrieval restore` brought from a backup

A line is a JSON object: `at` (UTC), `who`, `from`, `what`, `request`, and what belongs to `what`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from index.durable import replacing
from index.errors import InputError
from index.text import printable_path
from index.versions.people import log_folder

CHANGES, EXPORTS, VISITS = SERIES = ("changes", "exports", "visits")
"""The last are given up first, where there is no room for all lines in memory."""
FILE_BYTES, MOST_FILES = 4 << 20, 32
"""A file of more bytes is followed by another; of more files of a series the oldest goes: 128 MiB at most."""
_NUMBERED = re.compile(r"(changes|exports|visits)-(\d{8})\.jsonl")
_NEEDED = ("at", "who", "from", "what", "request")

Line = dict[str, Any]


def make_log_folder(folder: Path) -> None:
    """Make the folder of a log where there is none; the gallery's own is there, or has been removed."""
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)


def list_files(folder: Path, series: str) -> list[Path]:
    """The files of a series, the oldest first."""
    found = ((path, _NUMBERED.fullmatch(path.name)) for path in _list(folder))
    return sorted(path for path, match in found if match is not None and match[1] == series)


def next_file(folder: Path, series: str) -> Path:
    """The file that the next line of a series belongs to; it may have to be made."""
    last = list_files(folder, series)[-1:]
    if last and last[0].stat().st_size < FILE_BYTES:
        return last[0]
    number = int(last[0].stem.rpartition("-")[2]) + 1 if last else 1
    return folder / f"{series}-{number:08}.jsonl"


def drop_oldest(folder: Path, series: str) -> None:
    """Remove the files of a series that are too many."""
    for path in list_files(folder, series)[:-MOST_FILES]:
        path.unlink(missing_ok=True)


def read_log(gallery: Path, *, since: datetime | None = None, who: str | None = None) -> list[Line]:
    """The lines of a gallery's log, in the order of their times; nothing where there is none.

    A line that a power cut left unfinished is left out.

    Args:
        gallery: its folder.
        since: only lines of this time and later.
        who: only those of one name.

    Raises:
        InputError: the log cannot be read.
    """
    folder, found = log_folder(gallery), dict[str, Line]()
    try:
        for path in _list(folder):
            if path.suffix == ".jsonl":
                with path.open("rb") as file:
                    found.update((_write(line), line) for line in _choose(file, since=since, who=who))
    except OSError as error:
        shown = printable_path(str(folder))
        raise InputError(f"{shown}: the log cannot be read: {error.strerror or error}") from error
    return sorted(found.values(), key=lambda line: read_time(line["at"]))


def bring_lines(gallery: Path, lines: Iterable[Line]) -> int:
    """Add the lines of a backup that the log does not have; how many.

    Raises:
        InputError: the log cannot be read or written.
    """
    known = {_write(line) for line in read_log(gallery)}
    new = [text for text in dict.fromkeys(map(_write, lines)) if text not in known]
    if not new:
        return 0
    content = "".join(f"{text}\n" for text in new).encode()
    folder = log_folder(gallery)
    try:
        make_log_folder(folder)
        with replacing(
            folder / f"restored-{hashlib.sha256(content).hexdigest()[:16]}.jsonl", mode=0o600
        ) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        shown = printable_path(str(folder))
        raise InputError(
            f"{shown}: the log cannot be restored: {error.strerror or error}; mend it and run it again"
        ) from error
    return len(new)


def check_line(values: Line) -> Line:
    """The line, if it is one of a log.

    Raises:
        InputError: it is none.
    """
    try:
        if not all(isinstance(values[name], str) for name in _NEEDED):
            raise TypeError("expected texts")
        read_time(values["at"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"no line of a log: {type(error).__name__}: {error}") from error
    return values


def read_time(text: str) -> datetime:
    """A time of ISO 8601; UTC where it names no zone.

    Raises:
        ValueError: it is none.
    """
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _list(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _choose(lines: Iterable[bytes], *, since: datetime | None, who: str | None) -> Iterator[Line]:
    for text in lines:
        try:
            line = check_line(json.loads(text))
        except (InputError, ValueError, RecursionError):
            continue
        if (who is None or line["who"] == who) and (since is None or read_time(line["at"]) >= since):
            yield line


def _write(line: Line) -> str:
    return json.dumps(line, sort_keys=True)
