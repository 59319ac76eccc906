"""`retrieval models`: public models for `--backbone`."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from index.commands.console import emit, output_options, progress_bars
from index.errors import InputError
from index.text import align
from training.options.backbone_libraries import BUILTIN
from training.options.known_models import COMMERCIAL, MEASURED, KnownModel, list_known_models

_TIMED = 16  # images
_HEAD = ("--backbone", "width", "pixels", "M params", "MB", "s/1,000", "licence", "commercial", "text", "good for")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--measure",
    is_flag=True,
    help="Time the models on this machine, exported with random weights, which takes minutes. Nothing is fetched.",
)
@output_options
def models(names: tuple[str, ...], measure: bool, as_json: bool) -> None:
    """List public image models for --backbone, with the licences of their weights.

    NAMEs, or parts of them, choose some. The list is a part of this program, and nothing is fetched; `retrieval export
    --backbone NAME --weights pretrained` shows the licence before it fetches a model.

    \b
    Examples:
      retrieval models
      retrieval models dinov2 SigLIP2
      retrieval models builtin lite2 --measure
    """
    chosen = [one for one in list_known_models() if not names or any(n.lower() in one.name.lower() for n in names)]
    if not chosen:
        raise InputError(f"{', '.join(names)}: no name in the list has this in it; `retrieval models` lists all")
    times: dict[str, float] = {}
    if measure:
        with progress_bars() as begin:
            progress = begin("Measuring", unit="models")
            for done, one in enumerate(chosen):
                progress(done, len(chosen))
                times[one.name] = _measure(one)
            progress(len(chosen), len(chosen))
    rows, documents = [_HEAD], []
    for one in chosen:
        commercial, seconds = COMMERCIAL[one.licence], times.get(one.name)
        own = {"commercial": commercial, "measured": MEASURED.get(one.name), "seconds_per_1000": seconds}
        documents.append({**one._asdict(), **own})
        sizes = f"{one.width:,}", f"{one.side}", f"{one.parameters:.1f}", f"{one.megabytes:.0f}"
        shown = "-" if seconds is None else f"{seconds:,.1f}"
        rows.append((one.name, *sizes, shown, one.licence, commercial, "yes" if one.has_text else "-", one.good_for))
    lines = align(rows, right={1, 2, 3, 4, 5})
    chosen_names = {one.name for one in chosen}
    lines += [f"Recall@1 measured here, untrained: {n}: {text}" for n, text in MEASURED.items() if n in chosen_names]
    lines.append("MB in float32, of the built-in model in int8; licences by the model cards, which --json names;")
    lines.append("the data that a model has seen may have terms of their own")
    emit({"models": documents}, as_json=as_json, text="\n".join(lines))


def _measure(model: KnownModel) -> float:
    """Seconds for 1,000 images on all cores, decoding aside; random weights are as fast as those of the model."""
    import numpy as np

    from export.public import export
    from index.model.builtin import find_builtin
    from index.model.embedder import Embedder

    with TemporaryDirectory() as folder:
        path = find_builtin()
        if model.name != BUILTIN:
            path = Path(export(None, Path(folder) / "model.onnx", backbone=model.name, weights="none").model)
        embedder = Embedder(path)
        side = embedder.contract.preprocess.crop
        images = np.random.default_rng(0).integers(0, 256, (_TIMED, side, side, 3), dtype=np.uint8)
        embedder.embed_batch(images[:1])
        start = time.perf_counter()
        embedder.embed_batch(images)
        return 1000 * (time.perf_counter() - start) / _TIMED
