"""A request as the routes have it, with what answers it; and what each route declares of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request, Response

from retrieval_app.api.errors import describe_errors, read_request_id
from retrieval_app.api.schemas import Answer, NoParameters
from retrieval_app.api.security.access import sees_folders
from retrieval_app.api.visitors import find_visitor
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.job_list import Asker
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.places import hide_folders
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.search_engine import Engine

Value = TypeVar("Value")


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
        self._log: ActivityLog = request.app.state.log

    @property
    def who(self) -> str:
        """The name of who asks."""
        return find_visitor(self.request.scope).name

    @property
    def asker(self) -> Asker:
        """Who asks, for the log of a job's end."""
        visitor = find_visitor(self.request.scope)
        return Asker(visitor.name, visitor.address, read_request_id(self.request))

    @cached_property
    def snapshot(self) -> Snapshot:
        """The version that was current when it was first asked for, with the decisions from before the request."""
        return self.engine.snapshot()

    def logging(
        self, what: str, act: Callable[..., Value], *, tell: Callable[[Value], Mapping[str, Any]]
    ) -> Callable[..., Value]:
        """A blocking function that logs who did it once it is done, in its own thread: however long its asker waits.

        Args:
            what: it does, in a word.
            act: the function itself.
            tell: what else is logged, of its value.
        """
        visitor, request_id = find_visitor(self.request.scope), read_request_id(self.request)

        def act_and_log(*args: Any, **kwargs: Any) -> Value:
            done = act(*args, **kwargs)
            self._log.record(what, who=visitor.name, address=visitor.address, request=request_id, **tell(done))
            return done

        return act_and_log

    async def read(self, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The document that a blocking function gives, as `show` has it."""
        return self.show(await self.engine.run(read, *args, **kwargs))

    def show(self, document: Any) -> Any:
        """A document; to who may not know of the folders of the machine without them in the paths of images."""
        return document if self.folders else hide_folders(document)


async def _ask(request: Request) -> Asking:
    asking = Asking(request)
    await asking.engine.follow_decisions()
    return asking


async def _ask_alone(request: Request, _: Annotated[NoParameters, Query()]) -> Asking:
    return await _ask(request)


Asked = Annotated[Asking, Depends(_ask)]
AskedAlone = Annotated[Asking, Depends(_ask_alone)]
"""A request whose address may have no parameters."""


def answers(model: Any, *statuses: int, also: Mapping[int, Any] | None = None) -> dict[str, Any]:
    """What a route declares: the model of its answer, None where it is no JSON, and in which ways it may fail.

    What a route returns is checked against the model and written by it.
    """
    json: dict[str, Any] = {"response_model": model, "response_model_exclude_unset": True}
    kind = {"response_class": Response, "response_model": None} if model is None else json
    return {**kind, "responses": {**(also or {}), **describe_errors(*statuses)}}


def write(model: type[Answer], values: Mapping[str, Any], *, status: int = 200) -> Response:
    """An answer that is written at once: of another status than its route's, or long, in the thread that made it."""
    content = model.model_validate(values).model_dump_json(exclude_unset=True)
    return Response(content, status_code=status, media_type="application/json")
