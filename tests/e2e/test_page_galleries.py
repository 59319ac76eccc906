"""The list of a server's galleries in a real browser, and the ways between it and them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retrieval_app.api.security.token_file import add_token
from tests.page_browser import PHONE, skip_without_browser
from tests.retrieval_app.conftest import build_small_gallery
from tests.serving_server import Server, serve

pytestmark = pytest.mark.browser
skip_without_browser()
from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Two galleries, and beside them the file of tokens."""
    folder = tmp_path_factory.mktemp("listed")
    for name in ("shop", "fashion"):
        (folder / name).mkdir()
        build_small_gallery(folder / name, model=tiny_model)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server of both."""
    tokens = folder / "team.tokens"
    add_token(tokens, "boss", may=["write"])
    galleries = [f"{name}={folder}/{name}/small" for name in ("shop", "fashion")]
    with serve(*galleries, "--tokens", str(tokens), log=folder / "log") as server:
        yield server
        assert "Traceback" not in server.log.read_text()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own context, on a phone."""
    context = browser.new_context(color_scheme="dark", viewport=PHONE)  # type: ignore[arg-type]
    page = context.new_page()
    complaints = list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    yield page
    assert not [text for text in complaints if not _is_expected(text)]
    context.close()


def _is_expected(complaint: str) -> bool:
    """Browsers log the answers that say that one is to sign in, that a gallery or a photo is not there."""
    return any(f"status of {status}" in complaint for status in (401, 404, 409))


def _wait_for(server: Server, token: str) -> None:
    """Until the server has looked at the file again."""
    end = time.monotonic() + 20
    while server.ask("GET", "/v1/galleries", headers={"Authorization": f"Bearer {token}"}).status != 200:
        assert time.monotonic() < end
        time.sleep(0.1)


def _sign_in(page: Page, address: str, token: str) -> None:
    page.goto(address)
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_label("Token").wait_for(state="detached")


def test_from_the_list_to_a_gallery_back_and_out(page: Page, server: Server, folder: Path) -> None:
    _, token = add_token(folder / "team.tokens", "anna", may=["read", "review:shop"])
    _wait_for(server, token)
    _sign_in(page, server.url, token)
    links = page.get_by_role("main").get_by_role("link")
    expect(links).to_have_text(["shop", "fashion"])
    assert page.get_by_text("19 images · you may search, review").count() == 1
    assert page.get_by_text("19 images · you may search").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = Axe().run(page).response["violations"]
    assert not [one for one in found if one["impact"] in ("serious", "critical")]
    links.nth(1).click()
    page.locator("ol[aria-label=Results] > li[data-id]").first.wait_for()
    assert page.url == f"{server.url}/g/fashion/"
    page.get_by_role("link", name="Galleries").click()
    links.first.wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token").wait_for()
    page.goto(f"{server.url}/g/shop/")
    assert page.get_by_label("Token").count() == 1


def test_who_follows_a_link_to_a_gallery_that_is_not_theirs_is_led_to_those_that_are(
    page: Page, server: Server, folder: Path
) -> None:
    _, token = add_token(folder / "team.tokens", "ben", may=["read:shop"])
    _wait_for(server, token)
    _sign_in(page, f"{server.url}/g/shop/", token)
    page.goto(f"{server.url}/g/fashion/")
    assert "There is no such gallery here" in page.get_by_role("alert").inner_text()
    page.get_by_role("link", name="The galleries that your token opens").click()
    expect(page.get_by_role("main").get_by_role("link")).to_have_text(["shop"])
