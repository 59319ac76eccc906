"""MCP server of a gallery, over pipes or HTTP. Needs the extra `agents`."""

import secrets
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from typing import Any

from mcp.server import MCPServer
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from index.errors import InputError
from index.text import printable_path
from index.versions.versions import find_version
from retrieval_app.agents.mcp_server import make_server
from retrieval_app.api.errors import refuse_with
from retrieval_app.api.headers import add_missing, list_headers
from retrieval_app.api.security.access import choose_access
from retrieval_app.api.security.addresses import LOCAL_PROXIES, HostNames, comes_from_another_site
from retrieval_app.api.security.rights import find_visitor
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.gallery_answers import GalleryAnswers
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.server.http_server import run_server
from retrieval_app.server.options import ServeOptions
from retrieval_app.server.serve import choose_shown, listen, write_url
from retrieval_app.serving.search_engine import Engine

# The protocol's package sees the token alone, not the client's address, by which wrong tokens are slowed down. So
# `SignIn` checks tokens here as it does for the API, and the package gets the visitor of each session.
MCP_PATH = "/mcp"
_BASE64, _BESIDE = 2, 1 << 20  # size of an image in a request, and bytes of its rest
_MOST_SESSIONS = 1000  # an unused one ends after half an hour
_LEFT_TO_ACCESS = TransportSecuritySettings(enable_dns_rebinding_protection=False)
_AS_IN_THE_API = f"/v1{MCP_PATH}"  # refusals look as in the API, and need the same rights


class AgentAccess:
    """Access control middleware of MCP: checks host, site and token."""

    def __init__(self, app: ASGIApp, *, sign_in: SignIn, hosts: HostNames) -> None:
        self._app, self._sign_in, self._hosts = app, sign_in, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        added = list_headers(_AS_IN_THE_API, request_id)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = add_missing(message.get("headers", ()), added)
            await send(message)

        refusal = await self._refuse(scope, Headers(scope=scope))
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        visitor = find_visitor(scope)
        if visitor.has_token:
            known = AccessToken(token="", client_id=visitor.name, scopes=sorted(visitor.rights))
            scope["user"] = AuthenticatedUser(known)
        await self._app(scope, receive, send_with_headers)

    async def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        if not self._hosts.admit(scope, headers):
            message = "this server answers only to names that it knows: retrieval mcp --allowed-host NAME"
            return refuse_with(scope, 421, message, code="host")
        if scope["path"].removesuffix("/") != MCP_PATH:
            return refuse_with(scope, 404, f"this server has nothing at that address: ask {MCP_PATH}")
        if comes_from_another_site(headers, by_tls=scope["scheme"] == "https"):
            return refuse_with(scope, 403, "no page of another site may ask this server", code="cross_site")
        return await self._sign_in.admit({**scope, "path": _AS_IN_THE_API}, headers)


def serve_agents(
    options: ServeOptions, *, stdio: bool, writable: bool = False, announce: Callable[[str], None] = lambda _: None
) -> None:
    """Serve by standard input and output or over HTTP, whose address `announce` takes, until the client ends it."""
    if not options.is_loopback and not options.requires_token:
        raise InputError(
            f"--host {printable_path(options.host)}: other machines reach that address, so a token is needed: give "
            "--tokens FILE, of `retrieval tokens`, or --token-file FILE, which is made"
        )
    gallery = options.galleries[0].path
    find_version(gallery)
    with ExitStack() as opened, suppress(KeyboardInterrupt):  # the usual way to end it
        engine = opened.enter_context(closing(Engine(gallery)))
        log = opened.enter_context(closing(ActivityLog(gallery)))
        review = opened.enter_context(closing(ReviewStore.of_gallery(gallery))) if writable else None
        engine.live.watch(poll_s=engine.config.poll_s)
        server = make_server(GalleryAnswers(engine), review=review, log=log, opens_files=stdio)
        if stdio:
            server.run("stdio")
        else:
            _serve_http(server, options, engine=engine, log=log, announce=announce)


def _serve_http(
    server: MCPServer, options: ServeOptions, *, engine: Engine, log: ActivityLog, announce: Callable[[str], None]
) -> None:
    access = choose_access(options)
    if access.book is not None:
        access.book.warn_of_others(access.galleries)
    name = options.galleries[0].name or ""
    sign_in = SignIn(access, draw=lambda *_: "", logs={name: log})  # there is no page
    app = server.streamable_http_app(
        streamable_http_path=MCP_PATH,
        host=options.host,
        transport_security=_LEFT_TO_ACCESS,
        max_request_body_size=_BASE64 * engine.config.max_upload_bytes + _BESIDE,
        max_sessions=_MOST_SESSIONS,
    )
    guarded: Any = AgentAccess(app, sign_in=sign_in, hosts=access.hosts)

    def end() -> None:
        engine.refuse_costly()
        sign_in.close()

    with listen(options.host, options.port) as listener:
        url = write_url(choose_shown(options.host), listener.getsockname()[1]).removesuffix("/") + MCP_PATH
        run_server(
            ProxyHeadersMiddleware(guarded, trusted_hosts=LOCAL_PROXIES),  # type: ignore[arg-type]
            listener=listener,
            on_ready=lambda: announce(url),
            on_end=end,
            limits=options.connections,
        )
