"""`retrieval index leaks` and `upgrade`, beside the other commands of `retrieval index`."""

from contextlib import closing
from functools import partial
from pathlib import Path

import click

from index.commands.console import PATH, emit, output_options, progress_bars
from index.commands.index_group import index_group as base
from index.text import align, printable_path
from retrieval_app.commands.upgrade_command import upgrade


@click.command(short_help="List near-duplicates in several splits; move or drop them.")
@click.argument("gallery", type=PATH)
@click.option(
    "--by",
    default="split",
    show_default=True,
    metavar="COLUMN",
    help="Metadata column with the splits, or `folder`, the first folder of the path.",
)
@click.option("--move", metavar="VALUE", help="Give all images of the leaks this split.")
@click.option("--drop", metavar="VALUE", help="Drop the images of this split from the leaks.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Leaks to list at most."
)
@output_options
def leaks(gallery: Path, by: str, move: str | None, drop: str | None, limit: int, as_json: bool) -> None:
    """List the leaks of GALLERY: near-duplicates, and images with one value of the column `group`, in several splits.

    --move and --drop are one step, which the page undoes; no file is changed.

    \b
    Examples:
      retrieval index leaks gallery
      retrieval index leaks gallery --by folder --drop train
      retrieval index leaks gallery --move train
    """
    from index.gallery.gallery import Gallery
    from retrieval_app.reports.duplicates_report import find_duplicate_groups
    from retrieval_app.review.activity_log import record_command
    from retrieval_app.review.leaks import drop_leaks, find_different, find_leaks, move_leaks
    from retrieval_app.review.review_store import ReviewStore

    if move is not None and drop is not None:
        raise click.UsageError("--move and --drop exclude each other; give one")
    opened = Gallery.open(gallery)
    with progress_bars() as begin, closing(ReviewStore.of_gallery(opened.path)) as store:
        progress = begin("comparing", unit="images")
        groups = partial(find_duplicate_groups, opened, progress)
        found = find_leaks(opened, groups, by=by, different=find_different(store))
    splits = ", ".join(f"{printable_path(name)} {count:,}" for name, count in found.splits.items())
    lines = [f"{len(found.items):,} leaks with {len(found.image_ids):,} images between the splits {splits}"]
    changed = 0
    if found.items and (move is not None or drop is not None):
        with closing(ReviewStore.of_gallery(opened.path)) as store:
            if move is not None:
                step = move_leaks(opened, store, found, to=move)
                changed = len(step.marks)
                lines.append(f"{changed:,} images moved to {printable_path(move)}")
            else:
                step = drop_leaks(opened, store, found, value=drop or "")
                changed = len(step.duplicates)
                lines.append(f"images of {printable_path(drop or '')} dropped from {changed:,} leaks")
        what = "drop-leaks" if move is None else "move-leaks"
        record_command(opened.path, what, step=step.number, value=move or drop, count=len(found.items))
    else:
        cells = [
            (str(number), image.split, image.label or "-", printable_path(image.path))
            for number, leak in enumerate(found.items[:limit], start=1)
            for image in leak.images
        ]
        lines += align([("leak", "split", "label", "path"), *cells], right={0}) if cells else []
    emit({**found.to_json(limit=limit), "changed": changed}, as_json=as_json, text="\n".join(lines))


index = click.Group(name=base.name, help=base.help, commands={**base.commands, "upgrade": upgrade, "leaks": leaks})
