"""Which of the package's extras brings which library, for those who miss one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from index.errors import MissingDependencyError

EXTRAS = {
    "torch": "train", "torchvision": "train", "safetensors": "train", "onnx": "train", "onnxscript": "train",
    "scipy": "train", "faiss": "cpu", "onnxruntime": "cpu", "mcp": "agents", "anyio": "ui", "gradio": "ui",
    "fastapi": "ui", "httptools": "ui", "orjson": "ui", "prometheus_client": "ui", "pydantic": "ui", "starlette": "ui",
    "uvicorn": "ui", "opentelemetry": "traces",
    "obstore": "remote", "fsspec": "remote", "ray": "cluster", "pymilvus": "cluster",
    "openvino": "fast",
}  # fmt: skip
"""By the name that is imported."""


@contextmanager
def naming_extras(purpose: str) -> Iterator[None]:
    """Name the extra to install where a library is missing that the block imports; `purpose` needs it.

    Raises:
        MissingDependencyError: in the place of the ModuleNotFoundError of a library that an extra brings.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise MissingDependencyError(package=package, extra=EXTRAS[package], purpose=purpose) from error
