"""Which runtime runs a model: the one that is named, or the fastest here that gives the same."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from index.errors import InputError
from index.model.backends.names import AUTO, NAMES, USUAL_BACKEND, VARIABLE
from index.model.backends.registry import installed_backends
from index.model.seal import SealedModel
from index.text import printable_path

if TYPE_CHECKING:
    from index.model.backends.measuring import Measured

# Embeddings of two runtimes that stand for each other have at least this agreement: the computation in bfloat16 is
# within it (.998), that in int8 by two runtimes (.992), and that in int8 with the rest in bfloat16 (.987, on photos
# .999), which change which image is nearest as seldom as chance.
LEAST_AGREEMENT = 0.98
# Below this a runtime computes another model: it is not used, whoever names it.
_SAME_MODEL = 0.9

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """The runtime that runs a model.

    Attributes:
        name: of the registry.
        agreement: of its embeddings with those of the usual runtime, as `Measured` has it.
        why: in words.
    """

    name: str
    agreement: float
    why: str


def choose_backend(model: SealedModel, asked: str | None = None, *, again: bool = False) -> Choice:
    """The runtime for a model.

    Args:
        asked: a runtime, or `auto` for the fastest of those that agree with the usual one; None is what
            RETRIEVAL_BACKEND says, and the usual one where that says nothing.
        again: measure again what was measured before.

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
    if asked == AUTO:
        return _choose_fastest(model, again=again) if len(installed) > 1 else _only()
    if asked not in installed:
        return Choice(asked, 1.0, "it is named")  # who opens it says what is missing
    found = _measure(model, again=again).get(asked)
    if found is not None and not found.agreement >= _SAME_MODEL:  # so that NaN is refused
        raise InputError(
            f"{printable_path(str(model.path))}: {asked} computes it otherwise than {USUAL_BACKEND} (a cosine of "
            f"{found.agreement:.2f} less the mean, at least {_SAME_MODEL:g} is needed): use --backend {USUAL_BACKEND}, "
            "or export the model again"
        )
    return Choice(asked, 1.0 if found is None else found.agreement, "it is named")


def _choose_fastest(model: SealedModel, *, again: bool) -> Choice:
    measured = _measure(model, again=again)
    agreeing = {name: one for name, one in measured.items() if one.agreement >= LEAST_AGREEMENT}
    for name in measured.keys() - agreeing.keys():
        logger.warning("%s gives other embeddings than %s, and is not used", name, USUAL_BACKEND)
    chosen = max(agreeing, key=lambda name: agreeing[name].images_per_s)
    return Choice(chosen, agreeing[chosen].agreement, "the fastest of those that agree, as measured")


def _measure(model: SealedModel, *, again: bool) -> dict[str, Measured]:
    from index.model.backends.measuring import measure_installed  # of no use where the usual runtime is asked for

    return measure_installed(model, again=again)


def _only() -> Choice:
    return Choice(USUAL_BACKEND, 1.0, "no other one is installed")
