"""The command `retrieval index tidy`, and the options and answers of commands that move image files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import PATH, Command, emit, output_options, progress_bars
from index.text import command_line, count_images, printable_path

if TYPE_CHECKING:
    from index.gallery.gallery import Gallery
    from index.writing.tidy import Moves

_EXAMPLES = 10


def move_options(command: Command) -> Command:
    """Add `--move-to`, `--trash` and `--yes`."""
    command = click.option("--yes", is_flag=True, help="Move without asking.")(command)
    command = click.option("--trash", is_flag=True, help="Move them to the trash (extra `trash`).")(command)
    return click.option(
        "--move-to", type=PATH, metavar="FOLDER", help="Move them to this folder, below which their folders stay."
    )(command)


def offer_moves(
    gallery: Gallery,
    wanted: Mapping[int, Collection[int]],
    *,
    move_to: Path | None,
    yes: bool,
    before: Callable[[], object] = lambda: None,
) -> tuple[dict[str, Any], str]:
    """Show what would move, ask, and move it, to the trash without a folder; the result as JSON and text.

    Args:
        wanted: ids of images, with those of the kept images of each.
        before: called before the first move.
    """
    from index.writing.tidy import JOURNAL, check_folder_of_moves, move_images, plan_moves, undo_command

    moves = plan_moves(gallery, wanted)
    if move_to is not None:
        check_folder_of_moves(move_to, gallery, moves)
    folder = None if move_to is None else move_to.resolve()
    place = "the trash" if folder is None else printable_path(folder)
    lines = [f"{moves.describe()} would move to {place}"]
    lines += [f"  {move.place.name}" for move in moves.files[:_EXAMPLES]]
    lines += [f"  … and {len(moves.files) - _EXAMPLES:,} more"] if len(moves.files) > _EXAMPLES else []
    lines += _describe_staying(moves)
    if moves.files and not yes and sys.stdin.isatty():
        click.echo("\n".join(lines), err=True)
        yes = click.confirm("Move them?", err=True)
    if not moves.files or not yes:
        lines += ["nothing was moved; --yes moves them"] if moves.files else []
        return _to_json(moves, moved=False), "\n".join(lines)
    before()
    journal = gallery.path.parent / f"{gallery.name}-{JOURNAL}" if folder is None else folder / JOURNAL
    with progress_bars() as begin:
        done = move_images(moves, folder=folder, journal=journal, progress=begin("Moving", unit="images"))
    undo, update = undo_command(journal), command_line("update", gallery.path)
    lines = [f"{done.describe()} moved to {place}", *_describe_staying(done)]
    lines += [f"bring them back: {undo}", f"update the gallery: {update}"]
    return {**_to_json(done, moved=True), "journal": str(journal), "undo": undo, "update": update}, "\n".join(lines)


def _describe_staying(moves: Moves) -> list[str]:
    return [f"{count_images(count)} not to be moved: {reason}" for reason, count in moves.reasons.items()]


def _to_json(moves: Moves, *, moved: bool) -> dict[str, Any]:
    staying = [{"path": path, "reason": reason} for path, reason in moves.staying]
    paths = [move.place.name for move in moves.files]
    return {"moved": moved, "images": len(paths), "bytes": moves.size_bytes, "paths": paths, "staying": staying}


@click.command(name="tidy")
@click.argument("gallery", type=PATH, required=False)
@click.option("--dropped", is_flag=True, help="The images that decisions about labels drop.")
@move_options
@click.option("--undo", type=PATH, metavar="FILE", help="Bring back all images that this moved.jsonl lists.")
@output_options
def tidy(
    *,
    gallery: Path | None,
    dropped: bool,
    move_to: Path | None,
    trash: bool,
    yes: bool,
    undo: Path | None,
    as_json: bool,
) -> None:
    """Move the dropped images of a gallery out of its sources, to a folder or the trash.

    It shows what would move, and asks; without a terminal only --yes moves anything. Files are moved, never deleted.
    Those that changed since they were indexed stay. FOLDER/moved.jsonl lists every move (with --trash
    GALLERY-moved.jsonl beside the gallery), and --undo brings the images back, also after a killed command.
    `retrieval duplicates GALLERY --move-to FOLDER` moves redundant copies.

    \b
    Examples:
      retrieval index tidy gallery --dropped --move-to dropped-photos
      retrieval index tidy gallery --dropped --trash --yes
      retrieval index tidy --undo dropped-photos/moved.jsonl
    """
    from index.gallery.gallery import Gallery
    from index.writing.tidy import find_dropped, undo_moves

    if undo is not None:
        if gallery is not None or dropped or move_to or trash:
            raise click.UsageError("--undo FILE goes alone: the file says what comes back, and where to")
        with progress_bars() as begin:
            restored, staying = undo_moves(undo, progress=begin("Bringing back", unit="images"))
        lines = [f"{count_images(restored)} brought back", *(f"{path}: {reason}" for path, reason in staying)]
        lines += ["update their gallery: retrieval index update GALLERY"] if restored else []
        left = [{"path": path, "reason": reason} for path, reason in staying]
        emit({"restored": restored, "staying": left}, as_json=as_json, text="\n".join(lines))
        return
    if gallery is None or not dropped:
        raise click.UsageError("give GALLERY and --dropped, or --undo FILE")
    check_target(move_to, trash=trash)
    opened = Gallery.open(gallery)
    document, text = offer_moves(opened, find_dropped(opened), move_to=move_to, yes=yes)
    emit(document, as_json=as_json, text=text)


def check_target(move_to: Path | None, *, trash: bool) -> None:
    if trash == (move_to is not None):
        raise click.UsageError("give --move-to FOLDER or --trash, one of them")
