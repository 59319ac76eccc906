"""Bulk routes: labels and tags of many images at once, and saved searches."""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from index.arrays import Ids
from index.errors import InputError
from index.labels.steps import SavedSearch, Step
from retrieval_app.api.errors import BODY_ERRORS, ApiError
from retrieval_app.api.request_context import Context, RequestContext, make_router, read_condition, responses
from retrieval_app.api.review_routes import LAST_STEP, MAY_DECIDE, UNDOES, Changed, take_back
from retrieval_app.api.schemas import Answer, ImageChoice, LabelSetting, LabelText, SaveSearch, Tagging, Undo, Versioned
from retrieval_app.insights.facet_filters import count_tags
from retrieval_app.review.bulk import count_changed, drop_images, select_images, set_label, tag_images, untag_images

router = make_router("review")
_MOST_LOGGED = 100  # ids of a change


class TagEntry(Answer):
    """A tag, the number of its images, and the condition that finds them."""

    tag: str
    count: int
    where: str


class TagList(Versioned):
    """The tags, the most frequent first, then by name."""

    tags: list[TagEntry]
    can_undo: bool


class SearchEntry(Answer):
    """A saved search: the query of its address on the page, and when it was saved, in UTC."""

    name: str
    query: str
    saved_at: str


class SearchList(Answer):
    """Saved searches in the order they were saved."""

    searches: list[SearchEntry]


_CHANGES: dict[str, Any] = {**MAY_DECIDE, **responses(Changed, 404, 409, *BODY_ERRORS)}
_SAVES: dict[str, Any] = {"dependencies": MAY_DECIDE["dependencies"], **responses(SearchList, 409, *BODY_ERRORS)}


async def _change(
    context: RequestContext, body: ImageChoice, change: Callable[[Ids], Step], *, what: str, **details: Any
) -> dict[str, Any]:
    """Choose the images of a body, change them in one step, and log it."""
    where = read_condition(body.where, body.text, folders=context.folders)
    gallery = context.snapshot.gallery
    if where is not None and not gallery.remembers(where):
        await context.engine.look_up(gallery.select, where)

    def run() -> dict[str, Any]:
        ids = select_images(gallery, ids=body.ids, where=where, count=body.count)
        step = change(ids)
        count = count_changed(gallery, step)
        context.log(what, step=step.number, images=ids[:_MOST_LOGGED].tolist(), count=count, **details)
        return {"changed": count, "step": step.number, "can_undo": True}

    return dict(await context.read(run))


def _say_who(context: RequestContext, body: ImageChoice) -> dict[str, Any]:
    """Source and author of decisions about the images of a body."""
    return {"source": "person" if body.ids is not None else "rule", "by": context.visitor.name}


@router.post("/labels/set", **_CHANGES)
async def set_labels(context: Context, body: LabelSetting) -> dict[str, Any]:
    """Set the label of many images, also of those without one, in one step, which `/v1/labels/undo` takes back."""
    change = partial(set_label, context.snapshot.gallery, context.review, label=body.label, **_say_who(context, body))
    return await _change(context, body, change, what="set-labels", label=body.label)


@router.post("/labels/drop", **_CHANGES)
async def drop_many(context: Context, body: ImageChoice) -> dict[str, Any]:
    """Drop many images from results, label files and data sets in one step, which `/v1/labels/undo` takes back."""
    change = partial(drop_images, context.snapshot.gallery, context.review, **_say_who(context, body))
    return await _change(context, body, change, what="drop-images")


@router.get("/tags", **responses(TagList, 409))
async def list_tags(context: Context) -> dict[str, Any]:
    """List the tags, with the number of images of each that searches find."""
    snapshot = context.snapshot
    tags = await context.engine.look_up(count_tags, snapshot.gallery)
    can_undo = await context.engine.run(context.review.can_undo, "marks")
    return {"version": snapshot.version, "tags": tags, "can_undo": can_undo}


@router.post("/tags", **_CHANGES)
async def change_tag(context: Context, body: Tagging) -> dict[str, Any]:
    """Give images a tag or take it away, in one step, which `/v1/tags/undo` takes back."""
    act = untag_images if body.action == "remove" else tag_images
    change = partial(act, context.snapshot.gallery, context.review, tag=body.tag, by=context.visitor.name)
    return await _change(context, body, change, what=f"{body.action}-tag", tag=body.tag)


@router.post("/tags/undo", **UNDOES)
async def undo_tags(context: Context, body: Undo = LAST_STEP) -> Any:
    """Undo the last change of tags or splits."""
    return await context.read(take_back, context, body, about="marks")


@router.get("/searches", **responses(SearchList, 409))
async def list_searches(context: Context) -> dict[str, Any]:
    """List the saved searches, without those whose conditions the visitor may not use."""
    return dict(await context.engine.run(_list_searches, context))


@router.post("/searches", **_SAVES)
async def save_search(context: Context, body: SaveSearch) -> dict[str, Any]:
    """Save a search under a name, in the place of one with the same name."""
    return dict(await context.engine.run(_save, context, SavedSearch(body.name, body.query), "save-search"))


@router.delete("/searches", **{**_SAVES, **responses(SearchList, 404, 409, *BODY_ERRORS)})
async def delete_search(context: Context, name: LabelText) -> dict[str, Any]:
    """Delete a saved search."""

    def delete() -> dict[str, Any]:
        if name.strip() not in context.review.saved_searches():
            raise ApiError("there is no saved search of this name any more", status=404, field="name")
        return _save(context, SavedSearch(name, None), "delete-search")

    return dict(await context.engine.run(delete))


def _save(context: RequestContext, search: SavedSearch, what: str) -> dict[str, Any]:
    context.review.decide([search], by=context.visitor.name)
    context.log(what, name=search.name)
    return _list_searches(context)


def _list_searches(context: RequestContext) -> dict[str, Any]:
    searches = [
        {"name": search.name, "query": search.query, "saved_at": search.decided_at}
        for search in context.review.saved_searches().values()
        if context.folders or _is_public(search.query or "")
    ]
    return {"searches": searches}


def _is_public(query: str) -> bool:
    """Whether the conditions of a search name no folder of the machine."""
    try:
        for where in parse_qs(query).get("f", []):
            read_condition(where, None, folders=False)
    except (ApiError, InputError, ValueError):
        return False
    return True
