"""Schemas of requests, read strictly: everything has bounds; NaN, NUL characters and unknown fields are refused."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from index.labels.kinds import IssueKind
from retrieval_app.insights.answer import Answer, Body
from retrieval_app.review.exports import MAX_ROWS, MAX_ZIP_IMAGES
from retrieval_app.review.places import ROW_FIELDS, RowField
from retrieval_app.review.review_store import MAX_STEP_DECISIONS
from retrieval_app.serving.searching import MAX_ID, MAX_K, MAX_OFFSET, ImageId, QueryPart

MAX_QUERIES = 16
MAX_PAGE_IMAGES = 500
MAX_DECISIONS = 1000
MAX_CLASS_IMAGES = 1000
_NO_NUL = r"^[^\x00]*$"
_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"

FilterText = Annotated[str, StringConstraints(max_length=10_000, pattern=_NO_NUL)]
SearchText = Annotated[str, StringConstraints(max_length=500, pattern=_NO_NUL)]
LabelText = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_NO_CONTROLS)]
_SEEN = "the label that the image had when it was reviewed, null for no label; left out, it is not compared"
SeenLabel = Annotated[FilterText | None, Field(description=_SEEN)]
FileName = Annotated[str, StringConstraints(max_length=200, pattern=_NO_NUL)]
Include = Literal[RowField, "precision_at_score"]
By = Literal["semantic", "copy"]
_BY = (
    "`semantic` finds similar content; `copy` finds copies (cropped, turned, recoloured, saved again), where the "
    "gallery's model has that output"
)


def _describe_names(names: Sequence[str]) -> Any:
    name = f"({'|'.join(names)})"
    pattern = rf"^({name}(,{name}){{0,{len(names) - 1}}})?$"
    included = "fields of each image besides its id, with commas between"
    return Field(pattern=pattern, description=included, examples=["label,path"])


IncludeText = Annotated[str, _describe_names(get_args(Include))]
ImageIncludeText = Annotated[str, _describe_names(ROW_FIELDS)]
_WHERE = "a condition on label, tag, path, source, measures and metadata: shop = 'a.example' AND price < 20"
_TEXT = "words, each of which must be in the path, the label, the metadata or, for visitors who may see it, the source"


GivenLabel = Annotated[
    str | None, Field(description="the label that its source gave, only where a decision changed it")
]
STRICT = ConfigDict(extra="forbid")
"""Config of entries in long lists: typed dictionaries are checked and written in half the time of models."""


class Parameters(BaseModel):
    """The parameters of an address."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class ListedImage(Answer):
    """Image with its path and label."""

    id: int
    path: str
    label: str | None


class Versioned(Answer):
    """An answer from one version of the gallery."""

    version: str


class Ready(Answer):
    """A result that is computed."""

    state: Literal["ready"]
    version: str


class _Condition(BaseModel):
    where: FilterText | None = Field(default=None, description=_WHERE)
    text: SearchText | None = Field(default=None, description=_TEXT)


class Ranking(BaseModel):
    """Limits of the results, with the names of `SearchQuery`."""

    k: int = Field(default=24, ge=1, le=MAX_K, description="results of this answer at most")
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET, description="results to leave out before the first")
    min_score: float | None = Field(default=None, ge=-1, le=1, description="the smallest cosine similarity wanted")
    collapse_duplicates: bool = Field(default=False, description="show near-duplicates under the best of them")
    group_by: SearchText | None = Field(
        default=None,
        min_length=1,
        description="show images with the same value of this metadata column, of `label`, or in one `folder`, under "
        "the best of them; k counts groups",
    )
    by: By = Field(default="semantic", description=_BY)


class SearchRequest(Ranking, _Condition, Body):
    """Query of a search, and limits of its results."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"queries": [{"image_id": 1}], "k": 10, "include": ["label", "path"]}}
    )

    queries: list[QueryPart] = Field(min_length=1, max_length=MAX_QUERIES)
    exclude_ids: list[ImageId] = Field(default=[], max_length=1000)
    include: list[Include] = Field(default=[], max_length=len(get_args(Include)))


class FacetSelection(_Condition, Parameters):
    """Images to count, and the facet whose values are searched."""

    facet: SearchText | None = Field(default=None, description="the name of the one facet that is wanted")
    find: SearchText | None = Field(default=None, description="a part of the values that are wanted")


class ImageSearch(Ranking, _Condition, Parameters):
    """The parameters of a search whose body is the photo itself."""

    include: IncludeText = ""
    name: FileName = Field(default="photo", description="what messages call the photo")


class ImagePage(_Condition, Parameters):
    """A page of the gallery's images in the order of their ids."""

    after: int = Field(default=-1, ge=-1, le=MAX_ID, description="the first id is above this one")
    limit: int = Field(default=60, ge=1, le=MAX_PAGE_IMAGES)
    seed: int | None = Field(default=None, ge=0, le=MAX_ID, description="images at random, the same for the same seed")
    sort: SearchText | None = Field(
        default=None,
        description="a column of conditions to order by in place of the id, as `taken`, or `-taken` with the newest "
        "first; images without it come last, and `after` is the last image of the page before",
    )
    include: ImageIncludeText = ""


ReviewState = Literal["open", "decided", "all"]


class GroupPage(Parameters):
    """A page of a working list."""

    offset: int = Field(default=0, ge=0, le=MAX_ID)
    limit: int = Field(default=50, ge=1, le=200)


class DuplicatePage(GroupPage):
    """A page of the groups of near-duplicates."""

    state: ReviewState = "all"
    labels_differ: bool | None = Field(default=None, description="only groups whose images have different labels")


class _IssueFilter(BaseModel):
    label: FilterText | None = Field(default=None, description="only issues with this label")
    suggested: FilterText | None = Field(default=None, description="only issues with this as first suggestion")
    kind: IssueKind | None = Field(default=None, description="only issues of this kind; else all but `unlabelled`")


class LabelIssuePage(_IssueFilter, GroupPage):
    """A page of the label issues."""

    state: ReviewState | Literal["set_aside", "sample"] = "all"


class LabelChoice(Body):
    """The label of an image changes or stays, the image is set aside or dropped, or nothing is decided any more."""

    image_id: ImageId
    decision: Literal["change", "keep", "set_aside", "drop", "open"]
    label: LabelText | None = Field(default=None, description="the new one, of a change alone")
    label_seen: SeenLabel = None


class LabelDecisions(Body):
    """Decisions that are taken back in one step."""

    decisions: list[LabelChoice] = Field(min_length=1, max_length=MAX_DECISIONS)


class ImageChoice(_Condition, Body):
    """Images: named by `ids`, or all that fulfil `where` and `text`."""

    ids: list[ImageId] | None = Field(default=None, min_length=1, max_length=MAX_STEP_DECISIONS)
    count: int | None = Field(
        default=None, ge=1, le=MAX_ID, description="the number that was shown; 409 if there are more or fewer now"
    )

    @model_validator(mode="after")
    def _names_images_once(self) -> "ImageChoice":
        if (self.ids is None) == (not (self.where or "").strip() and not (self.text or "").strip()):
            raise ValueError("give either ids, or a condition: where or text")
        return self


class LabelSetting(ImageChoice):
    """The label that images get; null takes back what was decided about theirs."""

    label: LabelText | None


class Tagging(ImageChoice):
    """A tag that images get or lose."""

    tag: LabelText
    action: Literal["add", "remove"] = "add"


class SaveSearch(Body):
    """A search and its name; `query` is that of its address on the page, without the question mark."""

    name: LabelText
    query: FilterText


class AcceptVerdicts(_IssueFilter, Body):
    """Acceptance of the verdicts on the open label issues of a filter."""

    at_least_right: float | None = Field(
        default=None,
        ge=0.5,
        lt=1,
        description="expected share of right labels among those that stay (of proposals: among the new labels); images "
        "that are too uncertain for it are set aside. .95 without it and without `threshold`",
    )
    threshold: float | None = Field(
        default=None, ge=0.5, le=1, description="instead: accept the verdicts on labels of at least this `p_error`"
    )
    digest: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="of an earlier answer: exactly the changes that it counted are made, or the request is refused; "
        "without it, changes are only counted",
    )


class Undo(Body):
    """Undo a step; without `step` the last one, whoever made it."""

    step: int | None = Field(
        default=None, ge=1, le=MAX_ID, description="of the response to a decision; refused if it is not the last"
    )


GroupName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[0-9a-f]+$")]


class GroupChoice(Body):
    """Decision about a group: `duplicates`, of which those in `keep` stay, `different` images, or `open`, undecided."""

    group: GroupName
    decision: Literal["duplicates", "different", "open"]
    keep: list[ImageId] = Field(default=[], max_length=MAX_DECISIONS, description="of duplicates, at least one")


class ExportRequest(Body):
    """Images to download: a table, or the images with the table."""

    ids: list[ImageId] = Field(min_length=1, max_length=MAX_ROWS, description=f"of a ZIP at most {MAX_ZIP_IMAGES:,}")
    format: Literal["csv", "zip"]
