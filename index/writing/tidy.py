"""Image files moved out of their sources to a folder or the trash, durably, and brought back.

Nothing is deleted or replaced. Each move is listed in a journal before it is made, so that all are undone after a kill.
"""

import errno
import json
import os
import shlex
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, Any

from index.catalog.rows import CatalogRow
from index.durable import NO_LINKS, hash_file, replacing, sync_path
from index.errors import ImageError, InputError, RetrievalError, missing_imports_as_dependency_errors, reading
from index.gallery.gallery import Gallery
from index.items import Place
from index.labels.decided_labels import read_label_probabilities
from index.labels.decisions import DROP
from index.paths import names_no_parent
from index.progress import Progress, no_progress
from index.sources.local_source import GlobSource, ListSource, find_folder_around, matches_pattern
from index.sources.reading import read_indexed
from index.text import count_images, printable_path, show_bytes

JOURNAL = "moved.jsonl"
Staying = tuple[str, str]
"""Printable path of a file that stays where it is, and the reason."""


@dataclass(frozen=True, slots=True)
class Move:
    """An image file to move to the path `below` a folder, while the places of its kept copies have their bytes."""

    id: int
    place: Place
    below: str
    size_bytes: int
    kept: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Moves:
    """Moves that are planned, or that were made, and the files that stay."""

    files: tuple[Move, ...]
    staying: tuple[Staying, ...]

    @cached_property
    def size_bytes(self) -> int:
        return sum(move.size_bytes for move in self.files)

    @cached_property
    def reasons(self) -> dict[str, int]:
        """Numbers of files that stay, by reason, the most frequent first."""
        return dict(Counter(reason for _, reason in self.staying).most_common())

    def describe(self) -> str:
        return f"{count_images(len(self.files))}, {show_bytes(self.size_bytes)}"


def find_dropped(gallery: Gallery) -> dict[int, tuple[int, ...]]:
    """Ids of the images whose labels' decision is `drop`, as `plan_moves` takes them."""
    decisions = read_label_probabilities(gallery.path).decisions
    dropped = {key for key, one in decisions.items() if one.decision == DROP}
    with gallery.without_decisions.catalog() as catalog:
        found = catalog.find_contents({sha256 for sha256, _ in dropped})
        return {number: () for number, *key in found if tuple(key) in dropped}


def check_folder_of_moves(folder: Path, gallery: Gallery, moves: Moves) -> None:
    """Refuse a folder in which the gallery would index the moved images again."""
    real, sources = folder.resolve(), gallery.sources.values()
    around = find_folder_around(folder, gallery.path, sources)
    for source in sources:
        if os.path.isabs(source.root) and Path(source.root).is_relative_to(real):
            around = Path(source.root)
        elif isinstance(source, GlobSource):
            parts = source.location.split("/")
            if any(matches_pattern(str(real / move.below), parts) for move in moves.files):
                around = Path(source.location)
        elif isinstance(source, ListSource) and source.is_there():
            listed = {os.path.realpath(path) if os.path.isdir(path) else path for path in source.find_paths()}
            targets = (real, *(real / move.below for move in moves.files))
            if named := {str(one) for target in targets for one in (target, *target.parents)} & listed:
                around = Path(min(named))
    if around is not None:
        advice = "moved images would be indexed again: choose a folder beside it"
        raise InputError(f"lies inside or around {printable_path(around)}, where images are; {advice}", at=folder)


def plan_moves(gallery: Gallery, wanted: Mapping[int, Collection[int]]) -> Moves:
    """Moves of images by id, with the ids of the kept images of each; its file must be its own, on this disk."""
    with gallery.without_decisions.catalog() as catalog:
        rows = {row.id: row for row in catalog.rows_of({*wanted, *chain.from_iterable(wanted.values())})}
        contents = {row.sha256 for number, row in rows.items() if number in wanted and row.sha256}
        rows |= {row.id: row for row in catalog.rows_of([found[0] for found in catalog.find_contents(contents)])}
        uploads = catalog.added_source()
    places, problems = dict[int, Place](), dict[int, str]()
    for number, row in rows.items():
        try:
            places[number] = gallery.place_of(row)
        except InputError:
            problems[number] = "it is not there any more"
        else:
            if number in wanted and (problem := _refuse(row, places[number], uploads)):
                problems[number] = problem
    stay = {_identify(place) for number, place in places.items() if number not in wanted or number in problems}
    several = len({source.root for source in gallery.sources.values()}) > 1
    moves, staying = list[Move](), list[Staying]()
    for number, kept in wanted.items():
        row, root = rows[number], gallery.sources[rows[number].source].root
        problem = problems.get(number)
        if problem is None and _identify(places[number]) in stay:
            problem = "it is the same file as an image that stays (a link)"
        elif problem is None and not all(one in places for one in kept):
            problem = "its kept copy is not there any more"
        elif problem is None and any(one in wanted and one not in problems for one in kept):
            problem = "its kept copy is to be moved too"
        if problem is not None:
            staying.append((printable_path(os.path.join(root, row.path)), problem))
            continue
        below = os.path.join(os.path.basename(root) if several else "", row.path.lstrip("/"))
        moves.append(Move(number, places[number], below, row.size_bytes, tuple(places[one] for one in kept)))
    return Moves(tuple(moves), tuple(staying))


def _identify(place: Place) -> tuple[int, int] | None:
    """Device and inode of a local file, by which links to it are found; None for other places."""
    if place.store is not None or place.offset is not None:
        return None
    with suppress(OSError):
        status = place.file.stat()
        return status.st_dev, status.st_ino
    return None


def _refuse(row: CatalogRow, place: Place, uploads: int | None) -> str | None:
    """Why the file of an image cannot be moved; None where it can."""
    if place.store is not None:
        return "it is at an address, not on this machine"
    if row.archive is not None:
        return "it is inside an archive or a table"
    if row.source == uploads:
        return "it was uploaded to the gallery (retrieval index remove takes it out)"
    if place.file.is_symlink():
        return "it is a symbolic link"
    if not os.access(place.file.parent, os.W_OK | os.X_OK):
        return "its folder is read-only"
    return None


def move_images(moves: Moves, *, folder: Path | None, journal: Path, progress: Progress = no_progress) -> Moves:
    """Move files to a folder, or without one to the trash; returns the moves that were made and all that stays.

    The bytes of each file and of its kept copies are checked just before. A full disk stops with an InputError. Where
    `progress` raises a RetrievalError, the remaining files stay, and its text is the reason.
    """
    trash: Callable[[Path], object] | None = None
    if folder is None:
        with missing_imports_as_dependency_errors("moving images to the trash"):
            from send2trash import send2trash
        trash = send2trash
    done, staying = list[Move](), list(moves.staying)
    with _open_journal(journal) as (file, known):
        for number, move in enumerate(moves.files, start=1):
            target = None if folder is None else folder / move.below
            try:
                problem = _check_bytes(move) or _move_listed(move, target, file=file, known=known, trash=trash)
            except (FileExistsError, FileNotFoundError, PermissionError) as error:
                problem = error.strerror or str(error)
            except OSError as error:
                raise InputError(
                    f"it could not be moved: {error.strerror or error}; nothing is lost, {count_images(len(done))} "
                    f"moved before. Make room and run it again, or bring all back: {undo_command(journal)}",
                    at=move.place.file,
                ) from error
            if problem is None:
                done.append(move)
            else:
                staying.append((move.place.name, problem))
            try:
                progress(number, len(moves.files))
            except RetrievalError as error:
                staying += [(left.place.name, str(error)) for left in moves.files[number:]]
                break
    return Moves(tuple(done), tuple(staying))


def undo_command(journal: Path) -> str:
    """The command that brings back what a journal lists."""
    return printable_path(shlex.join(["retrieval", "index", "tidy", "--undo", str(journal)]))


def _check_bytes(move: Move) -> str | None:
    """Why a file is not what was indexed, or its kept copies are not; None where all are."""
    for place in (*move.kept, move.place):
        try:
            read_indexed(place)
        except ImageError as error:
            return f"{'it' if place is move.place else 'its kept copy'} is missing or changed ({error.reason})"
    return None


def _move_listed(
    move: Move,
    target: Path | None,
    *,
    file: IO[bytes],
    known: Collection[bytes],
    trash: Callable[[Path], object] | None,
) -> str | None:
    """List a move and make it; why it was not made, where another file has its name."""
    source, sha256 = move.place.file, move.place.sha256
    entry = {"from": str(source), "to": target and move.below, "sha256": sha256, "size_bytes": move.size_bytes}
    line = json.dumps(entry).encode() + b"\n"
    if target is not None and os.path.lexists(target):
        if line not in known or not _are_two(source, target) or hash_file(target) != sha256:
            return "the folder has another file of this name"
        source.unlink()  # a killed move had made both
        return None
    if file.write(line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file.fileno())
    if target is not None:
        _make_folder(target.parent)
        move_file(source, target)
    elif trash is not None:
        trash(source)
    return None


def _are_two(path: Path, other: Path) -> bool:
    """Whether one of two files stays when the other one is removed."""
    one, two = path.lstat(), other.lstat()
    is_same = os.path.realpath(path) == os.path.realpath(other)  # through a link
    return not is_same and (not os.path.samestat(one, two) or one.st_nlink > 1)


def move_file(source: Path, target: Path) -> None:
    """Move a file durably, also to another file system, where its copy is checked; an existing target is an error."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.EXDEV:
            with replacing(target, only_new=True) as temporary:
                shutil.copy2(source, temporary)
                if hash_file(temporary) != hash_file(source):
                    raise OSError(errno.EIO, "the copy differs from the file") from error
        elif error.errno not in NO_LINKS:
            raise
        elif os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        else:
            source.rename(target)
            sync_path(target.parent)
            return
    sync_path(target.parent)
    try:
        source.unlink()
    except OSError:
        target.unlink()
        raise


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it durably."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
        sync_path(folder.parent)


@contextmanager
def _open_journal(path: Path) -> Iterator[tuple[IO[bytes], set[bytes]]]:
    """The journal, open at its end, and the lines in it; a line that a kill cut off is removed."""
    try:
        _make_folder(path.parent)
        with path.open("a+b", buffering=0) as file:
            file.seek(0)
            *lines, cut = file.read().split(b"\n")
            if cut:
                file.truncate(sum(map(len, lines)) + len(lines))
            sync_path(path.parent)
            yield file, {line + b"\n" for line in lines}
    except OSError as error:
        raise InputError(f"the list of moves cannot be written: {error.strerror or error}", at=path) from error


def undo_moves(journal: Path, *, progress: Progress = no_progress) -> tuple[int, list[Staying]]:
    """Bring back all files that a journal lists; the number of them, and those that cannot come back.

    Nothing is replaced, and files that are back already stay, so that it can be run again.
    """
    entries, staying = _read_journal(journal)
    trash = _list_trash([Path(entry["from"]) for entry in entries if entry["to"] is None])
    restored = 0
    for number, entry in enumerate(reversed(entries), start=1):
        source, moved = Path(entry["from"]), None if entry["to"] is None else journal.parent / entry["to"]
        was_gone = not os.path.lexists(source)
        if moved is None and was_gone:
            alike = (path for path in trash.get(entry["size_bytes"], ()) if path.is_file())
            moved = next((path for path in alike if hash_file(path) == entry["sha256"]), None)
        try:
            problem = _bring_back(source, moved, sha256=entry["sha256"])
        except OSError as error:
            done = f"{count_images(restored)} came back before; run the same command again"
            raise InputError(f"it cannot come back: {error.strerror or error}; {done}", at=source) from error
        restored += was_gone and problem is None
        if problem is not None:
            staying.append((printable_path(source), problem))
        elif moved is not None and entry["to"] is not None:
            with suppress(OSError):
                os.removedirs(moved.parent)  # up to the folder with the journal
        elif moved is not None:
            (moved.parent.parent / "info" / f"{moved.name}.trashinfo").unlink(missing_ok=True)
        progress(number, len(entries))
    return restored, staying


def _bring_back(source: Path, moved: Path | None, *, sha256: str) -> str | None:
    """Why a file cannot come back; None where it is there."""
    if moved is None or not moved.is_file():
        return None if os.path.lexists(source) else "it is neither there nor where it was moved to"
    if not os.path.lexists(source):
        if hash_file(moved) != sha256:
            return f"another file is there now; it stays as {printable_path(moved)}"
        _make_folder(source.parent)
        move_file(moved, source)
    elif not _are_two(source, moved) or not source.is_file() or not sha256 == hash_file(source) == hash_file(moved):
        return f"another file is there now; it stays as {printable_path(moved)}"
    else:
        moved.unlink()  # a killed move had made both
    return None


def _read_journal(path: Path) -> tuple[list[dict[str, Any]], list[Staying]]:
    """The moves that a journal lists, and its lines that cannot be read; a file with no other lines is refused."""
    entries, unread = list[dict[str, Any]](), list[int]()
    with reading(path):
        lines = path.read_bytes().split(b"\n")[:-1]  # without one that a kill cut off
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            above, below = entry["from"], entry["to"] or ""
            is_valid = os.path.isabs(above) and not os.path.isabs(below) and names_no_parent(below)
            is_valid = is_valid and isinstance(entry["sha256"], str) and isinstance(entry["size_bytes"], int)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            is_valid = False
        if is_valid:
            entries.append(entry)
        else:
            unread.append(number)
    if unread and not entries:
        problem = f"expected a list of moved images, {JOURNAL}, as the command that moved them wrote it"
        raise InputError(problem, at=path, where=f"line {unread[0]}")
    return entries, [(printable_path(path), f"line {number} cannot be read") for number in unread]


def _list_trash(sources: Collection[Path]) -> dict[int, list[Path]]:
    """Files in the user's folders of the trash, by size: freedesktop's and that of macOS."""
    if not sources:
        return {}
    mounts = {next(above for above in path.parents if os.path.ismount(above)) for path in sources}
    home, user = Path.home(), str(os.getuid())
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    folders = [data / "Trash" / "files", home / ".Trash"]
    folders += [mount / name / "files" for mount in mounts for name in (f".Trash/{user}", f".Trash-{user}")]
    found = defaultdict[int, list[Path]](list)
    for folder in folders:
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.is_file() and not path.is_symlink():
                    found[path.stat().st_size].append(path)
    return found
