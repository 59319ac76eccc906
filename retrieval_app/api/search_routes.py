"""Search routes: kept photos, queries of several parts, a photo as the body, many searches at once, embedding."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, Required

import numpy as np
from fastapi import Query, Response
from pydantic import Field
from typing_extensions import TypedDict

from index.filters.parser import parse_column, write_column
from index.gallery.image_groups import FOLDER
from index.gallery.ranking import FoundBy
from index.outputs import COPY, SEMANTIC
from index.text import printable_path
from index.words.taught import Source, WordQuery
from retrieval_app.api.errors import BODY_ERRORS
from retrieval_app.api.form_files import BYTES, IMAGE_BODY, read_image
from retrieval_app.api.image_routes import ImageEntry
from retrieval_app.api.request_context import Context, RequestContext, make_router, read_condition, responses, write
from retrieval_app.api.schemas import STRICT, By, FileName, ImageSearch, Ranking, SearchRequest, Versioned
from retrieval_app.insights.answer import Answer
from retrieval_app.insights.calibration import PrecisionAtScore
from retrieval_app.review.places import ROW_FIELDS, describe_row
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.photos import Upload
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.searching import PhotoToken, Search, SearchQuery

router = make_router("search")
EmbedBy = Annotated[
    By, Query(description="for semantic similarity, or for copy detection where the gallery's model has that output")
]
_JPEG = {200: {"content": {"image/jpeg": BYTES}, "description": "re-encoded pixels"}}
DESCRIBED_AT_ONCE = 200  # hits, which take a millisecond


class DuplicateHit(TypedDict):
    """A near-duplicate, or an image of the same group, that is collapsed into a result."""

    __pydantic_config__ = STRICT  # type: ignore[misc]
    id: int
    score: float


class SearchHit(ImageEntry, total=False):
    """One result; fields that `include` does not name are left out, as are empty `duplicates`."""

    rank: Required[int]
    score: Required[Annotated[float, Field(description="cosine similarity")]]
    precision_at_score: Annotated[
        PrecisionAtScore | None,
        Field(description="of a search with one image or photo; null for others, which scores mean less for"),
    ]
    is_copy: Annotated[bool, Field(description="of a search by `copy`: whether the score says that it is a copy")]
    duplicates: Annotated[list[DuplicateHit], Field(description="at most 100 of them")]
    duplicates_count: int
    found_by: Annotated[FoundBy, Field(description="of a search by words alone")]
    words: Annotated[list[str], Field(description="those of the image's text that the query means")]


class WordsAnswer(TypedDict):
    """How the words of a search were read; with `looks`, images that look as they say are found, too."""

    __pydantic_config__ = STRICT  # type: ignore[misc]
    understood: Annotated[
        dict[str, list[str]], Field(description="words of the texts, or beginnings with a *, by word; none if unknown")
    ]
    images: Annotated[int, Field(description="whose texts have all of the words")]
    looks: Annotated[Source | None, Field(description="what knows them; null where nothing does")]
    explanation: Annotated[str, Field(description="all of this in a line")]


class SearchResponse(Versioned):
    """Results, best first, from one version of the gallery."""

    took_ms: float
    hits: list[SearchHit]
    next_offset: int | None = Field(description="the offset of the next page; null where this was the last")
    collapsed: bool | None = Field(
        description="whether near-duplicates were collapsed; false while they are still computed, null where not asked"
    )
    words: WordsAnswer | None = Field(description="of a search by words alone")


class PhotoAnswer(Answer):
    """A photo that is kept in memory for a while, by its token; its size in pixels."""

    photo: str
    name: str
    width: int
    height: int


class EmbedAnswer(Answer):
    """The unit vector of a photo."""

    vector: list[float]
    embedding_dim: int
    model_sha256: str


async def describe_search(
    engine: Engine, snapshot: Snapshot, query: SearchQuery, *, include: Sequence[str], folders: bool
) -> dict[str, Any]:
    """The response to a query; a thread makes a long one, so that others do not wait."""
    started = time.perf_counter()
    search = await engine.search(snapshot, replace(query, with_rows=not set(ROW_FIELDS).isdisjoint(include)))
    describe = partial(_describe_hits, snapshot, search, include=include, folders=folders)
    hits = await engine.run(describe) if len(search.hits) > DESCRIBED_AT_ONCE else describe()
    return {
        "version": snapshot.version,
        "hits": hits,
        "next_offset": search.next_offset,
        "collapsed": search.groups is not None if query.collapse_duplicates else None,
        "words": None if search.query.words is None else _describe_words(search.query.words),
        "took_ms": round((time.perf_counter() - started) * 1000, 3),
    }


def _describe_words(words: WordQuery) -> dict[str, Any]:
    understood = {word: list(terms) for word, terms in words.understood.items()}
    images = len(words.written)
    return {"understood": understood, "images": images, "looks": words.looks, "explanation": words.explain()}


def _describe_hits(
    snapshot: Snapshot, search: Search, *, include: Sequence[str], folders: bool
) -> list[dict[str, Any]]:
    query, copies = search.query, snapshot.gallery.manifest.copy
    hits: list[dict[str, Any]] = []
    for found in search.hits:
        hit: dict[str, Any] = {"rank": found.rank, "id": found.id, "score": round(found.score, 6)}
        if found.duplicates:
            hit["duplicates"] = [{"id": number, "score": round(score, 6)} for number, score in found.duplicates]
            hit["duplicates_count"] = found.duplicates_count
        if found.found_by is not None:
            hit.update(found_by=found.found_by, words=list(found.words))
        if query.by == COPY and copies is not None:
            hit["is_copy"] = hit["score"] >= copies["threshold"]
        if query.with_rows and found.row is not None:
            hit.update(describe_row(snapshot.gallery, found.row, include=include, folders=folders))
        hits.append(hit)
    if "precision_at_score" in include:
        # Calibrated on single images as queries: a sum or difference of several has other scores.
        is_told = query.is_single and query.text is None and query.by == SEMANTIC
        calibration = snapshot.insights.calibration.value if is_told else None
        precisions = (
            [] if calibration is None else calibration.precision_at(np.array([hit.score for hit in search.hits]))
        )
        for hit, precision in zip_longest(hits, precisions):
            hit["precision_at_score"] = precision
    return hits


@router.post("/search", **responses(SearchResponse, 404, *BODY_ERRORS))
async def search(context: Context, body: SearchRequest) -> Response | dict[str, Any]:
    """Search by images of the gallery, photos, words and vectors, alone or weighted together."""
    excluded = frozenset(body.exclude_ids)
    return await _search(context, body, include=body.include, parts=body.queries, exclude_ids=excluded)


@router.post("/search/image", openapi_extra=IMAGE_BODY, **responses(SearchResponse, *BODY_ERRORS))
async def search_by_image(context: Context, parameters: Annotated[ImageSearch, Query()]) -> Response | dict[str, Any]:
    """Search by a photo, which is the body and is not kept."""
    upload = Upload(await read_image(context), printable_path(parameters.name))
    return await _search(context, parameters, include=parameters.include.split(","), upload=upload)


@router.post("/photos", status_code=201, openapi_extra=IMAGE_BODY, **responses(PhotoAnswer, *BODY_ERRORS))
async def keep_photo(context: Context, name: FileName = "photo") -> dict[str, Any]:
    """Keep a photo, the body, among those used last, to search with it or parts of it by the token of the answer."""
    photo = await context.engine.keep_photo(await read_image(context), name=name)
    return {"photo": photo.token, "name": photo.name, "width": photo.width, "height": photo.height}


@router.get("/photos/{token}/preview", **responses(None, 404, also=_JPEG))
async def get_photo(context: Context, token: PhotoToken) -> Response:
    """Get a kept photo as JPEG of at most about 1024 pixels a side."""
    photo = await context.engine.photo(token)
    return Response(photo.jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


@router.post("/embed", openapi_extra=IMAGE_BODY, **responses(EmbedAnswer, *BODY_ERRORS))
async def embed_photo(context: Context, name: FileName = "photo", by: EmbedBy = "semantic") -> dict[str, Any]:
    """Embed a photo, which is the body: the unit vector of the gallery's model."""
    data = await read_image(context)
    vector = await context.engine.embed(context.snapshot.view(by), data, name=printable_path(name))
    model = context.snapshot.gallery.manifest.model_sha256
    return {"vector": vector.tolist(), "embedding_dim": len(vector), "model_sha256": model}


async def _search(
    context: RequestContext, given: SearchRequest | ImageSearch, *, include: Sequence[str], **query: Any
) -> Response | dict[str, Any]:
    """The response of a search; a thread writes a long one, so that the event loop does not wait."""
    options = {name: getattr(given, name) for name in Ranking.model_fields}
    where = read_condition(given.where, given.text, folders=context.folders)
    if given.group_by is not None and given.group_by != FOLDER:
        read_condition(f"{write_column(parse_column(given.group_by))} IS NULL", None, folders=context.folders)
    asked = SearchQuery(where=where, **options, **query)
    found = await describe_search(context.engine, context.snapshot, asked, include=include, folders=context.folders)
    is_long = len(found["hits"]) > DESCRIBED_AT_ONCE
    return await context.engine.run(write, SearchResponse, found) if is_long else found
