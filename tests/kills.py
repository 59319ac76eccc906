"""Kill the commands that write a gallery at random moments; run again, they end as if nothing had happened.

    python -m tests.kills --kills 200 --seed 0

A scenario is a row of commands on sources that change in between. Every command runs once undisturbed, on a gallery of
its own; then on the twin, killed once or more, half of the times after a random time and half at a random step (a file
opened, renamed, synced, an SQL statement), and run again until it ends. After every kill the lock is free, no process
is left, and a reader finds the version before or the one after, whole. At the end the twins are equal: the same rows
with the same ids, the same vectors, bit for bit.
"""

import ctypes
import io
import os
import pickle
import random
import re
import select
import shutil
import signal
import sqlite3
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from index.catalog.reader import read_catalog
from index.catalog.rows import CatalogRow
from index.duplicates.duplicate_config import LIMITS_SETTING
from index.durable import is_temporary
from index.errors import RetrievalError
from index.faiss_library import import_faiss
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.gallery.verify import verify_gallery
from index.sources.source import ImageSource
from index.vectors import ann_building as index_choice
from index.vectors.ann_config import INDEX_SETTING
from index.versions.gallery_identity import lock_gallery
from index.versions.manifest import CATALOG_NAME
from index.versions.versions import find_version, read_current
from index.writing.build import add_to_gallery, build_gallery, remove_from_gallery, update_gallery
from index.writing.build_config import BuildConfig
from index.writing.copying import tune_gallery
from tests.conftest import draw_image
from tests.models import write_tiny_model, write_two_output_model

COLOURS = ((40, 60, 220), (30, 190, 60), (220, 40, 40), (200, 200, 40))
COMMANDS_PER_SCENARIO = 8
ATTEMPTS_PER_COMMAND = 3
INDEXED_IMAGES = 20  # enough here for an index that is no scan
MISMATCHES_ENOUGH = 10
ORPHANS_END_S = 20.0
_PR_SET_CHILD_SUBREAPER = 36
_FILE_EVENTS = {"open", "os.rename", "os.link", "os.mkdir", "os.truncate", "shutil.copyfile", "shutil.rmtree"}
_REMOVALS = {"os.remove", "os.rmdir"}  # named by a folder's descriptor and a bare name
_INDEX_FIELDS = ("type", "factory", "reason", "shards", "index_type", "recall_target", "memory_limit")
_WRITING = ("BEGIN", "COMMIT", "UPDATE", "DELETE", "INSERT", "CREATE", "DROP", "PRAGMA", "VACUUM")
_SCANNED = ("INSERT INTO found", "INSERT INTO rescanned")  # as many as there are files, and all in one transaction


class ChangingSources:
    """A folder, a tar and a zip of drawn images, junk and duplicates, that change at random."""

    def __init__(self, place: Path, *, random: random.Random) -> None:
        self.place, self.random, self.drawn = place, random, 0
        self.folder = place / "images"
        self.paths, self.added = [self.folder, place / "more.tar", place / "more.zip"], list[Path]()
        for name in ("a", "b", "c/d"):
            (self.folder / name).mkdir(parents=True)
        for _ in range(24):
            self._new()
        for _ in range(8):
            self._copy()
        for number, junk in enumerate((b"", b"<html>", self._draw()[:300], b"\xff\xd8\xff" + bytes(50))):
            (self.folder / "b" / f"junk{number}.jpg").write_bytes(junk)
        (self.folder / "a" / "nowhere.jpg").symlink_to("gone.jpg")
        self._pack(self.paths[1])
        self._pack(self.paths[2])

    def change(self, count: int) -> None:
        steps = (self._new, self._copy, self._rewrite, self._delete, self._rename, self._touch, self._swap_archive)
        for _ in range(count):
            self.random.choice(steps)()

    def add(self) -> Path:
        """Make a new source: a folder, an archive or an image."""
        self.drawn += 1
        path = self.place / f"added{self.drawn}{self.random.choice(('', '.tar', '.zip', '.png'))}"
        if path.suffix == ".png":
            path.write_bytes(self._draw())
        elif path.suffix:
            self._pack(path)
        else:
            path.mkdir()
            for number in range(3):
                (path / f"{number}.png").write_bytes(self._draw())
            shutil.copy(self._any(), path / "copy.png")
        self.paths.append(path)
        self.added.append(path)
        return path

    def forget(self) -> Path:
        """A source that was added, which is none any more; its files stay."""
        path = self.added.pop(self.random.randrange(len(self.added)))
        self.paths.remove(path)
        return path

    def move(self) -> tuple[Path, Path]:
        """Move the folder; its old place and its new one."""
        old = self.folder
        self.drawn += 1
        self.folder = old.rename(self.place / f"images{self.drawn}")
        self.paths[0] = self.folder
        return old, self.folder

    def _any(self) -> Path:
        return self.random.choice(sorted(p for p in self.folder.rglob("*.*") if p.is_file()))

    def _free(self) -> Path:
        self.drawn += 1
        suffix = self.random.choice((".png", ".jpg"))
        return self.folder / self.random.choice(("a", "b", "c", "c/d")) / f"{self.drawn}{suffix}"

    def _draw(self) -> bytes:
        self.drawn += 1
        stream = io.BytesIO()
        draw_image(self.random.choice(COLOURS), seed=self.drawn, size=(40, 40)).save(stream, "png")
        return stream.getvalue()

    def _new(self) -> None:
        self._free().write_bytes(self._draw())

    def _copy(self) -> None:
        shutil.copyfile(self._any(), self._free())

    def _rewrite(self) -> None:
        self._any().write_bytes(self._draw())

    def _delete(self) -> None:
        self._any().unlink()

    def _rename(self) -> None:
        self._any().rename(self._free())

    def _touch(self) -> None:
        os.utime(self._any())

    def _swap_archive(self) -> None:
        self._pack(self.random.choice(self.paths[1:3]))

    def _pack(self, path: Path) -> None:
        """Write an archive of new images, and of one that it had or the folder has."""
        images = [self._draw() for _ in range(3)] + [self._any().read_bytes(), b"junk"]
        if path.suffix == ".tar":
            with tarfile.open(path, "w") as tar:
                for number, data in enumerate(images):
                    info = tarfile.TarInfo(f"x/{number}.png")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for number, data in enumerate(images):
                    archive.writestr(f"x/{number}.png", data)


@dataclass(frozen=True, slots=True)
class Command:
    """A command by name, as it was given (for the report), and what it does to a gallery."""

    name: str
    given: str
    run: Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill: after so many seconds, or at the so-manieth step of a kind."""

    seconds: float | None = None
    step: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended that was not killed: the message of an error or None, its steps by kind, its duration."""

    error: str | None
    steps: Counter[str]
    seconds: float


@dataclass(frozen=True, slots=True)
class State:
    """All that counts of a gallery's current version; `vectors` are those of all outputs."""

    rows: list[CatalogRow]
    vectors: dict[int, bytes]
    sources: list[ImageSource]
    settings: dict[str, str | None]
    index: dict[str, object]
    problems: list[str]

    def differences(self, other: "State") -> list[str]:
        found = list(self.problems)
        for name in ("sources", "settings", "index"):
            if getattr(self, name) != getattr(other, name):
                found.append(f"{name} {getattr(self, name)}, expected {getattr(other, name)}")
        found += [f"not expected: {_shorten(row)}" for row in self.rows if row not in other.rows]
        found += [f"missing: {_shorten(row)}" for row in other.rows if row not in self.rows]
        wrong = [key for key in self.vectors if self.vectors[key] != other.vectors.get(key)]
        return found + ([f"vectors of the ids {wrong} differ"] if wrong else [])


def _shorten(row: CatalogRow) -> str:
    sha256 = None if row.sha256 is None else row.sha256[:8]
    return f"{row.id} {row.source} {row.path} {row.size_bytes} {sha256} {row.status} {row.reason} {row.kept_id}"


def read_state(gallery: Path) -> State | None:
    """The current version, opened, searched and verified; None where there is none."""
    if not gallery.is_dir() or read_current(gallery) is None:
        return None
    opened = Gallery.open(gallery)
    vectors: dict[int, bytes] = dict.fromkeys(map(int, opened.ids), b"")
    problems = verify_gallery(gallery, sample=0).problems
    for output in opened.manifest.outputs:
        asked = opened.view(output)
        own = {key: asked.vector(key) for key in vectors}
        for key, vector in list(own.items())[:3]:
            if own[asked.search(vector, k=1)[0].id].tobytes() != vector.tobytes():
                problems.append(f"a search by {output} with the vector of {key} finds another image first")
        vectors = {key: so_far + own[key].tobytes() for key, so_far in vectors.items()}
    with read_catalog(find_version(gallery).folder / CATALOG_NAME) as catalog:
        sources = catalog.sources()
        order = {number: position for position, number in enumerate(sources)}  # numbers may leave gaps
        rows = [replace(row, source=order[row.source]) for row in catalog.rows()]
        settings = {
            name: catalog.setting(name)
            for name in ("dedup", "min_similarity", "max_hash_distance", LIMITS_SETTING, "labels", INDEX_SETTING)
        }
    described = opened.manifest.index
    return State(
        rows, vectors, list(sources.values()), settings, {name: described[name] for name in _INDEX_FIELDS}, problems
    )


class _Steps:
    """Counts the steps of a command in its own process, by kind, and kills it at one of them."""

    def __init__(self, gallery: Path, *, fatal: tuple[str, int] | None) -> None:
        self.counts, self._fatal, self._gallery = Counter[str](), fatal, str(gallery)
        sync, connect = os.fsync, sqlite3.connect

        def counted_sync(descriptor: int) -> None:
            self.step("sync", os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        def traced_connect(*args: object, **options: object) -> sqlite3.Connection:
            connection = connect(*args, **options)
            connection.set_trace_callback(self._hear_statement)
            return connection

        os.fsync, sqlite3.connect = counted_sync, traced_connect
        sys.addaudithook(self._hear)

    def step(self, event: str, path: str) -> None:
        name = os.path.basename(path)
        kind = f"{event} {'a temporary' if is_temporary(name) else re.sub('[0-9]+', '#', name)}"
        self.counts[kind] += 1
        if (kind, self.counts[kind]) == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def _hear(self, event: str, values: tuple[object, ...]) -> None:
        if event in _REMOVALS or (event in _FILE_EVENTS and str(values[0]).startswith(self._gallery)):
            self.step(event, str(values[0]))

    def _hear_statement(self, statement: str) -> None:
        if statement.startswith(_WRITING) and not statement.startswith(_SCANNED):
            self.step("sql", " ".join(statement.split()[:3]))


def run_forked(function: Callable[[], object], *, seconds: float | None = None) -> object:
    """What a function returns in a process of its own, which is killed after so many seconds; None where it was."""
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise RuntimeError(f"{threads} threads run here; a process that is forked must have one")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            with os.fdopen(writer, "wb") as file:
                file.write(pickle.dumps(function()))
        finally:
            os._exit(0)
    os.close(writer)
    if seconds is not None:
        process = os.pidfd_open(child)
        select.select([process], [], [], seconds)
        os.close(process)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    if not said and status != signal.SIGKILL:
        raise RuntimeError(f"a process ended with status {status} and said nothing")
    return pickle.loads(said) if said else None


def run_command(command: Command, gallery: Path, moment: Moment | None = None) -> Ended | None:
    """Run a command in a process of its own to its end; None where it was killed at the moment given."""

    def run() -> Ended:
        error, start = None, time.perf_counter()
        steps = _Steps(gallery, fatal=None if moment is None else moment.step)
        try:
            command.run(gallery)
        except RetrievalError as caught:
            error = str(caught).replace(str(gallery), "GALLERY")
        except BaseException:  # noqa: BLE001  # whatever it is, it is reported
            error = traceback.format_exc()
        return Ended(error, steps.counts, time.perf_counter() - start)

    ended = run_forked(run, seconds=None if moment is None else moment.seconds)
    assert ended is None or isinstance(ended, Ended)
    return ended


def read_state_apart(gallery: Path) -> State | None:
    """As `read_state`, in a process of its own: reading starts threads."""
    result = run_forked(lambda: _state_or_error(gallery))
    if isinstance(result, RetrievalError):
        raise result
    assert result is None or isinstance(result, State)
    return result


def _state_or_error(gallery: Path) -> State | RetrievalError | None:
    try:
        return read_state(gallery)
    except RetrievalError as error:
        return error


def _is_anybody_left() -> bool:
    """Whether processes that a killed command had started do not end by themselves: we inherit them."""
    until = time.monotonic() + ORPHANS_END_S
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
        except ChildProcessError:  # there is none
            return False
    return True


def _tell(ended: Ended | None) -> str:
    return "it was killed" if ended is None else (ended.error or "there is no gallery")[-800:]


@dataclass(slots=True)
class Tally:
    """What is to be done, and what was: kills, runs that ended before they were killed, mismatches."""

    kills: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    commands: int = 0
    mismatches: int = 0

    @property
    def count(self) -> int:
        return sum(self.kills.values())


class Scenario:
    """One row of commands, on a gallery that is left in peace and on its twin that is killed."""

    def __init__(self, folder: Path, model: Path, *, seed: str, tally: Tally, kills: int) -> None:
        self.random, self.model, self.tally, self.kills = random.Random(seed), model, tally, kills
        self.name = seed
        self.steady, self.killed, self.before_it = (folder / name for name in ("steady", "killed", "before"))
        self.sources = ChangingSources(folder, random=self.random)
        self.dedup = self.random.choice(["off", "exact", "near"])
        self.ids: dict[int, str | None] = {}

    def run(self) -> None:
        """Run commands until the scenario ends or there were kills enough."""
        for number in range(COMMANDS_PER_SCENARIO):
            if self.tally.count >= self.kills:
                return
            command = self._choose(first=number == 0)
            before = read_state_apart(self.steady)
            usual = run_command(command, self.steady)
            after = read_state_apart(self.steady)
            if usual is None or usual.error is not None or after is None:
                self._report(command, [f"undisturbed: {_tell(usual)}"], [])
                return
            self._check_ids(command, after)
            self._disturb(command, before, after, usual)
            self.tally.commands += 1

    def _disturb(self, command: Command, before: State | None, after: State, usual: Ended) -> None:
        """Kill the command in several attempts, each from the same gallery; the last one's result is gone on with."""
        if self.killed.exists():
            shutil.copytree(self.killed, self.before_it, symlinks=True)
        for number, moments in enumerate(self._pick_moments(usual)):
            if number:
                shutil.rmtree(self.killed, ignore_errors=True)
                if self.before_it.exists():
                    shutil.copytree(self.before_it, self.killed, symlinks=True)
            self._attempt(command, moments, before, after)
        shutil.rmtree(self.before_it, ignore_errors=True)

    def _pick_moments(self, usual: Ended) -> list[list[Moment]]:
        """The moments of every attempt: when the command is killed, and when it is killed again."""
        counts = self.random.choices((1, 2, 3), weights=(3, 1, 1), k=ATTEMPTS_PER_COMMAND)
        return [[self._pick_moment(usual) for _ in range(count)] for count in counts]

    def _pick_moment(self, usual: Ended) -> Moment:
        if self.random.random() < 0.5:
            return Moment(seconds=self.random.uniform(0, usual.seconds))
        kind = self.random.choice(sorted(usual.steps))  # what happens once is hit as often as the rest
        return Moment(step=(kind, self.random.randint(1, usual.steps[kind])))

    def _attempt(self, command: Command, moments: list[Moment], before: State | None, after: State) -> None:
        """Kill the command at every moment given, and let it end."""
        current = read_current(self.killed) if self.killed.is_dir() else None
        held = None if current is None else Gallery.open(self.killed)
        story, ended = list[str](), None
        for moment in moments:
            ended = run_command(command, self.killed, moment)
            if ended is not None:
                self.tally.missed += 1
                break
            story.append(str(moment))
            self.tally.kills[command.name] += 1
            if problems := self._look_after_kill(before, after):
                self._report(command, problems, story)
        ended = ended or run_command(command, self.killed)
        if problems := self._look_at_end(ended, after, held):
            self._report(command, problems, story)
            shutil.rmtree(self.killed)
            shutil.copytree(self.steady, self.killed, symlinks=True)

    def _look_at_end(self, ended: Ended | None, after: State, held: Gallery | None) -> list[str]:
        """What is wrong when a command that was killed has ended, with a reader that was there all the time."""
        problems = [] if ended is not None and ended.error is None else [f"run again, it fails: {_tell(ended)}"]
        try:
            state = read_state_apart(self.killed)
        except RetrievalError as error:
            return [*problems, f"the gallery cannot be read: {error}"]
        if state is None:
            return [*problems, "there is no gallery"]
        problems += state.differences(after)
        if sorted(os.listdir(self.killed)) != [".lock", "CURRENT", "gallery.json", "versions"]:
            problems.append(f"left behind: {sorted(os.listdir(self.killed))}")
        if len(versions := os.listdir(self.killed / "versions")) > 2 + (held is not None):
            problems.append(f"too many versions: {sorted(versions)}")
        if held is not None and held.search(held.vector(int(held.ids[0])), k=1)[0].score < 0.999:
            problems.append("a reader that had the version before open answers no more")
        return problems

    def _look_after_kill(self, before: State | None, after: State) -> list[str]:
        """What is wrong while a command is dead: its lock, its children, what a reader sees."""
        problems = []
        if _is_anybody_left():
            problems.append("a process of the command lives on")
        if not self.killed.is_dir():
            return problems
        try:
            with lock_gallery(self.killed):
                state = read_state_apart(self.killed)
        except RetrievalError as error:
            return [*problems, f"a reader or the next writer is refused: {error}"]
        if state is None and before is not None:
            return [*problems, "the gallery is gone"]
        if state is not None and state.differences(after) and (before is None or state.differences(before)):
            problems.append("a reader finds neither the version before nor the one after")
        return problems

    def _check_ids(self, command: Command, state: State) -> None:
        """An id stands for the same bytes for ever."""
        hashes = {row.id: row.sha256 for row in state.rows if row.status in ("indexed", "duplicate")}
        if wrong := [key for key in hashes if self.ids.get(key, hashes[key]) != hashes[key]]:
            self._report(command, [f"undisturbed: the ids {wrong} were given to other bytes"], [])
        self.ids |= hashes

    def _report(self, command: Command, problems: list[str], moments: list[str]) -> None:
        lines = [f"scenario {self.name}, dedup {self.dedup}: {command.given}", *moments, *problems[:12]]
        self.tally.mismatches += 1
        click.echo("MISMATCH " + "\n    ".join(lines))

    def _choose(self, *, first: bool) -> Command:
        if not first:
            self.sources.change(self.random.choice((0, 0, 1, 3, 6)))
        kinds = {"update": 4, "add": 2, "remove": 2, "build": 2, "tune": 3, "move": 1, "forget": 1}
        kind = "build" if first else self.random.choices(list(kinds), weights=list(kinds.values()))[0]
        if kind == "forget" and not self.sources.added:
            kind = "add"
        return getattr(self, f"_{kind}")()

    def _config(self) -> BuildConfig:
        images, seconds = self.random.choice((4, 8, 16)), self.random.choice((0.01, 0.05, 5.0))
        return BuildConfig(batch_size=4, workers=2, checkpoint_images=images, checkpoint_seconds=seconds)

    def _build(self) -> Command:
        config, sources = self._config(), list(self.sources.paths)
        if self.random.random() < 0.3:
            self.dedup = self.random.choice(["off", "exact", "near"])
        dedup, index = self.dedup, {"index_type": self.random.choice(("auto", "hnsw", "ivf"))}

        def run(gallery: Path) -> object:
            return build_gallery(
                model_path=self.model, sources=sources, out=gallery, dedup=dedup, index=index, config=config
            )

        return Command("build", f"build --dedup {dedup} --index-type {index['index_type']}", run)

    def _update(self, roots: Mapping[str | None, Path] | None = None) -> Command:
        config = self._config()
        name = "update" if roots is None else "update --root"
        return Command(
            name, f"{name} {roots or ''}", lambda gallery: update_gallery(gallery, roots=roots, config=config)
        )

    def _move(self) -> Command:
        old, new = self.sources.move()
        return self._update({str(old): new})

    def _add(self) -> Command:
        config, source = self._config(), self.sources.add()
        return Command("add", f"add {source}", lambda gallery: add_to_gallery(gallery, [source], config=config))

    def _forget(self) -> Command:
        config, source = self._config(), self.sources.forget()
        return Command(
            "remove --source",
            f"remove --source {source}",
            lambda gallery: remove_from_gallery(gallery, sources=[str(source)], config=config),
        )

    def _remove(self) -> Command:
        state = read_state_apart(self.steady)
        chosen = self.random.sample([row for row in state.rows if row.status != "skipped"], 3) if state else []
        if self.random.random() < 0.5:
            selection = Selection(ids=tuple(row.id for row in chosen))
        else:
            selection = Selection(patterns=(chosen[0].path, f"*{chosen[1].path[-7:]}"))
        config = self._config()
        return Command(
            "remove",
            f"remove {selection}",
            lambda gallery: remove_from_gallery(gallery, selection=selection, config=config),
        )

    def _tune(self) -> Command:
        wishes: dict[str, object] = {"index_type": self.random.choice(("auto", "flat", "hnsw", "hnsw", "ivf"))}
        wishes["recall_target"] = self.random.choice((0.5, 0.9, 0.98))
        changes = {name: wishes[name] for name in self.random.choice((list(wishes), ["recall_target"], []))}
        return Command("tune", f"tune {changes}", lambda gallery: tune_gallery(gallery, changes=changes))


def kill_commands(folder: Path, *, kills: int, seed: int, first: int, show: Callable[[str], None]) -> Tally:
    """Run scenarios until there were so many kills."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of a killed command become our children
    index_choice.MIN_ROWS = INDEXED_IMAGES
    import_faiss()  # not onnxruntime, which starts a thread; 25 ms in every process are left
    models = [write_tiny_model(folder / "one.onnx"), write_two_output_model(folder / "two.onnx")]
    tally, number = Tally(), first
    while tally.count < kills and tally.mismatches < MISMATCHES_ENOUGH:
        place = folder / str(number)
        place.mkdir()
        known = tally.mismatches
        Scenario(place, models[number % 2], seed=f"{seed}.{number}", tally=tally, kills=kills).run()
        show(f"{tally.count} of {kills} kills, {number - first + 1} scenarios, {tally.mismatches} mismatches")
        if tally.mismatches == known:
            shutil.rmtree(place)
        number += 1
    return tally


@click.command()
@click.option("--kills", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--first", default=0, show_default=True, help="The first scenario, to repeat one.")
@click.option("--keep", is_flag=True, help="Keep the galleries of scenarios with a mismatch.")
def main(kills: int, seed: int, first: int, keep: bool) -> None:
    """Kill the commands that write a gallery at random moments, and compare with undisturbed ones."""
    start = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))

    def show(line: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{time.perf_counter() - start:4.0f} s: {line}  ", nl=False, err=True)

    try:
        tally = kill_commands(folder, kills=kills, seed=seed, first=first, show=show)
    finally:
        if not keep:
            shutil.rmtree(folder)
    for name, count in sorted(tally.kills.items()):
        click.echo(f"{count:5d}  {name}")
    seconds = time.perf_counter() - start
    click.echo(
        f"{tally.count} kills in {tally.commands} commands, {tally.missed} runs ended first, {seconds:.0f} s, "
        f"{tally.mismatches} mismatches (seed {seed})"
    )
    if tally.mismatches:
        click.echo(f"repeat with: python -m tests.kills --seed {seed} --first SCENARIO --keep", err=True)
        sys.exit(1)


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":  # threads of NumPy's would not survive a fork
        words = [sys.executable, "-m", "tests.kills", *sys.argv[1:]]
        os.execve(sys.executable, words, {**os.environ, "OMP_NUM_THREADS": "1"})
    main()
