"""The system's Firefox, headless, for tests of pages; playwright drives it by WebDriver BiDi.

Playwright begins with commands that Debian's releases of Firefox do not all know. `firefox.py FIREFOX ARGUMENT...`
starts Firefox behind a relay, which passes everything on, and an unknown command's error as an empty success.
"""

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application
from tornado.websocket import WebSocketHandler, websocket_connect

_OLDEST = 153  # 140 applies the page's Content-Security-Policy to the scripts of tests, too
_PREFERENCES = {
    "ui.primaryPointerCapabilities": 6,  # a mouse, which a machine without a screen lacks
    "ui.allPointerCapabilities": 6,
    "layout.css.prefers-color-scheme.content-override": 0,  # dark, which not every Firefox can be told by a command
}
_LISTENING = re.compile(rb"WebDriver BiDi listening on (ws://\S+)")
_MOST_BYTES = 256 * 2**20  # of one message: screenshots


@contextmanager
def open_firefox(folder: Path) -> Iterator[Browser]:
    """A browser of a dark system; the test is skipped without Firefox, except on CI, and with an old one."""
    from tests.chromium import expect_patiently, find_browser  # not in the relay, which has no other module of ours

    starter = folder / "firefox"
    starter.write_text(
        f'#!/bin/sh\nexec {shlex.join([sys.executable, __file__, find_browser("firefox-esr", "firefox")])} "$@"\n'
    )
    starter.chmod(0o755)
    with sync_playwright() as playwright, expect_patiently():
        browser = playwright.firefox.launch(
            channel="moz-firefox", executable_path=starter, firefox_user_prefs=_PREFERENCES
        )
        try:
            if int(browser.version.split(".")[0]) < _OLDEST:
                pytest.skip(f"Firefox {browser.version} is older than {_OLDEST}, which playwright can drive")
            yield browser
        finally:
            browser.close()


class _Relay(WebSocketHandler):
    """One connection of playwright, and one to Firefox."""

    def check_origin(self, origin: str) -> bool:
        return True

    async def open(self, *_: str, **__: str) -> None:
        self._browser = await websocket_connect(
            f"{self.settings['browser']}/session", max_message_size=_MOST_BYTES, on_message_callback=self._answer
        )

    def _answer(self, message: str | bytes | None) -> None:
        if message is None:
            self.close()
            return
        answer = json.loads(message)
        if answer.get("error") == "unknown command":
            message = json.dumps({"type": "success", "id": answer["id"], "result": {}})
        self.write_message(message)

    async def on_message(self, message: str | bytes) -> None:
        await self._browser.write_message(message)

    def on_close(self) -> None:
        self._browser.close()


async def _start_behind_relay() -> int:
    firefox = await asyncio.create_subprocess_exec(*sys.argv[1:], stderr=asyncio.subprocess.PIPE)
    async for line in firefox.stderr:
        if found := _LISTENING.search(line):
            (socket,) = bind_sockets(0, "127.0.0.1")
            routes = [("/session", _Relay)]
            relay = Application(routes, browser=found[1].decode(), websocket_max_message_size=_MOST_BYTES)
            HTTPServer(relay).add_socket(socket)
            line = b"WebDriver BiDi listening on ws://127.0.0.1:%d\n" % socket.getsockname()[1]
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
    return await firefox.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(_start_behind_relay()))
