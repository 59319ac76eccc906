"""What each kind of job does to a gallery: many of one kind become one new version of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index.catalog.rows import CatalogRow
from index.errors import RetrievalError
from index.evaluation.evaluate import evaluate_gallery
from index.filters.condition import Condition
from index.filters.parser import parse_filter
from index.filters.to_text import write_condition
from index.gallery.gallery import Gallery
from index.gallery.selection import Selection
from index.images.image_files import REASONS
from index.progress import Progress
from index.writing.build import add_to_gallery, remove_from_gallery, update_gallery
from index.writing.build_config import BuildConfig
from index.writing.publish_change import BuildReport
from retrieval_app.review.added_images import AddedImage, name_sources, read_added_rows

logger = logging.getLogger(__name__)

ADD, REMOVE, UPDATE, EVALUATE = KINDS = ("add", "remove", "update", "evaluate")
TOGETHER = (ADD, REMOVE, UPDATE)
"""Kinds of which any number can be done at once."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a job is to do; each kind reads its own part."""

    image: AddedImage | None = None
    ids: tuple[int, ...] = ()
    ks: tuple[int, ...] = ()
    where: Condition | None = None

    def pack(self) -> str:
        """All of it as text, which any process of the server reads again."""
        image = None if self.image is None else [self.image.name, self.image.label]
        where = None if self.where is None else write_condition(self.where)
        return json.dumps({"image": image, "ids": self.ids, "ks": self.ks, "where": where})

    @classmethod
    def unpack(cls, text: str) -> Work:
        """What `pack` wrote."""
        values = json.loads(text)
        image = None if values["image"] is None else AddedImage(*values["image"])
        where = None if values["where"] is None else parse_filter(values["where"])
        return cls(image, tuple(values["ids"]), tuple(values["ks"]), where)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a piece of work: words for people, and the result; None where it failed."""

    message: str
    result: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one gallery.

    Attributes:
        path: the gallery's folder, absolute.
        on_change: called when there is a new version, before its outcomes are given.
        open_gallery: gives the version that is served.
        config: how images are embedded.
    """

    path: Path
    on_change: Callable[[], object]
    open_gallery: Callable[[], Gallery]
    config: BuildConfig | None

    def run(self, kind: str, works: Sequence[Work], *, tell: Callable[[str], None]) -> list[Outcome]:
        """Do work of one kind; what is done at the moment is told in words.

        Raises:
            RetrievalError: nothing of it could be done.
        """
        run = {ADD: self._add, REMOVE: self._remove, UPDATE: self._update, EVALUATE: self._evaluate}[kind]
        return run(works, tell)

    def _add(self, works: Sequence[Work], tell: Callable[[str], None]) -> list[Outcome]:
        images = [work.image for work in works if work.image is not None]
        options = self._options(tell)
        report = add_to_gallery(self.path, name_sources(self.path, images), **options)
        self._show(report)
        try:
            rows = read_added_rows(self.path)
        except (RetrievalError, OSError) as error:  # it is done all the same
            logger.error("what was added cannot be looked up", exc_info=error)
            result = {"image_id": None, "label": None, "copy_of": None, "version": report.version}
            return [Outcome(f"added, but its id cannot be looked up: {error}", result) for _ in images]
        return [_describe_added(image, rows.get(image.name), version=report.version) for image in images]

    def _remove(self, works: Sequence[Work], tell: Callable[[str], None]) -> list[Outcome]:
        ids = tuple(sorted({image_id for work in works for image_id in work.ids}))
        report = remove_from_gallery(self.path, selection=Selection(ids=ids), **self._options(tell))
        self._show(report)
        return [
            Outcome(
                f"removed {len(work.ids):,} image{'s'[: len(work.ids) != 1]}; the files are untouched",
                {"ids": list(work.ids), "version": report.version},
            )
            for work in works
        ]

    def _update(self, works: Sequence[Work], tell: Callable[[str], None]) -> list[Outcome]:
        report = update_gallery(self.path, **self._options(tell))
        self._show(report)
        message = "there is a new version" if report.changed else "nothing had changed"
        counts = {name: value for name, value in report.to_json().items() if name != "gallery"}
        return [Outcome(message, counts) for _ in works]

    def _evaluate(self, works: Sequence[Work], tell: Callable[[str], None]) -> list[Outcome]:
        gallery = self.open_gallery()
        return [
            Outcome(
                "evaluated",
                {
                    **evaluate_gallery(
                        gallery, ks=work.ks, where=work.where, scoring=_count_aloud("scoring", tell)
                    ).to_json(),
                    "version": gallery.version,
                },
            )
            for work in works
        ]

    def _options(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """What every command that writes the gallery is given."""

        def begin_step(name: str) -> Progress:
            tell(name.lower())
            return _count_aloud(name.lower(), tell)

        return {"config": self.config, "progress": _count_aloud("embedding", tell), "begin_step": begin_step}

    def _show(self, report: BuildReport) -> None:
        """Let a new version be served; where that fails, the change is done all the same."""
        if report.changed:
            try:
                self.on_change()
            except Exception as error:  # whatever it is, a job that is done must not be told to have failed
                logger.error("version %s cannot be served yet", report.version, exc_info=error)


def _describe_added(image: AddedImage, row: CatalogRow | None, *, version: str) -> Outcome:
    if row is None:
        return Outcome("the image was not added: its file is not there any more; send it again", None)
    if row.status not in ("indexed", "duplicate"):
        return Outcome(f"the image was not added: {REASONS.get(row.reason or '', row.detail or row.status)}", None)
    if image.label is not None and row.label != image.label:
        return Outcome(f"image {row.id} was added, but its label is {row.label!r}, not {image.label!r}", None)
    copy = "" if row.kept_id is None else f", set aside as a duplicate of image {row.kept_id}"
    result = {"image_id": row.id, "label": row.label, "copy_of": row.kept_id, "version": version}
    return Outcome(f"added as image {row.id}{copy}", result)


def _count_aloud(name: str, tell: Callable[[str], None]) -> Progress:
    def count(done: int, total: int) -> None:
        tell(f"{name}: {done:,} of {total:,}" if total else name)

    return count
