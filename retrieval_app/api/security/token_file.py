"""Tokens are added to a file, renewed and revoked: each change whole or not at all, one process after the other."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from index.durable import replacing, try_lock
from index.errors import InputError
from index.text import printable_path
from retrieval_app.api.security.rights import check_rights
from retrieval_app.api.security.token_entries import (
    MAX_BYTES,
    MAX_DAYS,
    MAX_TOKENS,
    TokenEntries,
    TokenEntry,
    check_name,
    read_entries,
    write_entries,
)

_BYTES = 32  # 256 bits
_PREFIX = "retrieval_"  # by which programs that look for leaked tokens find them
_WAIT_S, _LOOK_S = 10.0, 0.05
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def add_token(file: Path, name: str, *, may: Iterable[str], days: int | None = None) -> tuple[TokenEntry, str]:
    """Add a token to a file, which is made where there is none; what is kept of it, and the token, which is not.

    Raises:
        InputError: the name is taken or none, the rights or days are, or the file is damaged or cannot be written.
    """
    rights = check_rights(may)

    def add(entries: TokenEntries, fresh: str) -> TokenEntries:
        if entries.find(check_name(name)) is not None:
            raise InputError(
                f"there is a token of the name {name} already; rotate or revoke it, or choose another name"
            )
        if len(entries.entries) >= MAX_TOKENS:
            raise InputError(f"a file holds at most {MAX_TOKENS:,} tokens; revoke those that nobody uses")
        entry = TokenEntry(name, rights, entries.hash(fresh), _now(), _check_days(days))
        return replace(entries, entries=(*entries.entries, entry))

    return _change(file, name, add, may_make=True)


def rotate_token(file: Path, name: str, *, days: int | None = None) -> tuple[TokenEntry, str]:
    """Put a new token in the place of the one of a name, for `days` or as many as that had; else as `add_token`.

    Raises:
        InputError: there is none of the name; else as `add_token`.
    """

    def rotate(entries: TokenEntries, fresh: str) -> TokenEntries:
        before = _require(entries, name)
        lasts = before.days if days is None else _check_days(days)
        after = replace(before, sha256=entries.hash(fresh), made_at=_now(), days=lasts)
        return replace(entries, entries=tuple(after if one is before else one for one in entries.entries))

    return _change(file, name, rotate)


def revoke_token(file: Path, name: str) -> TokenEntry:
    """Take the token of a name out of a file; what was kept of it.

    Raises:
        InputError: as `rotate_token`.
    """
    gone: list[TokenEntry] = []

    def revoke(entries: TokenEntries, _: str) -> TokenEntries:
        gone.append(_require(entries, name))
        return replace(entries, entries=tuple(one for one in entries.entries if one.name != name))

    _change_file(file, revoke)
    return gone[0]


def read_token_entries(file: Path) -> TokenEntries:
    """All that a file keeps.

    Raises:
        InputError: it is missing, unreadable or damaged, or others may write to it and so add tokens of theirs.
    """
    with _named(file):
        return _read(file)


def _change(
    file: Path, name: str, change: Callable[[TokenEntries, str], TokenEntries], *, may_make: bool = False
) -> tuple[TokenEntry, str]:
    entries, token = _change_file(file, change, may_make=may_make)
    entry = entries.find(name)
    assert entry is not None
    return entry, token


def _change_file(
    file: Path, change: Callable[[TokenEntries, str], TokenEntries], *, may_make: bool = False
) -> tuple[TokenEntries, str]:
    """Change a file as a function says, which is given a new token too."""
    token, path = _PREFIX + secrets.token_urlsafe(_BYTES), Path(os.path.realpath(file))
    with _named(file):
        if not path.parent.is_dir():
            raise InputError("its folder does not exist; make it first")
    with _named(file), _alone(path.parent):
        is_new = may_make and not os.path.lexists(path)
        before = TokenEntries(secrets.token_hex(32)) if is_new else _read(path)
        after = change(before, token)
        content = write_entries(after)
        if len(content) > MAX_BYTES:
            raise InputError(
                f"the file would have {len(content):,} bytes, of at most {MAX_BYTES:,}: revoke tokens that nobody "
                "uses, or give rights in all galleries where they are the same"
            )
        with replacing(path, mode=0o600) as temporary:
            temporary.write_bytes(content)
    return after, token


def _read(path: Path) -> TokenEntries:
    with path.open("rb") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise InputError("it is no file")
        if mode & _WRITABLE_BY_OTHERS:
            raise InputError(
                "other users of this machine may write to it, and so add tokens of theirs: chmod 600 it"
            )
        return read_entries(opened.read(MAX_BYTES))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the file's folder, which leaves no file behind; it ends with the process, however that does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + _WAIT_S
        while not try_lock(descriptor):
            if time.monotonic() > end:
                problem = f"another process holds its folder since {_WAIT_S:g} seconds; stop it, and try again"
                raise InputError(problem)
            time.sleep(_LOOK_S)
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


def _require(entries: TokenEntries, name: str) -> TokenEntry:
    found = entries.find(name)
    if found is None:
        names = ", ".join(entry.name for entry in entries.entries[:10]) or "none"
        raise InputError(f"there is no token of the name {name[:80]!r}; those there are: {names}")
    return found


def _check_days(days: int | None) -> int | None:
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InputError(f"--days {days}: expected 1 to {MAX_DAYS:,}")
    return days


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
