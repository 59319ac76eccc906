"""The token of a server: what it may be, where it is kept, and a new one."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from index.errors import InputError
from index.text import printable_path

MIN_CHARACTERS, MAX_CHARACTERS = 16, 512
_TOKEN = re.compile(rf"[!-~]{{{MIN_CHARACTERS},{MAX_CHARACTERS}}}")
_BYTES = 16  # 128 bits
_MAX_FILE_BYTES = 4096
_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_hex(_BYTES)


def check_token(text: str) -> None:
    """Raise InputError where a text is too easily guessed, or no header can carry it."""
    if not _TOKEN.fullmatch(text):
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
            content = file.read(_MAX_FILE_BYTES)
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
    return bool(path.stat().st_mode & _FOR_OTHERS)


def _write_new(path: Path) -> str:
    token = make_token()
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    return token
