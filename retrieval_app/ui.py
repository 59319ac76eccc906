"""The page's widgets and what they are wired to; the searching is done by the service, the drawing by `markup`."""

from __future__ import annotations

from collections.abc import Callable

import gradio as gr

from index.errors import RetrievalError
from retrieval_app import markup
from retrieval_app.look import PICK_SCRIPT, UPLOAD_SCRIPT
from retrieval_app.service import SearchService, explain

SAMPLE_COUNT = 12
MIN_RESULTS, DEFAULT_RESULTS, MAX_PAGE_RESULTS = 6, 24, 60
HISTORY_KEPT = 50
CONCURRENT_SEARCHES = 4
TEMPORARY_FILE_SECONDS = 3600
EVENT_FIELDS = frozenset(("id", "ref", "message"))
"""What the scripts of the panels send with their events."""

History = list[str]
"""The refs of the queries so far; the last is the one shown."""
Shown = tuple[str, object, History]
"""Results, query card, history."""


def build_page(service: SearchService) -> gr.Blocks:
    """The search page over one gallery."""
    page = gr.Blocks(
        title=f"{service.gallery.name} · image search",
        analytics_enabled=False,
        fill_width=True,
        delete_cache=(TEMPORARY_FILE_SECONDS, TEMPORARY_FILE_SECONDS),
    )
    with page:
        history = gr.State([])
        seed = gr.State(0)
        gr.HTML(_header(service), js_on_load=None, apply_default_css=False)
        with gr.Row(elem_id="layout"):
            with gr.Column(elem_id="side", scale=0, min_width=300):
                upload = _panel(markup.draw_upload(), script=UPLOAD_SCRIPT)
                query = _panel("", script=PICK_SCRIPT, elem_id="query")
                samples = _panel(
                    markup.draw_samples(service.sample(SAMPLE_COUNT, seed=0)),
                    script=PICK_SCRIPT,
                    elem_id="samples",
                )
                count = gr.Slider(
                    MIN_RESULTS,
                    MAX_PAGE_RESULTS,
                    DEFAULT_RESULTS,
                    step=1,
                    label="Number of results",
                    elem_id="count",
                )
            with gr.Column(elem_id="main", scale=1, min_width=320):
                results = _panel(markup.draw_welcome(), script=PICK_SCRIPT, elem_id="results")
        _connect(
            service, history=history, count=count, results=results, query=query, upload=upload, samples=samples
        )
        samples.shuffled(
            lambda number: (markup.draw_samples(service.sample(SAMPLE_COUNT, seed=number + 1)), number + 1),
            seed, [samples, seed], show_progress="hidden", api_visibility="private",
        )  # fmt: skip
    return page.queue(default_concurrency_limit=CONCURRENT_SEARCHES, max_size=64)


def _header(service: SearchService) -> str:
    contract = service.gallery.embedder.contract
    return markup.draw_header(
        service.gallery.name,
        count=service.gallery.count,
        model=f"{contract.backbone} · {contract.method}",
        width=contract.embedding_dim,
    )


def _panel(html: str, *, script: str, elem_id: str | None = None) -> gr.HTML:
    return gr.HTML(html, js_on_load=script, apply_default_css=False, elem_id=elem_id)


def _connect(
    service: SearchService,
    *,
    history: gr.State,
    count: gr.Slider,
    results: gr.HTML,
    query: gr.HTML,
    upload: gr.HTML,
    samples: gr.HTML,
) -> None:
    show = search_shower(service)

    def pick(event: gr.EventData, past: History, k: int) -> Shown:
        return show([*past, f"member:{_read(event, 'id')}"], past, k)

    def take(event: gr.EventData, past: History, k: int) -> Shown:
        return show([*past, _read(event, "ref")], past, k)

    def go_back(past: History, k: int) -> Shown:
        return show(past[:-1], past, k)

    def repeat(past: History, k: int) -> Shown:
        return show(past, past, k)

    def refuse(event: gr.EventData) -> str:
        return markup.draw_error(_read(event, "message") or "The photo could not be sent.")

    inputs, outputs = [history, count], [results, query, history]
    for panel in (samples, results, query):
        _listen(panel.picked, pick, inputs, outputs)
    _listen(query.returned, go_back, inputs, outputs)
    _listen(count.release, repeat, inputs, outputs)
    _listen(upload.sent, take, inputs, outputs)
    _listen(upload.refused, refuse, None, [results])


def _read(event: gr.EventData, field: str) -> str:
    try:
        return str(getattr(event, field))
    except (AttributeError, TypeError):  # no such field, or no fields at all: not sent by the page's scripts
        return ""


def _listen(event: Callable[..., object], handler: Callable[..., object], inputs: object, outputs: object) -> None:
    event(handler, inputs, outputs, show_progress="minimal", trigger_mode="always_last", api_visibility="private")


def search_shower(service: SearchService) -> Callable[[History, History, int], Shown]:
    """The step from a history of queries to what the page shows.

    It is called with the wanted history, the one to keep if that search fails, and the number of results.
    """

    def show(wanted: History, kept: History, k: int) -> Shown:
        if not wanted:
            return markup.draw_welcome(), markup.draw_query(None), []
        try:
            result = service.search(wanted[-1], k=int(k))
        except RetrievalError as error:
            return markup.draw_error(explain(error)), gr.skip(), kept
        wanted = wanted[-HISTORY_KEPT:]
        card = markup.draw_query(result.query, can_go_back=len(wanted) > 1)
        return markup.draw_results(result), card, wanted

    return show
