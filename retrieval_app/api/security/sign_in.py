"""Signing in: by a header, by the one-time address, or by a token that is typed into the page.

Of a request one credential is looked at: the code of the address, or else the header, or else the cookie. Cookies and
codes are signed values, which every process of a server can check. Their key comes from the token, or from the file of
tokens and a secret that is not in it, so that they hold after a new start and end with the token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import Scope

from index.durable import replacing
from index.text import printable_path
from retrieval_app.api.errors import refuse_with
from retrieval_app.api.headers import SIGN_IN_HEADERS
from retrieval_app.api.security.access import THE_TOKEN, Access, may_reach
from retrieval_app.api.security.addresses import name_client
from retrieval_app.api.security.rate_limits import FailedTries, SignInConfig
from retrieval_app.api.security.rights import ALL, READ, STRANGER, Visitor, find_visitor, keep_visitor
from retrieval_app.api.security.tokens import TokenEntry, are_equal
from retrieval_app.review.activity_log import REFUSED, SIGN_IN, SIGN_OUT, ActivityLog

logger = logging.getLogger(__name__)

FORM_PATH, FORM_FIELD, SIGN_OUT_FIELD = "/", "token", "sign_out"
FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 4096
_CODE = "code"
_SECRET = "secret"
_CLEAN_S = 60.0  # between two looks for ended sessions that would be over by now
_NO_GALLERY = "there is no such gallery here, or this token does not open it"

Clock = Callable[[], float]
Problem = Literal["wrong token", "wrong code", "token in address", "too many tries", "no page", "no gallery"]
DrawPage = Callable[[str, Problem | None], str]
"""The page with the field, for a form that is sent to an address; a problem is told above it."""
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class SignedValue:
    """What a cookie or a code says.

    Attributes:
        id: random; that of a session stays when its cookie is renewed.
        owner: by what the token is known that it was given for.
        until: when it ends, in seconds since 1970.
    """

    id: str
    owner: str
    until: int


class SignedValues:
    """Values that only who has the key can make, that end, and that can be spent before; safe among threads.

    Args:
        spent: folders in each of which a file tells of each that was spent; made when they are needed.
        key: of the signatures; None reads no value.
    """

    def __init__(
        self, spent: Sequence[Path], *, key: Callable[[], bytes | None], clock: Clock = time.time
    ) -> None:
        self._spent, self._key, self._clock = spent, key, clock
        self._only_here = set[str]()  # of those spent where no file can tell of it
        self._lock, self._cleaned_at = threading.Lock(), -_CLEAN_S

    def make(self, kind: str, *, owner: str = "", seconds: float, of: SignedValue | None = None) -> str:
        """A new value, or another of one that ends later."""
        made = of or SignedValue(secrets.token_urlsafe(16), owner, 0)
        text = f"{kind}.{made.id}.{made.owner}.{int(self._clock() + seconds)}"
        return f"{text}.{self._sign(text)}"

    def read(self, kind: str, value: str) -> SignedValue | None:
        """What a value says; None where it is none, or holds no more."""
        text, _, signature = value.rpartition(".")
        expected = self._sign(text)
        if not expected or not are_equal(signature, expected):
            return None
        given, name, owner, until = text.split(".")
        is_spent = name in self._only_here or any((folder / name).exists() for folder in self._spent)
        if given != kind or self._clock() > int(until) or is_spent:
            return None
        return SignedValue(name, owner, int(until))

    def spend(self, value: SignedValue, *, keep_s: float = 0) -> bool:
        """Let a value hold no more, in any process; False where it was spent already.

        Args:
            value: what was read.
            keep_s: seconds that another value of the same id may still hold.
        """
        until = max(value.until, self._clock() + keep_s) + 1
        with self._lock:
            if value.id in self._only_here:
                return False
            self._clean()
            for folder in self._spent:
                mark = folder / value.id
                try:
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with replacing(mark, only_new=True) as temporary:
                        temporary.write_text(str(until))
                        os.utime(temporary, (until, until))
                except OSError as error:
                    if mark.exists():
                        return False
                    logger.error(
                        "other processes, and the next start, do not know that a session was ended: %s", error
                    )
                    self._only_here.add(value.id)
        return True

    def _clean(self) -> None:
        """Remove what tells of values that are over, once in a while; files of others stay."""
        now = self._clock()
        if now - self._cleaned_at < _CLEAN_S:
            return
        self._cleaned_at = now
        for folder in self._spent:
            with suppress(OSError):
                for old in folder.iterdir():
                    with suppress(OSError, ValueError):  # another process was quicker, or it is no mark
                        # A copied file may have another time than its text.
                        if old.name != _SECRET and old.stat().st_mtime < now and float(old.read_text()) < now:
                            old.unlink()

    def _sign(self, text: str) -> str:
        key = self._key()
        return (
            "" if key is None else hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        )


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


def read_secret(folders: Sequence[Path]) -> bytes:
    """A secret from the first folder that has one or takes a new one; where none does, one of this process alone."""
    for folder in folders:
        file = folder / _SECRET
        try:
            if not file.exists():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with suppress(FileExistsError), replacing(file, only_new=True, mode=0o600) as temporary:
                    temporary.write_text(secrets.token_hex(32))
            if file.stat().st_mode & 0o077:
                raise PermissionError(
                    f"other users of this machine may read {printable_path(str(file))}: chmod 600 it"
                )
            if len(secret := file.read_bytes()) >= 64:
                return secret
            raise OSError(f"{printable_path(str(file))} is damaged: remove it")
        except OSError as error:
            logger.warning(
                "no secret can be kept for sessions, so browsers are signed out when it ends: %s", error
            )
    return secrets.token_bytes(32)


class SignIn:
    """Lets in who brings a token, and holds back who brings a wrong one.

    Args:
        access: has the token, or the tokens.
        draw: the page for those who come without.
        spent: folders that tell of sessions that were ended, of all processes of the server and those after it;
            without any there are no sessions and no codes.
        config: how long wrong ones wait, and right ones hold.
        root_path: below which the cookie of who is signed in is sent.
        logs: of who did what, where it is told who came and went, by the names of the server's galleries.
    """

    def __init__(
        self, access: Access, *, draw: DrawPage, spent: Sequence[Path] = (), config: SignInConfig | None = None,
        root_path: str = "", logs: Mapping[str, ActivityLog] | None = None, clock: Clock = time.time,
    ) -> None:  # fmt: skip
        self._access, self._draw, self._config = access, draw, config or SignInConfig()
        self._cookie_path = f"{root_path}/"
        self._values = SignedValues(spent, key=access.session_key if spent else lambda: None, clock=clock)
        self._tries, self._clock = FailedTries(self._config, tell=self._tell_wrong), clock
        self._logs = logs or {}

    def for_gallery(self, access: Access) -> SignIn:
        """The same for one of several galleries of a server: who is signed in to one of them is in all."""
        other = copy(self)
        other._access = access
        return other

    @property
    def asks(self) -> bool:
        """Whether there is a token to be asked for."""
        return self._access.asks_token

    def close(self) -> None:
        """Tell of the wrong tries that are not told yet."""
        self._tries.close()

    def make_code(self) -> str:
        """A code for the address of the first visit: it opens the page once, and nothing else."""
        return self._values.make(_CODE, seconds=self._config.first_visit_s)

    async def admit(self, scope: Scope, headers: Headers) -> Response | None:
        """Find out who asks; the answer where that is all there is to it."""
        address = name_client(scope)
        if not self.asks:
            keep_visitor(scope, replace(self._access.describe_untold(headers), address=address))
            return None
        visitor = Visitor(address=address, by_tls=scope["scheme"] == "https")
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
            return await self._sign_out(scope, headers)
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

    def renew(self, scope: Scope, headers: Headers) -> str | None:
        """The cookie of who was answered, made anew where more than half of its time is over.

        Not with the page's files, which caches that many share may keep.
        """
        is_own = scope["path"] == "/" or scope["path"].startswith("/v1/")
        session = self._read_cookie(scope, headers) if is_own else None
        if session is None or session.until - self._clock() > self._config.session_s / 2:
            return None
        response = Response()
        self._set_cookie(scope, response, self._values.make("session", seconds=self._config.session_s, of=session))
        return response.headers["set-cookie"]

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

    def _read_cookie(self, scope: Scope, headers: Headers) -> SignedValue | None:
        # Browsers send the cookies of all ports of a host, and of those some are no cookies by the book.
        brought = cookie_parser(headers.get("cookie", "")).get(_name_cookie(scope))
        return None if brought is None else self._values.read("session", brought)

    def _find_session(self, scope: Scope, headers: Headers) -> _Grant | None:
        """What the token opens now that the cookie was given for; its session ends with it."""
        session = self._read_cookie(scope, headers)
        if session is None or self._access.book is None:
            return None if session is None else _EVERYTHING
        entry = self._access.book.find_again(session.owner)
        return None if entry is None else self._grant(entry)

    def _grant(self, entry: TokenEntry) -> _Grant:
        opened = frozenset(name for name in self._logs if entry.rights_in((name,)))
        return _Grant(entry.name, self._access.rights_of(entry), entry.sha256, opened)

    async def _sign_out(self, scope: Scope, headers: Headers) -> Response:
        grant, session = self._find_session(scope, headers), self._read_cookie(scope, headers)
        if session is not None:
            await asyncio.to_thread(self._values.spend, session, keep_s=self._config.session_s)
        if grant is not None:
            self._record(SIGN_OUT, scope, grant)
        response = _go_on(scope)
        self._set_cookie(scope, response, "", max_age=0)
        return response

    async def _exchange(self, scope: Scope, headers: Headers, *, codes: list[str]) -> Response:
        code = self._values.read(_CODE, codes[0]) if len(codes) == 1 else None
        if code is not None and await asyncio.to_thread(self._values.spend, code):
            return self._let_in(scope, _EVERYTHING, by="code")
        if self._find_session(scope, headers) is not None:
            return _go_on(scope)
        return await self._refuse_wrong(scope, "wrong code")

    def _let_in(self, scope: Scope, grant: _Grant, *, by: str) -> Response:
        self._record(SIGN_IN, scope, grant, by=by)
        response = _go_on(scope)
        value = self._values.make("session", owner=grant.key, seconds=self._config.session_s)
        self._set_cookie(scope, response, value)
        return response

    def _set_cookie(self, scope: Scope, response: Response, value: str, *, max_age: int | None = None) -> None:
        response.set_cookie(
            _name_cookie(scope), value, path=self._cookie_path, httponly=True, max_age=max_age,
            samesite="lax",  # strict would ask again whoever follows a link to a search from a letter
            secure=scope["scheme"] == "https",
        )  # fmt: skip

    def _record(self, what: str, scope: Scope, grant: _Grant, **details: str) -> None:
        """Tell who came or went in the logs of the galleries that the token opens."""
        for name, log in self._logs.items():
            if grant.galleries is None or name in grant.galleries:
                log.record(
                    what, who=grant.name, address=find_visitor(scope).address, request=scope["state"]["request_id"],
                    wait=False, **details,
                )  # fmt: skip

    def _tell_wrong(self, address: str, tries: int, *, by: str = "", request: str = "") -> None:
        what = "a used or wrong address code" if by == "code" else "a wrong token"
        logger.warning("%s from %s", what if tries == 1 else f"{tries:,} more wrong tries", address)
        for log in self._logs.values():
            details = {"by": by} if by else {}
            log.record(
                REFUSED, who=STRANGER.name, address=address, request=request, wait=False, tries=tries, **details
            )

    async def _refuse_wrong(self, scope: Scope, problem: Problem) -> Response:
        by = "code" if problem == "wrong code" else "token"
        if await self._tries.hold_back(find_visitor(scope).address, by=by, request=scope["state"]["request_id"]):
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
