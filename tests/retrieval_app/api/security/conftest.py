"""What the tests of tries and sessions share."""

from pathlib import Path

import pytest

from tests.retrieval_app.conftest import build_small_gallery


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery for all of these tests, none of which changes it."""
    return build_small_gallery(tmp_path_factory.mktemp("security"), model=tiny_model)
