"""How often a test tries anew: some times in `make test`, many in `make test-all`."""

from __future__ import annotations

import os


def tries(quick: int, *, deep: int) -> int:
    """One of the two; the test is marked `deep`."""
    return deep if "DEEP" in os.environ else quick
