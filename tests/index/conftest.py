"""Fixtures of what lies on a network, and of what is measured."""

from collections.abc import Iterator

import pytest

from tests.remote_servers import OWNER, FileServer, serve_files


@pytest.fixture(scope="module")
def one_core() -> Iterator[None]:
    """ANN indexes are built and tuned as on a machine of one core."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("index.vectors.ann_building.usable_cores", lambda: 1)
        yield


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A web server on this machine, which may be fetched from."""
    monkeypatch.setenv("RETRIEVAL_FETCH_FROM", "127.0.0.1/32")
    monkeypatch.setattr("index.network.remote_store._FIRST_WAIT_S", 0.01)
    with serve_files() as server:
        yield server


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server of buckets on this machine, which the environment names as a user's would."""
    with serve_files(as_buckets=True) as server:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SKIP_SIGNATURE", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", OWNER)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield server
