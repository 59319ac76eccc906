"""Gradio app: search by a photo or an image of the gallery; the same as the endpoint `/search` for clients."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from gradio.components import Component
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder
from gradio_client.utils import is_http_url_like
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from index.errors import InputError, RetrievalError
from index.outputs import COPY, SEMANTIC
from index.text import printable_path
from retrieval_app.api.errors import explain, refuse_with
from retrieval_app.api.security.addresses import comes_from_another_site
from retrieval_app.gallery_answers import GalleryAnswers

# Gradio's own image components fetch an address that a client names, open any image of the machine that is named
# without the mark of an upload, and decode in this process, in any format and number. These take one uploaded file.
Picture = TypeVar("Picture", bound=Component)
_ONLY_SENT = "upload the image itself: no other file and no address is opened"


def take_sent_only(component: Picture) -> Picture:
    """The component, changed so that its functions get the bytes of the uploaded image, or None.

    It raises `gr.Error` for any other file. It is not a class, as Gradio writes a file beside the source of each.
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

_ASKS_BY = {SEMANTIC: ("Similar content", SEMANTIC), COPY: ("Copies of this image", COPY)}
_SOME, _MOST_RESULTS = 24, 200
_SIDE = 256  # pixels of a thumbnail
_RESULTS = 10  # of the endpoint, by default
_KEPT_S = 3600  # for thumbnails that Gradio has written
_AT_ONCE, _WAITING = 8, 64
_START = "Select an image to find similar ones, or upload a photo."


class GalleryApp(gr.Blocks):
    """Gradio's Blocks over a gallery, with defaults that suit it; `on_close` is called when the app is closed."""

    def __init__(self, answers: GalleryAnswers, *, on_close: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            title=f"{printable_path(answers.engine.name)} · image search",
            analytics_enabled=False,
            fill_width=True,
            delete_cache=(_KEPT_S // 6, _KEPT_S),
        )
        self._answers, self._on_close = answers, on_close
        with self:
            head = gr.Markdown(self._describe())
            self.load(self._describe, None, head, **_PRIVATE)  # which a new version changes
            self._add_search()
            self._add_endpoint()
        self.queue(max_size=_WAITING, default_concurrency_limit=_AT_ONCE)
        # As Gradio has it on Windows: the idle queue is polled every 50 ms. Every millisecond took 3 to 5 % of a core.
        self._queue.sleep_when_free, self._queue.progress_update_sleep_when_free = 0.05, 0.1

    def launch(self, *args: Any, **options: Any) -> Any:
        """Launch as `gr.Blocks.launch` does, with limits of uploads, themes and styles."""
        limits = {"max_file_size": self._answers.engine.config.max_upload_bytes}
        return super().launch(*args, **{**_LAUNCH, **limits, **options})

    def launch_here(self, *, port: int | None, inbrowser: bool) -> str:
        """Launch for programs of this machine, without blocking; the address."""
        # No other site can reach it by a name of its own that leads to this machine, or through a visitor's browser.
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
        try:
            _, url, _ = self.launch(
                inbrowser=inbrowser,
                server_name="127.0.0.1",
                server_port=port,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                app_kwargs={"middleware": [hosts, Middleware(_OwnPageOnly)]},
            )
        except OSError as error:  # Gradio's own way to say that no port is free
            raise InputError(f"--port {port or '7860 to 7959'}: already in use; choose another") from error
        return str(url)

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
                text = gr.Textbox(label="Or words", placeholder="what the image shows", max_lines=1)
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
        gr.on([photo.upload], self._search_photo, [photo, *options], results, **_PRIVATE)
        gr.on([go.click, where.submit, text.submit], self._search_typed, [photo, text, *options], results, **_PRIVATE)
        found.select(self._search_shown, [ids, *options], results, **_PRIVATE)
        gr.on([some.click, self.load], self._show_some, None, results, **_PRIVATE)
        gr.on([by.input, count.release], self._search_again, [photo, asked, *options], results, **_PRIVATE)

    def _add_endpoint(self) -> None:
        """The endpoint for clients; hidden components declare its inputs and output."""
        photo, image_id = take_sent_only(gr.Image(type="pil", visible=False)), gr.Number(precision=0, visible=False)
        count, where = gr.Number(_RESULTS, precision=0, visible=False), gr.Textbox("", visible=False)
        by = gr.Radio(list(self._answers.outputs), value=SEMANTIC, visible=False)
        text = gr.Textbox("", visible=False)
        gr.Button(visible=False).click(
            self.search,
            [photo, image_id, count, where, by, text],
            gr.JSON(visible=False),
            api_name="search",
            api_description=self.search.__doc__,
            show_progress="hidden",
        )

    async def search(
        self,
        image: bytes | None = None,
        image_id: int | None = None,
        k: int = _RESULTS,
        where: str = "",
        by: str = SEMANTIC,
        text: str = "",
    ) -> list[dict[str, Any]]:
        """The k images most similar to a photo, a gallery image or words: id, score, label, name and others."""
        return await _ask(self._answers.search(image, image_id, k=k, where=where, by=by, text=text))

    async def _search_photo(self, photo: bytes | None, *options: Any) -> tuple[Any, ...]:
        if photo is None:
            raise gr.Error("Upload a photo first, or select one of the images.")
        return await self._show(photo, None, *options)

    async def _search_typed(self, photo: bytes | None, text: str, by: str, where: str, count: int) -> tuple[Any, ...]:
        if not text.strip():
            return await self._search_photo(photo, by, where, count)
        hits = await self.search(None, None, k=count, where=where, text=text)
        told = f"**{len(hits):,} images by the words {_escape(text)}**, best first. Select one to search with it."
        return told, *await self._draw(hits), None

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
        hits = await self.search(photo, image_id, k=count, where=where, by=by)
        what = "the photo" if image_id is None else f"image {image_id}"
        told = f"**{len(hits):,} images most similar to {what}**, best first. Select one to search with it."
        return told, *await self._draw(hits), image_id

    async def _show_some(self) -> tuple[Any, ...]:
        return _START, *await self._draw(await _ask(self._answers.list_some(_SOME))), None

    async def _draw(self, entries: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], list[int]]:
        """(file, caption) of each thumbnail, in Gradio's own folder, and its id; images that are gone are left out."""

        async def draw(entry: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
            try:
                data = await self._answers.thumbnail(entry["id"], side=_SIDE)
            except RetrievalError:  # `retrieval index verify` tells of it; the others are worth showing
                return None
            return save_bytes_to_cache(data, "picture.webp", self.GRADIO_CACHE), entry

        shown = [one for one in await asyncio.gather(*map(draw, entries)) if one is not None]
        return [(file, _caption(entry)) for file, entry in shown], [entry["id"] for _, entry in shown]


class _OwnPageOnly:
    """Middleware that refuses what pages of other sites send, and what they read of Gradio's API."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] in ("http", "websocket"):
            is_view = scope.get("method") in ("GET", "HEAD") and not scope["path"].startswith("/gradio_api")
            if not is_view and comes_from_another_site(Headers(scope=scope)):
                app = refuse_with(scope, 403, "only this app's own page may send to it", code="cross_site")
        await app(scope, receive, send)


async def _ask(answer: Coroutine[Any, Any, Value]) -> Value:
    """An answer; errors that the user can correct become Gradio's."""
    try:
        return await answer
    except RetrievalError as error:
        raise gr.Error(explain(error), print_exception=False) from error


def _caption(entry: dict[str, Any]) -> str:
    score = f"{entry['score']:.2f}" if "score" in entry else None
    words = "a copy" if entry.get("is_copy") else (entry.get("precision_at_score") or {}).get("name")
    return " · ".join(filter(None, (entry["label"] or entry["name"], score, words)))


def _escape(text: str) -> str:
    """A name escaped for Markdown."""
    return "".join(f"&#{ord(one)};" if not (one.isalnum() or one in " .,·") else one for one in text)


_FONTS = [gr.themes.Font(name) for name in ("system-ui", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif")]
_MONO = [gr.themes.Font(name) for name in ("ui-monospace", "Menlo", "Consolas", "monospace")]
_STYLE = """
.grid-wrap.grid-wrap { max-height: none; }
.caption-label.caption-label { max-width: 100%; white-space: normal; text-align: left; left: 0; right: auto; }
"""
_PRIVATE: dict[str, Any] = {"api_visibility": "private"}
_LAUNCH: dict[str, Any] = {
    # The default theme fetches its fonts from another host.
    "theme": gr.themes.Default(primary_hue="indigo", neutral_hue="slate", font=_FONTS, font_mono=_MONO),
    "css": _STYLE,
    "footer_links": ["api", "settings"],
    "run_history": False,
    "show_error": False,
    "ssr_mode": False,
    "enable_monitoring": False,
    "pwa": False,
    "mcp_server": False,
}
