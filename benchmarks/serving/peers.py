"""The peer of `retrieval serve`: the same model and vectors behind a plain FastAPI handler.

It has `UploadFile`, Pillow, an ONNX Runtime session as it comes and an exact faiss index, in a process of its own that
prints its address as JSON. It has it easier than usual: no access log, nothing but paths and scores in the answer.

    python -m benchmarks.serving.peers < settings.json
"""

from __future__ import annotations

import io
import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image

from index.images.preprocess import INTERPOLATIONS, PreprocessConfig
from index.model.backends.onnxruntime import import_onnxruntime

K = 24


class PlainSearch:
    """An image in, the nearest paths out, as in the tutorials: settings have files `model`, `vectors`, `paths`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._config = PreprocessConfig.from_json(settings["preprocess"])
        self._session = import_onnxruntime().InferenceSession(settings["model"])
        self._paths = json.loads(Path(settings["paths"]).read_text())
        vectors = np.load(settings["vectors"])
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(vectors)

    def find(self, data: bytes, k: int) -> list[dict[str, Any]]:
        """The k best, best first."""
        size, margin = self._config.resize, (self._config.resize - self._config.crop) // 2
        image = Image.open(io.BytesIO(data)).convert("RGB")
        resized = image.resize((size, size), INTERPOLATIONS[self._config.interpolation])
        cropped = resized.crop((margin, margin, margin + self._config.crop, margin + self._config.crop))
        embeddings = self._session.run(None, {self._session.get_inputs()[0].name: np.asarray(cropped)[None]})[0]
        scores, rows = self._index.search(embeddings, k)
        found = zip(rows[0], scores[0], strict=True)
        return [{"path": self._paths[row], "score": float(score)} for row, score in found]


def create_fastapi(search: PlainSearch, *, handler: str) -> FastAPI:
    """The application, its handler a `def`, which FastAPI runs in a pool of threads, or an `async def`."""
    app = FastAPI()
    if handler == "def":

        @app.post("/search")
        def find(file: UploadFile, k: int = K) -> list[dict[str, Any]]:
            return search.find(file.file.read(), k)

    else:

        @app.post("/search")
        async def find_alone(file: UploadFile, k: int = K) -> list[dict[str, Any]]:
            return search.find(await file.read(), k)

    return app


def main() -> None:
    """Serve until it is ended; the setting `handler` is `def` or `async def`."""
    settings = json.load(sys.stdin)
    app = create_fastapi(PlainSearch(settings), handler=settings["handler"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listener])


if __name__ == "__main__":
    main()
