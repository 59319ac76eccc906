"""Gallery routes: its description, facets, quality and map."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Query, Response
from pydantic import Field
from typing_extensions import TypedDict

from index.arrays import number_labels
from index.catalog.reader import list_columns
from index.catalog.rows import CLUSTER, CLUSTERS_SETTING, SPLIT
from index.filters.condition import Column
from index.filters.parser import write_column
from index.gallery.gallery import Gallery
from index.gallery.problems import ImageProblem, find_problems
from index.model.builtin import builtin_sha256
from index.text import valid_text
from index.vectors.kinds import KINDS
from retrieval_app.api.request_context import Context, RequestContext, make_router, read_condition, responses, write
from retrieval_app.api.schemas import MAX_QUERIES, STRICT, Answer, By, FacetSelection, Ready, Versioned
from retrieval_app.api.security.access import may
from retrieval_app.api.security.rights import REVIEW, WRITE
from retrieval_app.insights.answer import once_per_gallery
from retrieval_app.insights.background import Computed, Name
from retrieval_app.insights.facet_filters import Facets, count_facets
from retrieval_app.insights.map_layout import MapLayout
from retrieval_app.insights.quality import Quality
from retrieval_app.review.exports import MAX_ROWS, MAX_ZIP_IMAGES
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.searching import MAX_K
from retrieval_app.serving.serving_config import ServingConfig

router = make_router("gallery")
_FAILED = "it could not be computed; the server's log says why"
MAX_LABELS = MAX_WORDS = 2000
_MAX_COLUMNS = 100
_find_problems = once_per_gallery(find_problems)  # seconds where there are many placeholders


class Computing(Answer):
    """A result that is being computed: ask again; a `total` of 0 is not known yet.

    Where another result is computed first, `behind` names it, and `done` and `total` are its own.
    """

    state: Literal["computing"]
    done: int
    total: int
    behind: Name | None


class Failed(Answer):
    """A result that could not be computed, and why."""

    state: Literal["failed"]
    message: str


COMPUTING = {202: {"model": Computing, "description": "It is being computed: ask again."}}


class ModelFacts(Answer):
    """The model of the gallery."""

    backbone: str
    method: str
    view: str
    pooling: str
    sha256: str
    builtin: bool


class LabelFacts(Answer):
    """The names of at most 2,000 labels, the most frequent first; the number of labels; images that have one."""

    names: list[str]
    count: int
    labelled: int


class Permissions(Answer):
    """The permissions of the visitor."""

    review: bool
    write: bool
    move: bool = Field(description="move files of dropped near-duplicates to the server's folder for them")


class Limits(Answer):
    """Limits of a request."""

    max_upload_bytes: int
    max_k: int
    max_queries: int
    max_export_csv: int = Field(description="images of a table")
    max_export_zip: int = Field(description="images of a ZIP")


class CalibrationFacts(Answer):
    """Rows of score, share of neighbours with the same label, and its 95 % interval; none with too few labels."""

    state: Literal["ready", "computing", "failed"]
    points: list[tuple[float, float, float, float]]


class GalleryFacts(Answer):
    """The gallery."""

    name: str
    folder: str | None = Field(description="on the machine; null for visitors who see no folders of it")
    version: str
    images: int
    next_id: int = Field(description="the least id that no image had yet: `id >= N` later finds what was added since")
    embedding_dim: int
    similarity: list[By] = Field(description="kinds of similarity that searches can use")
    model: ModelFacts
    labels: LabelFacts
    metadata_columns: list[str]
    index: dict[str, Any] = Field(description="what the build measured of the index")
    permissions: Permissions
    limits: Limits
    calibration: CalibrationFacts


class FacetList(Facets, Versioned):
    """Facets of the images that fulfil the condition."""


class ProblemList(Versioned):
    """Image problems of the gallery."""

    images: int
    problems: list[ImageProblem]


class KnownWord(TypedDict):
    """A word of the images' texts."""

    __pydantic_config__ = STRICT  # type: ignore[misc]
    word: str
    images: int


class KnownWords(Ready):
    """Words that a search by looks finds better than chance: the first of them, and how many they are."""

    count: int
    words: list[KnownWord]


class QualityReport(Quality, Ready):
    """Retrieval quality on the gallery's own labels; `problem` says why it is missing."""


class GalleryMap(MapLayout, Ready):
    """The place of every image, 0 to 1; `label` and `cluster` are positions in `labels` and `clusters`, or -1."""

    cluster: list[int]
    clusters: list[str]


def describe_gallery(
    snapshot: Snapshot, *, name: str, folders: bool, permissions: Mapping[str, bool], config: ServingConfig
) -> dict[str, Any]:
    """The document of /v1/gallery, for a visitor with these permissions."""
    gallery = snapshot.gallery
    computed = snapshot.insights.calibration
    points = () if computed.value is None else computed.value.points
    return {
        "name": valid_text(name),
        "folder": valid_text(str(gallery.path)) if folders else None,
        **_read_facts(gallery),
        "permissions": permissions,
        "limits": {
            "max_upload_bytes": config.max_upload_bytes,
            "max_k": MAX_K,
            "max_queries": MAX_QUERIES,
            "max_export_csv": MAX_ROWS,
            "max_export_zip": MAX_ZIP_IMAGES,
        },
        "calibration": {"state": computed.state, "points": points},
    }


@once_per_gallery
def _read_facts(gallery: Gallery) -> dict[str, Any]:
    contract, manifest = gallery.embedder.contract, gallery.manifest
    labels, columns = _count_labels(gallery), _read_given(gallery.without_decisions)[1]
    largest = heapq.nsmallest(MAX_LABELS, labels.items(), key=lambda one: (-one[1], one[0]))
    return {
        "version": gallery.version,
        "images": gallery.count,
        "next_id": manifest.next_id,
        "embedding_dim": manifest.embedding_dim,
        "similarity": manifest.similarity,
        "model": {
            **{name: getattr(contract, name) for name in ("backbone", "method", "view", "pooling")},
            "sha256": manifest.model_sha256,
            "builtin": manifest.model_sha256 == builtin_sha256(),
        },
        "labels": {"names": [name for name, _ in largest], "count": len(labels), "labelled": labels.total()},
        "metadata_columns": columns if SPLIT in columns or not gallery.decided.marked.splits else [SPLIT, *columns],
        "index": {**manifest.index, "explanation": KINDS[manifest.index["type"]].explanation},
    }


def _count_labels(gallery: Gallery) -> Counter[str]:
    """The number of images of each label, with the decisions."""
    given = gallery.without_decisions
    changed = gallery.decided.ids
    members = changed[np.isin(changed, given.ids)].tolist()  # others are duplicates, which do not count
    decided = [gallery.decided.by_id[number] for number in members]
    now = Counter(one.label for one in decided if one.label is not None and not one.left_out)
    before = Counter(one.given for one in decided if one.given is not None)
    return _read_given(given)[0] + now - before


@once_per_gallery
def _read_given(given: Gallery) -> tuple[Counter[str], list[str]]:
    """The given labels, and the names of metadata in conditions, the most frequent first."""
    with given.catalog(asks_metadata=True) as catalog:
        labels = Counter(catalog.indexed_labels(limit=-1)["largest"])  # all
        return labels, [write_column(Column((name,))) for name in list_columns(catalog, limit=_MAX_COLUMNS)]


@router.get("/gallery", **responses(GalleryFacts))
async def get_gallery(context: Context) -> Any:
    """Describe the gallery: version, size, model, labels, index, permissions, limits, calibration of scores."""
    request, access = context.request, context.request.app.state.access
    permissions = {"review": may(request, REVIEW), "write": may(request, WRITE)}
    permissions["move"] = permissions["write"] and access.disk_changes is not None
    return await context.read(
        describe_gallery,
        context.snapshot,
        name=context.engine.name,
        folders=context.folders,
        permissions=permissions,
        config=context.engine.config,
    )


@router.get("/facets", **responses(FacetList))
async def list_facets(context: Context, selection: Annotated[FacetSelection, Query()]) -> dict[str, Any]:
    """List facets: labels, folders, sources and metadata, the 50 most frequent values with counts and conditions."""
    snapshot = context.snapshot
    where = read_condition(selection.where, selection.text, folders=context.folders)
    count = partial(count_facets, folders=context.folders, only=selection.facet, part=selection.find or "")
    facets = await context.engine.look_up(count, snapshot.gallery, where)
    return {"version": snapshot.version, **dict(facets)}


@router.get("/problems", **responses(ProblemList))
async def list_problems(context: Context) -> dict[str, Any]:
    """List image problems: blurred, dark, bright, empty, tiny, bordered images, placeholders and others."""
    snapshot = context.snapshot
    problems = await context.engine.run(_find_problems, snapshot.gallery)
    return {"version": snapshot.version, "images": snapshot.gallery.count, "problems": problems}


@router.get("/words", **responses(KnownWords | Failed, also=COMPUTING))
async def get_words(context: Context) -> Response | dict[str, Any]:
    """List the words of the images' texts that are known to look like something, the most frequent first."""
    computed = context.snapshot.insights.words
    if computed.value is None:
        return send_unready(context, computed)
    words = [{"word": word, "images": count} for word, count in computed.value[:MAX_WORDS]]
    return {"state": "ready", "version": context.snapshot.version, "count": len(computed.value), "words": words}


@router.get("/quality", **responses(QualityReport | Failed, also=COMPUTING))
async def get_quality(context: Context) -> Response | dict[str, Any]:
    """Measure retrieval quality on the gallery's own labels: recall, worst classes and queries, confusion."""
    computed = context.snapshot.insights.quality
    if computed.value is None:
        return send_unready(context, computed)
    return {"state": "ready", "version": context.snapshot.version, **computed.value.model_dump()}


@router.get("/map", **responses(GalleryMap | Failed, also=COMPUTING))
async def get_map(context: Context) -> Response | dict[str, Any]:
    """Map of all images: ids, places and labels, as columns."""
    computed = context.snapshot.insights.map
    if computed.value is None:
        return send_unready(context, computed)
    clusters = await context.read(_read_clusters, context.snapshot.gallery, computed.value.ids)
    return {"state": "ready", "version": context.snapshot.version, **computed.value.model_dump(), **clusters}


def _read_clusters(gallery: Gallery, ids: Sequence[int]) -> dict[str, Any]:
    """The cluster of each image, as `GalleryMap` has it."""
    with gallery.catalog() as catalog:
        if catalog.setting(CLUSTERS_SETTING) is None:
            return {"cluster": [], "clusters": []}
        named = {row.id: row.metadata.get(CLUSTER) for row in catalog.rows_of(ids)}
    numbers, names = number_labels([named.get(number) for number in ids])
    return {"cluster": numbers.tolist(), "clusters": names}


def send_unready(context: RequestContext, computed: Computed[Any]) -> Response | dict[str, Any]:
    """The response for a result that is not computed."""
    if computed.state == "computing":
        far = {"done": computed.done, "total": computed.total, "behind": computed.behind}
        return write(Computing, {"state": "computing", **far}, status=202)
    message = computed.message or "there is nothing to compute it from"
    if computed.message is not None and not context.folders:
        message = _FAILED  # what went wrong may name folders of the machine
    return {"state": "failed", "message": message}
