"""Searching with the address of a picture on the page: pasted, or typed where the server fetches some."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.page_browser import OpenVisit, skip_without_browser
from tests.page_gallery import PageGallery
from tests.page_parts import query_card
from tests.serving_server import Server, serve

pytestmark = [pytest.mark.browser, pytest.mark.shared_data]
skip_without_browser()
from playwright.sync_api import Page, Route, expect  # noqa: E402

FIELD = "The address of a picture to search with"
PASTE = """text => {
  const clipboardData = new DataTransfer();
  clipboardData.setData('text/plain', text);
  document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData, bubbles: true}));
}"""


@pytest.fixture(scope="module")
def fetching(page_gallery: PageGallery) -> Iterator[Server]:
    """A server that fetches photos from public addresses."""
    with serve(page_gallery.path, "--fetch-addresses", log=page_gallery.path.parent / "fetching-log") as server:
        yield server


def answer_with(page: Page, server: Server, photo: bytes) -> None:
    """Let the server answer as if the photo lay at whatever address it is asked for."""
    kept = server.ask("POST", "/v1/photos?name=cap.jpg", body=photo).json()

    def answer(route: Route) -> None:
        route.fulfill(status=201, content_type="application/json", body=json.dumps(kept))

    page.route("**/v1/photos/address", answer)


def test_the_picture_at_an_address_is_searched_with(
    open_visit: OpenVisit, fetching: Server, page_gallery: PageGallery
) -> None:
    visit = open_visit(server=fetching)
    page = visit.open()
    path = page_gallery.of("hat")[2]
    answer_with(page, fetching, (page_gallery.photos.parent / path).read_bytes())
    visit.cards.first.wait_for()
    page.evaluate(PASTE, "https://example.org/cap.jpg")
    expect(query_card(visit)).to_contain_text("cap.jpg")
    expect(visit.cards.first).to_have_attribute("data-id", str(page_gallery.ids[path]))


def test_an_address_of_this_machine_is_refused_in_words(open_visit: OpenVisit, fetching: Server) -> None:
    visit = open_visit(server=fetching)
    visit.forgive("422")
    page = visit.open()
    page.get_by_label(FIELD).fill("http://127.0.0.1/secret.jpg")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("public addresses only")).to_be_visible()
    expect(page.get_by_label(FIELD)).to_have_value("http://127.0.0.1/secret.jpg")
