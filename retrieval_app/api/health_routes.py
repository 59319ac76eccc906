"""Health routes: whether the server is alive and ready."""

from typing import Literal

from retrieval_app.api.request_context import Context, make_router, responses
from retrieval_app.api.schemas import Answer
from retrieval_app.serving.errors import NotReadyError

_PROBLEM = "the newest version cannot be served, the one before goes on; the server's log says why"
_FAILS = "the gallery cannot be searched at the moment; the server's log says why"

router = make_router("health")


class Health(Answer):
    """The process answers; or every gallery is ready."""

    status: Literal["alive", "ready"]


class Readiness(Health):
    """A gallery is served, and a search of it was tried; `problem` says that something newer of it is not served."""

    version: str
    problem: str | None


@router.get("/health", **responses(Health))
async def get_health() -> dict[str, str]:
    """Is the server alive? Always, if anything answers."""
    return {"status": "alive"}


@router.get("/ready", **responses(Readiness))
async def get_readiness(context: Context) -> dict[str, str | None]:
    """Is the server ready? 503 with the reason where no gallery with images can be searched."""
    snapshot, live, knows = context.snapshot, context.engine.live, context.visitor.knows_failures
    try:
        await context.engine.probe.check(snapshot)
    except NotReadyError:
        if knows:
            raise
        raise NotReadyError(_FAILS) from None  # the reason may name folders of the machine
    problem = live.problem or live.decisions_problem
    return {"status": "ready", "version": snapshot.version, "problem": problem if knows else problem and _PROBLEM}
