"""Peers of `retrieval serve`: the same model and vectors behind a plain FastAPI handler and a plain Gradio function.

`fastapi` is a handler with `UploadFile`, Pillow, an ONNX Runtime session as it comes and an exact faiss index; `gradio`
a `gr.Interface` of the same function. Each is a server in a process of its own, which prints its address as JSON. Both
have it easier than usual: no access log, no analytics, nothing but paths and scores in the answer.

    python -m benchmarks.serving.peers fastapi < settings.json
"""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image

from index.images.preprocess import INTERPOLATIONS, PreprocessConfig
from index.model.backends.onnxruntime import import_onnxruntime
from index.telemetry import switch_off_telemetry

K = 24

Settings = Mapping[str, Any]
Found = list[tuple[str, float]]


class PlainSearch:
    """An image in, the nearest paths out, as in the tutorials: settings have files `model`, `vectors`, `paths`."""

    def __init__(self, settings: Settings) -> None:
        import faiss

        self._config = PreprocessConfig.from_json(settings["preprocess"])
        self._session = import_onnxruntime().InferenceSession(settings["model"])
        self._paths = json.loads(Path(settings["paths"]).read_text())
        vectors = np.load(settings["vectors"])
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def find(self, image: Image.Image, k: int) -> Found:
        """The k best, best first."""
        size, margin = self._config.resize, (self._config.resize - self._config.crop) // 2
        resized = image.convert("RGB").resize((size, size), INTERPOLATIONS[self._config.interpolation])
        cropped = resized.crop((margin, margin, margin + self._config.crop, margin + self._config.crop))
        embeddings = self._session.run(None, {self._session.get_inputs()[0].name: np.asarray(cropped)[None]})[0]
        scores, rows = self._index.search(embeddings, k)
        return [(self._paths[row], float(score)) for row, score in zip(rows[0], scores[0], strict=True)]


def create_fastapi(search: PlainSearch, *, handler: str) -> FastAPI:
    """The application, its handler a `def`, which FastAPI runs in a pool of threads, or an `async def`."""
    app = FastAPI()

    def answer(data: bytes, k: int) -> list[dict[str, Any]]:
        return [{"path": path, "score": score} for path, score in search.find(Image.open(io.BytesIO(data)), k)]

    if handler == "def":

        @app.post("/search")
        def find(file: UploadFile, k: int = K) -> list[dict[str, Any]]:
            return answer(file.file.read(), k)

    else:

        @app.post("/search")
        async def find_alone(file: UploadFile, k: int = K) -> list[dict[str, Any]]:
            return answer(await file.read(), k)

    return app


def serve_fastapi(settings: Settings) -> None:
    """Run the FastAPI peer until it is ended; the setting `handler` is `def` or `async def`."""
    app = create_fastapi(PlainSearch(settings), handler=settings["handler"])
    port = find_free_port()
    announce(port)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def serve_gradio(settings: Settings) -> None:
    """Run the Gradio peer until it is ended; the setting `at_once` is how many calls run at one time."""
    switch_off_telemetry()
    import gradio as gr

    search = PlainSearch(settings)

    def find(image: Image.Image) -> Found:
        return search.find(image, K)

    page = gr.Interface(
        find,
        gr.Image(type="pil"),
        gr.JSON(),
        flagging_mode="never",
        analytics_enabled=False,
        api_name="predict",
        concurrency_limit=settings["at_once"],
    )
    port = find_free_port()
    page.launch(server_name="127.0.0.1", server_port=port, quiet=True, prevent_thread_lock=True, ssr_mode=False)
    announce(port)
    page.block_thread()


def find_free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def announce(port: int) -> None:
    """Print the address as `retrieval serve --json` does."""
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)


PEERS: dict[str, Callable[[Settings], None]] = {"fastapi": serve_fastapi, "gradio": serve_gradio}


if __name__ == "__main__":
    PEERS[sys.argv[1]](json.load(sys.stdin))
