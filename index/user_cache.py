"""Where the commands keep what they would otherwise compute again: the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """`retrieval-app` in `$XDG_CACHE_HOME`, or in `~/.cache`; it may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retrieval-app"
