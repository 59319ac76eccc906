"""`retrieval models`: public models for `--backbone`."""

from __future__ import annotations

import click

from index.commands.console import emit, output_options
from index.errors import InputError
from index.text import align
from training.options.known_models import COMMERCIAL, MEASURED, list_known_models

_HEAD = ("--backbone", "width", "pixels", "M params", "MB", "licence", "commercial", "text", "good for")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@output_options
def models(names: tuple[str, ...], as_json: bool) -> None:
    """List public image models for --backbone, with the licences of their weights.

    NAMEs, or parts of them, choose some. The list is a part of this program, and nothing is fetched; `retrieval export
    --backbone NAME --weights pretrained` shows the licence before it fetches a model.

    \b
    Examples:
      retrieval models
      retrieval models dinov2 SigLIP2
      retrieval models --json
    """
    chosen = [one for one in list_known_models() if not names or any(n.lower() in one.name.lower() for n in names)]
    if not chosen:
        raise InputError(f"{', '.join(names)}: no name in the list has this in it; `retrieval models` lists all")
    rows, documents = [_HEAD], []
    for one in chosen:
        commercial = COMMERCIAL[one.licence]
        documents.append({**one._asdict(), "commercial": commercial, "measured": MEASURED.get(one.name)})
        sizes = f"{one.width:,}", f"{one.side}", f"{one.parameters:.1f}", f"{one.megabytes:.0f}"
        rows.append((one.name, *sizes, one.licence, commercial, "yes" if one.has_text else "-", one.good_for))
    lines = align(rows, right={1, 2, 3, 4})
    chosen_names = {one.name for one in chosen}
    lines += [f"Recall@1 measured here, untrained: {n}: {text}" for n, text in MEASURED.items() if n in chosen_names]
    lines.append("MB in float32, of the built-in model in int8; licences by the model cards, which --json names;")
    lines.append("the data that a model has seen may have terms of their own")
    emit({"models": documents}, as_json=as_json, text="\n".join(lines))
