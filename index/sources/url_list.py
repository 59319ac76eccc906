"""Source of a list of web addresses: a table with a column `url`, as for img2dataset, or a text with one a line."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urljoin, urlsplit

from index.errors import ImageError, InputError
from index.items import FoundItem, ItemFields, Place
from index.network.public_addresses import as_written, check_web_address
from index.network.remote_store import FetchError, is_address, is_web, open_store
from index.sources.local_source import read_lines
from index.sources.remote import RemoteFileSource
from index.sources.source import ImageSource, Reach
from index.sources.table_rows import (
    TABLE_SUFFIXES,
    Row,
    TableColumns,
    first_rows,
    make_address,
    read_column_names,
    read_table_rows,
    split_address,
)
from index.text import printable_path
from index.threads import map_ahead

_TEXT_SUFFIXES = (".txt", ".lst")
_ASKED_AT_ONCE, _ASKED_AHEAD = 32, 128
_MAX_SHOWN = 200  # shown characters of an invalid address
logger = logging.getLogger(__name__)


class UrlListSource(ImageSource):
    """The images at the http and https addresses of a list, which may be a local or remote file."""

    kind: ClassVar[str] = "urls"
    reach = Reach.ANYWHERE

    @property
    def root(self) -> str:
        return ""

    @classmethod
    def find(cls, text: str) -> Self | None:
        """A list that has addresses by its columns, its first line or its name."""
        file, said = split_address(text)
        if "path" in said or not (is_address(file) or os.path.isfile(file)):
            return None
        if not ("url" in said or _has_addresses(file)):
            return None
        return cls(make_address(file if is_address(file) else os.path.abspath(file), _name_columns(said)))

    def is_there(self) -> bool:
        file = self._open()[0]
        return is_address(file) or os.path.exists(file)

    def find_files(self) -> Iterator[FoundItem]:
        """In the list's order; the first row of an address counts."""
        for address, where, row in first_rows(self._open()[0], self._rows(), _normalise):
            yield _describe(address, row, where=where)

    def check_changes(self, items: Iterable[tuple[FoundItem, bool]]) -> Iterator[FoundItem]:
        """Items with their known sizes and times; those with True are looked up by HEAD, if it answers."""
        unsure = 0
        with closing(map_ahead(_look_again, items, workers=_ASKED_AT_ONCE, ahead=_ASKED_AHEAD)) as found:
            for item, is_sure in found:
                unsure += not is_sure
                yield item
        if unsure:
            shown = printable_path(self.location)
            logger.warning(
                "%s: %d addresses did not answer whether they changed, and count as unchanged", shown, unsure
            )

    def locate(self, item: ItemFields) -> Place:
        return Place(Path(item.path), printable_path(item.path), store="", key=item.path)

    def _open(self) -> tuple[str, TableColumns]:
        file, said = split_address(self.location)
        return file, _name_columns(said)

    def _rows(self) -> Iterator[Row]:
        named, columns = self._open()
        shown = printable_path(named)
        try:
            file = RemoteFileSource(named).fetch() if is_address(named) else Path(named)
        except ImageError as error:
            raise InputError(error.detail, at=named) from error
        try:
            if file.suffix.lower() in _TEXT_SUFFIXES:
                lines = enumerate(read_lines(str(file)), start=1)
                yield from ((f"entry {number}", FoundItem(line, 0, 0)) for number, line in lines)
            else:
                yield from read_table_rows(file, columns=columns, checked=False)
        except InputError as error:
            raise InputError(str(error).replace(printable_path(file), shown)) from error


def _name_columns(said: Mapping[str, str]) -> TableColumns:
    return TableColumns(path=said.get("url", "url"), label=said.get("label", "label"), role="url")


def _look_again(asked: tuple[FoundItem, bool]) -> tuple[FoundItem, bool]:
    """An item, checked for a change where that is needed, and whether its server answered."""
    item, is_doubted = asked
    if not is_doubted:
        return item, True
    try:
        now = open_store("").look(item.path)
    except FetchError as error:
        if error.reason in (FetchError.NOT_FOUND, FetchError.NO_RIGHTS, FetchError.REFUSED):
            return replace(item, size_bytes=0, mtime_ns=0).with_problem(error.reason, error.detail), True
        return item, False
    if now.mtime_ns == item.mtime_ns != 0:
        return item, True
    # Changed, or its server gives neither ETag nor time: another time than before, so that it is read.
    return replace(item, size_bytes=now.size_bytes, mtime_ns=now.mtime_ns or item.mtime_ns + 1), True


def _has_addresses(file: str) -> bool:
    """Whether a list has addresses: a remote one always, a local one by its columns or first line."""
    suffix = os.path.splitext(file)[1].lower()
    if is_address(file):
        return suffix in (*_TEXT_SUFFIXES, *TABLE_SUFFIXES)
    if suffix in _TEXT_SUFFIXES:
        try:
            return is_web(next(iter(read_lines(file)), ""))
        except InputError:
            return False  # reading it as a list of paths reports the problem
    if suffix in (".tsv", ".jsonl"):
        return True
    names = read_column_names(Path(file)) if suffix in TABLE_SUFFIXES else []
    return "url" in names and "path" not in names


def _normalise(text: str) -> str:
    """An address with percent-encoding, and without `.`, `..` and fragment."""
    address = as_written(text.replace("\0", "%00"))
    try:
        parts = urlsplit(address)
        is_dotted = {".", ".."} & set(parts.path.split("/"))
        return (
            parts._replace(path=urlsplit(urljoin(address, parts.path)).path, fragment="").geturl()
            if (is_dotted or parts.fragment)
            else address
        )
    except ValueError:
        return address


def _describe(address: str, row: FoundItem, *, where: str) -> FoundItem:
    """A row as the item at an address; without a usable address it has a problem."""
    found = replace(row.at(address), label=row.label or None, metadata=row.metadata or None)
    try:
        check_web_address(address)
    except InputError as error:
        found = found.at(address[:_MAX_SHOWN] or where)
        return found if row.problem is not None else found.with_problem(FetchError.REFUSED, f"{where}: {error}")
    return found
