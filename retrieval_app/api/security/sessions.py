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
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def open(self) -> str:
        """The value of a new cookie."""
        value = secrets.token_urlsafe(_BYTES)
        self._until[_digest(value)] = self._clock() + self._config.session_s
        while len(self._until) > self._config.max_sessions:
            self._until.popitem(last=False)
        return value

    def hold(self, value: str) -> bool:
        """Whether a cookie has this value, and then for another while."""
        key = _digest(value)  # which of a guess tells nothing, however long it takes to be found
        until = self._until.get(key, 0.0)
        if self._clock() > until:
            self._until.pop(key, None)
            return False
        self._until[key] = self._clock() + self._config.session_s
        self._until.move_to_end(key)
        return True


def are_equal(text: str, expected: str) -> bool:
    """Whether two texts are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), expected.encode())


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()
