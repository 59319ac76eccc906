"""`firefox_relay.py FIREFOX ARGUMENT...`: Firefox, and between it and playwright what answers in its place.

Playwright speaks WebDriver BiDi with Firefox, and begins with a command that the long-term Firefox of Debian does not
know yet. It is answered here as done; everything else goes through as it is.
"""

import asyncio
import json
import re
import sys
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application
from tornado.websocket import WebSocketClientConnection, WebSocketHandler, websocket_connect

_UNKNOWN = {"emulation.setMediaFeaturesOverride"}  # what it would set, firefox.py sets by a preference
_LISTENING = re.compile(rb"WebDriver BiDi listening on (ws://\S+)")
_MOST_BYTES = 256 * 2**20  # of one message: screenshots


async def main() -> int:
    firefox = await asyncio.create_subprocess_exec(*sys.argv[1:], stderr=asyncio.subprocess.PIPE)
    assert firefox.stderr is not None
    async for line in firefox.stderr:
        found = _LISTENING.search(line)
        if found:
            line = f"WebDriver BiDi listening on {_listen(found[1].decode())}\n".encode()
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
    return await firefox.wait()


def _listen(browser: str) -> str:
    """The address of a relay to Firefox's."""
    (socket,) = bind_sockets(0, "127.0.0.1")
    routes = Application([("/(.*)", _Relay, {"browser": browser})], websocket_max_message_size=_MOST_BYTES)
    HTTPServer(routes).add_socket(socket)
    return f"ws://127.0.0.1:{socket.getsockname()[1]}"


class _Relay(WebSocketHandler):
    """One connection of playwright, and one of ours to Firefox."""

    browser: WebSocketClientConnection

    def initialize(self, browser: str) -> None:
        self.address = browser

    def check_origin(self, origin: str) -> bool:
        return True

    async def open(self, *path: str, **_: str) -> None:
        self.browser = await websocket_connect(
            f"{self.address}/{path[0]}", max_message_size=_MOST_BYTES, on_message_callback=self._answer
        )

    def _answer(self, message: Any) -> None:
        if message is None:
            self.close()
        else:
            self.write_message(message)

    async def on_message(self, message: str | bytes) -> None:
        command = json.loads(message)
        if command["method"] in _UNKNOWN:
            await self.write_message({"type": "success", "id": command["id"], "result": {}})
        else:
            await self.browser.write_message(message)

    def on_close(self) -> None:
        self.browser.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
