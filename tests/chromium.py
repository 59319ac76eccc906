"""A real headless Chromium for tests of pages."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

_EXPECT_MS = 30_000  # a page that loads on a busy machine; what comes at once is waited for no longer


def skip_without_playwright() -> None:
    """Skip the module where playwright is missing; on CI nothing may be."""
    if "CI" not in os.environ:
        pytest.importorskip("playwright", reason="playwright is not installed")


@contextmanager
def open_chromium(*flags: str) -> "Iterator[Browser]":
    """A browser with further flags; without one on this machine the test is skipped, but on CI."""
    skip_without_playwright()
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None and "CI" not in os.environ:
        pytest.skip("no Chromium on this machine")
    assert program is not None, "CI must have a Chromium on its PATH"
    with sync_playwright() as playwright, expect_patiently():
        browser = playwright.chromium.launch(executable_path=program, args=[*_FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def expect_patiently() -> Iterator[None]:
    """Give what is expected of a page as long as a busy machine may take."""
    from playwright.sync_api import expect

    expect.set_options(timeout=_EXPECT_MS)
    try:
        yield
    finally:
        expect.set_options(timeout=None)


def read_data(page: Path) -> dict[str, Any]:
    _, _, rest = page.read_text(encoding="utf-8").partition('<script type="application/json" id="data">')
    return dict(json.loads(rest.partition("</script>")[0]))
