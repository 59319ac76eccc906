"""`retrieval tags`: list the tags of a gallery's images, give them and take them away."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.commands.console import emit, output_options, where_option
from index.text import align, count_images, printable_path

if TYPE_CHECKING:
    from index.filters.condition import Condition

_GALLERY = click.argument("gallery", type=click.Path(path_type=Path))
_TAG = click.argument("tag")
_IDS = click.option("--id", "ids", type=click.IntRange(min=0), multiple=True, metavar="ID", help="Images; repeatable.")


@click.group(short_help="Tag images.")
def tags() -> None:
    """List the tags of a gallery's images, give images a tag or take it away.

    Tags are kept with the label decisions; filters know them: --where "tag = 'best'".

    \b
    Examples:
      retrieval tags list gallery
      retrieval tags add gallery to-label --where "label IS NULL"
      retrieval tags remove gallery to-label --where "label IS NOT NULL"
    """


@tags.command("list", short_help="List tags with their numbers of images.")
@_GALLERY
@output_options
def list_(gallery: Path, as_json: bool) -> None:
    """List the tags of GALLERY with their numbers of images, the most frequent first.

    \b
    Examples:
      retrieval tags list gallery
      retrieval tags list gallery --json
      retrieval index list gallery --where "tag = 'best'"
    """
    from index.gallery.gallery import Gallery
    from retrieval_app.insights.facet_filters import count_tags

    found = count_tags(Gallery.open(gallery))
    rows = [(printable_path(one["tag"]), f"{one['count']:,}") for one in found]
    emit({"tags": found}, as_json=as_json, text="\n".join(align(rows, right={1})) if rows else "there are no tags")


@tags.command(short_help="Give images a tag.")
@_GALLERY
@_TAG
@where_option("The images.")
@_IDS
@output_options
def add(gallery: Path, tag: str, where: Condition | None, ids: tuple[int, ...], as_json: bool) -> None:
    """Give images of GALLERY the tag TAG: those that fulfil --where, or are named by --id.

    \b
    Examples:
      retrieval tags add gallery best --where "label = 'shoes' AND price < 20"
      retrieval tags add gallery to-label --where "label IS NULL"
      retrieval tags add gallery best --id 7 --id 12
    """
    from retrieval_app.review.bulk import change_images, tag_images

    change = partial(tag_images, tag=tag)
    images = change_images(gallery, change, what="add-tag", ids=ids or None, where=where, tag=tag)
    emit({"tag": tag, "images": images}, as_json=as_json, text=f"{count_images(images)} tagged {printable_path(tag)}")


@tags.command(short_help="Take a tag away.")
@_GALLERY
@_TAG
@where_option("The images; all without this and --id.")
@_IDS
@output_options
def remove(gallery: Path, tag: str, where: Condition | None, ids: tuple[int, ...], as_json: bool) -> None:
    """Take the tag TAG away from images of GALLERY: those that fulfil --where, or all.

    \b
    Examples:
      retrieval tags remove gallery best
      retrieval tags remove gallery to-label --where "label IS NOT NULL"
      retrieval tags remove gallery best --id 7 --id 12
    """
    from index.filters.condition import TAG, Compare, Constant
    from retrieval_app.review.bulk import change_images, untag_images

    condition = where if where is not None or ids else Compare(TAG, "=", Constant("text", tag))
    change = partial(untag_images, tag=tag)
    images = change_images(gallery, change, what="remove-tag", ids=ids or None, where=condition, tag=tag)
    emit(
        {"tag": tag, "images": images}, as_json=as_json, text=f"{printable_path(tag)} taken from {count_images(images)}"
    )
