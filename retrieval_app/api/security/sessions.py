"""Session cookies and one-time codes: signed values, which outlive a restart and end with the token."""

import hmac
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from index.durable import replacing
from index.text import printable_path
from retrieval_app.api.security.tokens import are_equal

logger = logging.getLogger(__name__)

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class SignedValue:
    """A cookie or a code that was read."""

    id: str  # random; a session keeps it when its cookie is renewed
    owner: str  # the hash of the token that it was given for
    until: int  # seconds since 1970


class SignedValues:
    """Signed values that expire, and can be spent before; safe among threads. Without a key none can be read.

    Each folder has a file with a line for every spent value, its id and its end.
    """

    def __init__(self, folders: Sequence[Path], *, key: Callable[[], bytes | None], clock: Clock = time.time) -> None:
        self._files, self._key, self._clock = [folder / "spent" for folder in folders], key, clock
        self._spent, self._lock = set[str](), threading.Lock()
        for file in self._files:
            with suppress(OSError):  # nothing was spent
                lines = file.read_text("ascii", "replace").splitlines()
                self._spent.update(line.partition(" ")[0] for line in lines)
                holding = [line for line in lines if _read_end(line) > clock()]
                if len(holding) < len(lines):
                    with replacing(file, mode=0o600) as temporary:
                        temporary.write_text("".join(f"{line}\n" for line in holding))

    def make(self, kind: str, *, owner: str = "", seconds: float, of: SignedValue | None = None) -> str:
        """A new value; or one with the id and owner of another, which it outlives."""
        made = of or SignedValue(secrets.token_urlsafe(16), owner, 0)
        text = f"{kind}.{made.id}.{made.owner}.{int(self._clock() + seconds)}"
        return f"{text}.{self._sign(text)}"

    def read(self, kind: str, value: str) -> SignedValue | None:
        """A value that holds, or None."""
        text, _, signature = value.rpartition(".")
        expected = self._sign(text)
        if not expected or not are_equal(signature, expected):
            return None
        given, name, owner, until = text.split(".")
        if given != kind or self._clock() > int(until) or name in self._spent:
            return None
        return SignedValue(name, owner, int(until))

    def spend(self, value: SignedValue, *, keep_s: float = 0) -> bool:
        """End a value, and others of its id for `keep_s` seconds; False where it was spent already."""
        end = max(value.until, self._clock() + keep_s) + 1
        with self._lock:
            if value.id in self._spent:
                return False
            self._spent.add(value.id)
            for path in self._files:
                try:
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with open(path, "a", encoding="ascii", opener=partial(os.open, mode=0o600)) as file:
                        file.write(f"{value.id} {end}\n")
                        file.flush()
                        os.fsync(file.fileno())
                except OSError as error:
                    logger.error("the next start of the server does not know that a session was ended: %s", error)
        return True

    def _sign(self, text: str) -> str:
        key = self._key()
        return "" if key is None else hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256").hex()


def _read_end(line: str) -> float:
    """The end of a spent value; that of a damaged line is over."""
    try:
        return float(line.partition(" ")[2])
    except ValueError:
        return 0.0


def read_secret(folder: Path) -> bytes:
    """The secret in a folder, made if it is missing; where that cannot be kept, one of this process alone."""
    file = folder / "secret"
    try:
        if not file.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError), replacing(file, only_new=True, mode=0o600) as temporary:
                temporary.write_text(secrets.token_hex(32))
        if file.stat().st_mode & 0o077:
            raise PermissionError(f"other users of this machine may read {printable_path(file)}: chmod 600 it")
        if len(secret := file.read_bytes()) >= 64:
            return secret
        raise OSError(f"{printable_path(file)} is damaged: remove it")
    except OSError as error:
        logger.warning("no secret can be kept for sessions, so browsers are signed out when it ends: %s", error)
    return secrets.token_bytes(32)
