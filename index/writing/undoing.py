"""Taking back one change of the work in progress, where it fails or is called off."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from index.errors import CancelledError, RetrievalError
from index.writing.workspace import Workspace

_BEFORE = "before.sqlite"


@contextmanager
def undone_where_called_off(work: Workspace, *, undo: bool) -> Iterator[None]:
    """Let the unfinished work be as before where what follows is called off, and with `undo` where it fails.

    The catalogue may be open only within.
    """
    before = None if work.is_new else _copy(work.catalog_path, work.folder / _BEFORE)
    try:
        yield
    except (RetrievalError, OSError) as error:
        if not (undo or isinstance(error, CancelledError)):
            raise
        if before is None:
            work.remove()
        elif before.exists():  # else the change has thrown it all away
            for end in ("-wal", "-shm"):
                Path(f"{work.catalog_path}{end}").unlink(missing_ok=True)
            before.replace(work.catalog_path)
        raise


def _copy(catalog: Path, target: Path) -> Path:
    part = target.with_name(target.name + ".tmp")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(catalog)) as source, closing(sqlite3.connect(part)) as copy:
        source.backup(copy)
    os.replace(part, target)
    return target
