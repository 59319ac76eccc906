"""`retrieval doctor`: the installation. `retrieval info`: a model."""

import io
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from index.commands.console import PATH, emit, output_options
from index.errors import InputError, RetrievalError
from index.faiss_library import import_faiss
from index.markers import read_mark
from index.text import printable_path, valid_text
from index.threads import usable_cores

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "base": ("numpy", "pillow"),
    "cpu": ("faiss-cpu", "onnxruntime"),
    "gpu": ("faiss-gpu", "onnxruntime-gpu"),
    "serve": ("fastapi", "uvicorn", "openTSNE"),
    "ui": ("gradio",),
    "agents": ("mcp",),
    "train": ("torch", "torchvision", "onnx"),
    "backbones": ("timm", "open_clip_torch"),
    "parquet": ("pyarrow",),
    "fast": ("openvino",),
    "heic": ("pillow-heif",),
    "remote": ("obstore",),
}
"""The packages that tell whether an extra is installed."""
_SIDE, _PHOTOS, _WARM = 512, 64, 16  # pixels; photos that are timed, and before


@click.command()
@output_options
def doctor(as_json: bool) -> None:
    """Check the installation: packages, weights, the GPU if there is one, and how fast this machine embeds.

    It changes nothing and uses no network. Exits with 1 if something is wrong.

    \b
    Examples:
      retrieval doctor
      retrieval doctor --json
      retrieval doctor --debug
    """
    report = examine()
    click.echo(json.dumps(report) if as_json else "\n".join(_tell(report)))
    if report["problems"]:
        click.get_current_context().exit(1)


def examine() -> dict[str, Any]:
    """Report of `retrieval doctor`, as its JSON has it."""
    from PIL import Image

    from index.images.decode import FORMATS, HEIF, has_decoder

    installed = {extra: {name: _find_version(name) for name in names} for extra, names in EXTRAS.items()}
    problems = []
    for one, other in zip(EXTRAS["cpu"], EXTRAS["gpu"], strict=True):
        if installed["cpu"][one] and installed["gpu"][other]:
            problems.append(
                f"{one} and {other} overwrite each other: uninstall both, and install one of the extras cpu and gpu"
            )
    if not any((*installed["cpu"].values(), *installed["gpu"].values())):
        problems.append("nothing can be indexed or searched: install one of the extras cpu and gpu")
    Image.init()
    # Where torchvision keeps the weights that it has fetched.
    home = Path(os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch")
    weights = home.expanduser() / "hub" / "checkpoints"
    report: dict[str, Any] = {
        "retrieval": _find_version("retrieval-app"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": usable_cores(),
        "installed": installed,
        "formats": [name for name in FORMATS if name in Image.OPEN] + ([HEIF] if has_decoder() else []),
        "weights": {"folder": str(weights), "files": sorted(file.name for file in weights.glob("*.pth"))},
    }
    for name, measure in (("embedding", _measure_embedding), ("training", _look_at_torch)):
        try:
            report[name] = measure(installed)
        except (RetrievalError, ImportError, OSError, RuntimeError) as error:
            report[name] = None
            problems.append(f"{name}: {error}")
    instead = "nvidia-smi tells whether its driver sees one; for machines without: the extra cpu"
    embedding = report["embedding"]
    if installed["gpu"]["onnxruntime-gpu"] and embedding is not None and not embedding["on_gpu"]:
        problems.append(f"onnxruntime-gpu is installed, but models run on the CPU; {instead}")
    if installed["gpu"]["faiss-gpu"] and not import_faiss().get_num_gpus():
        problems.append(f"faiss-gpu is installed, but finds no GPU; {instead}")
    return {**report, "problems": problems}


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _measure_embedding(installed: Mapping[str, Mapping[str, str | None]]) -> dict[str, Any] | None:
    """Providers of the built-in model here, and how many photos it embeds a second on all cores."""
    if not installed["cpu"]["onnxruntime"] and not installed["gpu"]["onnxruntime-gpu"]:
        return None
    import numpy as np
    from PIL import Image

    from index.model.backends.onnxruntime import import_onnxruntime
    from index.model.builtin import find_builtin
    from index.model.embedder import Embedder
    from index.threads import map_ahead

    model = Embedder(find_builtin())
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
    """Threads and GPUs that training would use."""
    if not installed["train"]["torch"]:
        return None
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {"threads": torch.get_num_threads(), "gpus": gpus}


def _tell(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"retrieval {report['retrieval']}, Python {report['python']}, {report['system']}, {report['cores']} cores"
    for extra, packages in report["installed"].items():
        words = ", ".join(f"{name} {found}" if found else f"{name} -" for name, found in packages.items())
        yield f"  {extra:<12}{words}"
    yield f"images: {', '.join(report['formats'])}"
    if (embedding := report["embedding"]) is not None:
        where = "on the GPU" if embedding["on_gpu"] else "on the CPU"
        yield (
            f"the built-in model: {embedding['photos_per_s']} photos of {_SIDE} x {_SIDE} pixels a second {where} "
            f"({', '.join(name.removesuffix('ExecutionProvider') for name in embedding['providers'])})"
        )
    if (training := report["training"]) is not None:
        yield f"training: {', '.join(training['gpus']) or 'no GPU'}, {training['threads']} threads"
    weights = report["weights"]
    names = ", ".join(map(printable_path, weights["files"])) or "none yet"
    yield f"weights that torchvision has fetched: {names} ({printable_path(weights['folder'])})"
    yield "without any: --backbone builtin, the built-in model"
    for problem in report["problems"]:
        yield f"PROBLEM: {problem}"
    if not report["problems"]:
        yield "nothing is wrong"


@click.command()
@click.argument("model", type=PATH, metavar="MODEL|builtin")
@output_options
def info(*, model: Path, as_json: bool) -> None:
    """Describe a model; `builtin` is the one that comes with the package. `index info` describes a gallery.

    \b
    Examples:
      retrieval info builtin
      retrieval info model.onnx --json
      retrieval info gallery/versions/000001/model.onnx
    """
    from index.model.builtin import find_named_model

    if read_mark(model) is not None:
        raise InputError("a gallery, not a model; `retrieval index info GALLERY` describes it", at=model)
    document, lines = _describe_model(find_named_model(model))
    emit(document, as_json=as_json, text="\n".join(lines))


def _describe_model(path: Path) -> tuple[dict[str, Any], list[str]]:
    from index.errors import ModelFileError
    from index.model.checksum import read_model_file
    from index.model.contract import find_contract

    model, contract = read_model_file(path), find_contract(path)
    if contract is None:
        raise ModelFileError(path, "it has no contract; export the model with `retrieval export`")
    size, found = contract.preprocess, contract.measured
    document = {"model": valid_text(str(path)), "sha256": model.sha256, **asdict(contract)}
    document["preprocess"] = size.to_json()
    widths = " and ".join(f"{width} numbers by {name}" for name, width in contract.widths.items())
    measured = (
        ""
        if found is None
        else (
            f", with {found.float_layers} layers in float32; Recall@1 {100 * found.recall_at_1:.2f} % where float32 "
            f"has {100 * found.recall_at_1_float32:.2f} % on {found.images:,} images"
        )
    )
    return document, [
        f"{printable_path(path)}: {len(model.data) / 1e6:.1f} MB, SHA-256 {model.sha256[:12]}",
        f"{printable_path(contract.backbone)}, {printable_path(contract.method)}: {widths}, "
        f"{size.crop} of {size.resize} pixels",
        f"precision: {contract.precision}{measured}",
        *(f"text tower: {printable_path(file)}" for file in contract.text_files(path)),
    ]
