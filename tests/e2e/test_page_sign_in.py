"""Coming to a server that asks for a token, in a real browser: by the printed address, and by typing the token."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from retrieval_app.api.security.token_file import add_token
from tests.page_browser import DESKTOP, PHONE, skip_without_browser
from tests.serving_server import ROOT, TOKEN, Server, serve

skip_without_browser()

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
FOREIGN = """
<img id="thumbnail" src="http://127.0.0.1:{port}/v1/images/1/thumbnail">
<iframe id="frame" src="http://127.0.0.1:{port}/"></iframe><a href="http://127.0.0.1:{port}/?view=map">open</a>
"""


@pytest.fixture(scope="module")
def asking(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks for the token."""
    with serve(gallery, log=tmp_path_factory.mktemp("asking") / "log", token=TOKEN) as server:
        yield server
        assert TOKEN not in server.log.read_text()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own context in which no script of a page runs."""
    context = browser.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()


def test_the_field_works_without_scripts_and_leads_to_where_one_was_going(page: Page, asking: Server) -> None:
    page.goto(f"{asking.url}/?view=map&text=red")
    field = page.get_by_label("Token")
    field.fill("not-the-token-at-all")
    page.get_by_role("button", name="Open the gallery").click()
    alert = page.get_by_role("alert")
    assert alert.inner_text() == "That is not the token."
    assert field.get_attribute("aria-invalid") == "true"
    assert field.input_value() == ""
    assert page.title().startswith("Error")
    field.fill(TOKEN)
    page.keyboard.press("Enter")
    field.wait_for(state="detached")
    assert page.url == f"{asking.url}/?view=map&text=red"
    cookies = page.context.cookies()
    assert [cookie["name"] for cookie in cookies] == [f"retrieval_{asking.port}"]
    assert cookies[0]["httpOnly"]
    assert cookies[0]["sameSite"] == "Lax"
    assert cookies[0]["expires"] == -1  # of this session of the browser
    assert page.get_by_label("Token").count() == 0


@pytest.mark.parametrize(("query", "dark"), [("", False), ("?code=used", True)], ids=["asked", "refused"])
def test_everybody_can_use_the_field(browser: Browser, asking: Server, query: str, dark: bool) -> None:
    from axe_playwright_python.sync_playwright import Axe

    context = browser.new_context(
        color_scheme="dark" if dark else "light", viewport=PHONE if dark else DESKTOP, bypass_csp=True
    )
    page = context.new_page()
    page.goto(f"{asking.url}/{query}")
    assert page.evaluate("document.activeElement.id") == "token"
    assert Axe().run(page).response["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_the_printed_address_opens_the_page_once(browser: Browser, gallery: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "retrieval_app", "serve", str(gallery), "--port", "0", "--writable"]
    environment = {**os.environ, "RETRIEVAL_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}
    log = tmp_path / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=environment
        )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        parts = urlsplit(address)
        assert re.fullmatch(r"code=[\w-]{43}", parts.query)
        visits = [browser.new_context() for _ in range(2)]
        first, second = (context.new_page() for context in visits)
        first.goto(address)
        first.locator("nav a[aria-current=page]").wait_for()
        assert "code" not in first.url
        assert "code" not in first.evaluate("JSON.stringify([document.referrer, location.href, history.state])")
        second.goto(address)
        assert "has been used" in second.get_by_role("alert").inner_text()
        first.goto(address)  # as from the history
        first.locator("nav a[aria-current=page]").wait_for()
        for context in visits:
            context.close()
    finally:
        process.terminate()
        process.wait(40)
        assert process.stdout is not None
        process.stdout.close()
    assert "opens the page once" in log.read_text()
    assert parts.query.removeprefix("code=") not in log.read_text()
    assert TOKEN not in log.read_text()


@contextmanager
def _serve_foreign(html: str) -> Iterator[str]:
    """The address of a page on another port of the same host, which makes it another origin of the same site."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_page_of_another_site_gets_no_picture_and_no_frame_but_may_link(
    browser: Browser, asking: Server
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{asking.url}/")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.locator("nav a[aria-current=page]").wait_for()
    assert page.evaluate("fetch('v1/images/1/thumbnail').then(answer => answer.status)") == 200
    with _serve_foreign(FOREIGN.format(port=asking.port)) as address:
        page.goto(address)
        page.wait_for_function("document.getElementById('thumbnail').complete")
        assert page.evaluate("document.getElementById('thumbnail').naturalWidth") == 0
        assert 'route="none",status="403"' in asking.get("/v1/metrics").body.decode()  # it had the cookie
        assert page.frames[1].url.startswith("chrome-error://")
        page.get_by_text("open").click()
        page.locator("nav a[aria-current=page]").wait_for()  # a link opens the page, with its cookie
    assert page.url == f"{asking.url}/?view=map"
    context.close()


def test_the_page_says_as_whom_one_is_signed_in_and_lets_one_leave(
    browser: Browser, gallery: Path, tmp_path: Path
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    name = "a.very-long.name+of@example.org"
    _, token = add_token(tmp_path / "team", name, may=["read"])
    with serve(gallery, "--tokens", str(tmp_path / "team"), log=tmp_path / "log") as server:
        context = browser.new_context(viewport=PHONE, bypass_csp=True)
        page, other = context.new_page(), context.new_page()
        page.goto(server.url)
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        leave = page.get_by_role("button", name="Sign out")
        leave.wait_for()
        assert leave.get_attribute("title") == f"Signed in as {name}"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator(".facts:has-text('images')").wait_for()
        assert Axe().run(page, "header, .top").response["violations"] == []
        other.goto(f"{server.url}/?view=labels")
        leave.click()
        page.get_by_label("Token").wait_for()
        other.reload()
        other.get_by_label("Token").wait_for()  # the session has ended, and not this page alone
        assert context.cookies() == []
        context.close()
