"""Backup file: the annotations of a gallery, decisions, marks, uploads, removals and log, as one ZIP.

decisions.json    all steps of decisions, marks and saved searches
log.jsonl         the activity log
files/SHA256      uploaded images
manifest.json     the gallery, the place of each uploaded image, and the removed images

No member is compressed. A restore reads and checks the whole file before it changes anything; newer decisions and files
of the gallery stay.
"""

import hashlib
import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, field_validator

from index.catalog.reader import Catalog
from index.catalog.rows import REMOVED, CatalogRow
from index.durable import hash_file, replacing
from index.errors import GalleryError, InputError
from index.gallery.selection import Selection
from index.labels.decided_labels import read_current_catalog
from index.labels.decisions import DuplicateDecision, LabelDecision, Mark
from index.labels.steps import ABOUT, About, Decision, Step, check_step
from index.markers import read_mark
from index.paths import names_no_parent
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.sources.folder_walk import walk_folder
from index.sources.local_source import find_folder_around
from index.sources.source import ImageSource
from index.text import printable_path, valid_text
from index.versions.annotations import ANNOTATIONS, added_folder
from index.versions.manifest import Manifest
from index.versions.versions import find_version
from index.writing.build import add_to_gallery, remove_from_gallery
from retrieval_app.review.activity_log import Line, bring_lines, check_line, read_log
from retrieval_app.review.added_images import keep_file, name_sources, read_added_rows
from retrieval_app.review.database import ReviewError
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import USABLE, list_usable

_DECISIONS, _LOG, _MANIFEST = "decisions.json", "log.jsonl", "manifest.json"
_FORMAT = "retrieval-backup"
_BLOCK_BYTES = 1 << 20
_IS_THERE = "there is such a file already; name another, or give --overwrite"
_EARLIEST_TIME = (1980, 1, 1, 0, 0, 0)
_Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class BackupError(InputError):
    """Invalid or damaged backup; nothing was restored from it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{printable_path(path)}: {problem}; nothing was changed")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SentImage(_Part):
    """An uploaded image: its path below the folder of added images, and whether it was removed from the gallery."""

    path: str
    sha256: _Sha256
    mtime_ns: int = Field(ge=-(1 << 63), lt=1 << 63)
    removed: bool

    @property
    def member(self) -> str:
        """The member of the ZIP with its bytes."""
        return f"files/{self.sha256}"

    @field_validator("path")
    @classmethod
    def _leads_below(cls, path: str) -> str:
        """The path, if it stays below its folder."""
        parts = os.fsencode(path).split(b"/")
        leads_out = path.startswith("/") or not names_no_parent(path)
        if leads_out or len(parts) > 16 or any(p in (b"", b".") or b"\0" in p or len(p) > 255 for p in parts):
            raise ValueError("an image has a place that no image has")
        return path


class Removal(_Part):
    """A removed image, by its absolute path; `kept` images of the same bytes and label were still in the gallery."""

    path: str
    sha256: _Sha256
    label: str | None
    kept: int = Field(ge=0)


class _Manifest(_Part):
    """Table of contents; undecodable bytes in paths are surrogates, which JSON escapes."""

    format: Literal["retrieval-backup"] = "retrieval-backup"
    format_version: Literal[1] = 1
    made_at: str
    gallery: str
    gallery_id: str | None
    next_id: int | None = Field(description="the id that the gallery would have given to its next image")
    sent: list[SentImage]
    removed: list[Removal]

    @field_validator("sent")
    @classmethod
    def _has_each_place_once(cls, sent: list[SentImage]) -> list[SentImage]:
        if len({image.path for image in sent}) < len(sent):
            raise ValueError("two images have one place")
        return sent


_STEPS = TypeAdapter(list[Step])


@dataclass(frozen=True, slots=True)
class BackupReport:
    """Contents of a backup."""

    gallery: str
    file: str
    steps: int
    decisions: dict[About, int]  # that hold, by their kind
    images: int  # uploads
    removed: int  # uploads that were removed from the gallery
    taken_out: int  # removed images of other sources
    bytes: int
    notes: list[str]  # parts that could not be read and are missing
    log_lines: int
    store: str | None  # the server that has the vectors


def back_up(gallery: Path, out: Path, *, overwrite: bool = False, progress: Progress = no_progress) -> BackupReport:
    """Write the annotations of a gallery, even of a damaged one, to one file.

    The decisions are of one moment; images uploaded while it runs may be missing.
    """
    if not (gallery / ANNOTATIONS).is_dir() and not (gallery / "CURRENT").exists():
        find_version(gallery)  # says what is missing
    _check_out(out, gallery=gallery, overwrite=overwrite)
    steps, log, notes = _read_steps(gallery), list[Line](), list[str]()
    added, removals = dict[str, CatalogRow](), list[Removal]()
    next_id = store = None
    try:
        added = read_added_rows(gallery)
        with read_current_catalog(gallery) as catalog:
            removals, next_id = _list_removals(catalog), catalog.next_id()
        if (vectors_at := Manifest.read(find_version(gallery)).store) is not None:
            store = str(vectors_at["uri"])
    except GalleryError as error:
        notes.append(f"the gallery cannot be read, so its removed images are not in the backup: {error}")
    try:
        log = read_log(gallery)
    except ReviewError as error:
        notes.append(f"left out: {error}")
    with _open_new(out, overwrite=overwrite) as archive:
        _add(archive, _DECISIONS, json.dumps(_STEPS.dump_python(steps)).encode())
        _add(archive, _LOG, b"".join(json.dumps(line).encode() + b"\n" for line in log))
        sent = list(_add_sent(archive, gallery, added, notes, progress))
        manifest = _Manifest(
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            gallery=valid_text(gallery.resolve().name),
            gallery_id=read_mark(gallery),
            next_id=next_id,
            sent=sent,
            removed=removals,
        )
        _add(archive, _MANIFEST, json.dumps(manifest.model_dump(), indent=1).encode())
    decided = {(step.kind, subject) for step in steps for subject in step.by_subject()}
    return BackupReport(
        gallery=valid_text(str(gallery.resolve())),
        file=valid_text(str(out)),
        steps=len(steps),
        decisions={kind: sum(one == kind for one, _ in decided) for kind in ABOUT},
        images=len(sent),
        removed=sum(image.removed for image in sent),
        taken_out=len(removals) - sum(row.reason == REMOVED for row in added.values()),
        bytes=out.stat().st_size,
        notes=notes,
        log_lines=len(log),
        store=store,
    )


def _read_steps(gallery: Path) -> list[Step]:
    with closing(ReviewStore.of_gallery(gallery)) as store:
        try:
            return list(map(check_step, store.steps()))
        except (InputError, TypeError, ValueError) as error:
            advice = "damaged, or made by a pre-release: keep the file, and put a sound copy of it back"
            raise ReviewError(store.path, f"{error}; {advice}") from error


@contextmanager
def _open_new(out: Path, *, overwrite: bool) -> Iterator[zipfile.ZipFile]:
    """A new archive, which takes its place when it is whole."""
    try:
        with (
            replacing(out.absolute(), only_new=not overwrite) as temporary,
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
        ):
            yield archive
    except FileExistsError as error:
        raise InputError(f"{_IS_THERE}", at=out) from error
    except OSError as error:
        advice = "nothing was left there, mend the cause and run it again"
        raise InputError(f"the backup cannot be written: {error}; {advice}", at=out) from error


def _check_out(out: Path, *, gallery: Path, overwrite: bool) -> None:
    shown = printable_path(out)
    sources: Iterable[ImageSource] = ()
    with suppress(GalleryError), read_current_catalog(gallery) as catalog:  # `back_up` notes a damaged one
        sources = catalog.sources().values()
    if (folder := find_folder_around(out, gallery, sources)) is not None:
        raise InputError(
            f"{shown} lies inside {printable_path(folder)}, where the gallery or its images are, and would be "
            "taken for one of them; choose a place beside it"
        )
    if os.path.lexists(out) and not overwrite:
        raise InputError(f"{_IS_THERE}", at=out)


def _list_removals(catalog: Catalog) -> list[Removal]:
    """The images that people took out; one that could never be read is not known by its bytes, and left out."""
    removed = [row for row in catalog.rows(status="skipped") if row.reason == REMOVED and row.sha256 is not None]
    kept = Counter((row.sha256, row.label) for row in list_usable(catalog)) if removed else Counter()
    roots = {number: source.root for number, source in catalog.sources().items()}
    return [
        Removal(
            path=os.path.join(roots[row.source], row.path),
            sha256=row.sha256 or "",
            label=row.label,
            kept=kept[row.sha256, row.label],
        )
        for row in removed
    ]


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
        row, sha256 = known.get(file.path), hashlib.sha256(content).hexdigest()
        is_removed = row is not None and row.reason == REMOVED
        image = SentImage(path=file.path, sha256=sha256, mtime_ns=file.mtime_ns, removed=is_removed)
        if sha256 not in written:
            written.add(sha256)
            _add(archive, image.member, content)
        yield image
        progress(done, len(found))


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup whose every byte was checked."""

    archive: zipfile.ZipFile
    manifest: _Manifest
    steps: list[Step]
    log: list[Line]


@contextmanager
def _open_backup(path: Path, progress: Progress) -> Iterator[Backup]:
    """A backup that was read wholly; `progress` gets (done, total) images. A BackupError where it is unsound."""
    if not path.is_file():
        raise BackupError(path, "a folder, not a file" if path.is_dir() else "no such file")
    with ExitStack() as opened:
        try:
            backup = _read_backup(path, opened.enter_context(zipfile.ZipFile(path)), progress)
        except BackupError:
            raise
        except OSError as error:
            raise BackupError(path, f"cannot be read: {error.strerror or error}") from error
        except (zipfile.BadZipFile, EOFError, RuntimeError, TypeError, ValueError, InputError) as error:
            problem = str(error)
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False, include_input=False)[0]
                problem = printable_path(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
            raise BackupError(path, f"no backup, damaged, or made by a pre-release: {problem}") from error
        yield backup


def _read_backup(path: Path, archive: zipfile.ZipFile, progress: Progress) -> Backup:
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if sum(info.file_size for info in infos) > path.stat().st_size:
        raise InputError("its members are more than the file")
    if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos):
        raise InputError("it is packed, which a backup never is")
    head = json.loads(archive.read(_MANIFEST) if _MANIFEST in names else b"{}")
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise BackupError(path, f"no backup: no manifest in it says {_FORMAT}; give what `retrieval backup` wrote")
    if head.get("format_version") != 1:
        raise BackupError(path, "another format version; this program reads 1: use the one that wrote it")
    manifest = _Manifest.model_validate(head)
    members = {image.member: image.sha256 for image in manifest.sent}
    if sorted(names) != sorted([_DECISIONS, _LOG, _MANIFEST, *members]):
        raise InputError("its members are not those of its manifest")
    steps = list(map(check_step, _STEPS.validate_python(json.loads(archive.read(_DECISIONS)))))
    log = [check_line(json.loads(line)) for line in archive.read(_LOG).splitlines()]
    for done, (member, sha256) in enumerate(members.items(), start=1):
        with archive.open(member) as file:
            if hashlib.file_digest(cast(zipfile.ZipExtFile, file), "sha256").hexdigest() != sha256:
                raise InputError(f"{member} is not what was written")
        progress(done, len(members))
    return Backup(archive, manifest, steps, log)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Outcome of a restore: uploads, decisions and removed images by what became of them.

    Uploads that were `removed` before the backup are left out; of those `in_the_way` another file has the name. Removed
    images were `taken_out`, or `kept`: they were added to this very gallery since, or are all that it has.
    """

    gallery: str
    file: str
    images: dict[str, int]
    indexed: int
    decisions: dict[str, int]
    removals: dict[str, int]
    not_attached: list[Decision]  # decisions about images that the gallery does not have; they are kept
    log_lines: int


def restore(
    file: Path,
    gallery: Path,
    *,
    checking: Progress = no_progress,
    progress: Progress = no_progress,
    begin_step: BeginStep = no_steps,
) -> RestoreReport:
    """Merge a backup into its gallery, or another with the same images; repeated, it goes on where it was stopped.

    Of two decisions about the same subject the later holds. Files are replaced only where their name, a checksum, shows
    that they are damaged. Removed images stay out, and leave a gallery that was built anew. An unsound backup is a
    BackupError, before anything is changed.
    """
    find_version(gallery)
    with _open_backup(file, checking) as backup:
        manifest = backup.manifest
        outcomes = [(image, _restore_file(backup.archive, image, gallery)) for image in manifest.sent]
    before = read_added_rows(gallery)
    present = [image for image, outcome in outcomes if outcome in ("restored", "present") and not image.removed]
    if missing := [image.path for image in present if image.path not in before]:
        sources = name_sources(gallery, missing)
        add_to_gallery(gallery, sources, progress=progress, begin_step=begin_step)
    with read_current_catalog(gallery) as catalog:
        found = _find_removed(catalog, manifest.removed)
        usable = catalog.count("indexed") + catalog.count("duplicate")
    known = {row.id for row in before.values()}
    new = {row.id for row in read_added_rows(gallery).values() if row.status in USABLE} - known
    # A removed image has come back to the same gallery only where it was added by name since.
    is_same = manifest.gallery_id is not None and manifest.gallery_id == read_mark(gallery)
    out = {one for one in found if not is_same or one in new or one < (manifest.next_id or 0)}
    if len(out) == usable:  # a gallery holds at least one image
        out = set()
    if out:
        selection = Selection(ids=tuple(sorted(out)))
        remove_from_gallery(gallery, selection=selection, progress=progress, begin_step=begin_step)
    with closing(ReviewStore.of_gallery(gallery)) as store:
        merged = store.merge(backup.steps)
    images = Counter(outcome for _, outcome in outcomes)
    return RestoreReport(
        gallery=valid_text(str(gallery.resolve())),
        file=valid_text(str(file)),
        images={outcome: images[outcome] for outcome in ("restored", "present", "removed", "in_the_way")},
        indexed=len(new - out),
        decisions=merged,
        removals={"taken_out": len(out), "kept": len(found - out)},
        not_attached=_list_lost(gallery, backup.steps),
        log_lines=bring_lines(gallery, backup.log),
    )


def _restore_file(archive: zipfile.ZipFile, image: SentImage, gallery: Path) -> str:
    """Put an uploaded image into its place; the outcome."""
    path = added_folder(gallery) / image.path
    is_there = os.path.lexists(path)
    if image.removed and not is_there:  # in its place the next start of a server would add it again
        return "removed"
    with suppress(OSError):  # one that cannot be read is mended where its name tells its bytes
        if is_there and hash_file(path) == image.sha256:
            return "present"
    if is_there and not path.name.startswith(image.sha256):
        return "in_the_way"
    try:
        with archive.open(image.member) as file:
            keep_file(gallery, iter(partial(file.read, _BLOCK_BYTES), b""), name=image.path)
        os.utime(path, ns=(image.mtime_ns, image.mtime_ns))
    except OSError as error:
        problem = f"{printable_path(path)}: the image cannot be restored: {error.strerror or error}"
        raise InputError(f"{problem}; mend the cause and run it again: what was restored is kept") from error
    return "restored"


def _find_removed(catalog: Catalog, removals: Iterable[Removal]) -> set[int]:
    """Ids of images of this gallery that were removed from the gallery of a backup.

    An image is known by its bytes, its label and its path below its source. Where no image of these bytes and label was
    kept, all of them count, whatever their paths.
    """
    wanted: dict[tuple[str | None, str | None], list[Removal]] = {}
    for removal in removals:
        wanted.setdefault((removal.sha256, removal.label), []).append(removal)
    return {
        row.id
        for row in (list_usable(catalog) if wanted else ())
        for removal in wanted.get((row.sha256, row.label), ())
        if removal.kept == 0 or removal.path.endswith(f"{os.sep}{row.path}")
    }


def _list_lost(gallery: Path, steps: Sequence[Step]) -> list[Decision]:
    """The last decisions about images that the gallery does not have."""
    last = {subject: decision for step in steps for subject, decision in step.by_subject().items()}
    wanted = {sha256 for decision in last.values() for sha256 in _count_contents(decision)}
    with read_current_catalog(gallery) as catalog:
        here = [(sha256, label) for _, sha256, label in catalog.find_contents(wanted)]
    keys, contents = set(here), Counter(sha256 for sha256, _ in here)

    def is_lost(decision: Decision) -> bool:
        if isinstance(decision, LabelDecision):
            return decision.key not in keys
        return not _count_contents(decision) <= contents

    return [decision for decision in last.values() if is_lost(decision)]


def _count_contents(decision: Decision) -> Counter[str]:
    """How many images of each SHA-256 a decision is about; none for a removed tag."""
    match decision:
        case DuplicateDecision():
            return Counter(image.sha256 for image in decision.images)
        case LabelDecision() | Mark(value=str()):
            return Counter([decision.sha256])
    return Counter()
