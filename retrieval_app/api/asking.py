"""A request as the routes have it, with what answers it; and what each route declares of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response

from retrieval_app.api.answers import send_json
from retrieval_app.api.errors import describe_errors
from retrieval_app.api.schemas import NoParameters
from retrieval_app.api.security.access import sees_folders
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.search_engine import Engine


class Asking:
    """One request, answered from one version of the gallery.

    Attributes:
        request: as it came.
        folders: whether who asks may know the folders of the machine.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.folders = request, sees_folders(request)
        self.engine: Engine = request.app.state.engine
        self.review: ReviewStore = request.app.state.review
        self.jobs: Jobs = request.app.state.jobs

    @cached_property
    def snapshot(self) -> Snapshot:
        """The version that was current when it was first asked for."""
        return self.engine.snapshot()

    async def tell(self, read: Callable[..., Any], *args: Any, status: int = 200, **kwargs: Any) -> Response:
        """The document that a blocking function gives."""
        return send_json(await self.engine.run(read, *args, **kwargs), status=status, folders=self.folders)


async def _ask(request: Request) -> Asking:
    return Asking(request)


async def _ask_alone(request: Request, _: Annotated[NoParameters, Query()]) -> Asking:
    return Asking(request)


Asked = Annotated[Asking, Depends(_ask)]
AskedAlone = Annotated[Asking, Depends(_ask_alone)]
"""A request whose address may have no parameters."""


def answers(model: Any, *statuses: int, also: Mapping[int, Any] | None = None) -> dict[str, Any]:
    """What a route declares: the model of its answer, None where it is no JSON, and in which ways it may fail."""
    kind = {"response_class": Response} if model is None else {"response_model": model}
    return {**kind, "responses": {**(also or {}), **describe_errors(*statuses)}}
