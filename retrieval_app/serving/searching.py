"""Searches of a served gallery: queries, and answers to many at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import Discriminator, Field, StringConstraints, Tag

from index.arrays import NO_ID, Vectors
from index.errors import InputError, RetrievalError
from index.filters.condition import Condition
from index.gallery.any_query import normalise
from index.gallery.gallery import Gallery
from index.gallery.image_groups import ImageGroups
from index.gallery.ranking import Hit, SearchOptions, answer
from index.outputs import SEMANTIC
from index.words.words import MAX_QUERY
from retrieval_app.insights.answer import Body
from retrieval_app.serving.photos import Crop, Upload

MAX_ID = 2**53 - 1  # what a number of JSON holds in every program
MAX_K = 1000
MAX_OFFSET = 9000
_LEAST_NORM = 1e-6

ImageId = Annotated[int, Field(ge=0, le=MAX_ID, description="the id of a gallery image")]
PhotoToken = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_-]{8,64}$")]
Weight = Annotated[float, Field(ge=-10.0, le=10.0, description="below 0: less like this")]


class MemberQuery(Body):
    """An image of the gallery, or a region of one; it is not among its own results."""

    image_id: ImageId
    weight: Weight = 1.0
    crop: Crop | None = None


class PhotoQuery(Body):
    """A photo that was sent to /v1/photos, or a region of one."""

    photo: PhotoToken
    weight: Weight = 1.0
    crop: Crop | None = None


class VectorQuery(Body):
    """A vector of the gallery's width; its length does not matter."""

    vector: list[Annotated[float, Field(ge=-1e9, le=1e9)]] = Field(min_length=1, max_length=8192)
    weight: Weight = 1.0


class TextQuery(Body):
    """Words: of the images' texts, or what these look like; a word with a minus before it is not wanted."""

    text: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY)]
    weight: Weight = 1.0


Part: TypeAlias = MemberQuery | PhotoQuery | VectorQuery | TextQuery


def _find_kind(query: Any) -> str | None:
    kinds = ("image_id", "photo", "vector", "text")
    found = [kind for kind in kinds if (kind in query if isinstance(query, dict) else hasattr(query, kind))]
    return found[0] if len(found) == 1 else None


QueryPart = Annotated[
    Annotated[MemberQuery, Tag("image_id")]
    | Annotated[PhotoQuery, Tag("photo")]
    | Annotated[VectorQuery, Tag("vector")]
    | Annotated[TextQuery, Tag("text")],
    Discriminator(
        _find_kind,
        custom_error_type="query_kind",
        custom_error_message="a query is an object with exactly one of image_id, photo, vector and text",
    ),
]


@dataclass(frozen=True, slots=True)
class SearchQuery(SearchOptions):
    """A search of the server by an upload, or by the weighted sum of several parts.

    The members among the parts are never hits. With `collapse_duplicates` near-duplicates are put under the best of
    them; `with_rows` adds rows of the catalogue to the hits.
    """

    parts: Sequence[Part] = ()
    upload: Upload | None = None
    where: Condition | None = None
    collapse_duplicates: bool = False
    with_rows: bool = False
    by: str = SEMANTIC
    ahead: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        SearchOptions.__post_init__(self)  # super() knows no class with slots
        if self.collapse_duplicates and self.group_by is not None:
            raise InputError("collapse_duplicates and group_by collapse results in different ways; give one of them")
        if not self.parts and self.upload is None:
            raise InputError("a search needs at least one image, photo, vector or text")
        if self.k is None or self.k > MAX_K or not 0 <= self.offset <= MAX_OFFSET:
            raise InputError(
                f"k must be in 1..{MAX_K:,} and offset in 0..{MAX_OFFSET:,}, got {self.k} and {self.offset}"
            )
        members = {getattr(part, "image_id", NO_ID) for part in self.parts or (self.upload,)}
        object.__setattr__(self, "exclude_ids", self.exclude_ids | members)

    @property
    def is_single(self) -> bool:
        return self.upload is not None or (len(self.parts) == 1 and self.parts[0].weight > 0)

    @property
    def text(self) -> str | None:
        """The words of a search by nothing else."""
        part = self.parts[0] if len(self.parts) == 1 and self.is_single else None
        return part.text if isinstance(part, TextQuery) else None

    @property
    def has_run_model(self) -> bool:
        return self.upload is not None or any(getattr(part, "crop", None) is not None for part in self.parts)


class Search:
    """One search: its query and its hits.

    Attributes:
        vectors: (D,) float32 unit vectors of the query's parts; None for members, whose vectors a worker reads.
        groups: groups to collapse: near-duplicates, or those of the query's `group_by`.
        has_more: whether there are hits beyond those of the query's `k`.
    """

    def __init__(self, gallery: Gallery, query: SearchQuery) -> None:
        self.gallery, self.query = gallery, query
        self.vectors: Sequence[Vectors | None] = ()
        self.groups: ImageGroups | None = None
        self.hits: list[Hit] = []
        self.has_more = False

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for queries that one search can answer: the same members, about as many results."""
        return id(self.gallery), self.query.where, (self.query.candidates or 0).bit_length()

    @property
    def next_offset(self) -> int | None:
        """The offset of the next page; None at the end, and beyond `MAX_OFFSET`."""
        end = self.query.offset + (self.query.k or 0)
        return end if end <= MAX_OFFSET and self.has_more else None

    def find_vector(self) -> Vectors:
        """The (D,) float32 unit vector of the query: of the upload, or of the weighted sum of the parts."""
        parts = self.query.parts or (self.query.upload,)
        pairs = zip(parts, self.vectors, strict=True)
        known = [self.gallery.vector(getattr(part, "image_id", NO_ID)) if one is None else one for part, one in pairs]
        if self.query.is_single:
            return normalise(known[0], name="the query") if self.query.words else known[0]
        weights = [part.weight for part in self.query.parts]
        total = np.einsum("i,ij->j", np.array(weights), np.stack(known).astype(np.float64))
        norm = float(np.linalg.norm(total))
        if norm < _LEAST_NORM * max(map(abs, weights)):
            raise InputError("the parts of the query cancel each other out; change their weights")
        return (total / norm).astype(np.float32)


def answer_searches(searches: Sequence[Search]) -> list[list[Hit] | Exception]:
    """The hits, or an error, of each of some searches with equal keys."""
    answers = dict[int, list[Hit] | Exception]()
    vectors: dict[int, Vectors] = {}
    for number, search in enumerate(searches):
        try:
            vectors[number] = search.find_vector()
        except RetrievalError as error:
            answers[number] = error
    if vectors:
        sound = [searches[number] for number in vectors]
        found = answer(
            sound[0].gallery,
            np.stack(list(vectors.values())),
            [search.query for search in sound],
            where=sound[0].query.where,
            groups=[search.groups for search in sound],
            with_rows=any(search.query.with_rows or search.query.words for search in sound),
        )
        answers |= dict(zip(vectors, found, strict=True))
    return [answers[number] for number in range(len(searches))]
