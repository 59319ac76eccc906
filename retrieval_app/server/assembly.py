"""Joining what answers for a server: its galleries, here or in processes of their own, behind one entrance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

from retrieval_app.api.counters import EngineCollector, Metrics
from retrieval_app.gradio_app.mounted import GradioProcess
from retrieval_app.server.entrance import Entrance, open_entrance
from retrieval_app.server.gallery_app import end_soon, open_gallery
from retrieval_app.server.hall import create_hall, create_nothing
from retrieval_app.server.refusals import Refusals
from retrieval_app.server.site import Site

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp

    from retrieval_app.server.options import ServedGallery, ServeOptions

_Joined: TypeAlias = "tuple[ASGIApp, Metrics, Callable[[], None]]"


@dataclass(frozen=True, slots=True)
class Assembled:
    """A server that can be run.

    Attributes:
        app: answers everything.
        make_code: makes a code for the address of the first visit.
        end: to be called when it is to end: what would go on for long does not.
        refusals: is to be told of what no application is asked.
    """

    app: ASGIApp
    make_code: Callable[[], str]
    end: Callable[[], None]
    refusals: Refusals


@contextmanager
def assemble(options: ServeOptions) -> Iterator[Assembled]:
    """A server's applications over its opened galleries; everything they hold is let go at the end.

    Raises:
        GalleryError: a gallery cannot be opened.
        InputError: the file of tokens cannot be used.
    """
    with ExitStack() as opened:
        entrance = open_entrance(opened, options)
        join = _join_here if options.workers == 1 else _join_workers
        app, metrics, end = join(opened, options, entrance)
        refusals = Refusals(count=metrics.count_turned_away, write=entrance.lines.write_refusal)
        yield Assembled(app, entrance.sign_in.make_code, end, refusals)


def _join_here(opened: ExitStack, options: ServeOptions, entrance: Entrance) -> _Joined:
    """All galleries in this process."""
    gradio = GradioProcess()
    opened.callback(gradio.close)
    apps = {
        served.name: _open_behind(opened, served, options, entrance=entrance, gradio=gradio)
        for served in options.galleries
    }

    def end() -> None:
        for app in apps.values():
            end_soon(app)

    return *_choose_app(apps, entrance), end


def _join_workers(opened: ExitStack, options: ServeOptions, entrance: Entrance) -> _Joined:
    """One gallery in processes of their own, which answer what passes here; most servers need nothing of these."""
    from retrieval_app.server.workers.front import create_front
    from retrieval_app.server.workers.supervisor import supervise
    from retrieval_app.server.workers.worker_counts import WorkerCounts

    shared = Path(opened.enter_context(TemporaryDirectory(prefix="retrieval-serve-")))
    supervisor = opened.enter_context(supervise(options, shared=shared))
    counts = WorkerCounts(supervisor)
    app, metrics = create_front(supervisor, counts=counts, request_s=options.limits.request_s), Metrics(counts)
    entrance.doors.put_before(app, access=entrance.access, sign_in=entrance.sign_in, metrics=metrics)
    return app, metrics, supervisor.begin_end


def _open_behind(
    opened: ExitStack, served: ServedGallery, options: ServeOptions, *, entrance: Entrance, gradio: GradioProcess
) -> FastAPI:
    """The application of a gallery behind the doors of its server."""
    access, sign_in = entrance.access, entrance.sign_in
    if served.name is not None:
        access = replace(access, galleries=frozenset((served.name,)), is_hidden=True)
        sign_in = sign_in.for_gallery(access)
    app = opened.enter_context(
        open_gallery(
            served, options, log=entrance.logs[served.name or ""], gradio=gradio,
            root_path=entrance.doors.root_path,
        )
    )  # fmt: skip
    metrics = Metrics(EngineCollector(app.state.engine))
    entrance.doors.put_before(app, access=access, sign_in=sign_in, metrics=metrics, gallery=served.name)
    return app


def _choose_app(apps: dict[str | None, FastAPI], entrance: Entrance) -> tuple[ASGIApp, Metrics]:
    """The application of the only gallery, or all of those with names and what is beside them; and what it counts."""
    if None in apps:
        return apps[None], apps[None].state.metrics
    access, sign_in, doors = entrance.access, entrance.sign_in, entrance.doors
    named = {name: app for name, app in apps.items() if name is not None}
    nowhere = replace(access, galleries=frozenset(), is_hidden=True)
    hall = create_hall(named, access=access, sign_in=sign_in, doors=doors)
    metrics: Metrics = hall.state.metrics
    nothing = create_nothing(access=nowhere, sign_in=sign_in.for_gallery(nowhere), doors=doors, metrics=metrics)
    return Site(named, hall=hall, nothing=nothing, root_path=doors.root_path), metrics
