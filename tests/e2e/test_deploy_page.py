"""The page and the Gradio app in a real browser, below a path of a site with TLS, by Caddy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from index.gallery.gallery import Gallery
from tests.chromium import open_chromium
from tests.page_browser import DESKTOP, skip_without_browser
from tests.proxies import HOST, Site, read_recipe, require_programs, run_caddy
from tests.serving_server import TOKEN, serve

require_programs("caddy", "openssl")
skip_without_browser()
from playwright.sync_api import expect  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage

pytestmark = pytest.mark.browser
READY_MS = 60_000
ROOT_PATH = "/photos"
OPTIONS = ("--allowed-host", HOST, "--trusted-proxy", "127.0.0.1", "--root-path", ROOT_PATH)


@pytest.fixture(scope="module")
def site(two: Gallery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A proxy that strips the path, which the server has to know."""
    folder = tmp_path_factory.mktemp("site")
    with serve(two.path, *OPTIONS, log=folder / "log", token=TOKEN) as server:
        recipe = read_recipe("photos-below.caddy")
        with run_caddy(recipe, folder / "proxy", server=server.port, root=ROOT_PATH) as site:
            yield site
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def mapped() -> Iterator[Browser]:
    """A browser that finds the site at this machine."""
    with open_chromium(f"--host-resolver-rules=MAP {HOST} 127.0.0.1") as browser:
        yield browser


def test_a_visitor_signs_in_searches_reads_of_the_api_and_uses_the_gradio_app(mapped: Browser, site: Site) -> None:
    context = mapped.new_context(ignore_https_errors=True, viewport=DESKTOP, locale="en-GB")
    page, asked, complaints = context.new_page(), list[str](), list[str]()
    context.on("request", lambda request: asked.append(request.url))

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(f"{message.text} ({message.location.get('url', '')})")

    context.on("console", note)
    page.goto(f"{site.origin}{ROOT_PATH}")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    cards = page.locator("ol[aria-label=Results] > li[data-id]")
    expect(cards.first).to_be_visible()
    assert [(one["secure"], one["path"]) for one in context.cookies()] == [(True, f"{ROOT_PATH}/")]
    page.goto(f"{site.origin}{ROOT_PATH}/docs")
    expect(page.get_by_role("heading", name="Image retrieval")).to_be_visible()
    page.goto(f"{site.origin}{ROOT_PATH}/")
    page.get_by_role("link", name="Gradio").click()
    results = page.locator(".grid-container button").locator("visible=true")
    expect(results.first).to_be_visible(timeout=READY_MS)
    results.first.click()
    expect(page.get_by_text("most like image")).to_be_visible(timeout=READY_MS)
    context.close()
    below = f"{site.origin}{ROOT_PATH}"
    assert [url for url in asked if url != below and not url.startswith((f"{below}/", "data:", "blob:"))] == []
    forgiven = ("401", "WebGL", "GL Driver", f"{site.origin}/favicon.ico")  # browsers look there unasked
    assert [text for text in complaints if not any(part in text for part in forgiven)] == []
