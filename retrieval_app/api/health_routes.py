"""Whether the server is alive, whether it is ready, and what it counts."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from retrieval_app.api.answers import send_json
from retrieval_app.api.asking import AskedAlone, answers
from retrieval_app.api.schemas import Answer
from retrieval_app.api.visitors import find_visitor
from retrieval_app.serving.errors import NotReadyError

_PROBLEM = "the newest version cannot be served, the one before goes on; the server's log says why"
_FAILS = "the gallery cannot be searched at the moment; the server's log says why"
_TEXT = {200: {"content": {"text/plain": {}}, "description": "Prometheus' text"}}

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


@router.get("/health", summary="Is the server alive?", **answers(Health))
async def show_health(_: AskedAlone) -> Response:
    """Always, if anything answers."""
    return send_json({"status": "alive"})


@router.get("/ready", summary="Is the server ready?", **answers(Readiness))
async def show_readiness(asked: AskedAlone) -> Response:
    """503 with the reason where no sound gallery with images is served, or where searching it fails."""
    snapshot, knows = asked.snapshot, find_visitor(asked.request.scope).has_token
    try:
        await asked.engine.probe.check(snapshot)
    except NotReadyError:
        if knows:
            raise
        raise NotReadyError(_FAILS) from None  # why may name folders of the machine
    problem = asked.engine.live.problem
    told = problem if problem is None or knows else _PROBLEM
    return send_json({"status": "ready", "version": snapshot.version, "problem": told})


@router.get("/metrics", summary="What the server counts", **answers(None, also=_TEXT))
async def show_metrics(asked: AskedAlone) -> Response:
    """Requests, seconds, queues, refusals, photos kept, and the gallery's version and size."""
    return Response(asked.request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)
