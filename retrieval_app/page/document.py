"""The page's HTML: what Gradio makes of it, asked for once, and the same for every visitor.

Gradio would write into each answer the address by which it was asked for, as headers have it; here the page stands
wherever it is served. So its scripts are known, and the page's policy can name them by their hashes: no other
script that stands in the page would run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message

from retrieval_app.reports.standalone import name_source

_ASKED_HOST = "page.invalid"
_ASKED_ROOT = f'"http://{_ASKED_HOST}"'
_HERE = '"./"'
_SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL)

WritePolicy = Callable[[Sequence[str]], str]
"""The value of Content-Security-Policy that lets scripts of these hashes run."""


class PageDocument:
    """Answers GET and HEAD of the page's address.

    Args:
        gradio: makes the page.
        write_policy: of the page.
    """

    def __init__(self, gradio: ASGIApp, *, write_policy: WritePolicy) -> None:
        self._gradio, self._write_policy = gradio, write_policy
        self._document: tuple[str, list[str]] | None = None

    async def send(self, request: Request) -> Response:
        """The page, whatever the address has behind its question mark: that is for the page's scripts."""
        if self._document is None:
            self._document = read_document(await _ask(self._gradio))
        html, scripts = self._document
        return HTMLResponse(html, headers={"Content-Security-Policy": self._write_policy(scripts)})


def read_document(html: str) -> tuple[str, list[str]]:
    """Gradio's HTML, made to stand at any address, and the hashes of the scripts within, as a policy has them.

    Raises:
        RuntimeError: it is not what this version of the program knows.
    """
    html = html.replace(_ASKED_ROOT, _HERE)
    if _HERE not in html or _ASKED_HOST in html:
        raise RuntimeError(
            "Gradio's page does not name its address where it was known to; install the pinned version"
        )
    inline = [text for attributes, text in _SCRIPT.findall(html) if " src=" not in attributes]
    return html, [name_source(text) for text in inline]


async def _ask(app: ASGIApp) -> str:
    """The body of the answer to a plain GET of the page."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "",
        "headers": [(b"host", _ASKED_HOST.encode())], "client": None, "server": (_ASKED_HOST, 80), "state": {},
    }  # fmt: skip
    parts: list[bytes] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return b"".join(parts).decode()
