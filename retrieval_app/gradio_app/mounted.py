"""Gradio app mounted below a path of the server, made at the first request for it."""

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from tempfile import gettempdir
from typing import Any, cast

from fastapi import FastAPI
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_app.api.headers import allow_gradio_scripts
from retrieval_app.api.security.addresses import GRADIO
from retrieval_app.api.security.rights import find_visitor
from retrieval_app.reports.standalone import name_source
from retrieval_app.serving.batching import client_address
from retrieval_app.serving.search_engine import Engine

_UPLOADS = "GRADIO_TEMP_DIR"
_CONFIG = f"{GRADIO}/config"
_HOLD_S = 1.0  # `gradio_client` hangs up where nothing comes for five seconds
_SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL)


@contextmanager
def hold_uploads() -> Iterator[asyncio.Lock]:
    """A folder for Gradio's uploads until the server ends; and a lock for making one app at a time.

    The first app makes the folder: a server that is killed without one leaves none. While an app is made, Gradio puts
    the components of any thread into it.
    """
    folder = os.path.join(gettempdir(), f"retrieval-gradio-{secrets.token_hex(8)}")
    before, os.environ[_UPLOADS] = os.environ.get(_UPLOADS), folder
    try:
        yield asyncio.Lock()
    finally:
        os.environ.pop(_UPLOADS, None)
        if before is not None:  # another server of this process goes on
            os.environ[_UPLOADS] = before
        shutil.rmtree(folder, ignore_errors=True)


class MountedApp:
    """ASGI app below `/gradio`; the lock `making` is shared with the other apps of the server."""

    def __init__(self, engine: Engine, *, making: asyncio.Lock, root_path: str = "") -> None:
        self._engine, self._making, self._root_path = engine, making, root_path
        self._made: FastAPI | None = None
        self._running = AsyncExitStack()
        self._ends = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        if scope["path"] == GRADIO:
            await RedirectResponse(f"{GRADIO[1:]}/")(scope, receive, send)
            return
        opening = asyncio.ensure_future(self._open())
        if scope["path"] == _CONFIG:
            send = await _hold_client(opening, send)
        app = await opening
        scheme = "https" if find_visitor(scope).by_tls else scope["scheme"]
        below = {**scope, "scheme": scheme, "path": f"{self._root_path}{scope['path']}"}  # as ASGI has paths
        if scope["path"] == f"{GRADIO}/":
            await _send_document(app, below, receive, send)
        else:
            await app(below, receive, send)

    def hang_up(self) -> None:
        """End the responses that go on while their pages are open."""
        self._ends = True
        if self._made is not None:
            gradio = cast("Any", self._made.router.routes[-1]).app
            gradio.stop_event.set()
            gradio.get_blocks()._queue.close()

    async def close(self) -> None:
        """End its background tasks."""
        await self._running.aclose()

    async def _open(self) -> FastAPI:
        async with self._making:
            if self._made is None:
                app = await asyncio.to_thread(_make, self._engine, self._root_path)
                client_address.set("the Gradio app")  # whose queue works for all its visitors from here on
                await self._running.enter_async_context(app.router.lifespan_context(app))
                self._made = app
                if self._ends:
                    self.hang_up()
            return self._made


def _make(engine: Engine, root_path: str) -> FastAPI:
    if folder := os.environ.get(_UPLOADS):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    import gradio as gr

    from retrieval_app.gallery_answers import GalleryAnswers
    from retrieval_app.gradio_app.app import GalleryApp

    app, blocks = FastAPI(openapi_url=None), GalleryApp(GalleryAnswers(engine))
    below = f"{root_path}{GRADIO}" if root_path else None
    gr.mount_gradio_app(app, blocks, path=GRADIO, root_path=below, **blocks.defaults)
    blocks.has_launched = True  # before that Gradio copies into its folder whatever file a client names
    return app


async def _hold_client(opening: asyncio.Future[FastAPI], send: Send) -> Send:
    """Send spaces, with which JSON may begin, until the app is open; the function that sends the rest."""
    done, _ = await asyncio.wait([opening], timeout=_HOLD_S)
    if done:
        return send
    identity = (b"content-encoding", b"identity")  # gzip holds spaces back
    headers = [(b"content-type", b"application/json"), identity]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while not done:
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        done, _ = await asyncio.wait([opening], timeout=_HOLD_S)

    async def send_body(message: Message) -> None:
        if message["type"] == "http.response.body":
            await send(message)

    return send_body


async def _send_document(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Gradio's page, with a policy that names its inline scripts."""
    start: Message = {}
    parts: list[bytes] = []

    async def hold(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        parts.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body = b"".join(parts)
        scripts = [text for attributes, text in _SCRIPT.findall(body.decode()) if " src=" not in attributes]
        policy = allow_gradio_scripts(map(name_source, scripts))
        start["headers"] = [*start["headers"], (b"content-security-policy", policy.encode())]
        await send(start)
        await send({"type": "http.response.body", "body": body})

    await app(scope, receive, hold)
