"""Tokens: the one of a server, and files of tokens with names and rights.

A file keeps names, rights, ends and hashes. A token is 256 random bits, so a plain SHA-256 keeps it: nobody tries so
many. Slow hashes are for passwords; here one would let anybody keep the server busy with wrong tokens. The salt of the
file lets a hash be looked up in one step and makes those of two files differ.

    {"format": "retrieval-tokens", "format_version": 1, "salt": "9f…", "tokens": [
     {"name": "anna", "may": ["read", "review:shop"], "sha256": "3c…", "made_at": "2026-11-01T09:00:00+00:00",
      "days": 90}]}

A server follows the file while it runs. One that is missing, damaged or open to others opens nothing until it is
mended; the log says so.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from index.durable import replacing, try_lock
from index.errors import InputError
from index.text import printable_path
from retrieval_app.api.security.rights import check_rights, spread_rights

logger = logging.getLogger(__name__)

MIN_CHARACTERS, MAX_CHARACTERS = 16, 512
MAX_TOKENS, MAX_DAYS = 1000, 3650
MAX_BYTES = 1 << 20
LOOK_S = 0.5  # between two looks at the file
_ONE_TOKEN = re.compile(rf"[!-~]{{{MIN_CHARACTERS},{MAX_CHARACTERS}}}")
_MAX_ONE_BYTES = 4096
_FORMAT, _VERSION = "retrieval-tokens", 1
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._@+-]{0,63}")
_HEX = re.compile(r"[0-9a-f]{64}")
_PREFIX = "retrieval_"  # by which programs that look for leaked tokens find them
_LOCK_S, _LOCK_LOOK_S = 10.0, 0.01
_EPOCH = datetime.fromtimestamp(0, UTC)
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def are_equal(text: str, expected: str) -> bool:
    """Whether two texts are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), expected.encode())


def make_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_hex(16)  # 128 bits


def check_token(text: str) -> None:
    """Raise InputError where a text is too easily guessed, or no header can carry it."""
    if not _ONE_TOKEN.fullmatch(text):
        raise InputError(
            f"a token has {MIN_CHARACTERS} to {MAX_CHARACTERS} characters of ASCII, and no spaces; this one, of "
            f"{len(text):,}, is none. `openssl rand -hex 16` makes one"
        )


def read_token_file(path: Path) -> str:
    """The token that a file holds; where there is no file, one is made that only its owner may read.

    Raises:
        InputError: the file cannot be read or made, or holds no token.
    """
    shown = f"--token-file {printable_path(str(path))}"
    try:
        return _write_new(path)
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"{shown}: cannot be made: {error.strerror}") from error
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_ONE_BYTES)
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from error
    token = content.decode("utf-8", "replace").strip()
    try:
        check_token(token)
    except InputError as error:
        raise InputError(f"{shown}: {error}; or delete the file, and one is made") from error
    return token


def is_open_to_others(path: Path) -> bool:
    """Whether other users of the machine may do anything with a file."""
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def _write_new(path: Path) -> str:
    token = make_token()
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    return token


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """What is kept of a token.

    Attributes:
        name: of whom or what brings it.
        may: the rights that it was given, each of every gallery, or of the one whose name follows a colon.
        sha256: of the file's salt and the token, 64 hexadecimal digits.
        made_at: UTC.
        days: that it holds from then on; None without an end.
    """

    name: str
    may: tuple[str, ...]
    sha256: str
    made_at: datetime
    days: int | None = None

    def rights_in(self, galleries: Collection[str]) -> frozenset[str]:
        """All that it may in any of these galleries of a server."""
        return spread_rights(self.may, galleries=galleries)

    @property
    def expires_at(self) -> datetime | None:
        """From when on it opens nothing."""
        return None if self.days is None else self.made_at + timedelta(days=self.days)

    def is_over(self) -> bool:
        """Whether its days are over."""
        return self.expires_at is not None and datetime.now(UTC) >= self.expires_at


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """What a file keeps: its salt, 64 hexadecimal digits, and the entries by name."""

    salt: str
    entries: dict[str, TokenEntry] = field(default_factory=dict)


def hash_token(salt: str, token: str) -> str:
    """What a file keeps of a token."""
    return hashlib.sha256(salt.encode() + token.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> str:
    """The name, if it may be one."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is no name of a token: expected 1 to 64 letters and digits of ASCII and . _ @ + -, "
            "of which the first is a letter or digit, such as anna or anna@example.org"
        )
    return name


def _encode(content: KnownTokens) -> bytes:
    tokens = [asdict(entry) | {"made_at": entry.made_at.isoformat()} for entry in content.entries.values()]
    document = {"format": _FORMAT, "format_version": _VERSION, "salt": content.salt, "tokens": tokens}
    return json.dumps(document, indent=1).encode() + b"\n"


def _decode(content: bytes) -> KnownTokens:
    """What a file holds; InputError where not all of it is sound, as then nothing of it holds."""
    try:
        document = json.loads(content)
        if document["format"] != _FORMAT or document["format_version"] != _VERSION:
            raise ValueError("another format, or a version that this program does not know")
        entries = [_decode_entry(**values) for values in document["tokens"]]
        salt = _check_hex(document["salt"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, InputError) as error:
        raise InputError(f"no file of tokens, or a damaged one: {type(error).__name__}: {error}") from error
    names, hashes = ({getattr(entry, what) for entry in entries} for what in ("name", "sha256"))
    if not len(names) == len(hashes) == len(entries) <= MAX_TOKENS:
        raise InputError(f"a damaged file of tokens: names occur twice, or there are more than {MAX_TOKENS:,}")
    return KnownTokens(salt, {entry.name: entry for entry in entries})


def _decode_entry(*, name: str, may: list[str], sha256: str, made_at: str, days: int | None) -> TokenEntry:
    made = datetime.fromisoformat(made_at)
    if made.tzinfo is None:
        raise ValueError("a time without its zone")
    if not isinstance(may, list) or isinstance(days, bool | float):
        raise TypeError("expected a list of rights, and days as a whole number or none")
    rights = check_rights(map(str, may))
    return TokenEntry(check_name(name), rights, _check_hex(sha256), made.astimezone(UTC), _check_days(days))


def _check_hex(value: str) -> str:
    if not _HEX.fullmatch(value):
        raise ValueError("expected 64 hexadecimal digits")
    return value


def add_token(file: Path, name: str, *, may: Iterable[str], days: int | None = None) -> tuple[TokenEntry, str]:
    """Add a token to a file, which is made where there is none; what is kept of it, and the token, which is not.

    Raises:
        InputError: the name is taken or none, the rights or days are, or the file is damaged or cannot be written.
    """
    rights = check_rights(may)
    with _changing(file, may_make=True) as kept:
        if check_name(name) in kept.entries:
            raise InputError(
                f"there is a token of the name {name} already; rotate or revoke it, or choose another name"
            )
        if len(kept.entries) >= MAX_TOKENS:
            raise InputError(f"a file holds at most {MAX_TOKENS:,} tokens; revoke those that nobody uses")
        return _put(kept, TokenEntry(name, rights, "", _EPOCH, _check_days(days)))


def rotate_token(file: Path, name: str, *, days: int | None = None) -> tuple[TokenEntry, str]:
    """Put a new token in the place of the one of a name, for `days` or as many as that had; else as `add_token`."""
    with _changing(file) as kept:
        before = _require(kept, name)
        return _put(kept, before if days is None else replace(before, days=_check_days(days)))


def _put(kept: KnownTokens, entry: TokenEntry) -> tuple[TokenEntry, str]:
    """Make a token for an entry, and keep that."""
    token = _PREFIX + secrets.token_urlsafe(32)
    sha256, now = hash_token(kept.salt, token), datetime.now(UTC).replace(microsecond=0)
    kept.entries[entry.name] = made = replace(entry, sha256=sha256, made_at=now)
    return made, token


def revoke_token(file: Path, name: str) -> TokenEntry:
    """Take the token of a name out of a file; what was kept of it. Raises as `rotate_token`."""
    with _changing(file) as kept:
        gone = _require(kept, name)
        del kept.entries[name]
    return gone


def read_token_entries(file: Path) -> KnownTokens:
    """All that a file keeps.

    Raises:
        InputError: it is missing, unreadable or damaged, or others may write to it and so add tokens of theirs.
    """
    with _named(file):
        return _read(file)


@contextmanager
def _changing(file: Path, *, may_make: bool = False) -> Iterator[KnownTokens]:
    """What a file keeps, which is written when the context ends without an error."""
    path = Path(os.path.realpath(file))
    with _named(file):
        if not path.parent.is_dir():
            raise InputError("its folder does not exist; make it first")
        with _alone(path.parent):
            is_new = may_make and not os.path.lexists(path)
            kept = KnownTokens(secrets.token_hex(32)) if is_new else _read(path)
            yield kept
            content = _encode(kept)
            if len(content) > MAX_BYTES:
                raise InputError(
                    f"the file would have {len(content):,} bytes, of at most {MAX_BYTES:,}: revoke tokens that nobody "
                    "uses, or give rights in all galleries where they are the same"
                )
            with replacing(path, mode=0o600) as temporary:
                temporary.write_bytes(content)


def _read(path: Path) -> KnownTokens:
    with path.open("rb") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise InputError("it is no file")
        if mode & _WRITABLE_BY_OTHERS:
            raise InputError(
                "other users of this machine may write to it, and so add tokens of theirs: chmod 600 it"
            )
        return _decode(opened.read(MAX_BYTES))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the file's folder, which leaves no file behind; it ends with the process, however that does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + _LOCK_S
        while not try_lock(descriptor):
            if time.monotonic() > end:
                problem = f"another process holds its folder since {_LOCK_S:g} seconds; stop it, and try again"
                raise InputError(problem)
            time.sleep(_LOCK_LOOK_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Errors name the file."""
    shown = printable_path(str(file))
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{shown}: there is no such file; `retrieval tokens add` makes one") from error
    except InputError as error:
        raise InputError(f"{shown}: {error}") from error
    except OSError as error:
        raise InputError(
            f"{shown}: cannot be read or written: {error.strerror or error}; nothing was changed"
        ) from error


def _require(kept: KnownTokens, name: str) -> TokenEntry:
    if name not in kept.entries:
        names = ", ".join([*kept.entries][:10]) or "none"
        raise InputError(f"there is no token of the name {name[:80]!r}; those there are: {names}")
    return kept.entries[name]


def _check_days(days: int | None) -> int | None:
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InputError(f"--days {days}: expected 1 to {MAX_DAYS:,}")
    return days


class TokenBook:
    """Tokens of a file; used by the event loop alone.

    Args:
        file: made by `retrieval tokens add`.
        secret: what the key of signed cookies needs besides the file; None makes one.
        clock: of seconds.
    """

    def __init__(
        self, file: Path, *, secret: bytes | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file, self._clock = file, clock
        self._secret = secret or secrets.token_bytes(32)
        self._state = self._look()
        self._entries: KnownTokens | None = read_token_entries(file)
        self._looked_at = clock()

    def find(self, token: str) -> TokenEntry | None:
        """What is known of a token; None of one that opens nothing."""
        entries = self._current()
        return None if entries is None else self._find_hash(entries, hash_token(entries.salt, token))

    def find_again(self, sha256: str) -> TokenEntry | None:
        """What is known now of a token that was found before; None where it opens nothing any more."""
        entries = self._current()
        return None if entries is None else self._find_hash(entries, sha256)

    def session_key(self) -> bytes | None:
        """The key of signed cookies: they end where the file is made anew, or opens nothing.

        What the file says is not enough to make one.
        """
        entries = self._current()
        return (
            None if entries is None else hmac.digest(self._secret, b"sessions" + entries.salt.encode(), "sha256")
        )

    def warn_of_others(self, galleries: Collection[str]) -> None:
        """Log the galleries in which tokens have rights, and that are none of the server's: names may be mistyped."""
        entries = self._current()
        rights = () if entries is None else (right for entry in entries.entries.values() for right in entry.may)
        for name in sorted({right.partition(":")[2] for right in rights if ":" in right} - {*galleries}):
            logger.warning(
                "tokens have rights in a gallery %s, which this server does not have by that name", name
            )

    def _find_hash(self, entries: KnownTokens, sha256: str) -> TokenEntry | None:
        """All are compared, in a time that does not tell how much of one is right."""
        found = None
        for entry in entries.entries.values():
            if hmac.compare_digest(entry.sha256, sha256):
                found = entry
        return None if found is None or found.is_over() else found

    def _current(self) -> KnownTokens | None:
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return self._entries
        self._looked_at, state = now, self._look()
        if state == self._state:
            return self._entries
        was_sound, self._state = self._entries is not None, state
        try:
            self._entries = read_token_entries(self._file)
            if not was_sound:
                logger.warning("the file of tokens can be read again")
        except InputError as error:
            self._entries = None
            logger.error("no token opens anything: %s", error)
        return self._entries

    def _look(self) -> tuple[int, ...] | None:
        """What tells a file from the one before; None where there is none."""
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode
