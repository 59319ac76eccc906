"""How often a test tries anew: some times in `make test`, many in `make test-all`."""

import os
from collections.abc import Collection, Iterable

import pytest


def tries(quick: int, *, deep: int) -> int:
    """One of the two; the test is marked `deep`."""
    return deep if "DEEP" in os.environ else quick


def mostly_slow(values: Iterable[str], *, fast: Collection[str]) -> list[object]:
    """Parameters of a test, of which `make test` takes the fast ones."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
