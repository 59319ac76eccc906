"""Serving a gallery to agents, over pipes or HTTP: open, listen, run until told to end. Needs the extra `agents`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.addresses import (
    LOCAL_PROXIES,
    HostNames,
    check_host,
    choose_hosts,
    comes_from_another_site,
    is_loopback,
)
from retrieval_app.api.security.rights import find_visitor
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.tokens import TokenBook
from retrieval_app.gallery_answers import GalleryAnswers
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.server.http_server import run_server
from retrieval_app.server.serve import choose_shown, listen, write_url
from retrieval_app.serving.search_engine import Engine

# Access control of MCP over HTTP. The protocol's package sees the token alone, not the client's address, by which wrong
# tokens are slowed down; so `SignIn` checks here as it does for the API, and tells the package whose session it is.
MCP_PATH = "/mcp"
_AS_IN_THE_API = f"/v1{MCP_PATH}"  # refusals are told as the API tells them, and a token has to open that much


class AgentAccess:
    """Access control middleware: lets requests in that ask for this server and bring a token, where one is asked for.

    Args:
        app: of the protocol's package.
        sign_in: finds out who asks.
        hosts: the names that are answered to.
    """

    def __init__(self, app: ASGIApp, *, sign_in: SignIn, hosts: HostNames) -> None:
        self._app, self._sign_in, self._hosts = app, sign_in, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
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


_BASE64, _BESIDE = 2, 1 << 20  # times as many bytes, at most, and those of the rest of a request
_MOST_SESSIONS = 1000  # one more is told so; those that nobody uses end after half an hour
_LEFT_TO_ACCESS = TransportSecuritySettings(enable_dns_rebinding_protection=False)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How a gallery is served to agents: the options of `retrieval mcp`, checked.

    Attributes:
        gallery: its folder.
        name: by which tokens may have rights in it alone.
        port: to listen on, 0 for a free one; None speaks on standard input and output.
        host: address to listen on; others than this machine need a token.
        token: that every request has to bring.
        tokens: file of tokens with names and rights, in the place of `token`.
        allowed_hosts: names that it answers to besides those of the machine and of the address.
        writable: whether agents may decide about labels.
    """

    gallery: Path
    name: str | None = None
    port: int | None = None
    host: str = "127.0.0.1"
    token: str | None = None
    tokens: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    writable: bool = False

    def __post_init__(self) -> None:
        if self.token is not None and self.tokens is not None:
            raise InputError("--tokens takes the place of --token-file: give one of them")
        if not is_loopback(self.host) and not self.asks_token:
            raise InputError(
                f"--host {printable_path(self.host)}: other machines reach that address, so a token is needed: give "
                "--tokens FILE, of `retrieval tokens`, or --token-file FILE, which is made"
            )
        for name in self.allowed_hosts:
            check_host(name)

    @property
    def asks_token(self) -> bool:
        """Whether every request has to bring a token."""
        return self.token is not None or self.tokens is not None


def serve_agents(options: AgentOptions, *, announce: Callable[[str], None] = lambda _: None) -> None:
    """Serve until the client ends it, or Ctrl-C; `announce` is told the address of HTTP.

    Raises:
        GalleryError: the gallery cannot be opened.
        InputError: the address cannot be used, the port is taken, or the file of tokens cannot be used.
    """
    find_version(options.gallery)
    engine, review, log = Engine(options.gallery), None, ActivityLog(options.gallery)
    try:
        review = ReviewStore.of_gallery(options.gallery) if options.writable else None
        engine.live.watch(poll_s=engine.config.poll_s)
        server = make_server(GalleryAnswers(engine), review=review, log=log, opens_files=options.port is None)
        with suppress(KeyboardInterrupt):  # the usual way to end it
            if options.port is None:
                server.run("stdio")
            else:
                _serve_http(server, options, engine=engine, log=log, announce=announce)
    finally:
        if review is not None:
            review.close()
        log.close()
        engine.close()


def _serve_http(
    server: MCPServer, options: AgentOptions, *, engine: Engine, log: ActivityLog, announce: Callable[[str], None]
) -> None:
    here = is_loopback(options.host)
    hosts = choose_hosts(options.host, loopback=here, token=options.asks_token, allowed=options.allowed_hosts)
    book = None if options.tokens is None else TokenBook(options.tokens)
    names = frozenset(() if options.name is None else (options.name,))
    if book is not None:
        book.warn_of_others(names)
    access = Access(token=options.token, book=book, loopback=here, hosts=hosts, galleries=names)
    sign_in = SignIn(access, draw=lambda *_: "", logs={options.name or "": log})  # nobody is shown a page here
    app = server.streamable_http_app(
        streamable_http_path=MCP_PATH, host=options.host, transport_security=_LEFT_TO_ACCESS,
        max_request_body_size=_BASE64 * engine.config.max_upload_bytes + _BESIDE, max_sessions=_MOST_SESSIONS,
    )  # fmt: skip
    guarded: Any = AgentAccess(app, sign_in=sign_in, hosts=hosts)
    assert options.port is not None

    def end() -> None:
        engine.refuse_costly()
        sign_in.close()

    with listen(options.host, options.port) as listener:
        url = write_url(choose_shown(options.host), listener.getsockname()[1]).removesuffix("/") + MCP_PATH
        run_server(
            ProxyHeadersMiddleware(guarded, trusted_hosts=LOCAL_PROXIES), listener=listener,  # type: ignore[arg-type]
            on_ready=lambda: announce(url), on_end=end,
        )  # fmt: skip
