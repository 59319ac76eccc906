"""Registry of runtimes. `auto` chooses ONNX Runtime on a GPU; on a CPU OpenVINO, if its embeddings agree."""

import json
import logging
import os
import platform
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Vectors, centred_cosines
from index.durable import write_durably
from index.errors import InputError, MissingDependencyError, ModelFileError
from index.images.preprocess import Pixels
from index.model.backends.backend import AUTO, NAMES, USUAL_BACKEND, VARIABLE, InferenceBackend
from index.model.backends.onnxruntime import OnnxRuntimeBackend
from index.model.backends.openvino import OpenVinoBackend
from index.model.checksum import ModelFile
from index.model.contract import ModelContract, find_contract_text
from index.model.graph import UnsafeModelError, check_graph
from index.paths import user_cache
from index.text import printable_path

logger = logging.getLogger(__name__)
BACKENDS: dict[str, type[InferenceBackend]] = {"onnxruntime": OnnxRuntimeBackend, "openvino": OpenVinoBackend}
_FASTER = "openvino"  # on a CPU
# Least agreement of runtimes whose embeddings may be mixed. bfloat16 reaches .998, int8 by two runtimes .992, int8 with
# the rest in bfloat16 .987 (.999 on photos); these change the nearest image no more often than chance.
LEAST_AGREEMENT = 0.98
_SAME_MODEL = 0.9  # below this a runtime is not used, even if it is named
_IMAGES = 16
_RULES = 3  # raising it invalidates cached comparisons
_CARDS = Path("/proc/driver/nvidia/gpus")
_KEPT = 100  # models, machines and versions, the newest


@dataclass(frozen=True, slots=True)
class Compared:
    """A runtime with a model here: the mean cosine with expected embeddings, all less their mean; 0 if not finite."""

    version: str
    precision: str
    agreement: float


def installed_backends() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    found: dict[str, str] = {}
    for name, backend in BACKENDS.items():
        for package in reversed(backend.packages):
            with suppress(PackageNotFoundError):
                found[name] = version(package)
    return found


def open_backend(model: ModelFile, *, threads: int | None = None, name: str = USUAL_BACKEND) -> InferenceBackend:
    """Open a model in a runtime, after `check_graph`."""
    try:
        check_graph(model.data)
    except UnsafeModelError as error:
        problem = f"not a usable ONNX model: {error}; export the model with `retrieval export`"
        raise ModelFileError(model.path, problem) from error
    return BACKENDS[name](model, threads=threads)


def choose_backend(model: ModelFile, asked: str | None = None) -> tuple[str, float]:
    """The name of the runtime for a model, and its agreement with the usual one.

    `asked` is a runtime, or `auto` for the first that agrees; None: RETRIEVAL_BACKEND, or else the usual one.
    """
    asked = asked or os.environ.get(VARIABLE) or USUAL_BACKEND
    if asked not in (AUTO, *NAMES):
        raise InputError(f"--backend and {VARIABLE} take {AUTO}, {' or '.join(NAMES)}, got {asked!r}")
    if asked == USUAL_BACKEND:
        return USUAL_BACKEND, 1.0
    installed = installed_backends()
    if asked != AUTO:
        found = compare_backend(model, asked) if asked in installed else None  # who opens it says what is missing
        if found is not None and not found.agreement >= _SAME_MODEL:  # so that NaN is refused
            raise InputError(
                f"{printable_path(model.path)}: {asked} computes it otherwise than {USUAL_BACKEND} (a cosine of "
                f"{found.agreement:.2f} less the mean, at least {_SAME_MODEL:g} is needed): use --backend "
                f"{USUAL_BACKEND}, or export the model again"
            )
        return asked, 1.0 if found is None else found.agreement
    if _FASTER in installed and not open_backend(model).on_gpu:
        found = compare_backend(model, _FASTER)
        if found is not None and found.agreement >= LEAST_AGREEMENT:
            return _FASTER, found.agreement
        if found is not None:
            logger.warning("%s gives other embeddings than %s, and is not used", _FASTER, USUAL_BACKEND)
    return USUAL_BACKEND, 1.0


def compare_backend(model: ModelFile, name: str) -> Compared | None:
    """Compare an installed runtime's embeddings with the usual one's; None where it cannot open the model.

    The result is cached in the user's cache folder by model, processor, GPUs and versions.
    """
    versions = installed_backends()
    key = "; ".join(
        [
            model.sha256,
            platform.machine(),
            *_name_hardware(),
            f"rules {_RULES}",
            *(f"{one} {versions.get(one)}" for one in (USUAL_BACKEND, name)),
        ]
    )
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
    pixels = _draw_pixels(model)
    expected = usual.run(pixels)
    if not np.isfinite(expected).all():
        raise ModelFileError(model.path, "it gives embeddings that are not finite; export the model again")
    found = compare(backend, pixels, expected)
    kept = {**dict([*kept.items()][-_KEPT:]), key: asdict(found)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(kept, indent=2).encode())
    except OSError as error:
        logger.warning("%s: not kept, so it is compared again: %s", path, error.strerror or error)
    return found


def compare(backend: InferenceBackend, pixels: Pixels, expected: Vectors) -> Compared:
    """Compare a runtime's embeddings of (N, side, side, 3) pixels with (N, D) expected ones."""
    found, agreement = backend.run(pixels), 0.0
    if np.isfinite(found).all():
        agreement = float(centred_cosines(found, expected).mean())
    return Compared(backend.version, backend.precision, round(agreement, 6))


def _name_hardware() -> list[str]:
    """Names of the processor and of NVIDIA's GPUs, where known."""
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
        raise ModelFileError(model.path, f"{error}; export the model again") from error
    random, found = np.random.default_rng(0), []
    for number in range(_IMAGES):
        cells = 2 + number % 7
        coarse = random.integers(0, 256, size=(cells, cells, 3), dtype=np.uint8)
        repeat = -(-side // cells)
        found.append(coarse.repeat(repeat, axis=0).repeat(repeat, axis=1)[:side, :side])
    return np.stack(found)
