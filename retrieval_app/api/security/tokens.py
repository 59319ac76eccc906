"""Tokens: the one token of a server, and token files with names, rights, days and salted SHA-256 hashes.

A token is 256 random bits, so a slow hash would only help a client that floods the server with wrong tokens. While the
file is missing, damaged or writable by others, no token opens anything.
"""

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from index.durable import open_for_lock, replacing, try_lock
from index.errors import InputError
from index.text import printable_path
from retrieval_app.api.security.rights import check_rights, spread_rights

logger = logging.getLogger(__name__)

MIN_CHARACTERS, MAX_CHARACTERS = 16, 512
MAX_TOKENS, MAX_DAYS = 1000, 3650
MAX_BYTES = 1 << 20
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
    """Comparison in constant time."""
    return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), expected.encode())


def make_token() -> str:
    """A random token of 128 bits."""
    return secrets.token_hex(16)


def check_token(text: str) -> None:
    """Refuse a token that is easily guessed, or that no header can carry."""
    if not _ONE_TOKEN.fullmatch(text):
        raise InputError(
            f"a token has {MIN_CHARACTERS} to {MAX_CHARACTERS} characters of ASCII, and no spaces; this one has "
            f"{len(text):,} characters or a forbidden one. `openssl rand -hex 16` makes one"
        )


def read_token_file(path: Path) -> str:
    """The token of a file; a missing file is made with a new one, readable by its owner alone."""
    shown = f"--token-file {printable_path(path)}"
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w", encoding="ascii") as file:
            file.write(f"{make_token()}\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", at=shown) from error
    try:
        with path.open("rb") as opened:
            token = opened.read(_MAX_ONE_BYTES).decode("utf-8", "replace").strip()
        check_token(token)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", at=shown) from error
    except InputError as error:
        raise InputError(f"{error}; or delete the file, and one is made", at=shown) from error
    return token


def is_open_to_others(path: Path) -> bool:
    """Whether other users of the machine have any right to a file."""
    return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """An entry of a token file: its rights, the hash of salt and token, and its days; None without an end."""

    name: str
    may: tuple[str, ...]
    sha256: str
    made_at: datetime
    days: int | None = None

    def rights_in(self, galleries: Collection[str]) -> frozenset[str]:
        """The rights in any of these galleries of a server, included ones too."""
        return spread_rights(self.may, galleries=galleries)

    @property
    def expires_at(self) -> datetime | None:
        """The end of its days."""
        return None if self.days is None else self.made_at + timedelta(days=self.days)

    def is_over(self) -> bool:
        """Whether its days are over."""
        return self.expires_at is not None and datetime.now(UTC) >= self.expires_at


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """The content of a token file: its salt, 64 hexadecimal digits, and the entries by name."""

    salt: str
    entries: dict[str, TokenEntry] = field(default_factory=dict)

    def find_hash(self, sha256: str) -> TokenEntry | None:
        """The entry of a hash; all are compared, so that the time does not show how much of one is right."""
        found = None
        for entry in self.entries.values():
            if hmac.compare_digest(entry.sha256, sha256):
                found = entry
        return None if found is None or found.is_over() else found


def _hash_token(salt: str, token: str) -> str:
    return hashlib.sha256(salt.encode() + token.encode("utf-8", "surrogatepass")).hexdigest()


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is not a valid token name: expected 1 to 64 letters and digits of ASCII and . _ @ + -, "
            "of which the first is a letter or digit, such as anna or anna@example.org"
        )
    return name


def _encode(content: KnownTokens) -> bytes:
    tokens = [asdict(entry) | {"made_at": entry.made_at.isoformat()} for entry in content.entries.values()]
    document = {"format": _FORMAT, "format_version": _VERSION, "salt": content.salt, "tokens": tokens}
    return json.dumps(document, indent=1).encode() + b"\n"


def _decode(content: bytes) -> KnownTokens:
    """The tokens of a file; InputError where any part of it is damaged."""
    try:
        document = json.loads(content)
        if document["format"] != _FORMAT or document["format_version"] != _VERSION:
            raise ValueError("another format, or a version that this program does not know")
        entries = [_decode_entry(**values) for values in document["tokens"]]
        salt = document["salt"]
        if not all(_HEX.fullmatch(text) for text in (salt, *(entry.sha256 for entry in entries))):
            raise ValueError("a salt or hash has not 64 hexadecimal digits")
        for what in ("name", "sha256"):
            if not len({getattr(entry, what) for entry in entries}) == len(entries) <= MAX_TOKENS:
                raise ValueError(f"names occur twice, or there are more than {MAX_TOKENS:,}")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, InputError) as error:
        raise InputError(f"no file of tokens, or a damaged one: {type(error).__name__}: {error}") from error
    return KnownTokens(salt, {entry.name: entry for entry in entries})


def _decode_entry(*, name: str, may: list[str], sha256: str, made_at: str, days: int | None) -> TokenEntry:
    made = datetime.fromisoformat(made_at)
    if made.tzinfo is None or not isinstance(may, list) or isinstance(days, bool | float):
        raise TypeError("expected a time with its zone, a list of rights, and days as a whole number or none")
    return TokenEntry(_check_name(name), check_rights(map(str, may)), sha256, made.astimezone(UTC), _check_days(days))


def add_token(file: Path, name: str, *, may: Iterable[str], days: int | None = None) -> tuple[TokenEntry, str]:
    """Add a token to a file, made if missing; its entry, and the token itself, which no file keeps."""
    rights = check_rights(may)
    with _changing(file, may_make=True) as kept:
        if _check_name(name) in kept.entries:
            raise InputError(
                f"there is a token of the name {name} already; rotate or revoke it, or choose another name"
            )
        if len(kept.entries) >= MAX_TOKENS:
            raise InputError(f"a file holds at most {MAX_TOKENS:,} tokens; revoke unused ones")
        return _put(kept, TokenEntry(name, rights, "", _EPOCH, _check_days(days)))


def rotate_token(file: Path, name: str, *, days: int | None = None) -> tuple[TokenEntry, str]:
    """Replace the token of a name, for `days` or as many as it had; as `add_token`."""
    with _changing(file) as kept:
        before = _require(kept, name)
        return _put(kept, before if days is None else replace(before, days=_check_days(days)))


def _put(kept: KnownTokens, entry: TokenEntry) -> tuple[TokenEntry, str]:
    token = _PREFIX + secrets.token_urlsafe(32)
    sha256, now = _hash_token(kept.salt, token), datetime.now(UTC).replace(microsecond=0)
    kept.entries[entry.name] = made = replace(entry, sha256=sha256, made_at=now)
    return made, token


def revoke_token(file: Path, name: str) -> TokenEntry:
    """Remove the token of a name from a file; its entry."""
    with _changing(file) as kept:
        _require(kept, name)
        return kept.entries.pop(name)


def read_token_entries(file: Path) -> KnownTokens:
    """The content of a token file; InputError where it is missing, unreadable, damaged, or writable by others."""
    with _named(file):
        return _read(file)


@contextmanager
def _changing(file: Path, *, may_make: bool = False) -> Iterator[KnownTokens]:
    """The content of a file, written when the context ends without an error."""
    path = Path(os.path.realpath(file))
    with _named(file):
        if not path.parent.is_dir():
            raise InputError("its folder does not exist; make it first")
        folder = open_for_lock(path.parent)
        try:  # the lock of the folder leaves no file behind, and ends with the process
            end = time.monotonic() + _LOCK_S
            while not try_lock(folder):
                if time.monotonic() > end:
                    problem = f"another process holds its folder since {_LOCK_S:g} seconds; stop it, and try again"
                    raise InputError(problem)
                time.sleep(_LOCK_LOOK_S)
            is_new = may_make and not os.path.lexists(path)
            kept = KnownTokens(secrets.token_hex(32)) if is_new else _read(path)
            yield kept
            if len(content := _encode(kept)) > MAX_BYTES:
                raise InputError(
                    f"the file would have {len(content):,} bytes, of at most {MAX_BYTES:,}: revoke unused tokens, or "
                    "give rights in all galleries where they are the same"
                )
            with replacing(path, mode=0o600) as temporary:
                temporary.write_bytes(content)
        finally:
            os.close(folder)


def _read(path: Path) -> KnownTokens:
    with path.open("rb") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise InputError("it is not a file")
        if mode & _WRITABLE_BY_OTHERS:
            raise InputError("other users of this machine may write to it, and so add tokens of theirs: chmod 600 it")
        return _decode(opened.read(MAX_BYTES))


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Errors name the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError("there is no such file; `retrieval tokens add` makes one", at=file) from error
    except InputError as error:
        raise InputError(f"{error}", at=file) from error
    except OSError as error:
        problem = f"cannot be read or written: {error.strerror or error}; nothing was changed"
        raise InputError(problem, at=file) from error


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
    """The tokens of a file that a server follows, in the event loop; `secret` is for the key of session cookies."""

    def __init__(self, file: Path, *, secret: bytes | None = None) -> None:
        self._file, self._secret = file, secret or secrets.token_bytes(32)
        self._state = self._read_state()
        self._known: KnownTokens | None = read_token_entries(file)

    def find(self, token: str) -> TokenEntry | None:
        """The entry of a valid token, or None."""
        known = self._current()
        return None if known is None else known.find_hash(_hash_token(known.salt, token))

    def find_again(self, sha256: str) -> TokenEntry | None:
        """The entry of a token that was found before, or None where it has ended."""
        known = self._current()
        return None if known is None else known.find_hash(sha256)

    def session_key(self) -> bytes | None:
        """The key of session cookies, which the file alone does not reveal; None for an unknown session."""
        known = self._current()
        return None if known is None else hmac.digest(self._secret, b"sessions" + known.salt.encode(), "sha256")

    def warn_of_others(self, galleries: Collection[str]) -> None:
        """Log galleries in which tokens have rights and that the server does not have: names may be mistyped."""
        known = self._current()
        rights = () if known is None else (right for entry in known.entries.values() for right in entry.may)
        for name in sorted({right.partition(":")[2] for right in rights if ":" in right} - {*galleries}):
            logger.warning("tokens have rights in a gallery %s, which this server does not have by that name", name)

    def _current(self) -> KnownTokens | None:
        if (state := self._read_state()) == self._state:
            return self._known
        was_sound, self._state = self._known is not None, state
        try:
            self._known = read_token_entries(self._file)
            if not was_sound:
                logger.warning("the file of tokens can be read again")
        except InputError as error:
            self._known = None
            logger.error("no token opens anything: %s", error)
        return self._known

    def _read_state(self) -> tuple[int, ...] | None:
        """Tells a changed file from the one before; None where it is missing."""
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode
