"""Routes about all near-duplicates at once: a rule that decides which are kept, and leaks between splits."""

from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from fastapi import Query
from pydantic import Field

from index.catalog.rows import SPLIT
from index.errors import InputError
from index.gallery.gallery import Gallery
from retrieval_app.api.errors import BODY_ERRORS, ApiError
from retrieval_app.api.issue_list import need_duplicates
from retrieval_app.api.request_context import Context, RequestContext, make_router, read_condition, responses
from retrieval_app.api.review_routes import MAY_DECIDE
from retrieval_app.api.schemas import Answer, Body, FilterText, GroupName, LabelText, Versioned
from retrieval_app.review.bulk import SelectionChangedError
from retrieval_app.review.keep_rules import KeepRule, choose_kept
from retrieval_app.review.leaks import Leak, Leaks, drop_leaks, find_different, find_leaks, move_leaks
from retrieval_app.review.places import hide_folders

router = make_router("review")
_LISTED = 1000  # leaks of an answer
_leaks_of: WeakKeyDictionary[Gallery, tuple[tuple[str, frozenset[str]], Leaks]] = WeakKeyDictionary()


class KeepImages(Body):
    """Which image of every open group is kept; bursts and groups whose labels differ stay open."""

    keep: KeepRule = Field(default="largest", description="the largest file, or the first image of the group")
    keep_where: FilterText | None = Field(default=None, description="keep only images that meet this condition")
    groups: list[GroupName] | None = Field(default=None, description="only these groups")
    bursts: bool = Field(default=False, description="keep one image of every burst too: other shots are dropped")
    count: int | None = Field(
        default=None,
        ge=1,
        description="the number of groups that an answer without it has counted: then it decides; "
        "409 if there are more or fewer now",
    )


class KeptAnswer(Answer):
    """Effect of a rule on the open groups."""

    groups: int = Field(description="that are decided")
    dropped: int = Field(description="images that leave the results")
    differing: int = Field(description="groups that stay open because their labels differ")
    bursts: int = Field(description="groups that stay open because they are different shots of one scene")
    unmatched: int = Field(description="groups that stay open because no searchable image meets the condition")
    step: int | None = Field(description="number of the step, to undo it; null where nothing was decided")


class LeakList(Versioned):
    """Leaks, those with the most images first; at most 1,000 are listed."""

    by: str
    splits: dict[str, int]
    leaks: int
    images: int
    problem: str | None = Field(description="why there cannot be leaks: the column has not 2 to 100 values")
    items: list[Leak]


class MendLeaks(Body):
    """What becomes of all leaks: their images move to one split, or those of one split are dropped."""

    action: Literal["move", "drop"]
    value: LabelText
    count: int = Field(ge=1, description="the number of leaks that somebody saw; 409 if there are more or fewer now")
    by: LabelText = SPLIT


class MendedLeaks(Answer):
    """The number of leaks, and the step that undoes it: of marks (`/v1/tags/undo`), or of `/v1/duplicates/undo`."""

    leaks: int
    step: int


def _find_leaks(context: RequestContext, by: str) -> Leaks:
    """The leaks of now; the last ones are cached per opened gallery, which has its decisions."""
    if by == "path" and not context.folders:
        message = "metadata of the name path may name folders of the machine: only those with its token can ask for it"
        raise ApiError(message, status=422, field="by")
    gallery, different = context.snapshot.gallery, find_different(context.review)
    held = _leaks_of.get(gallery)
    if held is not None and held[0] == (by, different):
        return held[1]
    found = find_leaks(gallery, need_duplicates(context.snapshot), by=by, different=different)
    _leaks_of[gallery] = (by, different), found
    return found


@router.post("/duplicates/apply", **{**MAY_DECIDE, **responses(KeptAnswer, 409, *BODY_ERRORS)})
async def keep_by_rule(context: Context, body: KeepImages) -> Any:
    """Decide which image of every group is kept.

    Without `count` it only counts. Tags of dropped images go to the kept one, and so does their label, if it has none.
    One undo of `/v1/duplicates/undo` takes all of it back.
    """
    where = read_condition(body.keep_where, None, folders=context.folders)

    def run() -> dict[str, Any]:
        chosen = choose_kept(
            context.snapshot.gallery,
            need_duplicates(context.snapshot),
            rule=body.keep,
            where=where,
            decided=context.review.duplicate_decisions(),
            only=None if body.groups is None else set(body.groups),
            bursts=body.bursts,
        )
        step, groups = None, len(chosen.decisions)
        if body.count is not None:
            if body.count != groups:
                raise SelectionChangedError(body.count, groups, what="groups")
            step = context.review.decide(chosen.decisions, by=context.visitor.name).number
            context.log("decide-duplicates", step=step, keep=body.keep, count=groups)
        return {**chosen.to_json(), "step": step}

    return await context.read(run)


@router.get("/leaks", **responses(LeakList, 409))
async def list_leaks(
    context: Context,
    by: Annotated[LabelText, Query(description="a metadata column, or `folder`, the first folder of the path")] = SPLIT,
) -> Any:
    """List leaks between splits.

    Near-duplicates, and images with one value of the column `group`, whose split differs.
    """

    def run() -> dict[str, Any]:
        problem = None
        try:
            found = _find_leaks(context, by)
        except InputError as error:
            found, problem = Leaks(by, {}, ()), str(error)
        return {"version": context.snapshot.version, "problem": problem, **found.to_json(limit=_LISTED)}

    document = await context.engine.look_up(run)  # no thumbnail waits for it
    return document if context.folders else hide_folders(document)


@router.post("/leaks", **{**MAY_DECIDE, **responses(MendedLeaks, 409, *BODY_ERRORS)})
async def mend_leaks(context: Context, body: MendLeaks) -> Any:
    """Move or drop the images of all leaks.

    One step. 409 where there are more or fewer than `count` leaks now.
    """

    def run() -> dict[str, Any]:
        gallery, name = context.snapshot.gallery, context.visitor.name
        found = _find_leaks(context, body.by)
        if body.count != len(found.items):
            raise SelectionChangedError(body.count, len(found.items), what="leaks")
        if body.action == "move":
            step = move_leaks(gallery, context.review, found, to=body.value, by=name)
        else:
            step = drop_leaks(gallery, context.review, found, value=body.value, by=name)
        context.log(f"{body.action}-leaks", step=step.number, value=body.value, count=len(found.items))
        return {"leaks": len(found.items), "step": step.number}

    return await context.read(run)
