"""Which runtime runs a model: the one that RETRIEVAL_BACKEND names, or the fastest here that gives the same."""

from __future__ import annotations

import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from index.arrays import Vectors
from index.durable import write_durably
from index.errors import InputError, MissingDependencyError, ModelFileError
from index.images.preprocess import Pixels
from index.model.backends.backend import InferenceBackend
from index.model.backends.registry import BACKENDS, USUAL_BACKEND, open_backend
from index.model.contract import ModelContract, find_contract_text
from index.model.seal import SealedModel
from index.user_cache import user_cache

VARIABLE, AUTO = "RETRIEVAL_BACKEND", "auto"
_SECONDS, _BATCH = 1.0, 16  # for each runtime
# Embeddings of another runtime must have at least this mean cosine with those of the usual one, less their mean: the
# computation in bfloat16 is within it (.9975), which changes which image is nearest as seldom as chance.
LEAST_AGREEMENT = 0.99

logger = logging.getLogger(__name__)


def choose_backend(model: SealedModel) -> str:
    """The name of the runtime for a model.

    `auto` measures for two seconds, once for a model, a processor and the versions installed; the result is kept in the
    user's cache folder.

    Raises:
        InputError: the variable names no runtime.
        MissingDependencyError: the usual runtime is not installed, and another one is not asked for.
    """
    asked = os.environ.get(VARIABLE) or USUAL_BACKEND
    if asked in BACKENDS:
        return asked
    if asked != AUTO:
        raise InputError(f"{VARIABLE} must be {AUTO} or one of {', '.join(BACKENDS)}, got {asked!r}")
    opened = _open_all(model)
    if len(opened) == 1:
        return next(iter(opened))
    key = "; ".join([
        model.sha256, platform.machine(), _processor(), *(f"{name} {one.version}" for name, one in opened.items()),
    ])  # fmt: skip
    kept = _read_kept()
    if kept.get(key) in opened:
        return kept[key]
    rates = measure_backends(opened, _draw_pixels(model))
    chosen = max(rates, key=lambda name: rates[name])
    logger.info("%s: %s, of images/s %s", model.path, chosen, {name: round(rate) for name, rate in rates.items()})
    _keep({**kept, key: chosen})
    return chosen


def measure_backends(opened: Mapping[str, InferenceBackend], pixels: Pixels) -> dict[str, float]:
    """Images a second of each runtime that agrees with the usual one."""
    usual = opened[USUAL_BACKEND].run(pixels)
    rates = {}
    for name, backend in opened.items():
        found = backend.run(pixels)
        if agreement(found, usual) < LEAST_AGREEMENT:
            logger.warning("%s gives other embeddings than %s, and is not used", name, USUAL_BACKEND)
            continue
        times: list[float] = []
        until = time.perf_counter() + _SECONDS
        while not times or time.perf_counter() < until:
            started = time.perf_counter()
            backend.run(pixels)
            times.append(time.perf_counter() - started)
        rates[name] = len(pixels) / statistics.median(times)
    return rates


def agreement(found: Vectors, usual: Vectors) -> float:
    """The mean cosine of (N, D) rows, less the mean of the usual ones."""
    middle = usual.mean(axis=0)
    one, two = found - middle, usual - middle
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    return float((np.einsum("nd,nd->n", one, two) / np.maximum(norms, np.finfo(np.float32).tiny)).mean())


def _open_all(model: SealedModel) -> dict[str, InferenceBackend]:
    """The runtimes that are installed and take the model, the usual one first."""
    opened = {USUAL_BACKEND: open_backend(model, name=USUAL_BACKEND)}
    for name in BACKENDS:
        if name != USUAL_BACKEND:
            try:
                opened[name] = open_backend(model, name=name)
            except (MissingDependencyError, ModelFileError) as error:
                logger.debug("%s is not measured: %s", name, error)
    return opened


def _draw_pixels(model: SealedModel) -> Pixels:
    """Images that are unlike each other, for the embeddings to differ: waves of chance of several lengths."""
    side = ModelContract.from_json(find_contract_text(model.data)).preprocess.crop
    random, found = np.random.default_rng(0), []
    for number in range(_BATCH):
        cells = 2 + number % 7
        coarse = random.integers(0, 256, size=(cells, cells, 3), dtype=np.uint8)
        repeat = -(-side // cells)
        found.append(coarse.repeat(repeat, axis=0).repeat(repeat, axis=1)[:side, :side])
    return np.stack(found)


def _kept_path() -> Path:
    return user_cache() / "runtimes.json"


def _read_kept() -> dict[str, str]:
    """What was measured before; nothing where that cannot be read."""
    try:
        kept = json.loads(_kept_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _keep(kept: Mapping[str, str]) -> None:
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
