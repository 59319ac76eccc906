"""A real headless Chromium for tests of pages."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)

_EXPECT_MS = 30_000  # a page that loads on a busy machine; what comes at once is waited for no longer


def find_browser(*names: str) -> str:
    """The path of an installed browser; without one the test is skipped, except on CI."""
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None and "CI" not in os.environ:
        pytest.skip(f"no {names[0]} on this machine")
    assert program is not None, f"CI must have {names[0]} on its PATH"
    return program


@contextmanager
def open_chromium(*flags: str) -> Iterator[Browser]:
    """A browser with further flags."""
    program = find_browser(*_PROGRAMS)
    with sync_playwright() as playwright, expect_patiently():
        browser = playwright.chromium.launch(executable_path=program, args=[*_FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def expect_patiently() -> Iterator[None]:
    """Wait for what `expect` expects of a page as long as a busy machine may take."""
    expect.set_options(timeout=_EXPECT_MS)
    try:
        yield
    finally:
        expect.set_options(timeout=None)


def read_data(page: Path) -> dict[str, Any]:
    _, _, rest = page.read_text(encoding="utf-8").partition('<script type="application/json" id="data">')
    return dict(json.loads(rest.partition("</script>")[0]))
