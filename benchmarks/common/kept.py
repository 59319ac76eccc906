"""Measurements that are kept, so that a stopped command goes on: by options, code, machine and versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.record import write_json

_ROOT = Path(__file__).resolve().parents[2]


def keep(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives, or gave before a stop."""
    if not path.exists():
        write_json(path, make())
    stored: dict[str, Any] = json.loads(path.read_text())
    return stored


def hash_code(*folders: str) -> str:
    """SHA-256 of the sources below some folders of the project, which decide what is measured."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (_ROOT / folder).rglob("*.py")):
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def digest(facts: object, *, digits: int = 12) -> str:
    """A few digits that tell facts apart, which are written as JSON."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:digits]
