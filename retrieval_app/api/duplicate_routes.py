"""Near-duplicate routes: groups with their decisions, a rule that decides which are kept, leaks between splits."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from fastapi import Depends, Query
from pydantic import Field

from index.catalog.rows import SPLIT
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decisions import DuplicateDecision, ImageRef
from index.labels.issues import LabelIssues
from index.progress import Progress
from index.text import count_images, printable_path, valid_text
from index.writing.tidy import JOURNAL, Moves, check_folder_of_moves, move_images, plan_moves, undo_command
from retrieval_app.api.errors import BODY_ERRORS, ApiError
from retrieval_app.api.gallery_routes import COMPUTING, Failed, send_unready
from retrieval_app.api.issue_list import ReviewList, need_duplicates, turn_to
from retrieval_app.api.request_context import Context, RequestContext, make_router, read_condition, responses
from retrieval_app.api.review_routes import DECIDES, LAST_STEP, MAY_DECIDE, UNDOES, Changed, take_back
from retrieval_app.api.schemas import (
    Answer,
    Body,
    DuplicatePage,
    FilterText,
    GroupChoice,
    GroupName,
    LabelText,
    ListedImage,
    Undo,
    Versioned,
)
from retrieval_app.api.security.access import require_disk_changes, require_writing
from retrieval_app.reports.duplicates_report import DuplicateGroup, DuplicateReport, GroupedImage, find_undropped
from retrieval_app.review.bulk import SelectionChangedError
from retrieval_app.review.jobs import Outcome
from retrieval_app.review.keep_rules import KeepRule, RuleOutcome, choose_kept, find_redundant, keep_inherited
from retrieval_app.review.leaks import Leak, Leaks, drop_leaks, find_different, find_leaks, move_leaks
from retrieval_app.review.places import hide_folders
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_subjects
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.search_engine import Engine

router = make_router("review")
_LISTED = 1000  # leaks of an answer
_EXAMPLES = 10  # files of an answer
_leaks_of: WeakKeyDictionary[Gallery, tuple[tuple[str, frozenset[str]], Leaks]] = WeakKeyDictionary()


class DuplicateImage(ListedImage):
    """An image of a near-duplicate group."""

    indexed: bool = Field(description="false where the build left it out")
    size_bytes: int
    similarity: float | None = Field(description="to the first or the given image; null where it is unknown")
    same_bytes: bool | None = Field(description="whether its file equals that of this image; null for the first")


class GroupDecisionEntry(Answer):
    """Decision about a group; the images in `keep` stay."""

    decision: Literal["duplicates", "different"]
    keep: list[int]


class GroupEntry(Answer):
    """A group of near-duplicates."""

    group: str
    images: list[DuplicateImage]
    labels_differ: bool
    burst: bool = Field(description="whether some are other shots of the scene than the kept image, not copies of it")
    best: int | None = Field(
        description="the proposed image to keep: where labels differ one with the most probable label, then the "
        "largest file; null where labels differ and the label issues are not known yet"
    )
    decision: GroupDecisionEntry | None


class GroupList(ReviewList):
    """Near-duplicate groups; `total` counts those in the requested state."""

    items: list[GroupEntry]
    can_undo: bool


class _KeepBody(Body):
    keep: KeepRule = Field(default="largest", description="the largest file, or the first image of the group")
    keep_where: FilterText | None = Field(default=None, description="keep only images that meet this condition")
    bursts: bool = Field(default=False, description="keep one image of every burst too: other shots are dropped")


class KeepImages(_KeepBody):
    """Rule for the kept image of every open group; bursts and groups whose labels differ stay open."""

    groups: list[GroupName] | None = Field(default=None, description="only these groups")
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


class MoveCopies(_KeepBody):
    """Rule for the open groups, whose dropped near-duplicates are moved like those of decided groups."""

    count: int | None = Field(
        default=None,
        ge=1,
        description="the number of images that an answer without it has counted: then they are moved; 409 if there are "
        "more or fewer now",
    )


class MovedCopies(Answer):
    """Files of near-duplicates to move."""

    images: int
    size_bytes: int
    examples: list[str] = Field(description="at most ten of their paths below the folder")
    staying: dict[str, int] = Field(description="numbers of images whose files stay, by the reason")
    folder: str = Field(description="to which they are moved")
    job: str | None = Field(description="that moves them; its result has the command to undo it. null if only counted")


class LeakList(Versioned):
    """Leaks, those with the most images first; at most 1,000 are listed."""

    by: str
    splits: dict[str, int]
    leaks: int
    images: int
    problem: str | None = Field(description="why there cannot be leaks: the column has not 2 to 100 values")
    items: list[Leak]


class MendLeaks(Body):
    """Change of all leaks: their images move to one split, or the images of one split are dropped."""

    action: Literal["move", "drop"]
    value: LabelText
    count: int = Field(ge=1, description="the number of leaks that were shown; 409 if there are more or fewer now")
    by: LabelText = SPLIT


def page_groups(
    snapshot: Snapshot, found: DuplicateReport, review: ReviewStore, *, page: DuplicatePage
) -> dict[str, Any]:
    """A page of /v1/duplicates."""
    groups, gallery, decisions = found.by_name, snapshot.gallery, review.duplicate_decisions()
    listed = [
        name
        for name, group in groups.items()
        if page.labels_differ in (None, _labels_differ(gallery, group))
        and (name in decisions or len(find_undropped(gallery, group)) > 1)
    ]
    shown, counts = turn_to(page, listed, decisions.__contains__)
    of_labels = review.label_decisions()
    issues = snapshot.insights.update_issues(of_labels)
    return {
        "state": "ready",
        "version": snapshot.version,
        **counts,
        "items": [_describe_group(gallery, name, groups[name], decisions.get(name), issues) for name in shown],
        "decisions_used": 0 if issues is None else issues.decisions,
        "is_updating": snapshot.insights.is_updating(of_labels),
        "can_undo": review.can_undo("duplicates"),
    }


def describe_duplicates(gallery: Gallery, groups: DuplicateReport | None, image_id: int) -> list[dict[str, Any]]:
    """Other images of an image's group, as `DuplicateImage`; empty before groups are computed."""
    group = None if groups is None else groups.find(image_id)
    if group is None:
        return []
    asked = next(image for image in group.images if image.id == image_id)
    # Similarities are to the kept image; between two others they are unknown.
    similarities = {image.id: image.similarity if asked is group.kept else None for image in group.images}
    similarities[group.kept.id] = asked.similarity
    others = (image for image in group.images if image is not asked)
    return [_describe_image(gallery, image, asked, similarities[image.id]) for image in others]


def _describe_group(
    gallery: Gallery, name: str, group: DuplicateGroup, decision: DuplicateDecision | None, issues: LabelIssues | None
) -> dict[str, Any]:
    labels_differ = _labels_differ(gallery, group)

    def wrong(image: GroupedImage) -> float:
        """Probability of a label error, where labels differ; 0.5 where it is unknown."""
        if issues is None or not labels_differ:
            return 0.0
        if (decided := gallery.decided.by_id.get(image.id)) is not None:
            return float(decided.label is None)
        if not image.indexed or image.label is None:
            return 0.5
        issue = issues.find(image.id)
        return issue.p_error if issue else 0.0

    best = max(group.images, key=lambda image: (-wrong(image), image.preference))
    here = [ImageRef(one.id, one.sha256, None, os.path.join(one.source, one.path)) for one in group.images]
    kept = () if decision is None else decision.find_kept(here)
    return {
        "group": name,
        "images": [_describe_image(gallery, image, group.kept, image.similarity) for image in group.images],
        "labels_differ": labels_differ,
        "burst": group.is_burst(find_undropped(gallery, group)),
        "best": None if labels_differ and issues is None else best.id,
        "decision": None if decision is None else {"decision": decision.decision, "keep": list(kept)},
    }


def _describe_image(
    gallery: Gallery, image: GroupedImage, other: GroupedImage, similarity: float | None
) -> dict[str, Any]:
    return {
        "id": image.id,
        "path": valid_text(image.path),
        "label": _find_label(gallery, image),
        "indexed": image.indexed,
        "size_bytes": image.size_bytes,
        "similarity": similarity,
        "same_bytes": None if image is other else image.sha256 == other.sha256,
    }


def _labels_differ(gallery: Gallery, group: DuplicateGroup) -> bool:
    return len({_find_label(gallery, image) for image in group.images} - {None}) > 1


def _find_label(gallery: Gallery, image: GroupedImage) -> str | None:
    """The decided label, or else the given one."""
    decided = gallery.decided.by_id.get(image.id)
    return image.label if decided is None else decided.label


@router.get("/duplicates", **responses(GroupList | Failed, also=COMPUTING))
async def list_duplicates(context: Context, page: Annotated[DuplicatePage, Query()]) -> Any:
    """List near-duplicate groups, with images that the build left out, and their decisions."""
    duplicates = context.snapshot.insights.duplicates
    if duplicates.value is None:
        return send_unready(context, duplicates)
    return await context.read(page_groups, context.snapshot, duplicates.value, context.review, page=page)


def _keep_group_decision(context: RequestContext, body: GroupChoice) -> dict[str, Any]:
    gallery, review = context.snapshot.gallery, context.review
    group = need_duplicates(context.snapshot).by_name.get(body.group)
    if group is None:
        message = "the gallery does not have this group any more; look at the list again"
        raise ApiError(message, status=404, field="group")
    ids = [image.id for image in group.images]
    subjects = find_subjects(gallery, ids)
    decision = DuplicateDecision(tuple(subjects[one] for one in ids), body.decision, tuple(body.keep))
    step = review.decide([decision], by=context.visitor.name)
    context.log("decide-duplicates", step=step.number, images=ids, decision=body.decision, keep=list(body.keep))
    return {"changed": len(step.decisions), "step": step.number, "can_undo": review.can_undo("duplicates")}


@router.post("/duplicates/decisions", **DECIDES)
async def decide_duplicates(context: Context, body: GroupChoice) -> Any:
    """Decide whether the images of a group are duplicates, and which of them stay."""
    return await context.read(_keep_group_decision, context, body)


@router.post("/duplicates/undo", **UNDOES)
async def undo_duplicate_decisions(context: Context, body: Undo = LAST_STEP) -> Any:
    """Undo the last decision about duplicates."""
    return await context.read(take_back, context, body, about="duplicates")


def _find_leaks(context: RequestContext, by: str) -> Leaks:
    """The leaks of now; the last ones are cached per opened gallery, which has its decisions."""
    if by == "path" and not context.folders:
        message = "metadata of the name path may name folders of the machine: only those with its token can ask for it"
        raise ApiError(message, status=422, field="by")
    gallery, different = context.snapshot.gallery, find_different(context.review)
    held = _leaks_of.get(gallery)
    if held is not None and held[0] == (by, different):
        return held[1]
    found = find_leaks(gallery, partial(need_duplicates, context.snapshot), by=by, different=different)
    _leaks_of[gallery] = (by, different), found
    return found


@router.post("/duplicates/apply", **{**MAY_DECIDE, **responses(KeptAnswer, 409, *BODY_ERRORS)})
async def keep_by_rule(context: Context, body: KeepImages) -> Any:
    """Decide which image of every group is kept, in one step; without `count` only count.

    Tags of dropped images go to the kept one, and so does their label, if it has no label.
    """

    def run() -> dict[str, Any]:
        chosen = _choose_kept(context, body, only=None if body.groups is None else set(body.groups))
        step, groups = None, len(chosen.decisions)
        if body.count is not None:
            if body.count != groups:
                raise SelectionChangedError(body.count, groups, what="groups")
            step = _decide_by_rule(context, body, chosen)
        return {**chosen.to_json(), "step": step}

    return await context.read(run)


def _choose_kept(context: RequestContext, body: _KeepBody, *, only: set[str] | None = None) -> RuleOutcome:
    return choose_kept(
        context.snapshot.gallery,
        need_duplicates(context.snapshot),
        rule=body.keep,
        where=read_condition(body.keep_where, None, folders=context.folders),
        decided=context.review.duplicate_decisions(),
        only=only,
        bursts=body.bursts,
    )


def _decide_by_rule(context: RequestContext, body: _KeepBody, chosen: RuleOutcome) -> int:
    step = context.review.decide(chosen.decisions, by=context.visitor.name).number
    context.log("decide-duplicates", step=step, keep=body.keep, count=len(chosen.decisions))
    return step


_MOVES: dict[str, Any] = {"dependencies": [Depends(require_disk_changes), Depends(require_writing)]}


@router.post("/duplicates/move", **{**_MOVES, **responses(MovedCopies, 409, *BODY_ERRORS)})
async def move_copies(context: Context, body: MoveCopies) -> Any:
    """Move the files of dropped near-duplicates to the server's folder for them; without `count` only count.

    Groups that are open are decided by the rule first. Only with `--allow-disk-changes`.
    """

    def run() -> dict[str, Any]:
        gallery, folder = context.snapshot.gallery, context.request.app.state.access.disk_changes
        chosen = _choose_kept(context, body)
        wanted = find_redundant(gallery, chosen)
        moves, job = plan_moves(gallery, wanted), None
        check_folder_of_moves(folder, gallery, moves)
        if body.count is not None:
            if body.count != len(moves.files):
                raise SelectionChangedError(body.count, len(moves.files))
            if chosen.decisions:
                _decide_by_rule(context, body, chosen)
            keep_inherited(context.engine.open_decided(), context.review, wanted, by=context.visitor.name)
            job = context.jobs.move(partial(_move, moves, folder, context.engine), client=context.client).id
            context.log("move-copies", job=job, count=len(moves.files))
        examples = [valid_text(move.below) for move in moves.files[:_EXAMPLES]]
        counts = {"images": len(moves.files), "size_bytes": moves.size_bytes, "staying": moves.reasons}
        return {**counts, "examples": examples, "folder": valid_text(str(folder)), "job": job}

    return await context.engine.look_up(run)


def _move(planned: Moves, folder: Path, engine: Engine, progress: Progress) -> Outcome:
    """Move what the decisions of now drop: people may have decided while the job waited."""
    gallery, journal = engine.open_decided(), folder / JOURNAL
    redundant = find_redundant(gallery)
    now = plan_moves(gallery, {move.id: redundant[move.id] for move in planned.files if move.id in redundant})
    kept = [(move.place.name, "it is no longer dropped") for move in planned.files if move.id not in redundant]
    moves = Moves(now.files, (*planned.staying, *kept, *now.staying))
    done = move_images(moves, folder=folder, journal=journal, progress=progress)
    result = {"images": len(done.files), "staying": done.reasons, "undo": undo_command(journal)}
    staying = [f"{count_images(count)} not moved: {reason}" for reason, count in done.reasons.items()]
    return "; ".join([f"{done.describe()} moved to {printable_path(folder)}", *staying]), result


@router.get("/leaks", **responses(LeakList, 409))
async def list_leaks(
    context: Context,
    by: Annotated[LabelText, Query(description="a metadata column, or `folder`, the first folder of the path")] = SPLIT,
) -> Any:
    """List leaks: near-duplicates, and images of one `group`, in several splits."""

    def run() -> dict[str, Any]:
        problem = None
        try:
            found = _find_leaks(context, by)
        except InputError as error:
            found, problem = Leaks(by, {}, ()), str(error)
        return {"version": context.snapshot.version, "problem": problem, **found.to_json(limit=_LISTED)}

    document = await context.engine.look_up(run)  # no thumbnail waits for it
    return document if context.folders else hide_folders(document)


@router.post("/leaks", **{**MAY_DECIDE, **responses(Changed, 409, *BODY_ERRORS)})
async def mend_leaks(context: Context, body: MendLeaks) -> Any:
    """Move the images of all leaks in one step, undone by `/v1/tags/undo`, or drop them: `/v1/duplicates/undo`."""

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
        return {"changed": len(found.items), "step": step.number, "can_undo": True}

    return await context.read(run)
