"""Gradio app: search by photo, Recall@K and label issues; the same as endpoints for clients."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from gradio.components import Component
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder
from gradio_client.utils import is_http_url_like

from index.errors import RetrievalError
from index.labels.issues import LOWER_BOUND
from index.outputs import COPY, SEMANTIC
from index.text import printable_path
from retrieval_app.api.errors import explain
from retrieval_app.gallery_answers import GalleryAnswers

# Gradio's own image components fetch an address that a client names, open any image of the machine that is named
# without the mark of an upload, and decode in this process, in any format and number. These take one uploaded file.
Picture = TypeVar("Picture", bound=Component)
_ONLY_SENT = "upload the image itself: no other file and no address is opened"


def take_sent_only(component: Picture) -> Picture:
    """The component, changed so that its functions get the bytes of the uploaded image, or None.

    It raises `gr.Error` for any other file. It is no class, as Gradio writes a file beside the source of each.
    """
    move = component.async_move_resource_to_block_cache

    async def move_sent(file: Any) -> str | None:
        _check_place(file)
        return await move(file)

    def read_sent(payload: Any) -> bytes | None:
        file = getattr(payload, "composite", payload)  # of the editor: what is seen of all layers
        if file is None:
            return None
        _check_place(file.path)
        return Path(file.path).read_bytes()

    component.async_move_resource_to_block_cache, component.preprocess = move_sent, read_sent
    return component


def _check_place(file: Any) -> None:
    folder = Path(get_upload_folder()).resolve()
    if file is None or is_http_url_like(str(file)) or not Path(file).resolve().is_relative_to(folder):
        raise gr.Error(_ONLY_SENT, print_exception=False)


Value = TypeVar("Value")
Shown = tuple[list[tuple[str, str]], list[int]]
"""(file, caption) of each thumbnail, and its id."""

_ASKS_BY = {SEMANTIC: ("Similar content", SEMANTIC), COPY: ("Copies of this image", COPY)}
_SOME, _MOST_RESULTS, _MOST_ISSUES = 24, 200, 200
_SIDE = 256  # pixels of a thumbnail
_RESULTS = 10  # of an endpoint, by default
_KEPT_S = 3600  # for thumbnails that Gradio has written
_AT_ONCE, _WAITING = 8, 64
_START = "Select an image to find similar ones, or upload a photo."


class GalleryApp(gr.Blocks):
    """Gradio's Blocks over a gallery, with defaults that suit it; `on_close` is called when the app is closed."""

    def __init__(self, answers: GalleryAnswers, *, on_close: Callable[[], None] = lambda: None) -> None:
        name = printable_path(answers.engine.name)
        super().__init__(
            title=f"{name} · image search",
            analytics_enabled=False,
            fill_width=True,
            delete_cache=(_KEPT_S // 6, _KEPT_S),
        )
        self._answers, self._on_close = answers, on_close
        with self:
            head = gr.Markdown(self._describe())
            self.load(self._describe, None, head, **_PRIVATE)  # which a new version changes
            with gr.Tab("Search"):
                self._add_search()
            with gr.Tab("Quality"):
                self._add_quality()
            with gr.Tab("Labels"):
                self._add_labels()
            self._add_endpoints()
        self.queue(max_size=_WAITING, default_concurrency_limit=_AT_ONCE)

    @property
    def defaults(self) -> dict[str, Any]:
        """Default options of launching and mounting."""
        return {**_LAUNCH, "max_file_size": self._answers.engine.config.max_upload_bytes}

    def launch(self, *args: Any, **options: Any) -> Any:
        """As `gr.Blocks.launch`."""
        return super().launch(*args, **{**self.defaults, **options})

    def close(self, verbose: bool = True) -> None:
        """End the app, and close the gallery."""
        super().close(verbose=verbose)
        self._on_close()

    def _describe(self) -> str:
        return f"# {_escape(printable_path(self._answers.engine.name))}\n{_escape(self._answers.describe())}"

    def _add_search(self) -> None:
        outputs = self._answers.outputs
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                photo = take_sent_only(
                    gr.ImageEditor(
                        label="A photo",
                        type="pil",
                        image_mode="RGB",
                        layers=False,
                        transforms=("crop",),
                        buttons=[],
                        brush=gr.Brush(colors=["#808080"], color_mode="fixed"),
                        placeholder="Drop or paste a photo",
                        height=360,
                    )
                )
                by = gr.Radio(
                    [_ASKS_BY[one] for one in outputs], value=SEMANTIC, label="Find", visible=len(outputs) > 1
                )
                where = gr.Textbox(label="Only images with", placeholder=self._answers.example_filter(), max_lines=1)
                count = gr.Slider(1, _MOST_RESULTS, _SOME, step=1, label="Results")
                go = gr.Button("Search", variant="primary")
                some = gr.Button("Some images of the gallery")
            with gr.Column(scale=3, min_width=480):
                told = gr.Markdown(_START)
                found = gr.Gallery(
                    label="Results",
                    columns=5,
                    object_fit="cover",
                    allow_preview=False,
                    interactive=False,
                    height="auto",
                    buttons=[],
                )
        ids = gr.State([])
        asked = gr.State(None)  # the image of the gallery that was the last query
        options, results = [by, where, count], [told, found, ids, asked]
        gr.on([photo.upload, go.click, where.submit], self._search_photo, [photo, *options], results, **_PRIVATE)
        found.select(self._search_shown, [ids, *options], results, **_PRIVATE)
        gr.on([some.click, self.load], self._show_some, None, results, **_PRIVATE)
        gr.on([by.input, count.release], self._search_again, [photo, asked, *options], results, **_PRIVATE)

    def _add_quality(self) -> None:
        measure = gr.Button("Measure Recall@K", variant="primary")
        told = gr.Markdown(
            "Recall@K: the share of labelled images that find an image of the same label among the first K."
        )
        with gr.Row():
            recall = gr.Dataframe(headers=["K", "Recall@K, %", "95 % interval"], interactive=False)
            classes = gr.Dataframe(headers=["Label", "Images", "Recall@1, %"], interactive=False, max_height=400)
        measure.click(self._measure, None, [told, recall, classes], **_PRIVATE)

    def _add_labels(self) -> None:
        find = gr.Button("Find label issues", variant="primary")
        told = gr.Markdown("Label issues: label → suggested label, and the probability that the label is wrong.")
        shown = gr.Gallery(
            label="Label issues", columns=6, object_fit="cover", interactive=False, height="auto", buttons=[]
        )
        find.click(self._find_issues, None, [told, shown], **_PRIVATE)

    def _add_endpoints(self) -> None:
        """The endpoints for clients; hidden components declare their inputs and outputs."""
        photo, image_id = (take_sent_only(gr.Image(type="pil", visible=False)), gr.Number(precision=0, visible=False))
        count, where = gr.Number(_RESULTS, precision=0, visible=False), gr.Textbox("", visible=False)
        by = gr.Radio(list(self._answers.outputs), value=SEMANTIC, visible=False)
        given, hidden = gr.JSON(visible=False), gr.Button(visible=False)
        for function, inputs in (
            (self.search, [photo, image_id, count, where, by]),
            (self.embed, [photo, by]),
            (self.evaluate, None),
            (self.labels, [count]),
        ):
            hidden.click(
                function,
                inputs,
                given,
                api_name=function.__name__,
                api_description=function.__doc__,
                show_progress="hidden",
            )

    async def search(
        self,
        image: bytes | None = None,
        image_id: int | None = None,
        k: int = _RESULTS,
        where: str = "",
        by: str = SEMANTIC,
    ) -> list[dict[str, Any]]:
        """The k images most similar to a photo or a gallery image: id, score, label, name, precision_at_score."""
        return await _ask(self._answers.search(image, image_id, k=k, where=where, by=by))

    async def embed(self, image: bytes | None, by: str = SEMANTIC) -> list[float]:
        """The unit vector of a photo."""
        if image is None:
            raise gr.Error("embed needs a photo")
        return await _ask(self._answers.embed(image, by=by))

    async def evaluate(self) -> dict[str, Any]:
        """Recall@K of the gallery by its own labels, with 95 % intervals."""
        return await _ask(self._answers.evaluate())

    async def labels(self, count: int = _RESULTS) -> dict[str, Any]:
        """Label issues: the labels that are most probably wrong, the most probable errors first."""
        return await _ask(self._answers.list_label_issues(count))

    async def _search_photo(self, photo: bytes | None, *options: Any) -> tuple[Any, ...]:
        if photo is None:
            raise gr.Error("Upload a photo first, or select one of the images.")
        return await self._show(photo, None, *options)

    async def _search_shown(self, ids: list[int], by: str, where: str, count: int, chosen: gr.SelectData) -> Any:
        return await self._show(None, ids[chosen.index], by, where, count)

    async def _search_again(self, photo: bytes | None, asked: int | None, *options: Any) -> tuple[Any, ...]:
        """Repeat the last query with other options."""
        if photo is None and asked is None:
            return (gr.skip(),) * 4
        return await self._show(photo if asked is None else None, asked, *options)

    async def _show(
        self, photo: bytes | None, image_id: int | None, by: str, where: str, count: int
    ) -> tuple[Any, ...]:
        hits = await _ask(self._answers.search(photo, image_id, k=count, where=where, by=by))
        what = "the photo" if image_id is None else f"image {image_id}"
        told = f"**{len(hits):,} images most similar to {what}**, best first. Select one to search with it."
        pictures, ids = await self._draw(hits, _caption_hit)
        return told, pictures, ids, image_id

    async def _show_some(self) -> tuple[Any, ...]:
        pictures, ids = await self._draw(await _ask(self._answers.list_some(_SOME)), _caption)
        return _START, pictures, ids, None

    async def _measure(self, progress: gr.Progress = gr.Progress()) -> tuple[Any, ...]:  # noqa: B008, as Gradio has it
        found = await _ask(self._answers.evaluate(_telling(progress, "Measuring")))
        told = f"{found['queries']:,} labelled images were the queries."
        if (grouped := found["grouped"]) is not None and grouped["value"] is not None:
            told += f" Without the query's own group and copies, Recall@1 is **{_percent(grouped['value'])} %**."
        recall = [
            [one["k"], _percent(one["value"]), " – ".join(map(_percent, one["interval"]))] for one in found["recall_at"]
        ]
        classes = [[one["label"], one["images"], _percent(one["recall_at_1"])] for one in found["classes"]]
        return told, recall, classes

    async def _find_issues(self, progress: gr.Progress = gr.Progress()) -> tuple[Any, ...]:  # noqa: B008
        found = await _ask(self._answers.list_label_issues(_MOST_ISSUES, _telling(progress, "Finding label issues")))
        pictures, _ = await self._draw(found["items"], _caption_issue)
        told = (
            f"Of {found['checked']:,} labels about {_percent(found['noise_rate'])} % are wrong; the {len(pictures):,} "
            "most probable errors are shown. `retrieval serve` has a page to decide on them."
        ) + (f" {LOWER_BOUND}" if found["is_lower_bound"] else "")
        return told, pictures

    async def _draw(self, entries: list[dict[str, Any]], caption: Callable[[dict[str, Any]], str]) -> Shown:
        """Thumbnails as files in Gradio's own folder; images that are gone are left out."""

        async def draw(entry: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
            try:
                data = await self._answers.thumbnail(entry["id"], side=_SIDE)
            except RetrievalError:  # `retrieval index verify` tells of it; the others are worth showing
                return None
            return save_bytes_to_cache(data, "picture.webp", self.GRADIO_CACHE), entry

        shown = [one for one in await asyncio.gather(*map(draw, entries)) if one is not None]
        return [(file, caption(entry)) for file, entry in shown], [entry["id"] for _, entry in shown]


async def _ask(answer: Coroutine[Any, Any, Value]) -> Value:
    """An answer; errors that the user can correct become Gradio's."""
    try:
        return await answer
    except RetrievalError as error:
        raise gr.Error(explain(error), print_exception=False) from error


def _telling(progress: gr.Progress, what: str) -> Callable[[int, int], None]:
    return lambda done, total: progress((done, total) if total else None, desc=what)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _caption(entry: dict[str, Any]) -> str:
    return entry["label"] or entry["name"]


def _caption_hit(hit: dict[str, Any]) -> str:
    words = "a copy" if hit.get("is_copy") else (hit["precision_at_score"] or {}).get("name")
    return " · ".join(filter(None, (_caption(hit), f"{hit['score']:.2f}", words)))


def _caption_issue(issue: dict[str, Any]) -> str:
    return f"{issue['label']} → {issue['suggested']}: {100 * issue['p_error']:.0f} %"


def _escape(text: str) -> str:
    """A name escaped for Markdown."""
    return "".join(f"&#{ord(one)};" if not (one.isalnum() or one in " .,·") else one for one in text)


def make_theme() -> gr.themes.Base:
    """A quiet theme on the fonts that every system has."""
    fonts = [gr.themes.Font(name) for name in ("system-ui", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")]
    mono = [gr.themes.Font(name) for name in ("ui-monospace", "Menlo", "Consolas", "monospace")]
    return gr.themes.Default(primary_hue="indigo", neutral_hue="slate", font=fonts, font_mono=mono)


_STYLE = """
.grid-wrap.grid-wrap { max-height: none; }
.caption-label.caption-label { max-width: 100%; white-space: normal; text-align: left; left: 0; right: auto; }
"""
_PRIVATE: dict[str, Any] = {"api_visibility": "private"}
_LAUNCH: dict[str, Any] = {
    "theme": make_theme(),
    "css": _STYLE,
    "footer_links": ["api", "settings"],
    "run_history": False,
    "show_error": False,
    "ssr_mode": False,
    "enable_monitoring": False,
    "pwa": False,
    "mcp_server": False,
}
