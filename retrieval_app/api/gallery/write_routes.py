"""Changes of the gallery, and evaluations: jobs that are answered at once and done one after the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response

from index.images.image_headers import is_cheap
from retrieval_app.api.answers import IMAGE_BODY, send_json
from retrieval_app.api.errors import BODY_ERRORS, describe_errors
from retrieval_app.api.schemas import Answer, EvaluateRequest, ImageId, NewImage, NoParameters
from retrieval_app.api.search.conditions import read_condition
from retrieval_app.api.security.access import require_review, require_writing, sees_folders
from retrieval_app.review.job_list import FAILED, Job
from retrieval_app.review.job_work import EVALUATE
from retrieval_app.review.jobs import Jobs
from retrieval_app.serving.search_engine import Engine

_FAILED = "it failed; whoever has the token is told why"  # which may name folders of the machine

router = APIRouter(prefix="/v1", tags=["changes"])
JobId = Annotated[str, Path(pattern="^[0-9a-f]{1,32}$", description="as the answer to the request told it")]


class JobAnswer(Answer):
    """A job; `message` is for people, `result` is there once it is done."""

    job: str
    kind: Literal["add", "remove", "update", "evaluate"]
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    message: str
    result: dict[str, Any] | None


@router.post(
    "/images",
    status_code=202,
    response_model=JobAnswer,
    responses=describe_errors(*BODY_ERRORS),
    openapi_extra=IMAGE_BODY,
    dependencies=[Depends(require_writing)],
    summary="Add an image, which is the body",
)
async def add_image(request: Request, parameters: Annotated[NewImage, Query()]) -> Response:
    """The image is decoded and kept at once; it is found when the job is done."""
    data, engine = await request.body(), request.app.state.engine
    begin = partial(_jobs(request).add, data, name=parameters.name, label=parameters.label)
    job = await (engine.run if is_cheap(data) else engine.run_costly)(begin)
    return send_json(job.to_json(), status=202)


@router.delete("/images/random", include_in_schema=False)
async def refuse_removal() -> Response:
    """An address of other routes is no id."""
    raise HTTPException(405)


@router.delete(
    "/images/{image_id}",
    status_code=202,
    response_model=JobAnswer,
    responses=describe_errors(404, *BODY_ERRORS),
    dependencies=[Depends(require_writing)],
    summary="Remove an image",
)
async def remove_image(request: Request, image_id: ImageId, _: Annotated[NoParameters, Query()]) -> Response:
    """The image leaves the gallery; its file stays."""
    return await _begin(request, partial(_jobs(request).remove, [image_id]))


@router.post(
    "/update",
    status_code=202,
    response_model=JobAnswer,
    responses=describe_errors(*BODY_ERRORS),
    dependencies=[Depends(require_writing)],
    summary="Bring the gallery in line with its sources",
)
async def update_gallery(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """New, changed and vanished files become one new version; an update that waits already is answered."""
    return await _begin(request, _jobs(request).update)


@router.post(
    "/evaluate",
    status_code=202,
    response_model=JobAnswer,
    responses=describe_errors(*BODY_ERRORS),
    dependencies=[Depends(require_review)],
    summary="Score the gallery on its own labels",
)
async def evaluate(request: Request, body: EvaluateRequest, _: Annotated[NoParameters, Query()]) -> Response:
    """Recall@K and MAP@R; with a condition only the images that fulfil it ask, among all."""
    where = read_condition(body.where, None, folders=True)
    return await _begin(request, partial(_jobs(request).evaluate, ks=sorted(set(body.ks)), where=where))


@router.get("/jobs/{job}", response_model=JobAnswer, responses=describe_errors(404), summary="How far a job is")
async def show_job(request: Request, job: JobId, _: Annotated[NoParameters, Query()]) -> Response:
    """The state of a job; the last thousand are remembered until the server stops."""
    told = _jobs(request).get(job).to_json()
    if told["state"] == FAILED and not sees_folders(request):
        told["message"] = _FAILED
    return send_json(told)


@router.delete(
    "/jobs/{job}",
    response_model=JobAnswer,
    responses=describe_errors(404, 409, *BODY_ERRORS),
    dependencies=[Depends(require_review)],
    summary="Cancel a job",
)
async def cancel_job(request: Request, job: JobId, _: Annotated[NoParameters, Query()]) -> Response:
    """One that waits is cancelled at once; one that runs at its next step, the gallery as it was, or is done before."""
    engine: Engine = request.app.state.engine
    jobs = _jobs(request)
    if jobs.get(job).kind != EVALUATE:
        require_writing(request)
    return send_json((await engine.run(jobs.cancel, job)).to_json())


def _jobs(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


async def _begin(request: Request, begin: Callable[[], Job]) -> Response:
    """Begin a job, which reads or writes files, and tell of it."""
    engine: Engine = request.app.state.engine
    job = await engine.run(begin)
    return send_json(job.to_json(), status=202)
