"""The HTTP side: our few routes, Gradio's page mounted beside them, and a guard in front of both.

Pictures go out by id, as re-encoded pixels; no file of the gallery is ever sent as it lies on disk.
Gradio brings many routes that this page has no use for: it proxies URLs, stores uploads, serves files.
The guard lets only the ones through that the page needs.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
from collections.abc import Callable

import anyio.to_thread
import gradio as gr
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from index.errors import InputError, RetrievalError
from retrieval_app.look import CSS, FAVICON, make_theme
from retrieval_app.service import MAX_UPLOAD_BYTES, SearchService, explain
from retrieval_app.ui import build_page

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
_MAX_BODY_BYTES = MAX_UPLOAD_BYTES + 1024
_OUR_ROUTES = r"thumb/\d{1,18}|query|query/[0-9a-f]{16}|favicon\.ico"
_GRADIO_PAGE = r"|config|theme\.css|(assets|static|svelte)/.*"
_GRADIO_CALLS = r"gradio_api/(startup-events|heartbeat/\w+|queue/(join|data)|reset|cancel|info|theme\.css)/?"
_SERVED = re.compile(f"/({_OUR_ROUTES}|{_GRADIO_PAGE}|{_GRADIO_CALLS})")
_POLICY = (  # Gradio's templates need eval; nothing may come from or go to another host
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'self';"
    " frame-ancestors 'self'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", _POLICY.encode()),
)


class Guard:
    """Answers 404 to every path that the page does not need and refuses oversized bodies before reading them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = _refuse(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _refuse(scope: Scope) -> Response | None:
    if scope["type"] != "http" or not _SERVED.fullmatch(scope["path"]):
        return PlainTextResponse("this page does not serve that address", status_code=404)
    if scope["method"] not in ("GET", "HEAD"):
        length = Headers(scope=scope).get("content-length", "")
        if not length.isdigit():
            return JSONResponse({"message": "the request must announce its length"}, status_code=411)
        if int(length) > _MAX_BODY_BYTES:
            limit = MAX_UPLOAD_BYTES // 1024**2
            return JSONResponse({"message": f"at most {limit} MB are taken"}, status_code=413)
    return None


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
        show_error=True,
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
    @app.get("/thumb/{image_id}")
    def send_thumbnail(image_id: int, request: Request) -> Response:
        try:
            return _picture(service.thumbnail(image_id), request)
        except RetrievalError:
            return PlainTextResponse(f"image {image_id}: unknown, or its file is gone or damaged", status_code=404)

    @app.get("/query/{token}")
    def send_upload(token: str, request: Request) -> Response:
        try:
            return _picture(service.upload_thumbnail(token), request)
        except InputError as error:
            return PlainTextResponse(str(error), status_code=404)

    @app.get("/favicon.ico")
    def send_icon() -> Response:
        return Response(FAVICON, media_type="image/svg+xml")


def _picture(data: bytes, request: Request) -> Response:
    # Ids name other files after a rebuild, so a browser may keep a picture but must ask whether it still holds.
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type="image/webp", headers=headers)


def _add_upload_route(app: FastAPI, service: SearchService) -> None:
    @app.post("/query")
    async def take_upload(request: Request, name: str = "photo") -> Response:
        data = await request.body()
        try:
            query = await anyio.to_thread.run_sync(lambda: service.hold_upload(data, name=name[:200]))
        except RetrievalError as error:
            return JSONResponse({"message": explain(error)}, status_code=422)
        return JSONResponse({"ref": query.ref})


def run_server(app: FastAPI, *, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve on an already listening socket until interrupted."""
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, server_header=False)
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
