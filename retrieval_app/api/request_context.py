"""Request context, declarations of routes, and filters of requests."""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from index.errors import InputError
from index.filters.condition import PATH, SOURCE, Condition, Like, Not, join, list_columns
from index.filters.parser import find_words, parse_filter
from retrieval_app.api.errors import ApiError, describe_errors, read_request_id
from retrieval_app.api.schemas import Answer
from retrieval_app.api.security.rights import find_visitor
from retrieval_app.review.activity_log import ActivityLog, Client
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.places import hide_folders
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.live_gallery import Snapshot
from retrieval_app.serving.search_engine import Engine


class RequestContext:
    """Request context: the visitor, and one version of the gallery."""

    def __init__(self, request: Request) -> None:
        self.request, self.visitor = request, find_visitor(request.scope)
        self.folders = self.visitor.is_trusted  # whether the visitor may see the folders of the machine
        self.client = Client(self.visitor.name, self.visitor.address, read_request_id(request.scope))
        self.engine: Engine = request.app.state.engine
        self.review: ReviewStore = request.app.state.review
        self.jobs: Jobs = request.app.state.jobs
        self._log: ActivityLog = request.app.state.log

    @cached_property
    def snapshot(self) -> Snapshot:
        """The version that was current at the first use, with the decisions from before the request."""
        return self.engine.snapshot()

    def log(self, what: str, **details: Any) -> None:
        """Add a line to the activity log; called by the thread that did it, as the client may have left."""
        self._log.record(what, self.client, **details)

    async def read(self, read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The document of a blocking function, for strangers without the machine's folders in its paths."""
        document = await self.engine.run(read, *args, **kwargs)
        return document if self.folders else hide_folders(document)


async def _make_context(request: Request) -> RequestContext:
    context = RequestContext(request)
    await context.engine.follow_decisions()
    return context


Context = Annotated[RequestContext, Depends(_make_context)]


class Operation(APIRoute):
    """Route whose operation is the name of its function, and whose summary is the first line of its docstring."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        summary, _, description = inspect.cleandoc(endpoint.__doc__ or "").partition("\n\n")
        described = {"summary": summary.removesuffix("."), "description": description}
        super().__init__(path, endpoint, **{**declared, **described, "operation_id": endpoint.__name__})
        self.parameters = {
            name
            for one in self.dependant.query_params
            for name in getattr(one.field_info.annotation, "model_fields", (one.alias,))
        }


async def _refuse_unknown(request: Request) -> None:
    """Dependency of every route: its address has no other parameters than the route."""
    route: Operation = request.scope["route"]
    unknown = [name for name in request.query_params if name not in route.parameters]
    if unknown and route.include_in_schema:
        raise RequestValidationError([{"loc": ("query", name), "type": "extra_forbidden"} for name in unknown])


def make_router(tag: str) -> APIRouter:
    """A router of operations under /v1, which the OpenAPI document lists under one tag."""
    return APIRouter(prefix="/v1", tags=[tag], route_class=Operation, dependencies=[Depends(_refuse_unknown)])


def responses(model: Any, *statuses: int, also: Mapping[int, Any] | None = None) -> dict[str, Any]:
    """The responses of a route: the model of its JSON, or None for other content, and its failures."""
    json: dict[str, Any] = {"response_model": model, "response_model_exclude_unset": True}
    kind = {"response_class": Response, "response_model": None} if model is None else json
    return {**kind, "responses": {**(also or {}), **describe_errors(*statuses)}}


def write(model: type[Answer], values: Mapping[str, Any], *, status: int = 200) -> Response:
    """A response written at once: of another status than its route's, or a long one, by the thread that made it."""
    content = model.model_validate(values).model_dump_json(exclude_unset=True)
    return Response(content, status_code=status, media_type="application/json")


@lru_cache(maxsize=256)
def read_condition(where: str | None, text: str | None, *, folders: bool) -> Condition | None:
    """The filter of a condition and of words; without `folders` neither may try out the folders of the machine."""
    filters: list[Condition] = []
    if where is not None and where.strip():
        condition = _parse(parse_filter, where, field="where")
        # Metadata of the name path is shown without its folders, as by `hide_folders`.
        private = (c for c in list_columns(condition) if c == SOURCE or ("path" in c.names and not c.is_own))
        if not folders and any(private):
            message = "source is a folder of the machine: only those with its token can ask for it"
            raise ApiError(f"{message}, or for metadata of the name path", status=422, field="where")
        filters.append(condition)
        if not folders and PATH in list_columns(condition):
            filters.append(Not(Like(PATH, "/%")))  # a table may name files by absolute paths
    if text is not None and text.strip():
        filters.append(_parse(partial(find_words, folders=folders), text, field="text"))
    return join(filters) if filters else None


def _parse(parse: Callable[[str], Condition], text: str, *, field: str) -> Condition:
    try:
        return parse(text)
    except InputError as error:
        raise ApiError(str(error), status=422, field=field) from error
