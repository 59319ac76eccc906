"""Wrong tokens and codes: whoever brings one waits for the answer, longer each time, and the log tells of it.

Only wrong ones wait: a right token is answered at once, from whatever address, so nobody can lock others out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from retrieval_app.api.security.sign_in_config import SignInConfig

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
