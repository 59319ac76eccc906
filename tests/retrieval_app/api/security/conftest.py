"""What the tests of tries and sessions share."""

from __future__ import annotations

import pytest


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that is set by hand."""
    return Clock()
