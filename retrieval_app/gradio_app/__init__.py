"""Gradio app of a gallery: `retrieval gradio`, and for notebooks, Spaces and `gradio_client`.

from retrieval_app.gradio_app import build_app

build_app("gallery").launch()
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from index.errors import MissingDependencyError
from index.telemetry import switch_off_telemetry

if TYPE_CHECKING:
    from retrieval_app.gradio_app.app import GalleryApp


def build_app(gallery: Path | str) -> GalleryApp:
    """The app of a gallery, to be launched: `build_app("gallery").launch(share=True, auth=("me", "secret"))`.

    It answers from the gallery's newest version, and holds threads and memory until it is closed.
    """
    switch_off_telemetry()
    try:
        from retrieval_app.gallery_answers import GalleryAnswers
        from retrieval_app.gradio_app.app import GalleryApp
        from retrieval_app.serving.search_engine import Engine
    except ModuleNotFoundError as error:
        raise MissingDependencyError(package=error.name or "gradio", extra="ui", purpose="the Gradio app") from error
    engine = Engine(Path(gallery))
    try:
        engine.live.watch(poll_s=engine.config.poll_s)
        return GalleryApp(GalleryAnswers(engine), on_close=engine.close)
    except BaseException:
        engine.close()
        raise
