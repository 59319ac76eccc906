"""Recording a scan in the catalogue: found items go to a temporary table, from which few statements change the rows."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from index.catalog.image_texts import check_no_texts, computed_columns
from index.catalog.rows import COLUMNS, REMOVED, SKIP_SETTING, SKIPPED_IF, TEXTS_SETTING, CatalogRow, make_row
from index.catalog.writer import PLACE, CatalogWriter
from index.filters.known_names import check_names
from index.items import FoundItem
from index.sources.source import ImageSource, Reach

_MAY_PASS = "('unreadable', 'permission-denied', 'unreachable', 'needs-package')"  # temporary reasons
_FOUND = """
CREATE TEMP TABLE found (
    source INTEGER NOT NULL, path BLOB NOT NULL, archive BLOB, starts_at INTEGER, size_bytes INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, reason TEXT, detail TEXT, label TEXT, metadata TEXT, location BLOB,
    UNIQUE (source, path)
)
"""
# Found items that are items of sources that were not scanned: by their path below its root, or by their whole location.
_OWNED = """
CREATE TEMP TABLE owned AS SELECT f.rowid AS met, i.id AS id FROM found f
JOIN roots r ON r.source != f.source AND r.source NOT IN (SELECT source FROM rescanned)
JOIN images i ON i.source = r.source AND i.path IN (
    f.location, iif(substr(f.location, 1, length(r.start)) = r.start, substr(f.location, length(r.start) + 1), NULL)
)
"""
_SAME_FILE = "i.source = f.source AND i.path = f.path"
_SAME_STATE = (
    "i.size_bytes = f.size_bytes AND i.mtime_ns = f.mtime_ns AND i.archive IS f.archive AND i.starts_at IS f.starts_at"
)
_RENEWED = f"""
    i.reason = '{REMOVED}' AND ?
    OR i.reason = '{SKIPPED_IF}' AND NOT ({_SAME_STATE}
        AND i.detail IS (SELECT value FROM settings WHERE name = '{SKIP_SETTING}'))
    OR f.reason IS NOT NULL AND i.status IN ('pending', 'indexed', 'duplicate') AND i.sha256 IS NOT NULL
"""
# A changed row keeps its hash, and a duplicate its keeper, until the bytes are read. A skipped one is tried once again.
_UPDATE_STATE = f"""
UPDATE images AS i SET
    size_bytes = f.size_bytes, mtime_ns = f.mtime_ns, archive = f.archive, starts_at = f.starts_at,
    status = iif(f.reason IS NULL, 'pending', 'skipped'), reason = f.reason, detail = f.detail,
    sha256 = iif(f.reason IS NULL AND i.status != 'skipped', i.sha256, NULL),
    keeper = iif(f.reason IS NULL, i.keeper, NULL)
FROM found f WHERE {_SAME_FILE} AND i.reason IS NOT '{REMOVED}' AND (
    f.reason IS NOT NULL AND NOT (i.status = 'skipped' AND i.reason IS f.reason AND i.detail IS f.detail)
    OR NOT ({_SAME_STATE})
    OR i.status = 'skipped' AND f.reason IS NULL AND i.reason != '{SKIPPED_IF}'
        AND iif(?1 IS NULL, i.source NOT IN (SELECT source FROM retried), i.id IN (SELECT value FROM json_each(?1)))
    OR ?2 AND i.status IN ('indexed', 'duplicate') AND i.sha256 IS NOT NULL
)
"""
_GONE = """
CREATE TEMP TABLE gone AS SELECT id, sha256, size_bytes FROM images v WHERE source IN (SELECT source FROM rescanned)
AND NOT EXISTS (SELECT 1 FROM found f WHERE f.source = v.source AND f.path = v.path)
"""
# Items below an unreadable folder or archive are not known to be gone.
_BELOW_BROKEN = """
DELETE FROM gone WHERE id IN (
    SELECT v.id FROM found b JOIN images v ON v.source = b.source
    AND v.path > CAST(b.path || '/' AS BLOB) AND v.path < CAST(b.path || '0' AS BLOB)
    WHERE b.reason IN ('unreadable', 'permission-denied', 'corrupt-archive', 'unreachable', 'needs-package')
)
"""


def record_scan(
    catalog: CatalogWriter,
    found: Iterable[tuple[int, FoundItem]],
    *,
    scanned: Sequence[int],
    restore: bool = False,
    thorough: bool = False,
    retry: Sequence[int] | None = None,
) -> None:
    """Update the rows by a scan of some sources, given as (source, item); rows it misses stay until `drop_vanished`.

    Changed items are pending with their old hash, to be confirmed; with `thorough`, all that were read. New ones are
    pending, and so are skipped ones: once, or those of `retry`, by their ids, alone. Those skipped by another condition
    than `SKIP_SETTING` get new ids. With `restore`, removed items come back. An item of several sources belongs to one
    not scanned, or to the first.
    """
    sources = catalog.sources()
    roots = {number: source.root for number, source in sources.items()} if may_overlap(sources.values()) else {}
    with catalog.transaction() as execute:
        for table in ("found", "rescanned", "gone", "roots", "owned"):
            execute(f"DROP TABLE IF EXISTS temp.{table}")
        execute(_FOUND)
        execute("CREATE TEMP TABLE rescanned (source INTEGER PRIMARY KEY)")
        catalog.connection.executemany("INSERT INTO rescanned VALUES (?)", ((number,) for number in scanned))
        catalog.connection.executemany(
            "INSERT INTO found VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (_found_values(source, item, root=roots.get(source)) for source, item in found),
        )
        if roots:
            _leave_to_owners(catalog, roots, restore=restore)
        _merge_found(catalog, restore=restore, thorough=thorough, retry=retry)
    catalog.has_scan, catalog.restores = True, restore
    if (where := catalog.skip_condition()) is not None:
        check_names(where, catalog.connection, has_decided=False)


def _leave_to_owners(catalog: CatalogWriter, roots: Mapping[int, str], *, restore: bool) -> None:
    """Drop found items that belong to another source; with `restore`, they come back there."""
    execute = catalog.connection.execute
    execute("CREATE TEMP TABLE roots (source INTEGER PRIMARY KEY, start BLOB NOT NULL)")
    starts = ((number, _locate(root, "")) for number, root in roots.items())
    catalog.connection.executemany("INSERT INTO roots VALUES (?, ?)", starts)
    execute(_OWNED)
    if restore:
        execute(
            "UPDATE images SET size_bytes = f.size_bytes, mtime_ns = f.mtime_ns, starts_at = f.starts_at "
            "FROM owned o JOIN found f ON f.rowid = o.met WHERE images.id = o.id AND images.reason = ?",
            (REMOVED,),
        )
        catalog.renew_where("reason = ? AND id IN (SELECT id FROM owned)", (REMOVED,))
    execute(
        "DELETE FROM found WHERE rowid IN (SELECT met FROM owned) "
        "OR rowid NOT IN (SELECT min(rowid) FROM found GROUP BY location)"
    )


def _merge_found(catalog: CatalogWriter, *, restore: bool, thorough: bool, retry: Sequence[int] | None) -> None:
    execute = catalog.connection.execute
    if catalog.setting(TEXTS_SETTING) is not None:
        check_no_texts(catalog, "found")
    if computed := computed_columns(catalog):  # which sources do not know
        names = ", ".join(f"'{name}'" for name in computed)
        kept = f"(SELECT json_group_object(key, value) FROM json_each(i.metadata) WHERE key IN ({names}))"
        execute(
            f"UPDATE found AS f SET metadata = json_patch(coalesce(f.metadata, '{{}}'), {kept}) "
            f"FROM images i WHERE {_SAME_FILE} AND {kept} != '{{}}'"
        )
    # Ids are never reused: a row whose bytes may be others now, or that was removed, gets a new one.
    catalog.renew_where(f"id IN (SELECT i.id FROM images i, found f WHERE {_SAME_FILE} AND ({_RENEWED}))", (restore,))
    execute(_UPDATE_STATE, (None if retry is None else json.dumps(list(retry)), thorough))
    execute(
        "UPDATE found AS f SET metadata = with_facts(f.metadata, facts.facts) "
        f"FROM images i JOIN facts ON facts.sha256 = i.sha256 WHERE {_SAME_FILE}"
    )
    if retry is None:
        execute("INSERT INTO retried SELECT source FROM rescanned WHERE true ON CONFLICT DO NOTHING")
    execute(
        "UPDATE images AS i SET label = f.label, metadata = f.metadata FROM found f "
        f"WHERE {_SAME_FILE} AND (i.label IS NOT f.label "
        "OR i.metadata IS NOT f.metadata AND NOT same_values(i.metadata, f.metadata))"
    )
    execute(
        f"INSERT INTO images ({PLACE}, status, reason, detail) "
        f"SELECT {PLACE}, iif(reason IS NULL, 'pending', 'skipped'), reason, detail "
        f"FROM found f WHERE NOT EXISTS (SELECT 1 FROM images i WHERE {_SAME_FILE}) ORDER BY f.rowid"
    )
    execute(_GONE)
    execute(_BELOW_BROKEN)
    for column in ("sha256", "size_bytes"):
        execute(f"CREATE INDEX temp.gone_by_{column} ON gone ({column})")


def archive_items(catalog: CatalogWriter, source: int, archive: str, *, mtime_ns: int) -> Iterator[FoundItem] | None:
    """The items of an archive from its rows; None with another time, no rows, or an item that may be usable now."""
    name = os.fsencode(archive)
    members = "source = ?1 AND (path > ?2 AND path < ?3 AND archive = ?4 OR path = ?4)"
    values = (source, name + b"/", name + b"0", name)
    is_sound = f"mtime_ns = ?5 AND (status != 'skipped' OR reason NOT IN {_MAY_PASS})"
    query = f"SELECT count(*), sum({is_sound}) FROM images WHERE {members}"
    count, unchanged = catalog.connection.execute(query, (*values, mtime_ns)).fetchone()
    if not count or count != unchanged:
        return None
    rows = catalog.connection.execute(f"SELECT {COLUMNS} FROM images WHERE {members} ORDER BY id", values)
    return map(_as_found, map(make_row, rows.fetchall()))


def known_state(catalog: CatalogWriter, source: int, path: str) -> tuple[int, int, str] | None:
    """Size, time and status of an item's row."""
    query = "SELECT size_bytes, mtime_ns, status FROM images WHERE source = ? AND path = ?"
    row: tuple[int, int, str] | None = catalog.connection.execute(query, (source, os.fsencode(path))).fetchone()
    return row


def was_scanned(catalog: CatalogWriter, source: int) -> bool:
    """Whether a stopped command has scanned the source for this unfinished work."""
    query = "SELECT EXISTS (SELECT 1 FROM retried WHERE source = ?)"
    return bool(catalog.connection.execute(query, (source,)).fetchone()[0])


def emptied_sources(catalog: CatalogWriter) -> list[ImageSource]:
    """Sources of which the scan met no item, though some are indexed or were temporarily skipped."""
    numbers = catalog.connection.execute(
        "SELECT source FROM rescanned r WHERE NOT EXISTS (SELECT 1 FROM found f WHERE f.source = r.source) "
        "AND EXISTS (SELECT 1 FROM images i WHERE i.source = r.source "
        f"AND (i.status = 'indexed' OR i.reason IN {_MAY_PASS}))"
    ).fetchall()
    sources = catalog.sources()
    return [sources[number] for (number,) in numbers]


def may_overlap(sources: Iterable[ImageSource]) -> bool:
    """Whether several sources may have the same item."""
    sources = list(sources)
    if any(source.reach is not Reach.WHOLE for source in sources):
        return len(sources) > 1
    starts = sorted(f"{source.location}/" for source in sources)
    return any(other.startswith(one) for one, other in pairwise(starts))


def _locate(root: str, path: str) -> bytes:
    """The location of an item, by which it is known in all sources."""
    return os.fsencode(os.path.join(root, path).replace(os.sep, "/"))


def _found_values(source: int, item: FoundItem, *, root: str | None) -> tuple[object, ...]:
    archive = None if item.archive is None else os.fsencode(item.archive)
    problem = (None, None) if item.problem is None else (item.problem.reason, item.problem.detail)
    metadata = json.dumps(dict(item.metadata), sort_keys=True) if item.metadata else None
    path, location = os.fsencode(item.path), None if root is None else _locate(root, item.path)
    place = source, path, archive, item.starts_at, item.size_bytes, item.mtime_ns
    return (*place, *problem, item.label, metadata, location)


def _as_found(row: CatalogRow) -> FoundItem:
    found = FoundItem(
        row.path, row.size_bytes, row.mtime_ns, row.archive, row.starts_at, row.label, row.metadata or None
    )
    if row.status != "skipped" or row.reason in (REMOVED, SKIPPED_IF):
        return found
    return found.with_problem(row.reason or "unreadable", row.detail or "")
