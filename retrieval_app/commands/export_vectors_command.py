"""`retrieval index export-vectors`, beside the other commands of `retrieval index`."""

from dataclasses import asdict
from pathlib import Path

import click

from index.commands.console import PATH, by_option, emit, output_options, progress_bars, refuse_unused
from index.commands.index_group import index_group as base
from retrieval_app.commands.leaks_command import leaks

TABLE, PROJECTOR, ATLAS = "table", "projector", "atlas"


@click.command(name="export-vectors")
@click.argument("gallery", type=PATH)
@click.option(
    "--out", type=PATH, required=True, metavar="PLACE",
    help="For a table: NAME.npy, with NAME.csv beside it that describes the rows, or NAME.parquet with all of it. For "
    "the projector: a new folder. For the atlas: NAME.parquet.",
)  # fmt: skip
@click.option(
    "--as", "kind", type=click.Choice([TABLE, PROJECTOR, ATLAS]), default=TABLE, show_default=True,
    help="A table, or files of the Embedding Projector of TensorBoard, or of embedding-atlas.",
)  # fmt: skip
@click.option(
    "--thumbnails/--no-thumbnails",
    default=True,
    show_default=True,
    help="Add thumbnails to the projector and the atlas; reads every image.",
)
@by_option("Write the vectors of semantic similarity, or those of copy detection.")
@output_options
def export_vectors(gallery: Path, out: Path, kind: str, thumbnails: bool, by: str, as_json: bool) -> None:
    """Export vectors with paths, labels and metadata.

    A table has numbers for programs. `--as projector` writes a folder for `tensorboard --logdir PLACE`. `--as atlas`
    writes a file with the map of the page, for `embedding-atlas PLACE --x x --y y --neighbors neighbors --image image`.

    \b
    Examples:
      retrieval index export-vectors gallery --out vectors.npy
      retrieval index export-vectors gallery --as projector --out projector
      retrieval index export-vectors gallery --as atlas --out atlas.parquet
    """
    from index.text import printable_path

    shown = printable_path(str(out))
    with progress_bars() as begin:
        if kind == TABLE:
            refuse_unused(click.get_current_context(), "thumbnails", needs="--as projector or --as atlas")
            from index.gallery.export_vectors import export_vectors as export

            table = export(gallery, out, by=by, progress=begin("Writing"))
            text = f"{' and '.join(map(printable_path, table.files))}: {_count(table.images, table.embedding_dim)}"
            emit(asdict(table), as_json=as_json, text=text)
            return
        from retrieval_app.vector_views import write_atlas, write_projector

        if kind == PROJECTOR:
            report = write_projector(gallery, out, by=by, thumbnails=thumbnails, progress=begin("Writing"))
            how = f"tensorboard --logdir {shown}"
        else:
            report = write_atlas(
                gallery, out, by=by, thumbnails=thumbnails, laying_out=begin("Layout", unit="steps"),
                writing=begin("Writing"),
            )  # fmt: skip
            how = f"embedding-atlas {shown} --x x --y y --neighbors neighbors"
            how += " --image image" if thumbnails else ""
    counted = f"{_count(report.images, report.embedding_dim)}, {report.thumbnails:,} thumbnails"
    emit(asdict(report), as_json=as_json, text=f"{shown}: {counted}\nview: {how}")


def _count(images: int, numbers: int) -> str:
    return f"{images:,} images, {numbers} numbers each"


index = click.Group(
    name=base.name, help=base.help, commands={**base.commands, "export-vectors": export_vectors, "leaks": leaks}
)
