"""The main ways through the page in a real Firefox; the other tests of the page go them in Chromium."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.firefox import open_firefox
from tests.page_browser import PageGallery, Visit, details, give_files, open_card, query_card

pytestmark = [pytest.mark.browser, pytest.mark.shared_data]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Firefox, of a system that is dark, in the place of the Chromium of other modules."""
    with open_firefox(tmp_path_factory.mktemp("firefox")) as browser:
        yield browser


def test_an_example_is_searched_with_narrowed_down_and_looked_at(visit: Visit, page_gallery: PageGallery) -> None:
    image, path = page_gallery.ids[page_gallery.of("shoes")[1]], page_gallery.of("hat")[2]
    page = visit.open(f"?image={image}&k=12")
    assert visit.ids()[:5] == [hit["id"] for hit in visit.search(queries=[{"image_id": image}], k=5)]
    page.get_by_role("region", name="Narrow down").get_by_role("checkbox", name=re.compile("^shoes ")).check()
    expect(page.get_by_role("list", name="Conditions")).to_contain_text("Label: shoes")
    page.keyboard.press("/")
    page.keyboard.type("shoes")
    page.wait_for_url(re.compile("words=shoes"))
    found = visit.ids()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_url(lambda url: "words=" not in url)
    visit.ids()  # a click on results that are drawn anew just then would be lost
    open_card(visit, found[0]).click()
    panel = details(visit)
    expect(panel).to_contain_text("File and metadata")
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(f"details={found[1]}"))
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    page.go_back()
    expect(page.get_by_role("region", name="Search", exact=True)).to_be_visible()
    visit.open("?k=12")
    give_files(visit, "paste", page_gallery.photos.parent / path)
    expect(visit.cards.first).to_have_attribute("data-id", str(page_gallery.ids[path]))
    expect(query_card(visit).get_by_role("img").first).to_be_visible()
    page.evaluate("console.error('said'); setTimeout(() => { throw new Error('thrown'); })")
    visit.wait_until(lambda: len(visit.complaints) == 2)  # or no error would be heard of
    visit.forgive("said|thrown")
