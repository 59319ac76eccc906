"""Changes of the gallery, and evaluations: jobs that are answered at once and done one after the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Depends, HTTPException, Path, Query

from index.images.image_headers import is_cheap
from retrieval_app.api.errors import BODY_ERRORS
from retrieval_app.api.form_files import IMAGE_BODY, read_image
from retrieval_app.api.request_context import (
    BareContext,
    Context,
    RequestContext,
    make_router,
    read_condition,
    responses,
)
from retrieval_app.api.schemas import Answer, EvaluateRequest, ImageId, NewImage
from retrieval_app.api.security.access import require_review, require_writing
from retrieval_app.review.job_list import EVALUATE, FAILED, Job

_FAILED = "it failed; whoever has the token is told why"  # which may name folders of the machine

router = make_router("changes")
JobId = Annotated[str, Path(pattern="^[0-9a-f]{1,32}$", description="as the answer to the request told it")]


class JobAnswer(Answer):
    """A job; `message` is for people, `result` is there once it is done."""

    job: str
    kind: Literal["add", "remove", "update", "evaluate"]
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    message: str
    result: dict[str, Any] | None


_CHANGES: dict[str, Any] = {"status_code": 202, "dependencies": [Depends(require_writing)]}


@router.post("/images", openapi_extra=IMAGE_BODY, **_CHANGES, **responses(JobAnswer, *BODY_ERRORS))
async def add_image(context: Context, parameters: Annotated[NewImage, Query()]) -> dict[str, Any]:
    """Add an image, which is the body.

    The image is decoded and kept at once; it is found when the job is done.
    """
    data, engine = await read_image(context), context.engine
    begin = partial(context.jobs.add, data, name=parameters.name, label=parameters.label)
    told = {"name": parameters.name, "label": parameters.label, "bytes": len(data)}
    job = await (engine.run if is_cheap(data) else engine.run_costly)(
        partial(_begin_now, context, "add", begin, told)
    )
    return job.to_json()


@router.delete("/images/random", include_in_schema=False)
async def refuse_removal() -> None:
    """An address of other routes is no id."""
    raise HTTPException(405)


@router.delete("/images/{image_id}", **_CHANGES, **responses(JobAnswer, 404, *BODY_ERRORS))
async def remove_image(context: BareContext, image_id: ImageId) -> dict[str, Any]:
    """Remove an image.

    The image leaves the gallery; its file stays.
    """
    return await _begin(context, "remove", partial(context.jobs.remove, [image_id]), images=[image_id])


@router.post("/update", **_CHANGES, **responses(JobAnswer, *BODY_ERRORS))
async def update_gallery(context: BareContext) -> dict[str, Any]:
    """Bring the gallery in line with its sources.

    New, changed and vanished files become one new version; an update that waits already is answered.
    """
    return await _begin(context, "update", context.jobs.update)


@router.post(
    "/evaluate", status_code=202, dependencies=[Depends(require_review)], **responses(JobAnswer, *BODY_ERRORS)
)
async def evaluate_gallery(context: BareContext, body: EvaluateRequest) -> dict[str, Any]:
    """Score the gallery on its own labels.

    Recall@K and MAP@R; with a condition only the images that fulfil it ask, among all.
    """
    where = read_condition(body.where, None, folders=True)
    begin = partial(context.jobs.evaluate, ks=sorted(set(body.ks)), where=where)
    return await _begin(context, "evaluate", begin, where=body.where)


@router.get("/jobs/{job}", **responses(JobAnswer, 404))
async def get_job(context: BareContext, job: JobId) -> dict[str, Any]:
    """How far a job is.

    The state of a job; the last thousand are remembered until the server stops.
    """
    told: dict[str, Any] = (await context.engine.run(context.jobs.get, job)).to_json()
    if told["state"] == FAILED and not context.folders:
        told["message"] = _FAILED
    return told


@router.delete(
    "/jobs/{job}", dependencies=[Depends(require_review)], **responses(JobAnswer, 404, 409, *BODY_ERRORS)
)
async def cancel_job(context: BareContext, job: JobId) -> dict[str, Any]:
    """Cancel a job.

    One that waits is cancelled at once; one that runs at its next step, the gallery as it was, or is done before.
    """
    if (await context.engine.run(context.jobs.get, job)).kind != EVALUATE:
        require_writing(context.request)

    def cancel() -> Job:
        cancelled = context.jobs.cancel(job)
        context.log("cancel", job=cancelled.id, kind=cancelled.kind)
        return cancelled

    return (await context.engine.run(cancel)).to_json()


async def _begin(context: RequestContext, what: str, begin: Callable[..., Job], **told: Any) -> dict[str, Any]:
    """Begin a job, which reads or writes files, record that with what is told of it, and answer with it."""
    return (await context.engine.run(_begin_now, context, what, begin, told)).to_json()


def _begin_now(context: RequestContext, what: str, begin: Callable[..., Job], told: dict[str, Any]) -> Job:
    job = begin(asker=context.asker)
    context.log(what, job=job.id, **told)
    return job
