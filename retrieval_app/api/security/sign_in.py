"""How a visitor who has a token gets in: by a header, by the one-time address, or by typing it into the page.

Of a request one credential is looked at: the code of the address, or else the header, or else the cookie.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import Scope

from retrieval_app.api.errors import refuse_with
from retrieval_app.api.headers import SIGN_IN_HEADERS
from retrieval_app.api.security.access import THE_TOKEN, Access, may_reach
from retrieval_app.api.security.forwarding import came_by_tls, name_client
from retrieval_app.api.security.rights import ALL, READ
from retrieval_app.api.security.sign_in_config import SignInConfig
from retrieval_app.api.security.token_entries import TokenEntry
from retrieval_app.api.security.visit_log import VisitLog
from retrieval_app.api.visitors import Visitor, find_visitor, keep_visitor
from retrieval_app.review.activity_log import ActivityLog

# Sessions: a code for the first visit and the value of a cookie. Both are random and known to this process alone, so
# they end with it, and with its token.
_BYTES = 32

Clock = Callable[[], float]


class OneTimeCode:
    """A code that opens the page once, and soon."""

    def __init__(self, config: SignInConfig | None = None, *, clock: Clock = time.monotonic) -> None:
        self._config, self._clock = config or SignInConfig(), clock
        self._code, self._until = "", 0.0

    def make(self) -> str:
        """A new code, in the place of the one before."""
        self._code, self._until = secrets.token_urlsafe(_BYTES), self._clock() + self._config.first_visit_s
        return self._code

    def use(self, text: str) -> bool:
        """Whether this is the code; from then on it is not."""
        if not self._code or self._clock() > self._until or not are_equal(text, self._code):
            return False
        self._code = ""
        return True


class Sessions:
    """The cookies that were given out and still hold; the least recently used of too many end."""

    def __init__(self, config: SignInConfig | None = None, *, clock: Clock = time.monotonic) -> None:
        self._config, self._clock = config or SignInConfig(), clock
        self._held: OrderedDict[bytes, tuple[float, str]] = OrderedDict()

    def open(self, owner: str = "") -> str:
        """The value of a new cookie, of an owner."""
        value = secrets.token_urlsafe(_BYTES)
        self._held[_digest(value)] = self._clock() + self._config.session_s, owner
        while len(self._held) > self._config.max_sessions:
            self._held.popitem(last=False)
        return value

    def hold(self, value: str) -> bool:
        """Whether a cookie has this value, and then for another while."""
        return self.find_owner(value) is not None

    def find_owner(self, value: str) -> str | None:
        """Whose cookie has this value, and then for another while; None where none has."""
        key = _digest(value)  # which of a guess tells nothing, however long it takes to be found
        until, owner = self._held.get(key, (0.0, ""))
        if self._clock() > until:
            self._held.pop(key, None)
            return None
        self._held[key] = self._clock() + self._config.session_s, owner
        self._held.move_to_end(key)
        return owner

    def close(self, value: str) -> None:
        """End the session of a cookie, if there is one."""
        self._held.pop(_digest(value), None)


def are_equal(text: str, expected: str) -> bool:
    """Whether two texts are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), expected.encode())


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()


# Back-off for wrong tokens and codes, longer each time. A right token is answered at once, from whatever address, so
# nobody can lock others out.
logger = logging.getLogger(__name__)

_MAX_ADDRESSES = 10_000
_MAX_NAMED = 3


class FailedTries:
    """Counts wrong tries by address; used by the event loop alone."""

    def __init__(self, config: SignInConfig | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config or SignInConfig(), clock
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting = Counter[str]()
        self._untold = Counter[str]()
        self._line_due: asyncio.TimerHandle | None = None

    async def hold_back(self, address: str, *, what: str = "a wrong token") -> bool:
        """Let a wrong try from an address wait; False where too many do, and it is to be sent away at once.

        The log names `what` it was.
        """
        seconds = self._count(address)
        self._tell(address, what)
        most, most_in_all = self._config.failed_tries_waiting, self._config.failed_tries_waiting_in_all
        if self._waiting[address] >= most or self._waiting.total() >= most_in_all:
            return False
        self._waiting[address] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
        return True

    def _count(self, address: str) -> float:
        """The seconds that this try has to wait."""
        now, config = self._clock(), self._config
        count, last = self._tries.pop(address, (0, now))
        count = 1 if now - last > config.failed_tries_forgotten_s else count + 1
        self._tries[address] = count, now
        while len(self._tries) > _MAX_ADDRESSES:
            self._tries.popitem(last=False)
        return float(min(config.failed_try_longest_wait_s, config.failed_try_wait_s * 2 ** min(count - 1, 10)))

    def _tell(self, address: str, what: str) -> None:
        """Log the first try at once, and the others of the next seconds in one line."""
        if self._line_due is None:
            logger.warning("%s from %s", what, address)
            self._line_due = asyncio.get_running_loop().call_later(
                self._config.failed_tries_log_s, self._tell_rest
            )
        elif address in self._untold or len(self._untold) < _MAX_ADDRESSES:
            self._untold[address] += 1

    def _tell_rest(self) -> None:
        self._line_due = None
        if not self._untold:
            return
        named = ", ".join(f"{count:,} from {address}" for address, count in self._untold.most_common(_MAX_NAMED))
        others = max(0, len(self._untold) - _MAX_NAMED)
        more = f", the rest from {others:,} other address{'' if others == 1 else 'es'}" if others else ""
        total = self._untold.total()
        tries = "1 more wrong try" if total == 1 else f"{total:,} more wrong tries"
        logger.warning("%s in %g s: %s%s", tries, self._config.failed_tries_log_s, named, more)
        self._untold.clear()
        self._line_due = asyncio.get_running_loop().call_later(self._config.failed_tries_log_s, self._tell_rest)


FORM_PATH, FORM_FIELD, SIGN_OUT_FIELD = "/", "token", "sign_out"
FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 4096
_CODE = "code"
_NO_GALLERY = "there is no such gallery here, or this token does not open it"

Problem = Literal["wrong token", "wrong code", "token in address", "too many tries", "no page", "no gallery"]
router = APIRouter(include_in_schema=False)
DrawPage = Callable[[str, Problem | None], str]
"""The page with the field, for a form that is sent to an address; a problem is told above it."""


@dataclass(frozen=True, slots=True)
class _Grant:
    """What a token opens.

    Attributes:
        name: whose it is.
        rights: what that one may here.
        key: by what it is known as long as it holds.
        galleries: those of the server in which it has any right; None for all.
    """

    name: str
    rights: frozenset[str]
    key: str
    galleries: frozenset[str] | None = None


_EVERYTHING = _Grant(THE_TOKEN, ALL, "")


class SignIn:
    """Lets in who brings a token, and holds back who brings a wrong one.

    Args:
        access: has the token, or the tokens.
        draw: the page for those who come without.
        config: how long wrong ones wait, and right ones hold.
        root_path: below which the cookie of who is signed in is sent.
        logs: of who did what, where it is told who came and went, by the names of the server's galleries.
    """

    def __init__(
        self, access: Access, *, draw: DrawPage, config: SignInConfig | None = None, root_path: str = "",
        logs: Mapping[str, ActivityLog] | None = None,
    ) -> None:  # fmt: skip
        self._access, self._draw, self._config = access, draw, config or SignInConfig()
        self._cookie_path = f"{root_path}/"
        self._sessions, self._code = Sessions(self._config), OneTimeCode(self._config)
        self._tries, self.visits = FailedTries(self._config), VisitLog(logs or {})

    def for_gallery(self, access: Access) -> SignIn:
        """The same for one of several galleries of a server: who is signed in to one of them is in all."""
        other = copy(self)
        other._access = access
        return other

    @property
    def asks(self) -> bool:
        """Whether there is a token to be asked for."""
        return self._access.asks_token

    def make_code(self) -> str:
        """A code for the address of the first visit: it opens the page once, and nothing else."""
        return self._code.make()

    async def admit(self, scope: Scope, headers: Headers) -> Response | None:
        """Find out who asks; the answer where that is all there is to it."""
        address = name_client(scope, headers)
        if not self.asks:
            keep_visitor(scope, replace(self._access.describe_untold(headers), address=address))
            return None
        visitor = Visitor(address=address, by_tls=came_by_tls(scope, headers))
        keep_visitor(scope, visitor)
        if scope["path"] == FORM_PATH and scope["method"] == "POST":
            return None
        asked = _read_parameters(scope["query_string"]) if scope["path"] == "/" else {}
        if _CODE in asked and scope["method"] == "GET":
            return await self._exchange(scope, headers, codes=asked[_CODE])
        given = _read_bearer(headers)
        grant = self._find_session(scope, headers) if given is None else self._recognise(given)
        if grant is not None:
            known = replace(visitor, has_token=True, rights=grant.rights, name=grant.name, signed_in=given is None)
            keep_visitor(scope, known)
            if self._access.is_hidden and not grant.rights:
                return self.refuse_unknown(scope)
            return None if may_reach(known, scope["path"]) else _keep_out(scope)
        if given is not None:
            return await self._refuse_wrong(scope, "wrong token")
        if self._access.opens_to_all(scope["path"]):
            return None
        return self._ask(scope, "token in address" if FORM_FIELD in asked else None)

    async def take_form(self, scope: Scope, headers: Headers, body: bytes) -> Response:
        """The answer to a token that was typed into the page, or to leaving it."""
        form = _read_parameters(body)
        if SIGN_OUT_FIELD in form:
            return self._sign_out(scope, headers)
        given = form.get(FORM_FIELD, [])
        if len(given) != 1:
            return self._ask(scope, "wrong token")
        grant = self._recognise(given[0].strip())
        if grant is None:
            return await self._refuse_wrong(scope, "wrong token")
        if READ in grant.rights:
            return self._let_in(scope, grant, by="page")
        is_unknown = self._access.is_hidden and not grant.rights
        return self.refuse_unknown(scope) if is_unknown else self._ask(scope, "no page")

    def find_rights(self, scope: Scope) -> frozenset[str]:
        """What the one whose request was admitted already, at whatever gallery of the server, may here."""
        if not self.asks:
            return find_visitor(scope).rights
        headers = Headers(scope=scope)
        given = _read_bearer(headers)
        grant = self._find_session(scope, headers) if given is None else self._recognise(given)
        return frozenset() if grant is None else grant.rights

    def refuse_unknown(self, scope: Scope) -> Response:
        """The answer to who asks for a gallery that there is not, or that the token does not open: they look alike."""
        if scope["path"].startswith("/v1"):
            return refuse_with(scope, 404, _NO_GALLERY)
        if scope["path"] == "/" and self.asks:
            return self._show_page(scope, "no gallery", status=404)
        return PlainTextResponse(f"{_NO_GALLERY}\n", status_code=404)

    def _recognise(self, given: str) -> _Grant | None:
        """What a token opens; None where that is nothing."""
        access = self._access
        if access.book is not None:
            entry = access.book.find(given)
            return None if entry is None else self._grant(entry)
        return _EVERYTHING if access.token is not None and are_equal(given, access.token) else None

    def _find_session(self, scope: Scope, headers: Headers) -> _Grant | None:
        """What the token opens now that the cookie was given for; its session ends with it."""
        # Browsers send the cookies of all ports of a host, and of those some are no cookies by the book.
        brought = cookie_parser(headers.get("cookie", "")).get(_name_cookie(scope))
        key = None if brought is None else self._sessions.find_owner(brought)
        if brought is None or key is None:
            return None
        if self._access.book is None:
            return _EVERYTHING
        entry = self._access.book.find_again(key)
        if entry is None:
            self._sessions.close(brought)
            return None
        return self._grant(entry)

    def _grant(self, entry: TokenEntry) -> _Grant:
        opened = frozenset(name for name in self.visits.galleries if entry.rights_in((name,)))
        return _Grant(entry.name, self._access.rights_of(entry), entry.sha256, opened)

    def _sign_out(self, scope: Scope, headers: Headers) -> Response:
        brought, grant = cookie_parser(headers.get("cookie", "")).get(_name_cookie(scope)), None
        if brought is not None:
            grant = self._find_session(scope, headers)
            self._sessions.close(brought)
        if grant is not None:
            self.visits.sign_out(scope, grant.name, among=grant.galleries)
        response = _go_on(scope)
        response.delete_cookie(
            _name_cookie(scope),
            path=self._cookie_path,
            httponly=True,
            samesite="lax",
            secure=find_visitor(scope).by_tls,
        )
        return response

    async def _exchange(self, scope: Scope, headers: Headers, *, codes: list[str]) -> Response:
        if len(codes) == 1 and self._code.use(codes[0]):
            return self._let_in(scope, _EVERYTHING, by="code")
        if self._find_session(scope, headers) is not None:
            return _go_on(scope)
        return await self._refuse_wrong(scope, "wrong code")

    def _let_in(self, scope: Scope, grant: _Grant, *, by: str) -> Response:
        self.visits.sign_in(scope, grant.name, by=by, among=grant.galleries)
        response = _go_on(scope)
        response.set_cookie(
            _name_cookie(scope),
            self._sessions.open(grant.key),
            path=self._cookie_path,
            httponly=True,
            samesite="lax",  # strict would ask again whoever follows a link to a search from a letter
            secure=find_visitor(scope).by_tls,
        )
        return response

    async def _refuse_wrong(self, scope: Scope, problem: Problem) -> Response:
        what = "a used or wrong address code" if problem == "wrong code" else "a wrong token"
        self.visits.refuse(scope, by="code" if problem == "wrong code" else "token")
        if await self._tries.hold_back(find_visitor(scope).address, what=what):
            return self._ask(scope, problem)
        if scope["path"].startswith("/v1"):
            message = "too many wrong tokens; wait before the next"
            wait_s = ceil(self._config.failed_try_longest_wait_s)
            refusal: Response = refuse_with(scope, 429, message, retry_after_s=wait_s)
        else:
            refusal = self._show_page(scope, "too many tries", status=429)
        refusal.headers["Connection"] = "close"  # the next guess costs a connection
        return refusal

    def _ask(self, scope: Scope, problem: Problem | None) -> Response:
        if scope["path"].startswith("/v1"):
            words = "the token is wrong" if problem == "wrong token" else "a token is needed"
            refusal: Response = refuse_with(scope, 401, f"{words}: Authorization: Bearer TOKEN")
        elif scope["path"] == "/":
            refusal = self._show_page(scope, problem, status=401)
        else:
            refusal = PlainTextResponse("this needs the server's token: open the page first\n", status_code=401)
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal

    def _show_page(self, scope: Scope, problem: Problem | None, *, status: int) -> Response:
        html = self._draw(_address_after(scope), problem)
        return HTMLResponse(html, status_code=status, headers=dict(SIGN_IN_HEADERS))


def _keep_out(scope: Scope) -> Response:
    """The answer to a token that may not ask for an address at all."""
    message = "this token opens nothing here, but for /v1/metrics perhaps"
    if scope["path"].startswith("/v1"):
        return refuse_with(scope, 403, message)
    return PlainTextResponse(f"{message}\n", status_code=403)


def _name_cookie(scope: Scope) -> str:
    """Servers on other ports of the host have cookies of other names."""
    server = scope.get("server")
    return f"retrieval_{server[1] if server is not None else ''}"


def _read_bearer(headers: Headers) -> str | None:
    """The token of the header; another scheme is for a proxy before this server."""
    given = headers.getlist("authorization")
    scheme, _, text = given[0].partition(" ") if given else ("", "", "")
    if scheme.lower() != "bearer":
        return None
    return text.strip() if len(given) == 1 else ""


def _read_parameters(text: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(text.decode("latin-1"), keep_blank_values=True):
        found.setdefault(name, []).append(value)
    return found


def _address_after(scope: Scope) -> str:
    """The page's address, without what was to open it."""
    parameters = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    kept = [(name, text) for name, text in parameters if name not in (_CODE, FORM_FIELD)]
    return f"./?{urlencode(kept)}" if kept else "./"


def _go_on(scope: Scope) -> Response:
    response = RedirectResponse(_address_after(scope), status_code=303)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.post(FORM_PATH)
async def take_token(request: Request) -> Response:
    """A cookie for the right token of those who typed one into the page, the form again for another; or the way out."""
    sign_in: SignIn = request.app.state.sign_in
    return await sign_in.take_form(request.scope, request.headers, await request.body())
