"""Job routes: changes of the gallery, done one after the other."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Depends, Path

from index.images.image_headers import is_cheap
from retrieval_app.api.errors import BODY_ERRORS
from retrieval_app.api.form_files import IMAGE_BODY, read_image
from retrieval_app.api.request_context import Context, RequestContext, make_router, responses
from retrieval_app.api.schemas import Answer, FileName, ImageId, LabelText
from retrieval_app.api.security.access import require_writing
from retrieval_app.review.jobs import FAILED, Job

_FAILED = "it failed; visitors with the token see why"  # the error may name folders of the machine

router = make_router("changes")
JobId = Annotated[str, Path(pattern="^[0-9a-f]{1,32}$", description="of the response that began the job")]


class JobAnswer(Answer):
    """A job; it has a `result` once it is done."""

    job: str
    kind: Literal["add", "remove", "update", "move"]
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    message: str
    result: dict[str, Any] | None


_CHANGES: dict[str, Any] = {"status_code": 202, "dependencies": [Depends(require_writing)]}


@router.post("/images", openapi_extra=IMAGE_BODY, **_CHANGES, **responses(JobAnswer, *BODY_ERRORS))
async def add_image(context: Context, name: FileName = "photo", label: LabelText | None = None) -> dict[str, Any]:
    """Add an image, which is the body and is kept at once; it is found when the job is done."""
    data, engine = await read_image(context), context.engine
    begin = partial(context.jobs.add, data, name=name, label=label)
    run = engine.run if is_cheap(data) else engine.run_costly
    return await _begin(context, "add", begin, run=run, name=name, label=label, bytes=len(data))


@router.delete("/images/{image_id}", **_CHANGES, **responses(JobAnswer, 404, *BODY_ERRORS))
async def remove_image(context: Context, image_id: ImageId) -> dict[str, Any]:
    """Remove an image from the gallery; its file stays."""
    return await _begin(context, "remove", partial(context.jobs.remove, [image_id]), images=[image_id])


@router.post("/update", **_CHANGES, **responses(JobAnswer, *BODY_ERRORS))
async def update_gallery(context: Context) -> dict[str, Any]:
    """Update the gallery from its sources to one new version; the job may be an update that waits already."""
    return await _begin(context, "update", context.jobs.update)


@router.get("/jobs/{job}", **responses(JobAnswer, 404))
async def get_job(context: Context, job: JobId) -> dict[str, Any]:
    """The state of a job; the server keeps the last thousand until it ends."""
    found: dict[str, Any] = (await context.engine.run(context.jobs.get, job)).to_json()
    if found["state"] == FAILED and not context.folders:
        found["message"] = _FAILED
    return found


@router.delete("/jobs/{job}", dependencies=[Depends(require_writing)], **responses(JobAnswer, 404, 409, *BODY_ERRORS))
async def cancel_job(context: Context, job: JobId) -> dict[str, Any]:
    """Cancel a job at once where it waits, else at its next step, unless it is done before."""

    def cancel() -> Job:
        cancelled = context.jobs.cancel(job)
        context.log("cancel", job=cancelled.id, kind=cancelled.kind)
        return cancelled

    return (await context.engine.run(cancel)).to_json()


async def _begin(
    context: RequestContext,
    what: str,
    begin: Callable[..., Job],
    *,
    run: Callable[..., Awaitable[Job]] | None = None,
    **details: Any,
) -> dict[str, Any]:
    """Begin a job and log it, in a thread: both read or write files."""

    def begin_now() -> Job:
        job = begin(client=context.client)
        context.log(what, job=job.id, **details)
        return job

    return (await (run or context.engine.run)(begin_now)).to_json()
