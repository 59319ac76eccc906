"""Clients of a server's Gradio app that leave no thread behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradio_client import Client

    from tests.serving_server import Server


@contextmanager
def connect(server: Server, app: str = "/gradio/", **options: Any) -> Iterator[Client]:
    """A client of that app, whose threads end here rather than when it is collected."""
    from gradio_client import Client

    client = Client(f"{server.url}{app}", verbose=False, **options)
    try:
        yield client
    finally:
        for pool in (client.executor, client.helper_executor, client.stream_executor):
            pool.shutdown(wait=False, cancel_futures=True)
