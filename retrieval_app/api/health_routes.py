"""Whether the server is alive, whether it is ready, and what it counts."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from retrieval_app.api.access import Access
from retrieval_app.api.answers import send_json
from retrieval_app.api.errors import describe_errors
from retrieval_app.api.schemas import Answer, NoParameters
from retrieval_app.serving.engine import Engine

_PROBLEM = "the newest version cannot be served, the one before goes on; the server's log says why"

router = APIRouter(prefix="/v1", tags=["health"])


class Health(Answer):
    """The process answers."""

    status: Literal["alive"]


class Readiness(Answer):
    """A sound gallery is served; `problem` says that a newer version of it is not, and to who has the token why."""

    status: Literal["ready"]
    version: str
    problem: str | None


@router.get("/health", response_model=Health, responses=describe_errors(), summary="Is the server alive?")
async def show_health(_: Annotated[NoParameters, Query()]) -> Response:
    """Always, if anything answers."""
    return send_json({"status": "alive"})


@router.get("/ready", response_model=Readiness, responses=describe_errors(), summary="Is the server ready?")
async def show_readiness(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """503 with the reason where no sound gallery with images is served."""
    engine: Engine = request.app.state.engine
    access: Access = request.app.state.access
    version, problem = engine.snapshot().version, engine.live.problem
    if problem is not None and not access.knows(request.headers):
        problem = _PROBLEM  # it names folders of the machine
    return send_json({"status": "ready", "version": version, "problem": problem})


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text"}, **describe_errors()},
    summary="What the server counts",
)
async def show_metrics(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """Requests, seconds, queues, refusals, photos kept, and the gallery's version and size."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)
