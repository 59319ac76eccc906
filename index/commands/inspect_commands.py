"""Commands of `retrieval index` that only read a gallery: info, list, verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import PATH, backend_option, emit, output_options, progress_bars, where_option
from index.text import align, command_line, printable_path, show_bytes, valid_text

if TYPE_CHECKING:
    from index.catalog.reader import Catalog
    from index.catalog.rows import CatalogRow
    from index.filters.condition import Condition

_PAGE_ROWS = 50


@click.command(name="info")
@click.argument("gallery", type=PATH)
@output_options
def info(*, gallery: Path, as_json: bool) -> None:
    """Describe a gallery: images, labels, model and index.

    \b
    Examples:
      retrieval index info gallery
      retrieval index info gallery --json
      retrieval index info /shared/gallery
    """
    from index.gallery.info import find_unfinished, read_info
    from index.versions.versions import read_current

    shown = printable_path(gallery)
    if gallery.is_dir() and read_current(gallery) is None and (unfinished := find_unfinished(gallery)):
        document = {"gallery": valid_text(str(gallery.resolve())), "version": None, "unfinished": unfinished}
        text = "\n".join([f"{shown}: no version yet", *_describe_unfinished(unfinished, gallery=gallery)])
        emit(document, as_json=as_json, text=text)
        return
    described = read_info(gallery)
    emit(described, as_json=as_json, text=_describe_info(described, gallery=gallery))


@click.command(name="list")
@click.argument("gallery", type=PATH)
@click.option(
    "--status",
    type=click.Choice(["indexed", "duplicate", "skipped", "set_aside", "dropped"]),
    help="Only items of this status: found by searches, duplicates of another image, unusable, or set aside or dropped "
    "by a decision.",
)
@where_option("Only images that match this.")
@click.option(
    "--after",
    type=click.IntRange(min=0, max=2**63 - 1),
    default=0,
    metavar="ID",
    help="Only items with a greater id, or with --sort those behind it: the next page.",
)
@click.option("--limit", type=click.IntRange(min=1), default=_PAGE_ROWS, show_default=True, help="Items on a page.")
@click.option(
    "--sort",
    metavar="[-]COLUMN",
    help="Order by a column of --where, such as taken; -taken begins with the newest. Items without it come last.  "
    "[default: id]",
)
@output_options
def list_items(
    *,
    gallery: Path,
    status: str | None,
    where: Condition | None,
    after: int,
    limit: int,
    sort: str | None,
    as_json: bool,
) -> None:
    """List indexed images, duplicates and skipped files.

    Skipped items come with the reason. A page has 50 items; the last line shows the command for the next page.

    \b
    Examples:
      retrieval index list gallery --status skipped
      retrieval index list gallery --where "label = 'cat'" --after 5000 --json
      retrieval index list gallery --where "taken >= 2024-01-01" --sort=-taken
    """
    from index.filters.parser import parse_order, write_condition
    from index.labels.decided_labels import read_decided_catalog
    from index.versions.versions import holding_current

    with holding_current(gallery) as version, read_decided_catalog(gallery, version) as catalog:
        if sort is None:
            rows = list(catalog.rows(status=status, where=where, after=after, limit=limit + 1))
        else:
            wanted = catalog.sorted_ids(parse_order(sort), where=where, status=status, after=after)[
                : limit + 1
            ].tolist()
            found = {row.id: row for row in catalog.rows_of(wanted)}
            rows = [found[number] for number in wanted]
        page, following = rows[:limit], rows[limit:]
        items = describe_rows(page, catalog)
    next_after = page[-1].id if following else None
    shown = valid_text(str(gallery.resolve()))
    document = {"gallery": shown, "version": version.name, "items": items, "next_after": next_after}
    lines = [f"{printable_path(gallery)}: no such items"]
    if items:
        lines = tabulate(items, status=status, measures=[] if where is None else _find_measures(where))
    if next_after is not None:
        options = {
            "--status": status,
            "--where": None if where is None else valid_text(write_condition(where)),
            "--sort": sort,
            "--limit": None if limit == _PAGE_ROWS else str(limit),
            "--after": str(next_after),
        }
        lines.append(f"more: {command_line('list', gallery, options)}")
    emit(document, as_json=as_json, text="\n".join(lines))


@click.command(name="problems")
@click.argument("gallery", type=PATH)
@output_options
def problems(*, gallery: Path, as_json: bool) -> None:
    """Find blurred, dark, bright, empty, tiny and other bad images, and placeholders.

    Each problem is a filter on a measure, with a threshold chosen from the gallery's own images. A placeholder is one
    picture of at least three labels or ten images, such as "image not available".

    \b
    Examples:
      retrieval index problems gallery
      retrieval index problems gallery --json
      retrieval index list gallery --where "sharpness < 20"
    """
    from index.gallery.gallery import Gallery
    from index.gallery.problems import find_problems

    opened = Gallery.open(gallery)
    found = find_problems(opened)
    document = {"gallery": opened.name, "version": opened.version, "images": opened.count}
    rows = [("images", "problem", "condition")]
    rows += [(f"{one.count:,}", one.kind.replace("_", " "), one.where) for one in found if one.count]
    lines = align(rows, right={0}) if rows[1:] else [f"{printable_path(gallery)}: no image problems"]
    more = sum(one.left_out for one in found)
    lines += [f"{more:,} more images are placeholders; drop these and list again"] if more else []
    emit({**document, "problems": [asdict(problem) for problem in found]}, as_json=as_json, text="\n".join(lines))


@click.command(name="verify")
@click.argument("gallery", type=PATH)
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=16,
    show_default=True,
    help="Random images to embed again and compare with the stored vectors.",
)
@click.option(
    "--read-images", is_flag=True, help="Read every image again, and compare its bytes with the indexed ones."
)
@backend_option
@output_options
@click.pass_context
def verify(context: click.Context, /, *, gallery: Path, as_json: bool, **options: Any) -> None:
    """Check every byte of a gallery.

    Files are compared with the manifest and with each other, and some images are embedded again. Exits with 1 and lists
    every problem if the gallery is damaged, or if an indexed image file cannot be decoded any more. Images that were
    changed or removed are noted.

    \b
    Examples:
      retrieval index verify gallery
      retrieval index verify gallery --read-images
      retrieval index verify gallery --sample 1000 --json
    """
    from index.gallery.verify import verify_gallery

    with progress_bars() as begin:
        checking, embedding = begin("Checking", unit="files"), begin("Embedding", unit="images")
        reading = begin("Reading", unit="images")
        report = verify_gallery(gallery, progress=checking, embedding=embedding, reading=reading, **options)
    again = f", {report.compared:,} images embed as stored" if report.compared else ""
    read = f", {report.read:,} images were read again" if report.read else ""
    found = report.problems or [f"{printable_path(gallery)}: {report.files} files match{again}{read}"]
    update = command_line("update", gallery) + (" --thorough" if options["read_images"] else "")
    lines = [*found, *report.spoilt]
    if report.spoilt:
        lines.append(f"the gallery still has them: restore these files from a copy; {update} would remove them")
    lines += [f"note: {note}" for note in report.notes]
    if report.notes:
        lines.append(f"the gallery is not damaged; apply these changes with: {update}")
    emit(asdict(report), as_json=as_json, text="\n".join(lines))
    if report.problems or report.spoilt:
        context.exit(1)


def describe_rows(rows: Sequence[CatalogRow], catalog: Catalog) -> list[dict[str, Any]]:
    """Items of a catalogue as the JSON of `index list` has them."""
    locations = {number: source.location for number, source in catalog.sources().items()}
    kept_images = catalog.find({row.kept_id for row in rows if row.kept_id is not None})
    return [
        {
            "id": row.id,
            "status": row.status,
            "reason": row.reason,
            "detail": row.detail,
            "label": row.label,
            **({} if row.given_label == row.label else {"given_label": row.given_label}),
            "metadata": row.metadata,
            "measures": asdict(row.measures),
            "path": valid_text(row.path),
            "source": valid_text(locations[row.source]),
            "keeper": row.kept_id,
            "keeper_path": valid_text(kept_images[row.kept_id].path) if row.kept_id in kept_images else None,
        }
        for row in rows
    ]


def _find_measures(where: Condition) -> list[str]:
    """The measures that a filter asks of."""
    from index.filters.condition import DERIVED, list_columns
    from index.measures import MEASURES

    asked = [name for column in list_columns(where) if column.is_own for name in column.names]
    sizes = ["width", "height"] if not DERIVED.keys().isdisjoint(asked) else []
    return list(dict.fromkeys([*sizes, *(name for name in asked if name in MEASURES)]))


def tabulate(items: Sequence[Mapping[str, Any]], *, status: str | None, measures: Sequence[str] = ()) -> list[str]:
    """Items of `describe_rows` as a table."""
    head = ("id", *measures, "reason" if status == "skipped" else "status", "label", "path", "detail")
    rows: list[tuple[str, ...]] = [head]
    for item in items:
        same = "" if item["keeper_path"] is None else f"near-duplicate of {item['keeper']}, {item['keeper_path']}"
        cells = (item["reason"] or item["status"], item["label"] or "-", item["path"], item["detail"] or same)
        measured = (item["measures"][name] for name in measures)
        numbers = ("-" if value is None else f"{value:g}" for value in measured)
        rows.append((str(item["id"]), *numbers, *map(printable_path, cells)))
    if not any(row[-1] for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    return align(rows, right=set(range(1 + len(measures))))


def _describe_info(described: Mapping[str, Any], *, gallery: Path) -> str:
    from index.gallery.info import describe_index

    model = {name: value for name, value in described["model"].items() if name != "preprocessing"}
    copy = None if described["copy"] is None else {**described["copy"], "index": described["copy"]["index"]["factory"]}
    parts = {
        "model": [_say(model)],
        "text tower": ["none" if described["text"] is None else _say(described["text"])],
        "computed by": [_say(described["runtime"])],
        "images": [_say(described["counts"])],
        "sources": [
            f"{source['kind']} {printable_path(source['location'])}: {source['images']:,} images"
            for source in described["sources"]
        ],
        "labels": [_say(described["labels"])],
        "settings": [_say(described["settings"])],
        "index": describe_index(described, gallery=gallery),
        "copies": [_say(copy)],
        "on disk": [_say({name: show_bytes(size) for name, size in described["disk_bytes"].items()})],
        "unfinished": []
        if described["unfinished"] is None
        else _describe_unfinished(described["unfinished"], gallery=gallery),
    }
    if described["counts"]["skipped"]:
        parts["images"].append(f"skipped: see {command_line('list', gallery, {'--status': 'skipped'})}")
    shown = {title: [line for line in lines if line] for title, lines in parts.items()}
    rows = [("" if line else title, text) for title, lines in shown.items() for line, text in enumerate(lines)]
    made = datetime.fromisoformat(described["made"]).astimezone()
    head = f"{printable_path(gallery)}: version {described['version']}, made {made:%Y-%m-%d %H:%M}"
    return "\n".join([head, *align(rows, right=set())])


def _say(value: Any) -> str:
    """A value in words; those of an object with their names."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name.replace('_', ' ')} {_say(one)}" for name, one in value.items() if one not in (None, {})
        )
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return "" if value is None else printable_path(value)


def _describe_unfinished(unfinished: Mapping[str, int], *, gallery: Path) -> list[str]:
    far = f"{unfinished['done']:,} of {unfinished['found']:,} items are done"
    return [
        f"a command was stopped, or is still running: {far if unfinished['found'] else 'no item is listed yet'}",
        f"if none is running, finish it with: {command_line('update', gallery)}",
    ]
