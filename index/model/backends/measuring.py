"""How fast each runtime runs a model on this machine, and how far its embeddings are those of the usual one."""

from __future__ import annotations

import json
import logging
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from index.arrays import Vectors
from index.durable import write_durably
from index.errors import InputError, MissingDependencyError, ModelFileError
from index.images.preprocess import Pixels
from index.model.backends.backend import InferenceBackend
from index.model.backends.names import USUAL_BACKEND
from index.model.backends.registry import installed_backends, open_backend
from index.model.contract import ModelContract, find_contract_text
from index.model.seal import SealedModel
from index.threads import usable_cores
from index.user_cache import user_cache

_SECONDS, _BATCH = 1.0, 16  # for each runtime
_RULES = 2  # raise it when a runtime comes to compute otherwise: what was measured before is then measured again
_KEPT = 100  # models, machines and versions, the newest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measured:
    """A runtime with a model on this machine.

    Attributes:
        version: of the runtime.
        precision: the numbers it computes with.
        images_per_s: in batches of 16, on all cores.
        agreement: the mean cosine of its embeddings with those of the usual runtime (or those expected), less the mean
            of these; 0 where not all of them are finite.
    """

    version: str
    precision: str
    images_per_s: float
    agreement: float


class Contestant(Protocol):
    """What computes a model: a runtime that has opened its file, or something else that gives the same."""

    version: str
    precision: str

    def run(self, pixels: Pixels) -> Vectors:
        """(N, side, side, 3) uint8 pixels to (N, D) float32 embeddings."""


@dataclass(frozen=True, slots=True)
class Rivals:
    """What is measured beside the runtimes of a model file, and on which images.

    Attributes:
        others: by their names.
        read_pixels: gives (N, side, side, 3) uint8.
        expect: what (N, D) float32 embeddings of these pixels are compared with.
    """

    others: Mapping[str, Contestant]
    read_pixels: Callable[[], Pixels]
    expect: Callable[[Pixels], Vectors]


def measure_installed(
    model: SealedModel, *, again: bool = False, rivals: Rivals | None = None
) -> dict[str, Measured]:
    """Every runtime that is installed and takes the model, the usual one first, and rivals, on their images.

    It takes a second for each, once for a model, a processor and the versions installed: what is found is kept in the
    user's cache folder, unless it is to be found `again`.

    Raises:
        ModelFileError: the model cannot be used.
        MissingDependencyError: the usual runtime is not installed.
    """
    installed = installed_backends()
    others = {} if rivals is None else rivals.others
    key = "; ".join([
        model.sha256, platform.machine(), _processor(), f"{usable_cores()} cores", f"rules {_RULES}",
        *(f"{name} {version}" for name, version in installed.items()),
        *(f"{name} {one.version} {one.precision}" for name, one in others.items()),
    ])  # fmt: skip
    kept = _read_kept()
    if not again and (found := _parse(kept.get(key))):
        return found
    opened = _open_all(model, installed)
    if rivals is None:
        found = measure_backends(opened, _draw_pixels(model), model.path)
    else:
        pixels = rivals.read_pixels()
        found = measure_backends({**opened, **others}, pixels, model.path, rivals.expect(pixels))
    _keep({**dict([*kept.items()][-_KEPT:]), key: {name: asdict(one) for name, one in found.items()}})
    return found


def measure_backends(
    opened: Mapping[str, Contestant], pixels: Pixels, path: Path, expected: Vectors | None = None
) -> dict[str, Measured]:
    """All that have opened the model at a path, on (N, side, side, 3) uint8 pixels.

    Args:
        expected: (N, D) float32, what embeddings are compared with; None: those of the usual runtime.

    Raises:
        ModelFileError: not all of these are finite.
    """
    usual = opened[USUAL_BACKEND].run(pixels) if expected is None else expected
    if not np.isfinite(usual).all():
        raise ModelFileError(str(path), "it gives embeddings that are not finite; export the model again")
    found = {}
    for name, backend in opened.items():
        vectors = backend.run(pixels)
        times: list[float] = []
        until = time.perf_counter() + _SECONDS
        while not times or time.perf_counter() < until:
            started = time.perf_counter()
            backend.run(pixels)
            times.append(time.perf_counter() - started)
        found[name] = Measured(
            version=backend.version,
            precision=backend.precision,
            images_per_s=round(len(pixels) / statistics.median(times), 1),
            agreement=round(agreement(vectors, usual), 6) if np.isfinite(vectors).all() else 0.0,
        )
    return found


def agreement(found: Vectors, usual: Vectors) -> float:
    """The mean cosine of (N, D) rows, less the mean of the usual ones."""
    middle = usual.mean(axis=0)
    one, two = found - middle, usual - middle
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    return float((np.einsum("nd,nd->n", one, two) / np.maximum(norms, np.finfo(np.float32).tiny)).mean())


def _open_all(model: SealedModel, installed: Mapping[str, str]) -> dict[str, InferenceBackend]:
    """The runtimes that take the model, the usual one first."""
    opened = {USUAL_BACKEND: open_backend(model, name=USUAL_BACKEND)}
    for name in installed:
        if name != USUAL_BACKEND:
            try:
                backend = open_backend(model, name=name)
            except (MissingDependencyError, ModelFileError) as error:
                logger.debug("%s is not measured: %s", name, error)
                continue
            if backend.name == name:  # and did not fall back to the usual one
                opened[name] = backend
    return opened


def _draw_pixels(model: SealedModel) -> Pixels:
    """Images that are unlike each other, for the embeddings to differ: waves of chance of several lengths."""
    try:
        side = ModelContract.from_json(find_contract_text(model.data)).preprocess.crop
    except InputError as error:
        raise ModelFileError(str(model.path), f"{error}; export the model again") from error
    random, found = np.random.default_rng(0), []
    for number in range(_BATCH):
        cells = 2 + number % 7
        coarse = random.integers(0, 256, size=(cells, cells, 3), dtype=np.uint8)
        repeat = -(-side // cells)
        found.append(coarse.repeat(repeat, axis=0).repeat(repeat, axis=1)[:side, :side])
    return np.stack(found)


def _kept_path() -> Path:
    return user_cache() / "runtimes.json"


def _read_kept() -> dict[str, Any]:
    """What was measured before; nothing where that cannot be read."""
    try:
        kept = json.loads(_kept_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _parse(kept: object) -> dict[str, Measured]:
    """What was kept of one model; nothing where it is of another program, or damaged."""
    try:
        found = {name: Measured(**values) for name, values in kept.items()} if isinstance(kept, dict) else {}
        usable = all(isinstance(one.images_per_s + one.agreement, int | float) for one in found.values())
    except (AttributeError, TypeError):
        return {}
    return found if usable and USUAL_BACKEND in found else {}


def _keep(kept: Mapping[str, Any]) -> None:
    try:
        _kept_path().parent.mkdir(parents=True, exist_ok=True)
        write_durably(_kept_path(), json.dumps(kept, indent=2).encode())
    except OSError as error:
        logger.warning("%s: not kept, so it is measured again: %s", _kept_path(), error.strerror or error)


def _processor() -> str:
    """Its name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
