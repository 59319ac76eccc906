"""Check of the metadata and labels in a filter, to report misspelt names instead of finding nothing."""

import sqlite3
from collections.abc import Collection, Sequence
from difflib import SequenceMatcher

from index.errors import InputError
from index.filters import condition as tree
from index.filters.parser import write_column
from index.filters.to_sql import expand, reach, write_sql
from index.measures import MEASURES
from index.text import printable_path, valid_text

_MOST_SHOWN = 12
_MOST_COMPARED = 1000
_ALIKE = 0.6  # likeness, in 0..1, from which on a name is suggested
_LEAST_CONTAINED = 3  # characters of a name that others contain
_MOST_CHARACTERS = 100  # of compared names, because the cost is the product


def check_names(where: tree.Condition, connection: sqlite3.Connection, *, has_decided: bool) -> None:
    """Refuse a column, label or tag that no row, of any status, has; if `has_decided`, a table `decided` counts."""
    for column in tree.list_columns(where):
        names = column.names
        if not column.is_own and not _exists(names, connection):
            depth = next(depth for depth in range(1, len(names) + 1) if not _exists(names[:depth], connection))
            raise InputError(_explain(names[:depth], connection))
    for leaf in tree.list_leaves(where):
        match leaf:
            case tree.Compare(tree.LABEL | tree.TAG as column, "=" | "!=", constant):
                _check_values(column, [constant], connection, has_decided=has_decided)
            case tree.Among(tree.LABEL | tree.TAG as column, constants):
                _check_values(column, constants, connection, has_decided=has_decided)


def _exists(names: tuple[str, ...], connection: sqlite3.Connection) -> bool:
    kind = reach(names, what="type")
    query = f"SELECT 1 FROM images WHERE {kind.text} IS NOT NULL LIMIT 1"
    return connection.execute(query, kind.values).fetchone() is not None


def _explain(names: tuple[str, ...], connection: sqlite3.Connection) -> str:
    inside = names[:-1]
    wanted = "".join(f"k{number}.key = ? AND " for number in range(len(inside)))
    kind = "'object'" if not inside else f"k{len(inside) - 1}.type"
    query = (
        f"SELECT DISTINCT k{len(inside)}.key FROM images, {expand(len(inside) + 1)} "
        f"WHERE {wanted} {kind} = 'object' LIMIT ?"
    )
    rows = connection.execute(query, (*inside, _MOST_COMPARED)).fetchall()
    known = [write_column(tree.Column((*inside, str(name)))) for (name,) in rows]
    shown = printable_path(write_column(tree.Column(names)))
    if not known and inside:
        within = printable_path(write_column(tree.Column(inside)))
        return f"no item of the gallery has the metadata {shown}; {within} has no fields"
    measures = {"phash", *MEASURES, *tree.DERIVED}
    own = [] if inside else [name for name in tree.OWN_COLUMNS if name not in measures]
    return _tell("metadata", write_column(tree.Column(names)), [*own, *known], also=[] if inside else measures)


def _check_values(
    column: tree.Column, constants: Sequence[tree.Constant], connection: sqlite3.Connection, *, has_decided: bool
) -> None:
    """Check that some row has each label or tag."""
    [what], is_tag = column.names, column == tree.TAG
    # Of labels not the view with decisions, which has no index by label.
    tables = ["(SELECT id FROM tags) AS images"] if is_tag else ["main.images"]
    if has_decided and not is_tag:
        tables.append("(SELECT new_label AS label FROM decided) AS images")
    for constant in constants:
        found = write_sql(tree.Compare(column, "=", constant))
        queries = (f"SELECT 1 FROM {rows} WHERE {found.text} LIMIT 1" for rows in tables)
        if not any(connection.execute(query, found.values).fetchone() for query in queries):
            query = (  # of many first those that contain it, then those with its first letter
                f"SELECT DISTINCT {what} FROM {'tags' if is_tag else 'images'} WHERE {what} IS NOT NULL "
                f"ORDER BY instr(lower({what}), lower(?1)) > 0 DESC, "
                f"lower(substr({what}, 1, 1)) = lower(substr(?1, 1, 1)) DESC LIMIT ?2"
            )
            rows = connection.execute(query, (valid_text(constant.text), _MOST_COMPARED))
            raise InputError(_tell(what, valid_text(constant.text), [str(value) for (value,) in rows]))


def _tell(what: str, wanted: str, known: Sequence[str], *, also: Collection[str] = ()) -> str:
    """The message that no item has it, with the most similar names; those of `also` only where they are similar."""

    def likeness(name: str) -> float:
        a, b = (text[:_MOST_CHARACTERS].lower() for text in (name, wanted))
        return SequenceMatcher(None, a, b).ratio() + (len(b) >= _LEAST_CONTAINED and b in a)

    missing = f"no item of the gallery has the {what} {printable_path(wanted)}"
    if not known:
        return f"{missing}; there are no {what}s"
    known = [*known, *(name for name in also if likeness(name) >= _ALIKE)]
    likely = {name: likeness(name) for name in known}
    best = sorted(known, key=lambda name: (-likely[name], name))
    shown = sorted((name[:_MOST_CHARACTERS] for name in best[:_MOST_SHOWN]), key=str.casefold)
    listed = ", ".join(map(printable_path, shown))
    more = f" and {len(best) - _MOST_SHOWN:,} more" if len(best) > _MOST_SHOWN else ""
    alike = f"; did you mean {printable_path(best[0])}?" if likely[best[0]] >= _ALIKE else ""
    return f"{missing}; there are {listed}{more}{alike}"
