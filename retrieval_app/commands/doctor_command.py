"""`retrieval doctor`: what is installed, what works of it, where weights come from, how fast this machine is."""

from __future__ import annotations

import io
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from index.commands.console import output_options
from index.errors import RetrievalError
from index.faiss_library import import_faiss
from index.text import printable_path
from index.threads import usable_cores

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "base": ("numpy", "pillow"),
    "cpu": ("faiss-cpu", "onnxruntime"),
    "gpu": ("faiss-gpu", "onnxruntime-gpu"),
    "ui": ("fastapi", "gradio", "uvicorn"),
    "agents": ("mcp",),
    "train": ("torch", "torchvision", "onnx"),
    "backbones": ("timm", "open_clip_torch"),
    "parquet": ("pyarrow",),
    "fast": ("openvino", "simplejpeg"),
    "heic": ("pillow-heif",),
    "remote": ("obstore", "fsspec"),
    "loggers": ("tensorboard", "mlflow-skinny", "wandb"),
    "traces": ("opentelemetry-sdk",),
}
"""The packages that tell whether an extra is installed."""
_SIDE, _PHOTOS, _WARM = 512, 64, 16  # pixels; photos that are timed, and before


@click.command()
@output_options
def doctor(as_json: bool) -> None:
    """Say what is installed, what works of it, where weights come from, and how fast this machine embeds.

    It changes nothing and asks no network. The exit status is 1 where something is wrong.

    \b
    Examples:
      retrieval doctor
      retrieval doctor --json
    """
    report = examine()
    click.echo(json.dumps(report) if as_json else "\n".join(_tell(report)))
    if report["problems"]:
        click.get_current_context().exit(1)


def examine() -> dict[str, Any]:
    """What `retrieval doctor` says, as its JSON has it."""
    installed = {extra: {name: _find_version(name) for name in names} for extra, names in EXTRAS.items()}
    problems = list(_find_clashes(installed))
    report: dict[str, Any] = {
        "retrieval": _find_version("retrieval-app"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": usable_cores(),
        "installed": installed,
        "formats": _list_formats(),
        "weights": _list_weights(),
    }
    for name, measure in (("embedding", _measure_embedding), ("training", _look_at_torch)):
        try:
            report[name] = measure(installed)
        except (RetrievalError, ImportError, OSError, RuntimeError) as error:
            report[name] = None
            problems.append(f"{name}: {error}")
    return {**report, "problems": [*problems, *_find_idle(installed, report["embedding"])]}


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _find_clashes(installed: Mapping[str, Mapping[str, str | None]]) -> Iterator[str]:
    for one, other in zip(EXTRAS["cpu"], EXTRAS["gpu"], strict=True):
        if installed["cpu"][one] and installed["gpu"][other]:
            yield f"{one} and {other} overwrite each other: uninstall both, and install one of the extras cpu and gpu"
    if not any(installed["cpu"].values()) and not any(installed["gpu"].values()):
        yield "nothing can be indexed or searched: install one of the extras cpu and gpu"


def _find_idle(
    installed: Mapping[str, Mapping[str, str | None]], embedding: Mapping[str, Any] | None
) -> Iterator[str]:
    """Packages for a GPU that do not use one."""
    instead = "nvidia-smi tells whether its driver sees one; for machines without: the extra cpu"
    if installed["gpu"]["onnxruntime-gpu"] and embedding is not None and not embedding["on_gpu"]:
        yield f"onnxruntime-gpu is installed, but models run on the CPU; {instead}"
    if installed["gpu"]["faiss-gpu"] and not import_faiss().get_num_gpus():
        yield f"faiss-gpu is installed, but finds no GPU; {instead}"


def _list_formats() -> list[str]:
    """Formats of images that can be read here."""
    from PIL import Image

    from index.images.decode import FORMATS
    from index.images.heif import HEIF, has_decoder

    Image.init()
    return [name for name in FORMATS if name in Image.OPEN] + ([HEIF] if has_decoder() else [])


def _list_weights() -> dict[str, Any]:
    """Where torchvision keeps the weights that it has fetched, and which there are."""
    home = Path(os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch")
    folder = home.expanduser() / "hub" / "checkpoints"
    found = sorted(file.name for file in folder.glob("*.pth")) if folder.is_dir() else []
    return {"folder": str(folder), "files": found}


def _measure_embedding(installed: Mapping[str, Mapping[str, str | None]]) -> dict[str, Any] | None:
    """With what the model in the box runs here, and how many photos it embeds a second on all cores."""
    if not installed["cpu"]["onnxruntime"] and not installed["gpu"]["onnxruntime-gpu"]:
        return None
    import numpy as np
    from PIL import Image

    from index.model.backends.onnxruntime import import_onnxruntime
    from index.model.embedder import Embedder
    from index.model.in_the_box import find_box
    from index.threads import map_ahead

    model = Embedder(find_box())
    pixels = np.random.default_rng(0).integers(0, 256, (_SIDE // 16, _SIDE // 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((_SIDE, _SIDE)).save(file, "JPEG")

    def embed(count: int) -> float:
        started = time.perf_counter()
        read = partial(model.preprocess, file.getvalue())
        photos = map_ahead(lambda number: read(name=str(number)), range(count), workers=usable_cores(), ahead=32)
        model.embed_batch(np.stack(list(photos)))
        return time.perf_counter() - started

    embed(_WARM)
    return {
        "providers": import_onnxruntime().get_available_providers(),
        "on_gpu": model.on_gpu,
        "photos_per_s": round(_PHOTOS / embed(_PHOTOS)),
    }


def _look_at_torch(installed: Mapping[str, Mapping[str, str | None]]) -> dict[str, Any] | None:
    """With what training would run."""
    if not installed["train"]["torch"]:
        return None
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {"threads": torch.get_num_threads(), "gpus": gpus}


def _tell(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"retrieval {report['retrieval']}, Python {report['python']}, {report['system']}, {report['cores']} cores"
    for extra, packages in report["installed"].items():
        words = ", ".join(f"{name} {found}" if found else f"{name} -" for name, found in packages.items())
        yield f"  {extra:<10}{words}"
    yield f"images: {', '.join(report['formats'])}"
    if (embedding := report["embedding"]) is not None:
        where = "on the GPU" if embedding["on_gpu"] else "on the CPU"
        yield (
            f"the model in the box: {embedding['photos_per_s']} photos of {_SIDE} x {_SIDE} pixels a second {where} "
            f"({', '.join(name.removesuffix('ExecutionProvider') for name in embedding['providers'])})"
        )
    if (training := report["training"]) is not None:
        yield f"training: {', '.join(training['gpus']) or 'no GPU'}, {training['threads']} threads"
    weights = report["weights"]
    names = ", ".join(map(printable_path, weights["files"])) or "none yet"
    yield f"weights that torchvision has fetched: {names} ({printable_path(weights['folder'])})"
    yield "without any: --backbone box, the model in the box"
    for problem in report["problems"]:
        yield f"PROBLEM: {problem}"
    if not report["problems"]:
        yield "nothing is wrong"
