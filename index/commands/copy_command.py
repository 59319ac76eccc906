"""`retrieval index copy`: a gallery again, with its vectors in a folder or in Milvus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from index.commands.build_text import indexing_bars
from index.commands.console import PATH, build_config, config_options, emit, output_options, wait_option
from index.text import printable_path
from index.vectors.store_config import StoreConfig


@click.command(name="copy")
@click.argument("gallery", type=PATH)
@click.argument("out", type=PATH, metavar="NEW_GALLERY")
@config_options(StoreConfig)
@wait_option
@output_options
def copy(*, gallery: Path, out: Path, wait_s: float, as_json: bool, **options: Any) -> None:
    """Copy the current version of GALLERY to the folder NEW_GALLERY, with its vectors there or in Milvus.

    Nothing is embedded, ids stay, and GALLERY is only read. What people made of it, decisions and uploads, is not
    copied: `retrieval backup` takes that. A copy that was stopped is made again by the same command.

    \b
    Examples:
      retrieval index copy gallery in-milvus --store milvus --uri http://localhost:19530
      retrieval index copy in-milvus gallery-again
    """
    from index.writing.copying import copy_gallery

    store = build_config(StoreConfig, options)
    with indexing_bars() as (_, begin_step):
        report = copy_gallery(gallery, out, store=store, begin_step=begin_step, wait_s=wait_s)
    text = f"{report.indexed:,} images in {printable_path(str(out))}, vectors in {report.store}, {report.seconds:.1f} s"
    emit(report.to_json(), as_json=as_json, text=text)
