"""What does not get through to a route is answered here: with the same JSON as every other failure."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Scope

from retrieval_app.api.errors import make_error


def refuse_with(
    scope: Scope, status: int, message: str, *, code: str | None = None, retry_after_s: int | None = None
) -> Response:
    """The answer to a request that is refused before it reaches a route."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not waited for
    return make_error(status, message, request_id=scope["state"]["request_id"], code=code, headers=headers)
