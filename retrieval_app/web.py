"""The HTTP side: our few routes, Gradio's page mounted beside them, and a guard in front of both.

Pictures go out by id, as re-encoded pixels; no file of the gallery is ever sent as it lies on disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread
import gradio as gr
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from index.errors import InputError, RetrievalError
from retrieval_app.guard import UPLOAD_PATH, Guard, say
from retrieval_app.look import CSS, FAVICON, make_theme
from retrieval_app.service import MAX_UPLOAD_BYTES, SearchService, explain
from retrieval_app.ui import build_page

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
CONNECTIONS_AT_ONCE = 512  # an open page holds one all the time, and up to six while it loads
UPLOADS_HELD = 8  # being received, waiting or being embedded; each holds its bytes in memory
UPLOADS_EMBEDDED_AT_ONCE = 2
UPLOAD_SECONDS = 120
THUMBNAILS_MADE_AT_ONCE = 4


def create_app(service: SearchService, *, host: str = "127.0.0.1", port: int = 7860) -> FastAPI:
    """The whole application: thumbnails, uploads and the page."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_picture_routes(app, service)
    _add_upload_route(app, service)
    gr.mount_gradio_app(
        app,
        build_page(service),
        path="/",
        server_name=host,
        server_port=port,
        footer_links=[],
        run_history=False,
        max_file_size=MAX_UPLOAD_BYTES,
        show_error=False,  # the text of an unforeseen exception is for the terminal, not for visitors
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=make_theme(),
        css=CSS,
    )
    app.add_middleware(Guard)
    if host in LOOPBACK_NAMES:
        # A page elsewhere must not reach this server by pointing its own name at the loopback address.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK_NAMES, "[::1]"])
    return app


def _add_picture_routes(app: FastAPI, service: SearchService) -> None:
    making = anyio.CapacityLimiter(THUMBNAILS_MADE_AT_ONCE)

    @app.get("/thumb/{image_id}")
    async def send_thumbnail(image_id: int, request: Request) -> Response:
        try:
            data = await anyio.to_thread.run_sync(service.thumbnail, image_id, limiter=making)
            return _picture(data, request)
        except RetrievalError:
            return PlainTextResponse(f"image {image_id}: unknown, or its file is gone or damaged", status_code=404)

    @app.get("/query/{token}")
    async def send_upload(token: str, request: Request) -> Response:
        try:
            return _picture(service.upload_thumbnail(token), request)
        except InputError as error:
            return PlainTextResponse(str(error), status_code=404)

    @app.get("/favicon.ico")
    async def send_icon() -> Response:
        return Response(FAVICON, media_type="image/svg+xml")


def _picture(data: bytes, request: Request) -> Response:
    # Ids name other files after a rebuild, so a browser may keep a picture but must ask whether it still holds.
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type="image/webp", headers=headers)


def _add_upload_route(app: FastAPI, service: SearchService) -> None:
    held = anyio.CapacityLimiter(UPLOADS_HELD)
    embedding = anyio.CapacityLimiter(UPLOADS_EMBEDDED_AT_ONCE)

    @app.post(UPLOAD_PATH)
    async def take_upload(request: Request, name: str = "photo") -> Response:
        try:
            held.acquire_nowait()
        except anyio.WouldBlock:
            return say(503, "The server is busy with other photos; try again in a moment.")
        try:
            with anyio.fail_after(UPLOAD_SECONDS):
                data = await request.body()
            hold = partial(service.hold_upload, data, name=name[:200])
            query = await anyio.to_thread.run_sync(hold, limiter=embedding)
        except TimeoutError:
            return say(408, f"The photo did not arrive within {UPLOAD_SECONDS} seconds; use a smaller copy.")
        except ClientDisconnect:
            return say(400, "The photo did not arrive whole.")
        except RetrievalError as error:
            return say(422, explain(error))
        finally:
            held.release()
        return JSONResponse({"ref": query.ref})


def run_server(app: FastAPI, *, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve on an already listening socket until interrupted."""
    config = uvicorn.Config(
        app,
        log_level="error",
        limit_concurrency=CONNECTIONS_AT_ONCE,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    server = _AnnouncingServer(config, on_ready=on_ready)
    asyncio.run(server.serve(sockets=[listener]))


class _AnnouncingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, *, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Every open page holds a stream that never ends by itself; waiting for it would end in its cancellation.
        for connection in list(self.server_state.connections):
            connection.transport.close()
        await super().shutdown(sockets)
