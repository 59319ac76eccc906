"""Reading the lists that come with a benchmark's official download."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from index.errors import InputError
from index.text import printable_path

LOOKED_FOR = 16  # listed images that are tried before saying that nothing was unpacked


def find_download(root: Path, *, tops: Sequence[str], marker: str, archive: str) -> Path:
    """The absolute folder that holds the file `marker`: `root` itself, or one of the archive's top folders in it.

    Raises:
        InputError: it is in none of them.
    """
    for folder in (root, *(root / top for top in tops)):
        if (folder / marker).is_file():
            return folder.resolve()
    raise InputError(
        f"{printable_path(str(root / marker))}: no such file; {archive} has it as "
        f"{'/'.join([*tops[:1], marker])}: name the folder that it was unpacked in"
    )


def read_lines(path: Path, *, archive: str) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, without their ends, numbered from 1.

    Bytes that are no UTF-8 are kept as in file names, because most of what is listed are file names.

    Raises:
        InputError: the file is missing, cannot be read, or is no text.
    """
    shown = printable_path(str(path))
    if not path.is_file():
        raise InputError(f"{shown}: no such file; it comes with {archive}")
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, start=1):
                if "\0" in line:
                    raise InputError(f"{shown}, line {number}: no text; unpack {archive} again")
                if text := line.strip():
                    yield number, text
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror}") from error


def read_rows(
    path: Path, kinds: tuple[type, ...], *, form: str, archive: str, header: bool = False
) -> Iterator[tuple[Any, ...]]:
    """The columns of every line, converted to `kinds`; columns are parted by white space.

    Args:
        form: what a line looks like, for the message; the first line itself where there is a header.

    Raises:
        InputError: as `read_lines`, or a line that has not these columns.
    """
    for row, (number, line) in enumerate(read_lines(path, archive=archive)):
        columns = line.split()
        if header and row == 0:
            if columns != form.split():
                raise wrong_line(path, number, line, form=f"the header `{form}`")
            continue
        try:
            yield tuple(kind(column) for kind, column in zip(kinds, columns, strict=True))
        except ValueError as error:
            raise wrong_line(path, number, line, form=f"`{form}`") from error


def wrong_line(path: Path, number: int, line: str, *, form: str) -> InputError:
    """The error for a line that is not of the form expected."""
    seen = printable_path(line if len(line) <= 80 else line[:80] + "…")
    return InputError(f"{printable_path(str(path))}, line {number}: expected {form}, found `{seen}`")


def locate_images(folder: Path, *, places: Sequence[str], names: Sequence[str], archive: str) -> Path:
    """The first of `places` below `folder` that has one of some of the listed images; any, where none is listed.

    Only a few names, spread over the list, are tried: what else is missing is found out when images are read.

    Raises:
        InputError: none of them is there.
    """
    tried = names[:: -(-len(names) // LOOKED_FOR) or 1]
    for place in places:
        if not tried or any((folder / place / name).is_file() for name in tried):
            return folder / place
    raise InputError(
        f"{printable_path(str(folder))}: the images are not unpacked; of {len(tried)} listed images that were looked "
        f"for there is none, the first is {printable_path(str(Path(places[0], tried[0])))}; unpack {archive}"
    )
