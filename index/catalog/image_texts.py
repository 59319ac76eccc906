"""Text in images, in the catalogue: by content in the table `texts`, from which the metadata of images is made.

A rescan, a moved file and a duplicate thus keep the text, and no content is read twice.
"""

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from index.catalog.rows import (
    CLUSTER,
    CLUSTERS_SETTING,
    TEXT_CONFIDENCE,
    TEXT_IN_IMAGE,
    TEXTS_SETTING,
    CatalogRow,
    without_keys,
)
from index.errors import InputError
from index.items import ImageText

if TYPE_CHECKING:
    from index.catalog.writer import CatalogWriter

_COLUMNS = (TEXT_IN_IMAGE, TEXT_CONFIDENCE)
_TABLE = """
CREATE TABLE texts (
    sha256 TEXT PRIMARY KEY,   -- of the image file
    text TEXT NOT NULL,        -- '' where nothing was read
    confidence REAL NOT NULL
) WITHOUT ROWID
"""
_TEXT = f"json_extract(i.metadata, '$.{TEXT_IN_IMAGE}')"
_HAS_COLUMN = " OR ".join(f"json_extract(metadata, '$.{name}') IS NOT NULL" for name in _COLUMNS)
_REMOVE = (
    f"UPDATE images AS i SET metadata = nullif({without_keys('metadata', _COLUMNS)}, '{{}}') WHERE ({_HAS_COLUMN})"
)
_UNREAD = (  # of equal files the first
    "status = 'indexed' AND sha256 NOT IN (SELECT sha256 FROM texts) AND NOT EXISTS (SELECT 1 FROM images AS e "
    "WHERE e.sha256 = images.sha256 AND e.id < images.id AND e.status = 'indexed')"
)


def computed_columns(catalog: "CatalogWriter") -> list[str]:
    """The metadata columns that commands compute, which no source has."""
    clusters = [CLUSTER] if catalog.setting(CLUSTERS_SETTING) is not None else []
    return [*clusters, *(_COLUMNS if catalog.setting(TEXTS_SETTING) is not None else ())]


def switch_texts(catalog: "CatalogWriter", is_on: bool | None) -> None:
    """Let the text in images be read from now on, or remove it; None changes nothing."""
    if is_on is None or is_on == (catalog.setting(TEXTS_SETTING) is not None):
        return
    with catalog.transaction() as execute:
        if is_on:
            check_no_texts(catalog, "images")
            execute(_TABLE)
        else:
            execute("DROP TABLE texts")
            execute(_REMOVE)
        catalog.set({TEXTS_SETTING: "0" if is_on else None})


def check_no_texts(catalog: "CatalogWriter", table: str) -> None:
    """Refuse metadata of sources, in a table of images, that is called like that of text recognition."""
    found = catalog.connection.execute(f"SELECT path FROM {table} WHERE {_HAS_COLUMN} LIMIT 1").fetchone()
    if found is not None:
        raise InputError(
            f"it has metadata called {' or '.join(_COLUMNS)} of its own, which --ocr would replace; rename that "
            "column, or leave --ocr out (of a gallery that has it: --no-ocr)",
            at=os.fsdecode(found[0]),
        )


def count_unread(catalog: "CatalogWriter") -> int:
    """The number of contents whose text was not read yet."""
    return int(catalog.connection.execute(f"SELECT count(*) FROM images WHERE {_UNREAD}").fetchone()[0])


def unread_rows(catalog: "CatalogWriter") -> Iterator[CatalogRow]:
    """One row of each content whose text was not read yet; texts may be recorded while it iterates."""
    yield from catalog.select(_UNREAD)


def record_texts(catalog: "CatalogWriter", texts: Iterable[ImageText]) -> None:
    """Record texts by content; those that could not be read now stay unread."""
    rows = [(item.sha256, item.text, item.confidence) for item in texts if item.text is not None]
    with catalog.transaction():
        catalog.connection.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", rows)


def apply_texts(catalog: "CatalogWriter") -> None:
    """Give each image the text of its content as metadata, and forget contents that no image has."""
    with catalog.transaction() as execute:
        execute("DELETE FROM texts WHERE sha256 NOT IN (SELECT sha256 FROM images WHERE sha256 IS NOT NULL)")
        execute(f"{_REMOVE} AND NOT EXISTS (SELECT 1 FROM texts t WHERE t.sha256 = i.sha256 AND t.text = {_TEXT})")
        execute(
            f"UPDATE images AS i SET metadata = json_set(coalesce(i.metadata, '{{}}'), '$.{TEXT_IN_IMAGE}', t.text, "
            f"'$.{TEXT_CONFIDENCE}', t.confidence) FROM texts t "
            f"WHERE t.sha256 = i.sha256 AND t.text != '' AND {_TEXT} IS NULL"
        )
        count = execute("SELECT count(*) FROM texts").fetchone()[0]
        catalog.set({TEXTS_SETTING: str(count)})  # a version is published also where nothing was found
