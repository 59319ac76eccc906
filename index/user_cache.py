"""The user's cache folder."""

import os
from pathlib import Path

from index.errors import InputError


def user_cache() -> Path:
    """`retrieval-app` in `$XDG_CACHE_HOME`, or in `~/.cache`; it may be deleted at any time."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retrieval-app"
    except RuntimeError as error:
        raise InputError(f"there is no cache folder: {error}; set XDG_CACHE_HOME, or name one with --cache") from error
