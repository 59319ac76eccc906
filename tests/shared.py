"""The real photos and weights that are not part of the project."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder that RETRIEVAL_SHARED names (default `../shared`); tests skip without it, unless it was named."""
    named = os.environ.get("RETRIEVAL_SHARED")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared"
    if not (folder / "data").is_dir():
        if named:
            pytest.fail(f"RETRIEVAL_SHARED is {named}, but there is no data folder in it")
        pytest.skip("no photos here; set RETRIEVAL_SHARED to the folder that docs/benchmarks.md describes")
    return folder.resolve()
