"""Signing in: by the code of the one-time address, else a header, else the cookie of a token typed into the page."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, parse_qsl, urlencode

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import Scope

from retrieval_app.api.errors import refuse_with
from retrieval_app.api.headers import SIGN_IN_HEADERS
from retrieval_app.api.security import failed_tries
from retrieval_app.api.security.access import OPEN_PATHS, THE_OWNER, Access
from retrieval_app.api.security.addresses import name_client
from retrieval_app.api.security.failed_tries import FailedTries
from retrieval_app.api.security.rights import READ, STRANGER, Visitor, find_visitor, keep_visitor
from retrieval_app.api.security.sessions import Clock, SignedValue, SignedValues
from retrieval_app.api.security.tokens import TokenEntry
from retrieval_app.review.activity_log import REFUSED, SIGN_IN, SIGN_OUT, ActivityLog, Client

logger = logging.getLogger(__name__)

FORM_PATH, FORM_FIELD, SIGN_OUT_FIELD = "/", "token", "sign_out"
FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 4096
FIRST_VISIT_S = 600.0  # in which the printed address opens the page
SESSION_S = 12 * 3600.0
_CODE, _SESSION = "code", "session"
_NO_GALLERY = "there is no such gallery here, or this token does not open it"

Problem = Literal["wrong token", "wrong code", "token in address", "too many tries", "no page", "no gallery"]
DrawPage = Callable[[str, Problem | None], str]
"""The page with the field for the token, by the address of its form; a problem is shown above the field."""
router = APIRouter(include_in_schema=False)


class SignIn:
    """Admits requests with a token, and slows wrong ones down.

    Args:
        draw: the page for visitors without a token.
        sessions: folders for ended sessions; empty: no sessions.
        session_s: seconds that a session lasts; each request in their second half begins them anew.
    """

    def __init__(
        self,
        access: Access,
        *,
        draw: DrawPage,
        sessions: Sequence[Path] = (),
        session_s: float = SESSION_S,
        root_path: str = "",
        logs: Mapping[str, ActivityLog] | None = None,
        clock: Clock = time.time,
    ) -> None:
        self._access, self._draw, self._session_s, self._clock = access, draw, session_s, clock
        self._cookie_path, self._logs = f"{root_path}/", logs or {}
        self._values = SignedValues(sessions, key=access.session_key if sessions else lambda: None, clock=clock)
        self._tries = FailedTries(log=self._log_wrong)
        self.close = self._tries.close

    def for_gallery(self, access: Access) -> "SignIn":
        """Copy with the same sessions, and the access rules of one gallery of a server."""
        other = copy(self)
        other._access = access
        return other

    def make_code(self) -> str:
        """A code for the address of the first visit: it opens the page once."""
        return self._values.make(_CODE, seconds=FIRST_VISIT_S)

    async def admit(self, scope: Scope, headers: Headers) -> Response | None:
        """Store the visitor of a request; a response where that ends the request."""
        access, path, address = self._access, scope["path"], name_client(scope)
        if not access.requires_token:
            keep_visitor(scope, replace(access.describe_stranger(headers), address=address))
            return None
        visitor = Visitor(address=address, by_tls=scope["scheme"] == "https")
        keep_visitor(scope, visitor)
        if path == FORM_PATH and scope["method"] == "POST":
            return None
        query = _parse_form(scope["query_string"]) if path == "/" else {}
        if _CODE in query and scope["method"] == "GET":
            return await self._exchange(scope, headers, codes=query[_CODE])
        given = _read_bearer(headers)
        entry = self._find_entry(scope, headers, given)
        if entry is not None:
            rights = entry.rights_in(access.galleries)
            known = replace(visitor, has_token=True, rights=rights, name=entry.name, signed_in=given is None)
            keep_visitor(scope, known)
            if access.is_hidden and not rights:
                return self.refuse_unknown(scope)
            if READ in rights or path in OPEN_PATHS:
                return None
            return self._refuse(scope, 403, "this token opens nothing here", has_page=False)
        if given is not None:
            return await self._refuse_wrong(scope, "wrong token")
        if path in OPEN_PATHS and not access.is_hidden:
            return None
        return self._ask(scope, "token in address" if FORM_FIELD in query else None)

    async def take_form(self, scope: Scope, headers: Headers, body: bytes) -> Response:
        """The response to a token typed into the page, or to signing out."""
        form = _parse_form(body)
        if SIGN_OUT_FIELD in form:
            return await self._sign_out(scope, headers)
        given = form.get(FORM_FIELD, [])
        if len(given) != 1:
            return self._ask(scope, "wrong token")
        entry = self._access.find(given[0].strip())
        if entry is None:
            return await self._refuse_wrong(scope, "wrong token")
        rights = entry.rights_in(self._access.galleries)
        if READ in rights:
            return self._let_in(scope, entry, by="page")
        is_unknown = self._access.is_hidden and not rights
        return self.refuse_unknown(scope) if is_unknown else self._ask(scope, "no page")

    def renew(self, scope: Scope, headers: Headers) -> str | None:
        """A new cookie in the second half of a session; not for the page's files, which shared caches may keep."""
        is_own = scope["path"] == "/" or scope["path"].startswith("/v1/")
        session = self._read_cookie(scope, headers) if is_own else None
        if session is None or session.until - self._clock() > self._session_s / 2:
            return None
        response = Response()
        self._set_cookie(scope, response, self._values.make(_SESSION, seconds=self._session_s, of=session))
        return response.headers["set-cookie"]

    def find_rights(self, scope: Scope) -> frozenset[str]:
        """The rights here of a visitor whom any gallery of the server has admitted."""
        if not self._access.requires_token:
            return find_visitor(scope).rights
        headers = Headers(scope=scope)
        entry = self._find_entry(scope, headers, _read_bearer(headers))
        return frozenset() if entry is None else entry.rights_in(self._access.galleries)

    def refuse_unknown(self, scope: Scope) -> Response:
        """Response for a gallery that does not exist, and for one that the token does not open."""
        return self._refuse(scope, 404, _NO_GALLERY, problem="no gallery", has_page=self._access.requires_token)

    def _find_entry(self, scope: Scope, headers: Headers, given: str | None) -> TokenEntry | None:
        """The entry of the header's token, or without one that of the session, which ends with its token."""
        if given is not None:
            return self._access.find(given)
        session = self._read_cookie(scope, headers)
        return None if session is None else self._access.find_again(session.owner)

    def _read_cookie(self, scope: Scope, headers: Headers) -> SignedValue | None:
        # Browsers send the cookies of all ports of a host; some of them are malformed.
        brought = cookie_parser(headers.get("cookie", "")).get(_name_cookie(scope))
        return None if brought is None else self._values.read(_SESSION, brought)

    async def _sign_out(self, scope: Scope, headers: Headers) -> Response:
        entry, session = self._find_entry(scope, headers, None), self._read_cookie(scope, headers)
        if session is not None:
            await asyncio.to_thread(self._values.spend, session, keep_s=self._session_s)
        if entry is not None:
            self._record(SIGN_OUT, scope, entry)
        response = _redirect(scope)
        self._set_cookie(scope, response, "", max_age=0)
        return response

    async def _exchange(self, scope: Scope, headers: Headers, *, codes: list[str]) -> Response:
        code = self._values.read(_CODE, codes[0]) if len(codes) == 1 else None
        if code is not None and await asyncio.to_thread(self._values.spend, code):
            return self._let_in(scope, THE_OWNER, by="code")
        if self._find_entry(scope, headers, None) is not None:
            return _redirect(scope)
        return await self._refuse_wrong(scope, "wrong code")

    def _let_in(self, scope: Scope, entry: TokenEntry, *, by: str) -> Response:
        self._record(SIGN_IN, scope, entry, by=by)
        response = _redirect(scope)
        self._set_cookie(scope, response, self._values.make(_SESSION, owner=entry.sha256, seconds=self._session_s))
        return response

    def _set_cookie(self, scope: Scope, response: Response, value: str, *, max_age: int | None = None) -> None:
        response.set_cookie(
            _name_cookie(scope),
            value,
            path=self._cookie_path,
            httponly=True,
            max_age=max_age,
            samesite="lax",  # strict would sign out people who follow a link to a search from a mail
            secure=scope["scheme"] == "https",
        )

    def _record(self, what: str, scope: Scope, entry: TokenEntry, **details: str) -> None:
        """Log signing in or out in the galleries that the token opens."""
        for name, log in self._logs.items():
            if entry.rights_in((name,)):
                client = Client(entry.name, find_visitor(scope).address, scope["state"]["request_id"])
                log.record(what, client, wait=False, **details)

    def _log_wrong(self, address: str, tries: int, *, by: str = "", request: str = "") -> None:
        what = "a used or wrong address code" if by == "code" else "a wrong token"
        logger.warning("%s from %s", what if by else f"{tries:,} more wrong tries", address)
        details = {"by": by} if by else {}
        for log in self._logs.values():
            log.record(REFUSED, Client(STRANGER.name, address, request), wait=False, tries=tries, **details)

    async def _refuse_wrong(self, scope: Scope, problem: Problem) -> Response:
        by = "code" if problem == "wrong code" else "token"
        if await self._tries.delay(find_visitor(scope).address, by=by, request=scope["state"]["request_id"]):
            return self._ask(scope, problem)
        message = "too many wrong tokens; wait before the next"
        refusal = self._refuse(scope, 429, message, problem="too many tries")
        refusal.headers["Retry-After"] = str(ceil(failed_tries.LONGEST_WAIT_S))
        refusal.headers["Connection"] = "close"  # the next guess costs a connection
        return refusal

    def _ask(self, scope: Scope, problem: Problem | None) -> Response:
        words = "the token is wrong" if problem == "wrong token" else "a token is needed"
        refusal = self._refuse(scope, 401, f"{words}: Authorization: Bearer TOKEN", problem=problem)
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal

    def _refuse(
        self, scope: Scope, status: int, message: str, *, problem: Problem | None = None, has_page: bool = True
    ) -> Response:
        """JSON for the API, the page with the field for the page, a line of text for the rest."""
        if scope["path"].startswith("/v1"):
            return refuse_with(scope, status, message)
        if scope["path"] == "/" and has_page:
            html = self._draw(_address_after(scope), problem)
            return HTMLResponse(html, status_code=status, headers=dict(SIGN_IN_HEADERS))
        return PlainTextResponse(f"{message}\n", status_code=status)


def _name_cookie(scope: Scope) -> str:
    """By the port: servers on other ports of a host need cookies of their own."""
    server = scope.get("server")
    return f"retrieval_{server[1] if server is not None else ''}"


def _read_bearer(headers: Headers) -> str | None:
    """The token of the header; other schemes are for a proxy before this server."""
    given = headers.getlist("authorization")
    scheme, _, text = given[0].partition(" ") if given else ("", "", "")
    if scheme.lower() != "bearer":
        return None
    return text.strip() if len(given) == 1 else ""


def _parse_form(text: bytes) -> dict[str, list[str]]:
    return parse_qs(text.decode("latin-1"), keep_blank_values=True)


def _address_after(scope: Scope) -> str:
    """The page's address without code and token."""
    parameters = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    kept = [(name, text) for name, text in parameters if name not in (_CODE, FORM_FIELD)]
    return f"./?{urlencode(kept)}" if kept else "./"


def _redirect(scope: Scope) -> Response:
    response = RedirectResponse(_address_after(scope), status_code=303)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.post(FORM_PATH)
async def take_token(request: Request) -> Response:
    """Sign in with a token typed into the page, or sign out."""
    sign_in: SignIn = request.app.state.sign_in
    return await sign_in.take_form(request.scope, request.headers, await request.body())
