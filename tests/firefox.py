"""A real headless Firefox for tests of pages: the system's own, which playwright drives by WebDriver BiDi."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chromium import expect_patiently, skip_without_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PROGRAMS = ("firefox-esr", "firefox")
_PREFERENCES = {
    "ui.primaryPointerCapabilities": 6,  # a mouse, which a machine without a screen lacks: fine, and it hovers
    "ui.allPointerCapabilities": 6,
}
_DARK = "layout.css.prefers-color-scheme.content-override"


@contextmanager
def open_firefox(folder: Path, *, dark: bool = False) -> "Iterator[Browser]":
    """A browser whose pages are dark or not; without Firefox on this machine the test is skipped, but on CI.

    It saves to `folder / "downloads"`; playwright hears of no download whose content a page made itself.
    """
    skip_without_playwright()
    if "CI" not in os.environ:
        pytest.importorskip("tornado", reason="tornado is not installed")
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None and "CI" not in os.environ:
        pytest.skip("no Firefox on this machine")
    assert program is not None, "CI must have a Firefox on its PATH"
    with sync_playwright() as playwright, expect_patiently():
        browser = playwright.firefox.launch(
            channel="moz-firefox",
            executable_path=_write_starter(folder / "firefox", program),
            downloads_path=folder / "downloads",
            firefox_user_prefs={**_PREFERENCES, _DARK: 0 if dark else 1},
        )
        try:
            yield browser
        finally:
            browser.close()


def _write_starter(path: Path, program: str) -> Path:
    """A program that starts Firefox behind the relay."""
    command = shlex.join([sys.executable, str(Path(__file__).with_name("firefox_relay.py")), program])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path
