"""Measurements that are kept, so that a stopped command goes on: by options, code, machine and versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common.record import write_atomically

_ROOT = Path(__file__).resolve().parents[2]


def keep(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives, or gave before a stop."""
    if not path.exists():
        document = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(json.dumps(document, indent=1).encode()))
    stored: dict[str, Any] = json.loads(path.read_text())
    return stored


def hash_code(*folders: str) -> str:
    """SHA-256 of the sources below some folders of the project, which decide what is measured."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (_ROOT / folder).rglob("*.py")):
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def digest(facts: object) -> str:
    """Twelve digits for facts that are written as JSON."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]
