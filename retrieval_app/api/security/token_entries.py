"""A file of tokens: names, rights, ends and hashes, of which each value is looked at.

A token is 256 random bits, so a plain SHA-256 keeps it: nobody tries so many. Slow hashes are for passwords, of which
people think of few; here one would let anybody keep the server busy with wrong tokens. The salt of the file lets a hash
be looked up in one step and makes those of two files differ.

    {"format": "retrieval-tokens", "format_version": 1, "salt": "9f…", "tokens": [
     {"name": "anna", "may": ["read", "review:shop"], "sha256": "3c…", "made_at": "2026-11-01T09:00:00+00:00",
      "days": 90}]}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from index.errors import InputError
from retrieval_app.api.security.rights import check_rights, spread_rights

MAX_TOKENS, MAX_DAYS = 1000, 3650
MAX_BYTES = 1 << 20
_FORMAT, _VERSION = "retrieval-tokens", 1
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._@+-]{0,63}")
_HEX = re.compile(r"[0-9a-f]{64}")


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
class TokenEntries:
    """All of a file; `salt` is 64 hexadecimal digits."""

    salt: str
    entries: tuple[TokenEntry, ...] = ()

    def hash(self, token: str) -> str:
        """What is kept of a token here."""
        return hashlib.sha256(self.salt.encode() + token.encode("utf-8", "surrogatepass")).hexdigest()

    def find(self, name: str) -> TokenEntry | None:
        """The entry of a name."""
        return next((entry for entry in self.entries if entry.name == name), None)


def check_name(name: str) -> str:
    """The name, if it may be one.

    Raises:
        InputError: it may not: it goes into logs and tables.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name[:80]!r} is no name of a token: expected 1 to 64 letters and digits of ASCII and . _ @ + -, "
            "of which the first is a letter or digit, such as anna or anna@example.org"
        )
    return name


def write_entries(entries: TokenEntries) -> bytes:
    """The content of a file."""
    listed = [
        {
            "name": entry.name,
            "may": list(entry.may),
            "sha256": entry.sha256,
            "made_at": entry.made_at.isoformat(timespec="seconds"),
            "days": entry.days,
        }
        for entry in entries.entries
    ]
    document = {"format": _FORMAT, "format_version": _VERSION, "salt": entries.salt, "tokens": listed}
    return json.dumps(document, indent=1).encode() + b"\n"


def read_entries(content: bytes) -> TokenEntries:
    """What a file holds.

    Raises:
        InputError: it is no such file, or not all of it is sound: then nothing of it holds.
    """
    try:
        document = json.loads(content)
        if document["format"] != _FORMAT or document["format_version"] != _VERSION:
            raise ValueError("another format, or a version that this program does not know")
        entries = TokenEntries(_hex(document["salt"]), tuple(map(_read_entry, document["tokens"])))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, InputError) as error:
        raise InputError(f"no file of tokens, or a damaged one: {type(error).__name__}: {error}") from error
    names, hashes = ({getattr(entry, what) for entry in entries.entries} for what in ("name", "sha256"))
    if not len(names) == len(hashes) == len(entries.entries) <= MAX_TOKENS:
        raise InputError(f"a damaged file of tokens: names occur twice, or there are more than {MAX_TOKENS:,}")
    return entries


def _read_entry(values: Any) -> TokenEntry:
    made_at, days, may = datetime.fromisoformat(values["made_at"]), values["days"], values["may"]
    if made_at.tzinfo is None:
        raise ValueError("a time without its zone")
    if not isinstance(may, list) or not all(isinstance(text, str) for text in (values["name"], *may)):
        raise TypeError("expected a name, and a list of rights")
    if days is not None and (isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= MAX_DAYS):
        raise ValueError(f"days are 1 to {MAX_DAYS:,} or none")
    name = check_name(values["name"])
    return TokenEntry(name, check_rights(may), _hex(values["sha256"]), made_at.astimezone(UTC), days)


def _hex(value: Any) -> str:
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise ValueError("expected 64 hexadecimal digits")
    return value
