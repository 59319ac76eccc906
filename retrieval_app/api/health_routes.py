"""Whether the server is alive, whether it is ready, and what it counts."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from retrieval_app.api.answers import send_json
from retrieval_app.api.errors import describe_errors
from retrieval_app.api.schemas import Answer, NoParameters
from retrieval_app.api.visitors import find_visitor
from retrieval_app.serving.errors import NotReadyError
from retrieval_app.serving.search_engine import Engine

_PROBLEM = "the newest version cannot be served, the one before goes on; the server's log says why"
_FAILS = "the gallery cannot be searched at the moment; the server's log says why"

router = APIRouter(prefix="/v1", tags=["health"])


class Health(Answer):
    """The process answers."""

    status: Literal["alive"]


class Readiness(Answer):
    """A sound gallery is served, and a search of it was tried.

    `problem` says that a newer version of it is not served, and to who has the token why.
    """

    status: Literal["ready"]
    version: str
    problem: str | None


@router.get("/health", response_model=Health, responses=describe_errors(), summary="Is the server alive?")
async def show_health(_: Annotated[NoParameters, Query()]) -> Response:
    """Always, if anything answers."""
    return send_json({"status": "alive"})


@router.get("/ready", response_model=Readiness, responses=describe_errors(), summary="Is the server ready?")
async def show_readiness(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """503 with the reason where no sound gallery with images is served, or where searching it fails."""
    engine: Engine = request.app.state.engine
    snapshot, knows = engine.snapshot(), find_visitor(request.scope).has_token
    try:
        await engine.try_search(snapshot)
    except NotReadyError:
        if knows:
            raise
        raise NotReadyError(_FAILS) from None  # why may name folders of the machine
    problem = engine.live.problem
    return send_json(
        {
            "status": "ready",
            "version": snapshot.version,
            "problem": problem if problem is None or knows else _PROBLEM,
        }
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text"}, **describe_errors()},
    summary="What the server counts",
)
async def show_metrics(request: Request, _: Annotated[NoParameters, Query()]) -> Response:
    """Requests, seconds, queues, refusals, photos kept, and the gallery's version and size."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)
