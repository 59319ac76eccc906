"""What stands before the tools where agents ask over HTTP: who may ask at all, and under which names of the server.

The protocol's package has a door of its own, which sees the token alone, and not the address by which wrong ones are
held back. So `SignIn` asks here as it does before the API. The package is told who it was: a session is theirs alone.
"""

from __future__ import annotations

import secrets

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval_app.api.errors import refuse_with
from retrieval_app.api.headers import add_missing, list_headers
from retrieval_app.api.security.cross_site import comes_from_another_site
from retrieval_app.api.security.forwarding import came_by_tls
from retrieval_app.api.security.hosts import HostNames
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.visitors import find_visitor

MCP_PATH = "/mcp"
_AS_IN_THE_API = f"/v1{MCP_PATH}"  # refusals are told as the API tells them, and a token has to open that much


class AgentsDoor:
    """Lets requests in that ask for this server and bring a token, where one is asked for.

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
        if comes_from_another_site(headers, by_tls=came_by_tls(scope, headers)):
            return refuse_with(scope, 403, "no page of another site may ask this server", code="cross_site")
        return await self._sign_in.admit({**scope, "path": _AS_IN_THE_API}, headers)
