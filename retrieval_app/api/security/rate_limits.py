"""Rate limits: a token bucket for each visitor, and waits for wrong tokens.

Whoever sits at the machine itself, without a proxy, is free of the first, and nobody is limited unless a limit is set.
The waits grow with each wrong token of an address; a right one is answered at once, so nobody can lock others out.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from index.config_fields import check_fields, option

_MOST_BUCKETS = _MAX_ADDRESSES = 10_000
_MAX_TOLD = 10  # addresses in a window
_OTHERS = "other addresses"


@dataclass(frozen=True, slots=True)
class RateConfig:
    """How often one name or address may ask."""

    requests_per_s: float = option(
        0.0,
        "Requests a second of one name or address, a page's pictures among them; 0 for any number.",
        at_least=0,
    )
    requests_burst: int = option(
        200, "Requests that may come at once before that counts; a page that opens sends some hundred.", at_least=1
    )
    uploads_per_min: float = option(
        0.0, "Photos a minute that one name or address may send; 0 for any number.", at_least=0
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class SignInConfig:
    """Wrong tokens, first visits and sessions."""

    failed_try_wait_s: float = option(
        0.1, "Seconds that the first wrong token of an address waits for its answer; each further one twice as long.",
        at_least=0,
    )  # fmt: skip
    failed_try_longest_wait_s: float = option(2.0, "The longest of these waits.", at_least=0)
    failed_tries_forgotten_s: float = option(
        600.0, "Seconds without a wrong token after which an address begins anew.", at_least=0
    )
    failed_tries_waiting: int = option(
        8, "Wrong tokens of one address that wait at once; one more is sent away.", at_least=0
    )
    failed_tries_waiting_in_all: int = option(128, "Those of all addresses.", at_least=0)
    failed_tries_log_s: float = option(60.0, "Seconds between two lines that tell of them.", at_least=0.1)
    first_visit_s: float = option(
        600.0, "Seconds in which the printed address opens the page, from when it is printed.", at_least=1
    )
    session_s: float = option(
        12 * 3600.0,
        "Seconds that a browser stays signed in; each request in the second half of them begins them anew.",
        at_least=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)


class RateLimit:
    """Buckets by visitor, of which the least recently used are forgotten; used by the event loop alone.

    Args:
        per_s: tokens that come into a bucket in a second.
        most: tokens in a full one.
    """

    def __init__(self, *, per_s: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._most, self._clock = per_s, most, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted

    def take(self, visitor: str) -> float:
        """Take a token: 0.0, or where there is none the seconds until there is one."""
        now = self._clock()
        count, since = self._buckets.pop(visitor, (self._most, now))
        count = min(self._most, count + (now - since) * self._per_s)
        wait_s = 0.0 if count >= 1 else (1 - count) / self._per_s
        self._buckets[visitor] = (count if wait_s else count - 1), now
        while len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return wait_s


class RateLimits:
    """The limits of a server."""

    def __init__(self, config: RateConfig) -> None:
        per_min = config.uploads_per_min
        self._requests = self._uploads = None
        if config.requests_per_s:
            self._requests = RateLimit(per_s=config.requests_per_s, most=config.requests_burst)
        if per_min:
            self._uploads = RateLimit(per_s=per_min / 60, most=max(1.0, per_min))

    def take(self, visitor: str, *, is_upload: bool) -> int:
        """Count a request of a visitor: 0 where it may pass, else the whole seconds until one may."""
        limits = (self._requests, self._uploads if is_upload else None)
        waits = (limit.take(visitor) for limit in limits if limit is not None)
        return ceil(next((wait_s for wait_s in waits if wait_s), 0.0))


class FailedTries:
    """Waits for wrong tries by address, and who is told of them; used by the event loop alone.

    Of an address the first try is told at once, and how many more there were at the end of a window; so are some
    addresses in all, and the others in one sum.

    Args:
        tell: is told an address, how many tries came from it, and what `hold_back` was given besides.
    """

    def __init__(
        self, config: SignInConfig | None = None, *, clock: Callable[[], float] = time.monotonic,
        tell: Callable[..., object] = lambda *_, **__: None,
    ) -> None:  # fmt: skip
        self._config, self._clock, self._tell = config or SignInConfig(), clock, tell
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting = Counter[str]()
        self._told, self._untold = set[str](), Counter[str]()  # of this window
        self._window: asyncio.TimerHandle | None = None

    async def hold_back(self, address: str, **details: str) -> bool:
        """Let a wrong try from an address wait; False where too many do, and it is to be sent away at once."""
        seconds = self._count(address)
        self._note(address, details)
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

    def close(self) -> None:
        """Tell what is not told yet."""
        if self._window is not None:
            self._window.cancel()
            self._tell_rest()

    def _count(self, address: str) -> float:
        """The seconds that this try has to wait."""
        now, config = self._clock(), self._config
        count, last = self._tries.pop(address, (0, now))
        count = 1 if now - last > config.failed_tries_forgotten_s else count + 1
        self._tries[address] = count, now
        while len(self._tries) > _MAX_ADDRESSES:
            self._tries.popitem(last=False)
        return float(min(config.failed_try_longest_wait_s, config.failed_try_wait_s * 2 ** min(count - 1, 10)))

    def _note(self, address: str, details: dict[str, str]) -> None:
        if self._window is None:
            loop = asyncio.get_running_loop()
            self._window = loop.call_later(self._config.failed_tries_log_s, self._tell_rest)
        if address not in self._told and address not in self._untold and len(self._told) < _MAX_TOLD:
            self._told.add(address)
            self._tell(address, 1, **details)
        else:
            known = address in self._untold or len(self._untold) < _MAX_ADDRESSES
            self._untold[address if known else _OTHERS] += 1

    def _tell_rest(self) -> None:
        self._window = None
        others = self._untold.pop(_OTHERS, 0)
        named = self._untold.most_common(_MAX_TOLD)
        others += self._untold.total() - sum(count for _, count in named)
        for address, count in [*named, *([(_OTHERS, others)] if others else [])]:
            self._tell(address, count)
        self._told = {address for address, _ in named}
        self._untold.clear()
        if named:
            loop = asyncio.get_running_loop()
            self._window = loop.call_later(self._config.failed_tries_log_s, self._tell_rest)
