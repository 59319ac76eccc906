"""Backup file: the annotations of a gallery, decisions, marks, uploads, removals and log, as one ZIP.

decisions.json    all steps of decisions, marks and saved searches
log.jsonl         the activity log
files/SHA256      uploaded images
manifest.json     the SHA-256 of each uploaded image by its path, and the paths of removed images by their SHA-256, with
                  those of equal images that were kept; the gallery's identity, and the id of its next image

No member is compressed. A restore reads and checks the whole file before it changes anything; newer decisions and files
of the gallery stay.
"""

import hashlib
import json
import os
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError, field_validator

from index.catalog.reader import Catalog
from index.catalog.rows import REMOVED
from index.durable import hash_file, replacing
from index.errors import GalleryError, InputError
from index.gallery.selection import Selection
from index.labels.decided_labels import read_current_catalog
from index.labels.decisions import LabelDecision
from index.labels.steps import ABOUT, KEEP_FILE, About, Step, check_step
from index.markers import read_mark
from index.paths import names_no_parent
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.sources.folder_walk import walk_folder
from index.sources.local_source import find_folder_around
from index.sources.source import ImageSource
from index.text import printable_path, valid_text
from index.versions.annotations import ANNOTATIONS, added_folder
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
_STEPS = TypeAdapter(list[Step])


class BackupError(InputError):
    """Invalid or damaged backup; nothing was restored from it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{printable_path(path)}: {problem}; nothing was changed")


class _Manifest(BaseModel):
    """Table of contents; undecodable bytes in paths are surrogates, which JSON escapes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["retrieval-backup"] = "retrieval-backup"
    format_version: Literal[1] = 1
    images: dict[str, _Sha256]  # uploaded ones, by their path below the folder of added images
    removed: dict[_Sha256, list[str]]  # absolute paths
    kept: dict[_Sha256, list[str]] = {}  # absolute paths of images with the bytes of removed ones
    gallery_id: str | None = None
    next_id: int | None = None  # id that the gallery would have given to its next image

    @field_validator("images")
    @classmethod
    def _lead_below(cls, images: dict[str, str]) -> dict[str, str]:
        """The images, if all paths stay below their folder."""
        for path in images:
            parts = os.fsencode(path).split(b"/")
            leads_out = path.startswith("/") or not names_no_parent(path)
            if leads_out or len(parts) > 16 or any(p in (b"", b".") or b"\0" in p or len(p) > 255 for p in parts):
                raise ValueError("an image has a place that no image has")
        return images

    def has_removed(self, sha256: str | None, root: str, path: str) -> bool:
        """Whether an image was removed: one with its bytes, and its path below its source.

        Where equal images were kept, the one whose absolute path has the longest equal end decides.
        """
        place, end = os.path.join(root, path), f"{os.sep}{path}"
        removed, kept = (
            max(
                (_count_equal_end(place, one) for one in paths.get(sha256 or "", ()) if f"{os.sep}{one}".endswith(end)),
                default=0,
            )
            for paths in (self.removed, self.kept)
        )
        return removed > kept


def _count_equal_end(path: str, other: str) -> int:
    """How many last parts of two paths are equal.

    >>> _count_equal_end("/old/red/1.jpg", "/new/red/1.jpg"), _count_equal_end("/a/1.jpg", "/a/11.jpg")
    (2, 0)
    """
    pairs = zip(reversed(path.split(os.sep)), reversed(other.split(os.sep)), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(frozen=True, slots=True)
class BackupReport:
    """Contents of a backup."""

    file: str
    decisions: dict[About, int]  # number of current decisions by kind
    images: int  # uploads
    removed: int  # images that were removed from the gallery
    log_lines: int
    bytes: int
    notes: list[str]  # parts that could not be read and are missing


def back_up(gallery: Path, out: Path, *, overwrite: bool = False, progress: Progress = no_progress) -> BackupReport:
    """Write the annotations, even of a damaged gallery, to one file; images uploaded meanwhile may be missing."""
    if not (gallery / ANNOTATIONS).is_dir() and not (gallery / "CURRENT").exists():
        find_version(gallery)  # says what is missing
    _check_out(out, gallery=gallery, overwrite=overwrite)
    steps, log, notes = _read_steps(gallery), list[Line](), list[str]()
    removed, kept, next_id = dict[str, list[str]](), dict[str, list[str]](), None
    try:
        with read_current_catalog(gallery) as catalog:
            (removed, kept), next_id = _list_removed(catalog), catalog.next_id()
    except GalleryError as error:
        notes.append(f"the gallery cannot be read, so its removed images are not in the backup: {error}")
    try:
        log = read_log(gallery)
    except ReviewError as error:
        notes.append(f"left out: {error}")
    with _open_new(out, overwrite=overwrite) as archive:
        _add(archive, _DECISIONS, json.dumps(_STEPS.dump_python(steps)).encode())
        _add(archive, _LOG, b"".join(json.dumps(line).encode() + b"\n" for line in log))
        manifest = _Manifest(
            images=_add_images(archive, gallery, notes, progress),
            removed=removed,
            kept=kept,
            gallery_id=read_mark(gallery),
            next_id=next_id,
        )
        _add(archive, _MANIFEST, json.dumps(manifest.model_dump(), indent=1).encode())
    decided = {(step.kind, subject) for step in steps for subject in step.by_subject()}
    return BackupReport(
        file=valid_text(str(out)),
        decisions={kind: sum(one == kind for one, _ in decided) for kind in ABOUT},
        images=len(manifest.images),
        removed=sum(map(len, removed.values())),
        log_lines=len(log),
        bytes=out.stat().st_size,
        notes=notes,
    )


def _read_steps(gallery: Path) -> list[Step]:
    with closing(ReviewStore.of_gallery(gallery)) as store:
        try:
            return list(map(check_step, store.steps()))
        except (InputError, KeyError, TypeError, ValueError) as error:
            raise ReviewError(store.path, f"{error}; {KEEP_FILE}") from error


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
        raise InputError(_IS_THERE, at=out) from error
    except OSError as error:
        advice = "nothing was left there, fix the cause and run it again"
        raise InputError(f"the backup cannot be written: {error}; {advice}", at=out) from error


def _check_out(out: Path, *, gallery: Path, overwrite: bool) -> None:
    sources: Iterable[ImageSource] = ()
    with suppress(GalleryError), read_current_catalog(gallery) as catalog:  # `back_up` notes a damaged one
        sources = catalog.sources().values()
    if (folder := find_folder_around(out, gallery, sources)) is not None:
        raise InputError(
            f"{printable_path(out)} lies inside {printable_path(folder)}, where the gallery or its images are, and "
            "would be taken for one of them; choose a place beside it"
        )
    if os.path.lexists(out) and not overwrite:
        raise InputError(_IS_THERE, at=out)


def _list_removed(catalog: Catalog) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Paths of the images that people removed, and of kept ones of equal bytes, by their SHA-256, if it is known."""
    removed, kept = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    roots = {number: source.root for number, source in catalog.sources().items()}
    for row in catalog.rows(status="skipped"):
        if row.reason == REMOVED and row.sha256 is not None:
            removed[row.sha256].append(os.path.join(roots[row.source], row.path))
    for row in list_usable(catalog) if removed else ():
        if row.sha256 is not None and row.sha256 in removed:
            kept[row.sha256].append(os.path.join(roots[row.source], row.path))
    return dict(removed), dict(kept)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EARLIEST_TIME), content)


def _add_images(archive: zipfile.ZipFile, gallery: Path, notes: list[str], progress: Progress) -> dict[str, str]:
    """Add the uploaded images, equal ones once; their SHA-256 by their paths."""
    folder, images, contents = added_folder(gallery), dict[str, str](), set[str]()
    found = list(walk_folder(folder)) if folder.is_dir() else []
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
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 not in contents:
            _add(archive, f"files/{sha256}", content)
        images[file.path] = sha256
        contents.add(sha256)
        progress(done, len(found))
    return images


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
            raise BackupError(
                path, f"no backup, damaged, or made by a pre-release: {problem}; keep the file"
            ) from error
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
    contents = set(manifest.images.values())
    if sorted(names) != sorted([_DECISIONS, _LOG, _MANIFEST, *(f"files/{sha256}" for sha256 in contents)]):
        raise InputError("its members are not those of its manifest")
    steps = list(map(check_step, _STEPS.validate_python(json.loads(archive.read(_DECISIONS)))))
    log = [check_line(json.loads(line)) for line in archive.read(_LOG).splitlines()]
    for done, sha256 in enumerate(contents, start=1):
        with archive.open(f"files/{sha256}") as file:
            if hashlib.file_digest(cast(zipfile.ZipExtFile, file), "sha256").hexdigest() != sha256:
                raise InputError(f"files/{sha256} is not what was written")
        progress(done, len(contents))
    return Backup(archive, manifest, steps, log)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Outcome of a restore: uploads and decisions by what became of them, and counts of other changes.

    Uploads that were `removed` before the backup are left out; of those `in_the_way` another file has the name.
    """

    gallery: str
    images: dict[str, int]
    indexed: int
    removed: int  # images of the gallery
    decisions: dict[str, int]
    not_attached: list[LabelDecision]  # about images that the gallery does not have; they are kept
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
    that they are damaged. Images that were removed before the backup, known by their bytes and their path below their
    source, are removed, unless they were added to the same gallery since. An unsound backup is a BackupError, before
    anything is changed.
    """
    find_version(gallery)
    with _open_backup(file, checking) as backup:
        outcomes = {path: _restore_file(backup, path, gallery) for path in backup.manifest.images}
    before = read_added_rows(gallery)
    there = (path for path, outcome in outcomes.items() if outcome in ("restored", "present"))
    if missing := [path for path in there if path not in before]:
        sources = name_sources(gallery, missing)
        add_to_gallery(gallery, sources, progress=progress, begin_step=begin_step)
    new = {row.id for row in read_added_rows(gallery).values()} - {row.id for row in before.values()}
    if removed := _find_removed(backup.manifest, gallery, new):
        selection = Selection(ids=tuple(removed))
        remove_from_gallery(gallery, selection=selection, progress=progress, begin_step=begin_step)
    with closing(ReviewStore.of_gallery(gallery)) as store:
        merged = store.merge(backup.steps)
    images = Counter(outcomes.values())
    added = {row.id for row in read_added_rows(gallery).values() if row.status in USABLE}
    return RestoreReport(
        gallery=valid_text(str(gallery.resolve())),
        images={outcome: images[outcome] for outcome in ("restored", "present", "removed", "in_the_way")},
        indexed=len(added - {row.id for row in before.values()}),
        removed=len(removed),
        decisions=merged,
        not_attached=_list_lost(gallery, backup.steps),
        log_lines=bring_lines(gallery, backup.log),
    )


def _find_removed(manifest: _Manifest, gallery: Path, new: set[int]) -> list[int]:
    """Ids of images that were removed before the backup; empty if the gallery would have no other image.

    In the same gallery, a later image that is not `new` by this restore was added by name since.
    """
    is_same = manifest.gallery_id is not None and manifest.gallery_id == read_mark(gallery)
    latest = manifest.next_id if is_same else None
    with read_current_catalog(gallery) as catalog:
        usable, sources = list(list_usable(catalog)), catalog.sources()
    removed = [
        row.id
        for row in usable
        if (latest is None or row.id < latest or row.id in new)
        and manifest.has_removed(row.sha256, sources[row.source].root, row.path)
    ]
    return removed if len(removed) < len(usable) else []


def _restore_file(backup: Backup, name: str, gallery: Path) -> str:
    """Put an uploaded image into its place; the outcome."""
    sha256, path = backup.manifest.images[name], added_folder(gallery) / name
    is_there = os.path.lexists(path)
    if not is_there and backup.manifest.has_removed(sha256, str(added_folder(gallery)), name):
        # The next start of a server would add it again.
        return "removed"
    with suppress(OSError):  # one that cannot be read is replaced where its name tells its bytes
        if is_there and hash_file(path) == sha256:
            return "present"
    if is_there and not path.name.startswith(sha256):
        return "in_the_way"
    try:
        with backup.archive.open(f"files/{sha256}") as file:
            keep_file(gallery, iter(partial(file.read, _BLOCK_BYTES), b""), name=name)
    except OSError as error:
        problem = f"{printable_path(path)}: the image cannot be restored: {error.strerror or error}"
        raise InputError(f"{problem}; fix the cause and run it again: what was restored is kept") from error
    return "restored"


def _list_lost(gallery: Path, steps: Sequence[Step]) -> list[LabelDecision]:
    """The last decisions about labels of images that the gallery does not have."""
    last = {one.key: one for step in steps for one in step.labels}
    with read_current_catalog(gallery) as catalog:
        here = {(sha256, label) for _, sha256, label in catalog.find_contents({sha256 for sha256, _ in last})}
    return [decision for key, decision in last.items() if key not in here]
