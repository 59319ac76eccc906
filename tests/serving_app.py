"""The application of a server in this process, asked as over HTTP, for tests whose subject is not the socket."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi.testclient import TestClient

from retrieval_app.server.app import open_server_app
from retrieval_app.server.options import ServeOptions
from tests.serving_server import Answer

URL = "http://127.0.0.1:7860"


@dataclass(frozen=True)
class App:
    """All that a server answers with; what fails in it fails the test."""

    client: TestClient

    def ask(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: bytes | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request, which brings the token and no cookie of its own."""
        self.client.cookies.clear()
        bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        told = self.client.request(
            method, f"{URL}{path}", content=body, json=json, headers={**bearer, **(headers or {})}
        )
        return Answer(told.status_code, {name.lower(): text for name, text in told.headers.items()}, told.content)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)


@contextmanager
def open_app(options: ServeOptions) -> Iterator[App]:
    """The application with its galleries opened, ended as a server ends it."""
    with (
        open_server_app(options) as served,
        TestClient(served.app, client=("127.0.0.1", 50_000), follow_redirects=False) as client,
    ):
        yield App(client)
        served.end()
