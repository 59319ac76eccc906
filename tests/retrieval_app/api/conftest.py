"""The API over a small real gallery: a server for this machine, one with a token, and one that may be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from retrieval_app.api.document import make_api
from retrieval_app.api.errors import add_last_routes
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.middleware import Security
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.sign_in import router as sign_in_router
from retrieval_app.page.shell import draw_sign_in
from retrieval_app.review.activity_log import ActivityLog
from retrieval_app.review.jobs import Jobs
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.serving_config import ServingConfig
from tests.retrieval_app.conftest import build_small_gallery

TOKEN = "a-secret-of-the-tests"
BASE_URL = "http://127.0.0.1:7860"


@contextmanager
def serve(gallery: Path, *, access: Access | None = None, config: ServingConfig | None = None) -> Iterator[TestClient]:
    """A client of a server for a gallery: the API as the server has it, without the page."""
    engine = Engine(gallery, config=config or ServingConfig(threads=1))
    review = ReviewStore.of_gallery(gallery)
    jobs = Jobs(gallery, on_change=lambda: _refresh(engine), open_gallery=engine.open_decided)
    log, access = ActivityLog(gallery), access or Access()
    app = make_api(requires_token=access.requires_token)
    app.state.engine, app.state.access, app.state.review, app.state.jobs = engine, access, review, jobs
    app.state.log = log
    app.state.sign_in = SignIn(access, draw=draw_sign_in, sessions=[gallery / "annotations/sessions"])
    add_last_routes(app)
    app.include_router(sign_in_router)
    app.mount("/", PlainTextResponse("as the page"))
    app.add_middleware(Security, limits=engine.config, access=access, sign_in=app.state.sign_in)
    app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=["127.0.0.1", "::1"])
    try:
        yield TestClient(app, base_url=BASE_URL, raise_server_exceptions=False)
    finally:
        for opened in (jobs, log, review, engine):
            opened.close()


def _refresh(engine: Engine) -> None:
    engine.live.refresh()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of this module's own, for its decisions and changes."""
    return build_small_gallery(tmp_path_factory.mktemp("api"), model=tiny_model)


@pytest.fixture(scope="module")
def client(served: Path) -> Iterator[TestClient]:
    with serve(served, access=Access()) as client:
        yield client


@pytest.fixture(scope="module")
def image_ids(client: TestClient) -> dict[str, int]:
    images = client.get("/v1/images", params={"limit": 500, "include": "path"}).json()["images"]
    return {image["path"]: image["id"] for image in images}
