"""How often one visitor may ask: a bucket of tokens for each, which fills at a rate and from which every request takes.

Whoever sits at the machine itself, without a proxy, is free. There is no limit unless one is set.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from index.config_fields import check_fields, option

_MOST_BUCKETS = 10_000


@dataclass(frozen=True, slots=True)
class RateConfig:
    """How often one name or address may ask.

    What each field is, its help says.
    """

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

    def __init__(self, config: RateConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        per_min = config.uploads_per_min
        self._requests = self._uploads = None
        if config.requests_per_s:
            self._requests = RateLimit(per_s=config.requests_per_s, most=config.requests_burst, clock=clock)
        if per_min:
            self._uploads = RateLimit(per_s=per_min / 60, most=max(1.0, per_min), clock=clock)

    @property
    def are_set(self) -> bool:
        """Whether there is any."""
        return self._requests is not None or self._uploads is not None

    def take(self, visitor: str, *, is_upload: bool) -> int:
        """Count a request of a visitor: 0 where it may pass, else the whole seconds until one may."""
        limits = (self._requests, self._uploads if is_upload else None)
        waits = (limit.take(visitor) for limit in limits if limit is not None)
        return ceil(next((wait_s for wait_s in waits if wait_s), 0.0))
