"""Growing waits for wrong tokens; right ones never wait."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0  # of an address' wrong tokens, each of which waits twice as long
FORGOTTEN_S = 600.0  # without a wrong token, after which an address begins anew
MOST_WAITING, MOST_WAITING_IN_ALL = 8, 128  # wrong tokens at once, of one address and of all; further ones get 429
LOG_WINDOW_S = 60.0
_MAX_ADDRESSES = 10_000
_MAX_LOGGED = 10  # addresses in a window
_OTHERS = "other addresses"


class FailedTries:
    """Waits for wrong tokens by address; used by the event loop alone.

    The first try of an address is logged at once, further ones as a count at the end of a window. This holds for some
    addresses in a window; the tries of all others are one sum.
    """

    def __init__(
        self, *, log: Callable[..., object] = lambda *_, **__: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._clock = log, clock
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting = Counter[str]()
        self._noted = Counter({_OTHERS: 1})  # tries of this window, and one for an address that is logged already
        self._window: asyncio.TimerHandle | None = None

    async def delay(self, address: str, **details: str) -> bool:
        """Let a wrong try wait; False where too many do, and it has to be sent away at once."""
        now = self._clock()
        count, last = self._tries.pop(address, (0, now))
        count = 1 if now - last > FORGOTTEN_S else count + 1
        self._tries[address] = count, now
        while len(self._tries) > _MAX_ADDRESSES:
            self._tries.popitem(last=False)
        self._note(address, details)
        if self._waiting[address] >= MOST_WAITING or self._waiting.total() >= MOST_WAITING_IN_ALL:
            return False
        self._waiting[address] += 1
        try:
            await asyncio.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(count - 1, 10)))
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
        return True

    def close(self) -> None:
        """Log the tries that are not logged yet."""
        if self._window is not None:
            self._window.cancel()
            self._log_rest()

    def _note(self, address: str, details: dict[str, str]) -> None:
        if self._window is None:
            self._window = asyncio.get_running_loop().call_later(LOG_WINDOW_S, self._log_rest)
        if address not in self._noted and len(self._noted) > _MAX_LOGGED:
            address = _OTHERS
        self._noted[address] += 1
        if self._noted[address] == 1:
            self._log(address, 1, **details)

    def _log_rest(self) -> None:
        self._window = None
        noisy = {address: count - 1 for address, count in self._noted.items() if count > 1}
        for address, count in noisy.items():
            self._log(address, count)
        self._noted = Counter({_OTHERS: 1, **dict.fromkeys(noisy, 1)})
        if noisy:
            self._window = asyncio.get_running_loop().call_later(LOG_WINDOW_S, self._log_rest)
