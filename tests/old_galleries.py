"""Galleries as earlier programs left them: what people made in the gallery's own folder, its place as absolute text."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from index.versions.people import ADDED, DECISIONS, INCOMING, PEOPLE
from index.versions.versions import find_version
from tests.index.galleries import change_manifest


def age_gallery(gallery: Path) -> Path:
    """Make a gallery as an earlier program would have left it; the gallery."""
    people = gallery / PEOPLE
    for name in (ADDED, INCOMING, DECISIONS):
        if (people / name).exists():
            (people / name).rename(gallery / name)
    if people.is_dir():
        people.rmdir()
    catalog = find_version(gallery).folder / "catalog.sqlite"
    with closing(sqlite3.connect(catalog)) as connection:
        place = os.fsencode(gallery.resolve() / ADDED)
        connection.execute("UPDATE sources SET location = ? WHERE location = ?", (place, b"people/added"))
        connection.execute("DELETE FROM settings WHERE name = 'places'")
        connection.commit()
    change_manifest(gallery)
    return gallery
