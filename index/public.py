"""The Python API of `index`: build, open and evaluate a gallery. Importing it loads nothing heavy."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.config_fields import as_path, make_config, option_names, refuse_unknown
from index.duplicates.duplicate_config import DuplicateConfig
from index.errors import InputError
from index.limits import WRITER_WAIT_S
from index.paths import user_cache
from index.progress import BeginStep, Progress, no_progress, no_steps
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.writing.build_config import DEDUP, BuildConfig

if TYPE_CHECKING:
    from index.evaluation.evaluate import Evaluation
    from index.filters.condition import Condition
    from index.gallery.gallery import Gallery
    from index.writing.publishing import BuildReport

logger = logging.getLogger(__name__)


def build(
    model: str | Path | None,
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    labels: str | Path | None = None,
    dedup: str = "off",
    skip_if: Condition | str | None = None,
    ocr: bool | None = None,
    gps: bool | None = None,
    cache: str | Path | bool = True,
    progress: Progress = no_progress,
    begin_step: BeginStep = no_steps,
    wait_s: float = WRITER_WAIT_S,
    **options: Any,
) -> BuildReport:
    """Build the gallery `out` from all images of the sources, continue a stopped build, or update a finished gallery.

    Args:
        model: an exported model, or `builtin`; None: that of `out`, or the built-in model for a new gallery.
        sources: one or several folders, archives, globs, lists, tables or images.
        labels: CSV or Parquet of `path,label`, which replaces other labels.
        dedup: near-duplicates to leave out: `off`, `exact` or `near`.
        skip_if: images that match are skipped, such as `"sharpness < 20"`; a later build without it takes them in.
        ocr: read the text in images as metadata, also in later updates; False removes it; None: as `out` has it.
        gps: keep the places in EXIF as metadata, likewise.
        cache: folder of cached vectors; True: the user's cache folder; False: none.
        progress: called with (done, total) images.
        begin_step: called with the name of another long step; gives its progress.
        wait_s: seconds to wait for another process that writes the gallery.
        **options: as `retrieval index build` has them, with `_` for `-`; a gallery remembers those of its ANN index.
    """
    refuse_unknown(options, BuildConfig, AnnConfig, DuplicateConfig, StoreConfig)
    if dedup not in DEDUP:
        raise InputError(f"dedup: expected one of {', '.join(DEDUP)}, got {dedup!r}")
    if unused := [name for name in option_names(DuplicateConfig) if name in options and dedup != "near"]:
        raise InputError(f"{unused[0]}: needs dedup='near', and would do nothing with {dedup!r}")
    index = asdict(make_config(AnnConfig, options))
    from index.filters.parser import parse_filter
    from index.model.builtin import find_named_model
    from index.writing.build import build_gallery

    return build_gallery(
        model_path=None if model is None else find_named_model(as_path(model, "model")),
        sources=_as_sources(sources),
        out=as_path(out, "out"),
        labels_file=None if labels is None else as_path(labels, "labels"),
        dedup=dedup,
        duplicates=make_config(DuplicateConfig, options),
        skip_if=parse_filter(skip_if) if isinstance(skip_if, str) else skip_if,
        ocr=ocr,
        gps=gps,
        index={name: index[name] for name in options if name in index},
        store=make_config(StoreConfig, options) if {"store", "uri"} & set(options) else None,
        config=replace(make_config(BuildConfig, options), cache=as_cache(cache)),
        progress=progress,
        begin_step=begin_step,
        wait_s=wait_s,
    )


def as_cache(cache: str | Path | bool) -> Path | None:
    """The cache folder: a path, True for the user's, False for none."""
    if cache is False:
        return None
    if cache is True:
        try:
            return user_cache()
        except InputError as error:  # the default may be missing
            logger.warning("%s; nothing is kept", error)
            return None
    return as_path(cache, "cache")


def open_gallery(path: str | Path, *, threads: int = 0) -> Gallery:
    """Open a gallery to search it: `open_gallery("gallery").search("photo.jpg", k=5, where="price < 20")`.

    It stays at its version, and threads may share it. `threads` are those of one search, 0 for all cores.
    """
    if not isinstance(threads, int) or threads < 0:
        raise InputError(f"threads must be a whole number of at least 0, got {threads!r}")
    from index.gallery.gallery import Gallery
    from index.threads import usable_cores

    return Gallery.open(as_path(path, "path"), threads=threads or usable_cores())


def evaluate(
    gallery: str | Path | Gallery | None = None,
    *,
    model: str | Path | None = None,
    data: str | Path | None = None,
    query: str | Path | None = None,
    where: Condition | str | None = None,
    groups: str | None = None,
    k: Iterable[int] = (1, 2, 4, 8, 16),
    exact: bool = False,
    progress: Progress = no_progress,
    scoring: Progress = no_progress,
) -> Evaluation:
    """Measure Recall@K, MAP@R and R-precision of a gallery, or of a model on labelled images.

    Args:
        gallery: a finished gallery, by its folder or opened.
        model: an exported model, or `builtin`, in place of a gallery.
        data: the labelled images for the model: a folder of class folders, or a file of `path,label`.
        query: other labelled images as queries; without them every image is a query for all others.
        where: images of a gallery that are queries, such as `"split = 'test'"`; all are searched.
        groups: the metadata, or the column, that defines the groups of the grouped evaluation; None: `group`, where
            there is one, else groups are found.
        k: the K of Recall@K.
        exact: ask all queries, also where they are so many that a sample of 20,000 would be asked.
        progress, scoring: called with (done, total) images that are embedded, and queries that are scored.
    """
    from index.evaluation.evaluate import embed_labelled, evaluate_images, read_members
    from index.filters.parser import parse_filter
    from index.gallery.gallery import Gallery
    from index.model.builtin import find_named_model
    from index.model.embedder import Embedder

    if (gallery is None) == (model is None) or (model is None) != (data is None):
        raise InputError("give either a gallery, or both model and data")
    ks = list(k) if isinstance(k, Iterable) else [k]
    if not all(isinstance(each, int) for each in ks):
        raise InputError(f"k must be whole numbers of at least 1, got {ks}")
    if where is not None and (gallery is None or query is not None):
        raise InputError("where selects images of a gallery as queries: it goes with a gallery, and without query")
    if model is not None and data is not None:
        embedder, images = Embedder(find_named_model(as_path(model, "model")), threads=1), as_path(data, "data")
        members = embed_labelled(images, embedder=embedder, groups=groups, progress=progress)
    else:
        opened = gallery if isinstance(gallery, Gallery) else open_gallery(gallery)  # type: ignore[arg-type]
        condition = parse_filter(where) if isinstance(where, str) else where
        members = read_members(opened, where=condition, groups=groups)
    queries = None
    if query is not None:
        embedder = opened.embedder if model is None else embedder
        queries = embed_labelled(as_path(query, "query"), embedder=embedder, progress=progress)
    return evaluate_images(members, queries=queries, ks=ks, exact=exact, scoring=scoring)


def _as_sources(sources: str | Path | Sequence[str | Path]) -> list[str | Path]:
    if not isinstance(sources, str | os.PathLike | Iterable) or isinstance(sources, bytes):
        raise InputError(f"sources: expected one or several as str or Path, got {sources!r}")
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    return [source if isinstance(source, str) else as_path(source, "sources") for source in given]
