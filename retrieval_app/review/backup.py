"""Backups of what people made of a gallery: decisions, sent images, removals and the log, as one ZIP; and back.

review.sqlite     every step of decisions, as the gallery's own file has them
log.jsonl         the log of who did what
files/SHA256      the images that were sent, by their bytes
manifest.json     of which gallery; of each sent image its place, time and whether it was taken out; other removals

No member is packed. A restore reads and checks all of a file before it changes anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import quote, unquote_to_bytes

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from index.catalog.reader import Catalog, read_catalog
from index.catalog.rows import REMOVED, CatalogRow
from index.durable import replacing
from index.errors import GalleryError, InputError
from index.labels.decisions import LabelKey
from index.marks import read_mark
from index.progress import Progress, no_progress
from index.sources.folder_walk import walk_folder
from index.sources.local_source import FolderSource
from index.text import printable_path, valid_text
from index.versions.manifest import CATALOG_NAME, Manifest
from index.versions.people import PEOPLE, added_folder
from index.versions.versions import find_version, hold_current
from retrieval_app.review.activity_log import Line, check_line, read_log
from retrieval_app.review.database import ReviewError
from retrieval_app.review.review_store import DecidedStep, ReviewStore, read_steps

_DECISIONS, _LOG, _MANIFEST = "review.sqlite", "log.jsonl", "manifest.json"
_FORMAT: Final = "retrieval-backup"
_FORMAT_VERSION: Final = 1
_BLOCK_BYTES = 1 << 20
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)
USABLE = ("indexed", "duplicate")
_MOST_NS = 1 << 62
_Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class BackupError(InputError):
    """A file that is no backup, or a damaged one; nothing was taken from it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{printable_path(str(path))}: {problem}; nothing was changed")
        self.path, self.problem = path, problem


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Placed(_Part):
    path: str = Field(description="with % before the bytes that addresses have not")

    @property
    def place(self) -> str:
        """The path; undecodable bytes are surrogates."""
        return os.fsdecode(unquote_to_bytes(self.path))


class SentImage(_Placed):
    """An image that was sent, by its path below the gallery's folder of such images."""

    sha256: _Sha256
    mtime_ns: int = Field(gt=-_MOST_NS, lt=_MOST_NS)
    removed: bool = Field(description="whether it was taken out of the gallery again")

    @property
    def member(self) -> str:
        """Where a backup has its bytes."""
        return f"files/{self.sha256}"

    @field_validator("path")
    @classmethod
    def _leads_below(cls, path: str) -> str:
        """Whether it leads to a file below where it starts, on any system."""
        parts = unquote_to_bytes(path).split(b"/")
        if len(parts) > 16 or any(p in (b"", b".", b"..") or b"\0" in p or len(p) > 255 for p in parts):
            raise ValueError("an image has a place that no image has")
        return path


class Removal(_Placed):
    """A photo of the gallery's other sources that was taken out.

    `kept` is how many of the same bytes and label were not.
    """

    sha256: _Sha256
    label: str | None
    kept: int = Field(ge=0)

    @property
    def key(self) -> LabelKey:
        """What it is known by in every gallery."""
        return self.sha256, self.label


class _Origin(_Part):
    name: str
    id: str | None
    next_id: int | None


class _Manifest(_Part):
    format: Literal["retrieval-backup"] = _FORMAT
    format_version: Literal[1] = _FORMAT_VERSION
    made_at: str
    gallery: _Origin
    sent: list[SentImage]
    removed: list[Removal]

    @model_validator(mode="after")
    def _is_sound(self) -> _Manifest:
        if len({image.place for image in self.sent}) < len(self.sent):
            raise ValueError("two images have one place")
        return self


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds.

    Attributes:
        steps: calls that decided something and were not undone.
        label_decisions, duplicate_decisions: that hold.
        images: that were sent, those taken out again included.
        removed: of them, those taken out again.
        taken_out: photos of other sources that were taken out.
        bytes: of the file.
        notes: what could not be told, or was left out because it cannot be read.
        log_lines: of the log of who did what.
        store: the server that has the gallery's vectors, of which the file has none; None where its folder has them.
    """

    gallery: str
    file: str
    steps: int
    label_decisions: int
    duplicate_decisions: int
    images: int
    removed: int
    taken_out: int
    bytes: int
    notes: list[str]
    log_lines: int = 0
    store: str | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """What the current version of a gallery knows: of sent images by their path, of others that were taken out."""

    next_id: int | None = None
    sent: Mapping[str, CatalogRow] = field(default_factory=dict)
    removals: Sequence[Removal] = ()
    store: str | None = None


def back_up(
    gallery: Path, out: Path, *, overwrite: bool = False, progress: Progress = no_progress
) -> BackupReport:
    """Write what people made of a gallery to one file; of a damaged gallery too.

    The decisions are of one moment; of images that are sent meanwhile some may be missing.

    Raises:
        InputError: there is such a file, it lies where the gallery would find it, or it cannot be written.
        GalleryError: there is no such gallery.
        ReviewError: the decisions are damaged.
    """
    if not (gallery / PEOPLE).is_dir() and not (gallery / "CURRENT").exists():
        find_version(gallery)  # says what is missing
    _check_out(out, gallery=gallery, overwrite=overwrite)
    with closing(ReviewStore.of_gallery(gallery)) as store:
        decisions = store.copy()
    notes, known, log = list[str](), _Known(), list[Line]()
    try:
        steps = read_steps(decisions)
    except InputError as error:
        raise ReviewError(
            store.path, f"{error}; move the file away to begin anew, or put a copy of it back"
        ) from error
    try:
        known = _read_known(gallery)
    except GalleryError as error:
        notes.append(f"the gallery cannot be read, so nobody knows which images were taken out of it: {error}")
    try:
        log = read_log(gallery)
    except InputError as error:
        notes.append(f"left out: {error}")
    shown = printable_path(str(out))
    try:
        with (
            replacing(out.absolute(), only_new=not overwrite) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
        ):
            _add(archive, _DECISIONS, decisions)
            _add(archive, _LOG, b"".join(json.dumps(line).encode() + b"\n" for line in log))
            sent = list(_add_sent(archive, gallery, known.sent, notes, progress))
            manifest = _Manifest(
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),
                gallery=_Origin(
                    name=valid_text(gallery.resolve().name), id=read_mark(gallery), next_id=known.next_id
                ),
                sent=sent,
                removed=list(known.removals),
            )
            _add(archive, _MANIFEST, manifest.model_dump_json(indent=1).encode())
    except FileExistsError as error:
        raise InputError(f"{shown}: there is such a file already; name another, or give --overwrite") from error
    except OSError as error:
        advice = "nothing was left there, mend the cause and run it again"
        raise InputError(f"{shown}: the backup cannot be written: {error}; {advice}") from error
    holding = {(step.kind, subject) for step in steps for subject in step.by_subject()}
    kinds = Counter(kind for kind, _ in holding)
    return BackupReport(
        gallery=valid_text(str(gallery.resolve())),
        file=valid_text(str(out)),
        steps=len(steps),
        label_decisions=kinds["labels"],
        duplicate_decisions=kinds["duplicates"],
        images=len(sent),
        removed=sum(image.removed for image in sent),
        taken_out=len(known.removals),
        bytes=out.stat().st_size,
        notes=notes,
        log_lines=len(log),
        store=known.store,
    )


def _check_out(out: Path, *, gallery: Path, overwrite: bool) -> None:
    shown = printable_path(str(out))
    if out.is_dir():
        raise InputError(
            f"{shown}: a folder has this name; name a file, such as {out.name or 'gallery'}.backup.zip"
        )
    if os.path.lexists(out) and not overwrite:
        raise InputError(f"{shown}: there is such a file already; name another, or give --overwrite")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{shown}: its folder does not exist; make it first")
    folders = [gallery.resolve()]
    try:
        with read_catalog(find_version(gallery).folder / CATALOG_NAME) as catalog:
            sources = catalog.sources().values()
            folders += [Path(source.root).resolve() for source in sources if isinstance(source, FolderSource)]
    except GalleryError:
        pass  # it is damaged, which `back_up` notes
    for folder in folders:
        if out.resolve().is_relative_to(folder):
            raise InputError(
                f"{shown} lies inside {printable_path(str(folder))}, where the gallery or its images are, and would be "
                "taken for one of them; choose a place beside it"
            )


def _read_known(gallery: Path) -> _Known:
    version, hold = hold_current(gallery)
    try:
        manifest = Manifest.read(version)
        with read_catalog(version.folder / CATALOG_NAME) as catalog:
            added = catalog.added_source()
            numbers = [] if added is None else [number for number, _ in catalog.paths(added)]
            sent = {row.path: row for row in catalog.rows_of(numbers)}
            store = None if manifest.store is None else str(manifest.store["uri"])
            return _Known(catalog.next_id(), sent, _list_removals(catalog), store)
    finally:
        os.close(hold)


def _list_removals(catalog: Catalog) -> list[Removal]:
    """The photos that are taken out; what could never be read is not known by its bytes, and left out."""
    sources, added = catalog.sources(), catalog.added_source()
    removed = [row for row in list_taken_out(catalog) if row.sha256 is not None and row.source != added]
    usable = (row for row in (list_usable(catalog) if removed else ()) if row.source != added)
    kept = Counter((row.sha256, row.label) for row in usable)
    return [
        Removal(
            path=quote(os.fsencode(os.path.join(sources[row.source].root, row.path))),
            sha256=row.sha256 or "",
            label=row.label,
            kept=kept[row.sha256, row.label],
        )
        for row in removed
    ]


def list_taken_out(catalog: Catalog) -> Iterator[CatalogRow]:
    """The images that people took out."""
    return (row for row in catalog.rows(status="skipped") if row.reason == REMOVED)


def list_usable(catalog: Catalog) -> Iterator[CatalogRow]:
    """The images that are searched, and those set aside as duplicates."""
    return (row for status in USABLE for row in catalog.rows(status=status))


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EARLIEST_TIME), content)


def _add_sent(
    archive: zipfile.ZipFile, gallery: Path, known: Mapping[str, CatalogRow], notes: list[str], progress: Progress
) -> Iterator[SentImage]:
    folder = added_folder(gallery)
    found = list(walk_folder(folder)) if folder.is_dir() else []
    written = set[str]()
    for done, file in enumerate(found, start=1):
        problem: object = file.problem
        if file.problem is None:
            try:
                content = (folder / file.path).read_bytes()
            except OSError as error:
                problem = f"{printable_path(file.path)}: {error.strerror}"
        if problem is not None:
            notes.append(f"left out: {problem}")
            continue
        row = known.get(file.path)
        image = SentImage(
            path=quote(os.fsencode(file.path)),
            sha256=hashlib.sha256(content).hexdigest(),
            mtime_ns=file.mtime_ns,
            removed=row is not None and row.reason == REMOVED,
        )
        if image.sha256 not in written:
            written.add(image.sha256)
            _add(archive, image.member, content)
        yield image
        progress(done, len(found))


@dataclass(frozen=True, slots=True)
class _Backup:
    """A backup of which every byte was checked."""

    archive: zipfile.ZipFile
    manifest: _Manifest
    steps: list[DecidedStep]
    log: list[Line]


@contextmanager
def open_backup(path: Path, progress: Progress) -> Iterator[_Backup]:
    """A backup that was read wholly; `progress` is told of (done, total) images.

    Raises:
        BackupError: it is no backup, or damaged, cut off or made to do harm.
    """
    if not path.is_file():
        raise BackupError(path, "a folder, not a file" if path.is_dir() else "no such file")
    with ExitStack() as opened:
        try:
            archive = opened.enter_context(zipfile.ZipFile(path))
        except OSError as error:
            raise BackupError(path, f"cannot be read: {error.strerror}") from error
        except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
            problem = f"no backup, or cut off: {error}; give a whole file that `retrieval backup` wrote"
            raise BackupError(path, problem) from error
        try:
            backup = _read_backup(path, archive, progress)
        except BackupError:
            raise
        except OSError as error:
            raise BackupError(path, f"cannot be read: {error.strerror or error}") from error
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            raise BackupError(path, f"damaged: {error}") from error
        except (ValueError, InputError) as error:
            raise BackupError(path, f"no sound backup: {error}") from error
        yield backup


def _read_backup(path: Path, archive: zipfile.ZipFile, progress: Progress) -> _Backup:
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if sum(info.file_size for info in infos) > path.stat().st_size:
        raise InputError("its members are more than the file")
    if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos):
        raise InputError("it is packed, which a backup never is")
    if _MANIFEST not in names:
        raise BackupError(path, "no backup: it has no manifest; give a file that `retrieval backup` wrote")
    manifest = _read_manifest(path, archive.read(_MANIFEST))
    members = {image.member: image.sha256 for image in manifest.sent}
    if sorted(names) != sorted([_DECISIONS, _LOG, _MANIFEST, *members]):
        raise InputError("its members are not those of its manifest")
    steps = read_steps(archive.read(_DECISIONS))
    log = [check_line(json.loads(line)) for line in archive.read(_LOG).splitlines()]
    for done, (member, sha256) in enumerate(members.items(), start=1):
        digest = hashlib.sha256()
        for block in read_blocks(archive, member):
            digest.update(block)
        if digest.hexdigest() != sha256:
            raise InputError(f"{member} is not what was written")
        progress(done, len(members))
    return _Backup(archive, manifest, steps, log)


def _read_manifest(path: Path, content: bytes) -> _Manifest:
    values = json.loads(content)
    found = (values.get("format"), values.get("format_version")) if isinstance(values, dict) else (None, None)
    if found[0] != _FORMAT:
        raise BackupError(
            path, f"no backup: its manifest does not say {_FORMAT}; give a file that `retrieval backup` wrote"
        )
    if found[1] != _FORMAT_VERSION:
        raise BackupError(
            path,
            f"a backup of another format version; this program reads {_FORMAT_VERSION}: use the one that wrote it",
        )
    try:
        return _Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(printable_path(f"{_MANIFEST}: {place}: {first['msg']}")) from error


def read_blocks(archive: zipfile.ZipFile, member: str) -> Iterator[bytes]:
    """The content of a member."""
    with archive.open(member) as file:
        yield from iter(partial(file.read, _BLOCK_BYTES), b"")
