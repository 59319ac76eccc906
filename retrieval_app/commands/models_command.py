"""`retrieval models`: public models for `--backbone`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from index.commands.console import emit, output_options, progress_bars
from index.errors import InputError
from index.text import align
from training.options.backbone_libraries import BUILTIN
from training.options.known_models import KNOWN_MODELS, KnownModel

_TIMED = 16  # images


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
    chosen = [one for one in KNOWN_MODELS if not names or any(name.lower() in one.name.lower() for name in names)]
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
    rows = [
        {**asdict(one), "megabytes": round(one.megabytes, 1), "seconds_per_1000": times.get(one.name)} for one in chosen
    ]
    emit({"models": rows}, as_json=as_json, text="\n".join(_tabulate(chosen, times)))


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


def _tabulate(models: Sequence[KnownModel], times: dict[str, float]) -> list[str]:
    head = ("--backbone", "width", "pixels", "M params", "MB", "s/1,000", "licence", "commercial", "text", "good for")
    rows = [
        (
            one.name,
            f"{one.width:,}",
            f"{one.side}",
            f"{one.parameters:.1f}",
            f"{one.megabytes:.0f}",
            f"{times[one.name]:,.1f}" if one.name in times else "-",
            one.licence,
            one.commercial,
            "yes" if one.has_text else "-",
            one.good_for,
        )
        for one in models
    ]
    return [
        *align([head, *rows], right={1, 2, 3, 4, 5}),
        *(f"measured here, Recall@1 without training: {one.name}: {one.measured}" for one in models if one.measured),
        "MB in float32, of the built-in one in int8; licences are those of the weights, by their model cards (--json "
        "names them); data that a model saw may have terms of its own",
    ]
