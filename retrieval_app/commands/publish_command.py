"""`retrieval publish`: a gallery as a folder of static files, searched in the browser."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.commands.console import PATH, emit, output_options, progress_bars, where_option
from index.errors import MissingDependencyError
from index.text import count_images, printable_path, show_bytes

if TYPE_CHECKING:
    from index.filters.condition import Condition
    from retrieval_app.publish.catalogue import Choice
    from retrieval_app.publish.publish import PublishReport

_MOST_SHOWN = 5


@click.command()
@click.argument("gallery", type=PATH)
@click.option("--out", type=PATH, required=True, metavar="FOLDER", help="Folder to write, or to bring up to date.")
@click.option(
    "--include",
    multiple=True,
    metavar="NAMES",
    help="What else is public, with commas between: label, tags, path, columns of metadata; originals: the images in "
    "full size, encoded anew.  [default: nothing]",
)
@where_option("Publish only the images for which this is true.")
@click.option("--title", default="Image gallery", show_default=True, help="Title of the page.")
@click.option("--about", type=PATH, metavar="FILE", help="Markdown file about the gallery, shown on the page.")
@click.option("--licence", default="", metavar="TEXT", help="Line about the rights to the images.")
@click.option(
    "--thumbnail-size",
    type=click.IntRange(64, 1024),
    default=256,
    show_default=True,
    metavar="PIXELS",
    help="Longer side of the thumbnails.",
)
@click.option(
    "--preview-size",
    type=click.IntRange(64, 4096),
    metavar="PIXELS",
    help="Longer side of images in the details.  [default: the thumbnail]",
)
@click.option("--map/--no-map", "with_map", default=True, show_default=True, help="Add the map.")
@output_options
def publish(
    gallery: Path,
    out: Path,
    include: tuple[str, ...],
    where: Condition | None,
    title: str,
    about: Path | None,
    licence: str,
    thumbnail_size: int,
    preview_size: int | None,
    with_map: bool,
    as_json: bool,
) -> None:
    """Write GALLERY as a folder of static files, which any web host serves and visitors search in their browser.

    Public are thumbnails, vectors and the model, without EXIF; everything else only where --include names it. Images
    that are dropped or set aside are left out. Visitors' photos stay in their browser. Run again, it writes only what
    has changed; the site before stays whole until the new one is complete.

    \b
    Examples:
      retrieval publish gallery --out site
      retrieval publish gallery --out site --include label,price --title "Our shop" --about about.md
      retrieval publish gallery --out site --where "tag = 'public'" --preview-size 1024
      python -m http.server --directory site
    """
    from index.gallery.gallery import Gallery

    try:
        from retrieval_app.publish.catalogue import choose_columns
        from retrieval_app.publish.document import Texts, read_about
        from retrieval_app.publish.publish import THUMBNAILS, publish_gallery
    except ModuleNotFoundError as error:
        raise MissingDependencyError(package=error.name or "fastapi", extra="serve", purpose="publishing") from error

    opened = Gallery.open(gallery)
    names = [name.strip() for part in include for name in part.split(",") if name.strip()]
    choice = choose_columns(opened, names)
    texts = Texts(title, "" if about is None else read_about(about), licence)
    click.echo(_describe(choice, thumbnail_size, preview_size), err=True)
    with progress_bars() as begin:
        report = publish_gallery(
            opened,
            out,
            choice=choice,
            texts=texts,
            where=where,
            side=thumbnail_size,
            preview=preview_size or 0,
            with_map=with_map,
            steps=lambda name: begin(name, unit="images" if name == THUMBNAILS else "steps"),
        )
    emit(asdict(report), as_json=as_json, text=_describe_report(report))


def _describe(choice: Choice, thumbnail_size: int, preview_size: int | None) -> str:
    """What will be public."""
    images = [f"thumbnails of {thumbnail_size} pixels"]
    if choice.originals:
        images.append("the images in full size")
    elif preview_size:
        images.append(f"previews of {preview_size} pixels")
    public = ", ".join(map(printable_path, [*images, "vectors", "the model", *choice.own, *choice.metadata]))
    hidden = ", ".join(map(printable_path, choice.hidden[:20]))
    return f"Public: {public}\nNot public: {hidden}{', …' if len(choice.hidden) > 20 else ''}, EXIF, dropped images"


def _describe_report(report: PublishReport) -> str:
    changed = f"{report.written:,} files written, {report.removed:,} old ones removed"
    lines = [
        f"{report.out}: {count_images(report.images)}, {show_bytes(report.total_bytes)}; {changed}",
        f"a visitor loads about {show_bytes(report.first_screen_bytes)} for the first screen, "
        f"{show_bytes(report.first_search_bytes)} for the first search, and {show_bytes(report.first_photo_bytes)} for "
        "the first search with a photo",
    ]
    for path in report.left_out[:_MOST_SHOWN]:
        lines.append(f"left out, as it cannot be read: {path}")
    if len(report.left_out) > _MOST_SHOWN:
        lines.append(f"left out in all: {len(report.left_out):,}; --json lists them")
    lines.append(f"look at it: python -m http.server --directory {report.out}")
    return "\n".join(lines)
