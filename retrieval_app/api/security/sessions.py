"""What lets a browser in once it has shown the token: a code for the first visit, and the value of a cookie.

Both are random and known to this process alone, so they end with it, and with its token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from retrieval_app.api.security.sign_in_config import SignInConfig

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
