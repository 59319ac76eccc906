"""Session cookies and one-time codes: signed values that every process of a server can check.

The key comes from the token, or from the token file and a secret beside it. So values outlive a restart, and end with
the token.
"""

import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from index.durable import replacing
from index.text import printable_path
from retrieval_app.api.security.tokens import are_equal

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
LOOK_S = 0.5  # between two looks at what other processes have ended
_CLEAN_S = 60.0  # between two looks for ended sessions that would be over by now
_SECRET = "secret"


@dataclass(frozen=True, slots=True)
class SignedValue:
    """A cookie or a code that was read.

    Attributes:
        id: random; a session keeps it when its cookie is renewed.
        owner: the hash of the token that it was given for.
        until: its end, in seconds since 1970.
    """

    id: str
    owner: str
    until: int


class SignedValues:
    """Signed values that expire, and can be spent before; safe among threads.

    Args:
        folders: each gets a file for every spent value.
        key: of the signatures; without one no value can be read.
    """

    def __init__(self, folders: Sequence[Path], *, key: Callable[[], bytes | None], clock: Clock = time.time) -> None:
        self._folders, self._key, self._clock = folders, key, clock
        self._spent = set[str]()
        self._lock, self._cleaned_at, self._looked_at = threading.Lock(), -_CLEAN_S, -LOOK_S

    def make(self, kind: str, *, owner: str = "", seconds: float, of: SignedValue | None = None) -> str:
        """A new value; or one with the id and owner of another, which it outlives."""
        made = of or SignedValue(secrets.token_urlsafe(16), owner, 0)
        text = f"{kind}.{made.id}.{made.owner}.{int(self._clock() + seconds)}"
        return f"{text}.{self._sign(text)}"

    def read(self, kind: str, value: str) -> SignedValue | None:
        """A value that holds, or None; one spent by another process ends within `LOOK_S`."""
        text, _, signature = value.rpartition(".")
        expected = self._sign(text)
        if not expected or not are_equal(signature, expected):
            return None
        given, name, owner, until = text.split(".")
        if given != kind or self._clock() > int(until):
            return None
        if (now := time.monotonic()) - self._looked_at >= LOOK_S:
            self._looked_at = now
            for folder in self._folders:
                with suppress(OSError):  # nothing was spent there
                    self._spent.update(mark.name for mark in folder.iterdir())
        return None if name in self._spent else SignedValue(name, owner, int(until))

    def spend(self, value: SignedValue, *, keep_s: float = 0) -> bool:
        """End a value in all processes; False where it was spent already.

        Args:
            keep_s: seconds that another value of the same id may still hold.
        """
        until = max(value.until, self._clock() + keep_s) + 1
        with self._lock:
            if value.id in self._spent:
                return False
            self._remove_old()
            is_first = True
            for folder in self._folders:
                mark = folder / value.id
                try:
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with replacing(mark, only_new=True) as temporary:
                        temporary.write_text(str(until))
                except OSError as error:
                    if mark.exists():
                        is_first = False
                    else:
                        logger.error(
                            "other processes, and the next start, do not know that a session was ended: %s", error
                        )
            self._spent.add(value.id)
        return is_first

    def _remove_old(self) -> None:
        """Remove files of expired values, once in a while; other files stay."""
        now = self._clock()
        if now - self._cleaned_at < _CLEAN_S:
            return
        self._cleaned_at = now
        for folder in self._folders:
            with suppress(OSError):
                for old in folder.iterdir():
                    with suppress(OSError, ValueError):  # another process was quicker, or it is no mark
                        if old.name != _SECRET and float(old.read_text()) < now:
                            old.unlink()

    def _sign(self, text: str) -> str:
        key = self._key()
        return "" if key is None else hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()


def read_secret(folders: Sequence[Path]) -> bytes:
    """The secret in the first folder that has one or takes a new one; else one of this process alone."""
    for folder in folders:
        file = folder / _SECRET
        try:
            if not file.exists():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with suppress(FileExistsError), replacing(file, only_new=True, mode=0o600) as temporary:
                    temporary.write_text(secrets.token_hex(32))
            if file.stat().st_mode & 0o077:
                raise PermissionError(f"other users of this machine may read {printable_path(str(file))}: chmod 600 it")
            if len(secret := file.read_bytes()) >= 64:
                return secret
            raise OSError(f"{printable_path(str(file))} is damaged: remove it")
        except OSError as error:
            logger.warning("no secret can be kept for sessions, so browsers are signed out when it ends: %s", error)
    return secrets.token_bytes(32)
