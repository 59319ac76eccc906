"""What the server counts, for those who watch over it."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST

from retrieval_app.api.asking import AskedAlone, answers
from retrieval_app.api.security.access import require_metrics

METRICS_TEXT = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text"}
}

router = APIRouter(prefix="/v1", tags=["health"])


@router.get(
    "/metrics",
    operation_id="get_metrics",
    dependencies=[Depends(require_metrics)],
    summary="What the server counts",
    **answers(None, also=METRICS_TEXT),
)
async def show_metrics(asked: AskedAlone) -> Response:
    """Requests, seconds, queues, refusals, photos kept, and the gallery's version and size."""
    return Response(asked.request.app.state.metrics.render(), media_type=CONTENT_TYPE_LATEST)
