"""The runtimes that can run a model file, and which one does: the one that is named, or the first here that agrees.

`auto` takes TensorRT or ONNX Runtime where there is a GPU, else OpenVINO or ONNX Runtime, the first that is installed
and gives the embeddings of ONNX Runtime on the CPU or GPU, the usual one.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Vectors
from index.durable import write_durably
from index.errors import InputError, MissingDependencyError, ModelFileError
from index.images.preprocess import Pixels
from index.model.backends.backend import InferenceBackend
from index.model.backends.names import AUTO, NAMES, USUAL_BACKEND, VARIABLE
from index.model.backends.onnxruntime import OnnxRuntimeBackend, TensorRtBackend
from index.model.backends.openvino import OpenVinoBackend
from index.model.checksum import ModelFile, read_model_file
from index.model.contract import ModelContract, find_contract_text
from index.model.graph import UnsafeModelError, check_graph
from index.text import printable_path
from index.threads import usable_cores
from index.user_cache import user_cache

logger = logging.getLogger(__name__)
BACKENDS: dict[str, type[InferenceBackend]] = {
    "onnxruntime": OnnxRuntimeBackend,
    "openvino": OpenVinoBackend,
    "tensorrt": TensorRtBackend,
}
_ON_GPU, _ON_CPU = ("tensorrt", USUAL_BACKEND), ("openvino", USUAL_BACKEND)  # what `auto` tries, in this order
# Embeddings of two runtimes that stand for each other have at least this agreement: the computation in bfloat16 is
# within it (.998), that in int8 by two runtimes (.992), and that in int8 with the rest in bfloat16 (.987, on photos
# .999), which change which image is nearest as seldom as chance.
LEAST_AGREEMENT = 0.98
_SAME_MODEL = 0.9  # below this a runtime computes another model: it is not used, whoever names it
_IMAGES = 16
_RULES = 3  # raise it when a runtime comes to compute otherwise: what was compared before is then compared again
_CARDS = Path("/proc/driver/nvidia/gpus")
_KEPT = 100  # models, machines and versions, the newest


def report_runtimes(path: Path, *, asked: str | None = None) -> dict[str, Any]:
    """Compare every installed runtime with the usual one on a model.

    Args:
        asked: the runtime that would be asked for where nobody names one.

    Returns:
        `runtimes`: of every name what `Compared` has, or None where it is not installed or does not take the model;
        `chosen`: the name, None where what is named is refused, and why; `threads`: what is set.

    Raises:
        ModelFileError: the model cannot be used.
        InputError: a runtime is asked for that there is not.
        MissingDependencyError: the usual runtime is not installed.
    """
    model, installed = read_model_file(path), installed_backends()
    compared = {name: compare_backend(model, name) if name in installed else None for name in NAMES}
    runs: str | None = None
    try:
        choice = choose_backend(model, asked)
    except InputError as error:
        if (asked or os.environ.get(VARIABLE)) not in NAMES:  # there is no runtime of that name
            raise
        why = str(error)
    else:
        runs = choice.name if compared[choice.name] else open_backend(model, name=choice.name).name
        why = choice.why if runs == choice.name else f"{choice.name} is named, but cannot be had here"
    return {
        "runtimes": {
            name: None if one is None else {**asdict(one), "agrees": one.agreement >= LEAST_AGREEMENT}
            for name, one in compared.items()
        },
        "chosen": {"name": runs, "why": why},
        "threads": {
            "cores": usable_cores(),
            "waiting": "asleep" if os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE" else "spinning",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
    }


def tell_runtimes(report: Mapping[str, Any]) -> list[str]:
    """The lines of a report for people."""
    lines = []
    for name, one in report["runtimes"].items():
        mark = "*" if report["chosen"]["name"] == name else " "
        if one is None:
            lines.append(f"{mark} {name:<12} not installed here, or it does not take this model")
        else:
            agrees = "agrees" if one["agrees"] else "differs"
            found = f"{agrees} (cosine {one['agreement']:.4f} less the mean)"
            lines.append(f"{mark} {name:<12} {one['version']}, {one['precision']}: {found}")
    chosen, threads = report["chosen"], report["threads"]
    own = f", OMP_NUM_THREADS={threads['OMP_NUM_THREADS']}" if threads["OMP_NUM_THREADS"] else ""
    return [
        *lines,
        f"runs in {chosen['name'] or 'none'}: {chosen['why']}",
        f"threads: {threads['cores']} cores, those that wait are {threads['waiting']}{own}",
    ]


@dataclass(frozen=True, slots=True)
class Compared:
    """A runtime with a model on this machine.

    Attributes:
        version: of the runtime.
        precision: the numbers it computes with.
        agreement: the mean cosine of its embeddings with those of the usual runtime (or those expected), less the mean
            of these; 0 where not all of them are finite.
    """

    version: str
    precision: str
    agreement: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The runtime that runs a model: its name, its agreement with the usual one, and why it was taken, in words."""

    name: str
    agreement: float
    why: str


def installed_backends() -> dict[str, str]:
    """The version of every runtime that is installed, by its name."""
    from importlib.metadata import PackageNotFoundError, version  # loads much, for who asks for the usual one only

    found: dict[str, str] = {}
    for name, backend in BACKENDS.items():
        for package in reversed(backend.packages):
            with suppress(PackageNotFoundError):
                found[name] = version(package)
        if name in found and not backend.is_usable():
            del found[name]
    return found


def open_backend(model: ModelFile, *, threads: int | None = None, name: str = USUAL_BACKEND) -> InferenceBackend:
    """Open a model in a runtime, which sees no byte of a file that does more than compute.

    Raises:
        ModelFileError: the content is no ONNX model, or one that is unsafe (see `index.model.graph`).
        MissingDependencyError: the runtime is not installed.
    """
    try:
        check_graph(model.data)
    except UnsafeModelError as error:
        problem = f"not a usable ONNX model: {error}; export the model with `retrieval export`"
        raise ModelFileError(str(model.path), problem) from error
    return BACKENDS[name](model, threads=threads)


def choose_backend(model: ModelFile, asked: str | None = None) -> Choice:
    """The runtime for a model.

    Args:
        asked: a runtime, or `auto` for the first that agrees; None is what RETRIEVAL_BACKEND says, and the usual one
            where that says nothing.

    Raises:
        InputError: there is no runtime of that name, or it computes this model otherwise than the usual one.
        ModelFileError: the model cannot be used.
        MissingDependencyError: the usual runtime is not installed, and another one is not asked for.
    """
    asked = asked or os.environ.get(VARIABLE) or USUAL_BACKEND
    if asked not in (AUTO, *NAMES):
        raise InputError(f"--backend and {VARIABLE} take {AUTO}, {' or '.join(NAMES)}, got {asked!r}")
    if asked == USUAL_BACKEND:
        return Choice(USUAL_BACKEND, 1.0, f"the usual one; --backend or {VARIABLE} name another, or {AUTO}")
    installed = installed_backends()
    if asked != AUTO:
        found = compare_backend(model, asked) if asked in installed else None  # who opens it says what is missing
        if found is not None and not found.agreement >= _SAME_MODEL:  # so that NaN is refused
            raise InputError(
                f"{printable_path(str(model.path))}: {asked} computes it otherwise than {USUAL_BACKEND} (a cosine of "
                f"{found.agreement:.2f} less the mean, at least {_SAME_MODEL:g} is needed): use --backend "
                f"{USUAL_BACKEND}, or export the model again"
            )
        return Choice(asked, 1.0 if found is None else found.agreement, "it is named")
    if len(installed) == 1:
        return Choice(USUAL_BACKEND, 1.0, "no other one is installed")
    for name in _ON_GPU if open_backend(model).on_gpu else _ON_CPU:
        if name not in installed or (found := compare_backend(model, name)) is None:
            continue
        if found.agreement >= LEAST_AGREEMENT:
            return Choice(name, found.agreement, "the first choice of those that agree")
        logger.warning("%s gives other embeddings than %s, and is not used", name, USUAL_BACKEND)
    return Choice(USUAL_BACKEND, 1.0, "no other one that is installed agrees")


def compare_backend(model: ModelFile, name: str) -> Compared | None:
    """How far an installed runtime gives the embeddings of the usual one; None where it does not take the model.

    What is found is kept in the user's cache folder for a model, the processor, the GPUs and a version.

    Raises:
        ModelFileError: the model cannot be used.
        MissingDependencyError: the usual runtime is not installed.
    """
    versions = installed_backends()
    key = "; ".join([
        model.sha256, platform.machine(), *_name_hardware(), f"rules {_RULES}",
        *(f"{one} {versions.get(one)}" for one in (USUAL_BACKEND, name)),
    ])  # fmt: skip
    path, kept = user_cache() / "runtimes.json", dict[str, Any]()
    with suppress(OSError, ValueError, TypeError):  # nothing was kept, or it cannot be read
        kept = dict(json.loads(path.read_text(encoding="utf-8")))
    try:
        return Compared(**kept[key])
    except (KeyError, TypeError):  # not compared yet, or kept by another program
        usual = open_backend(model)
    try:
        backend = usual if name == USUAL_BACKEND else open_backend(model, name=name)
    except (MissingDependencyError, ModelFileError) as error:
        logger.debug("%s is not compared: %s", name, error)
        return None
    if backend.name != name:  # it fell back to the usual one
        return None
    pixels = _draw_pixels(model)
    expected = usual.run(pixels)
    if not np.isfinite(expected).all():
        raise ModelFileError(str(model.path), "it gives embeddings that are not finite; export the model again")
    found = compare(backend, pixels, expected)
    kept = {**dict([*kept.items()][-_KEPT:]), key: asdict(found)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(kept, indent=2).encode())
    except OSError as error:
        logger.warning("%s: not kept, so it is compared again: %s", path, error.strerror or error)
    return found


def compare(backend: InferenceBackend, pixels: Pixels, expected: Vectors) -> Compared:
    """A runtime that has opened a model, by its (N, D) embeddings of (N, side, side, 3) pixels and those expected."""
    found, agreement = backend.run(pixels), 0.0
    if np.isfinite(found).all():
        middle = expected.mean(axis=0)
        one, two = found - middle, expected - middle
        norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
        cosines = np.einsum("nd,nd->n", one, two) / np.maximum(norms, np.finfo(np.float32).tiny)
        agreement = float(cosines.mean())
    return Compared(backend.version, backend.precision, round(agreement, 6))


def _name_hardware() -> list[str]:
    """Names of the processor and of NVIDIA's cards, as far as the system tells."""
    found = set[str]()
    for path in (Path("/proc/cpuinfo"), *_CARDS.glob("*/information")):
        with suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
            found |= set(re.findall(r"^(?:model name|Model)[ \t]*:[ \t]*(.*\S)", text, re.MULTILINE))
    return sorted(found) or [platform.processor()]


def _draw_pixels(model: ModelFile) -> Pixels:
    """Images that are unlike each other, for the embeddings to differ: random coarse cells of several sizes."""
    try:
        side = ModelContract.from_json(find_contract_text(model.data)).preprocess.crop
    except InputError as error:
        raise ModelFileError(str(model.path), f"{error}; export the model again") from error
    random, found = np.random.default_rng(0), []
    for number in range(_IMAGES):
        cells = 2 + number % 7
        coarse = random.integers(0, 256, size=(cells, cells, 3), dtype=np.uint8)
        repeat = -(-side // cells)
        found.append(coarse.repeat(repeat, axis=0).repeat(repeat, axis=1)[:side, :side])
    return np.stack(found)
