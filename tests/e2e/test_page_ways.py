"""Keys, links, Back, failures, themes and phones, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.page_browser import CHOOSE, OpenVisit, PageGallery, Visit, details, open_card, query_card, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.shared_data]


def test_everything_can_be_done_with_the_keyboard(visit: Visit, page_gallery: PageGallery) -> None:
    page = visit.open()
    visit.ids()
    page.keyboard.press("/")
    box = page.get_by_role("combobox", name="Words or a condition")
    expect(box).to_be_focused()
    page.keyboard.insert_text("shoes")  # letter by letter it is searched for meanwhile
    expect(page.get_by_role("heading", name=re.compile("have these words"))).to_be_visible()
    page.keyboard.press("Enter")
    expect(box).to_have_value("shoes")
    page.keyboard.press("Escape")
    expect(box).to_have_value("")
    expect(page.get_by_role("heading", name="All 243 images")).to_be_visible()
    page.keyboard.press("Escape")
    expect(box).not_to_be_focused()

    ids = visit.ids()
    page.keyboard.press("ArrowRight")
    expect(open_card(visit, ids[0])).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("Number(document.activeElement.closest('[data-id]').dataset.id)")
    columns = ids.index(focused) - 1
    assert columns > 1
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    expect(open_card(visit, ids[0])).to_be_focused()
    for name in ("Search with this", "More like this", "Less like this", "Select"):
        page.keyboard.press("Tab")
        expect(visit.card(ids[0]).get_by_role("button", name=name)).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('[data-id]')") is None  # Tab leaves the grid
    open_card(visit, ids[0]).focus()
    page.keyboard.press("x")
    expect(page.get_by_role("toolbar", name="Selection")).to_contain_text("1 selected")
    page.keyboard.press("Escape")
    expect(page.get_by_role("toolbar", name="Selection")).to_be_hidden()

    page.keyboard.press("Space")
    expect(details(visit)).to_be_visible()
    page.keyboard.press("ArrowRight")
    page.wait_for_url(re.compile(f"details={ids[1]}"))
    page.keyboard.press("Escape")
    expect(details(visit)).to_be_hidden()
    expect(open_card(visit, ids[1])).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"image={ids[1]}$"))
    expect(query_card(visit)).to_be_visible()
    visit.ids()

    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    expect(dialog).to_contain_text("Write in the text box")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="All 243 images")).to_be_visible()


def test_a_link_shows_everybody_the_same_search(visit: Visit, open_visit: OpenVisit, page_gallery: PageGallery) -> None:
    image, less = (page_gallery.ids[page_gallery.of(label)[0]] for label in ("hat", "shoes"))
    page = visit.open(f"?image={image}")
    other = visit.ids()[2]
    query_card(visit).get_by_role("group", name=re.compile("^Part to search with")).focus()
    for _ in range(8):
        page.keyboard.press("Shift+ArrowLeft")
    page.wait_for_url(re.compile("crop="))
    visit.card(other).hover()
    visit.card(other).get_by_role("button", name="More like this").click()
    page.wait_for_url(re.compile("more="))
    visit.ids()
    page.get_by_role("region", name="Narrow down").get_by_role("checkbox", name=re.compile("^hat ")).check()
    page.wait_for_url(re.compile("f=label"))
    page.get_by_role("combobox", name="Words or a condition").fill("hat")
    page.wait_for_url(re.compile("words=hat"))
    page.get_by_role("combobox", name="Results at a time").select_option("12")
    page.wait_for_url(re.compile("k=12"))
    found = visit.ids()
    open_card(visit, found[1]).click()
    page.wait_for_url(re.compile("details="))

    friend = open_visit()
    friend.page.goto(page.url)
    expect(details(friend)).to_contain_text("File and metadata")
    assert friend.ids()[:12] == found[:12]
    assert friend.address == visit.address
    expect(query_card(friend).get_by_role("button", name=re.compile("a part of it"))).to_have_count(1)
    expect(friend.page.get_by_role("combobox", name="Words or a condition")).to_have_value("hat")
    expect(friend.page.get_by_role("list", name="Conditions")).to_contain_text("Label: hat")
    assert less not in friend.ids()


def test_back_and_forward_walk_through_searches(visit: Visit, page_gallery: PageGallery) -> None:
    page = visit.open()
    everything = visit.ids()
    visit.cards.first.hover()
    visit.cards.first.get_by_role("button", name="Search with this").click()
    page.wait_for_url(re.compile("image="))
    expect(query_card(visit)).to_be_visible()
    first = visit.ids()
    page.get_by_role("region", name="Narrow down").get_by_role("checkbox", name=re.compile("^pants ")).check()
    expect(page.get_by_role("list", name="Conditions").get_by_role("listitem")).to_have_count(1)
    wait_for(page, "document.querySelectorAll('ol[aria-label=Results] > li').length < 40")
    narrowed = visit.ids()
    page.get_by_role("link", name="Quality", exact=True).click()
    expect(page.get_by_role("region", name="Quality", exact=True)).to_be_visible()
    page.go_back()
    expect(page.get_by_role("region", name="Search", exact=True)).to_be_visible()
    assert visit.ids() == narrowed
    page.go_back()
    expect(page.get_by_role("list", name="Conditions").get_by_role("listitem")).to_have_count(0)
    assert visit.ids() == first
    page.go_back()
    expect(page.get_by_role("heading", name="All 243 images")).to_be_visible()
    assert visit.ids() == everything
    page.go_forward()
    expect(query_card(visit)).to_be_visible()
    assert visit.ids() == first
    page.get_by_role("link", name="clothes").click()
    expect(page.get_by_role("heading", name="Or start from one of these")).to_be_visible()


def test_everything_can_be_done_on_a_phone(open_visit: OpenVisit, page_gallery: PageGallery) -> None:
    visit = open_visit(phone=True, dark=True)
    path = page_gallery.of("outwear")[3]
    page = visit.open()
    visit.ids()
    assert visit.fits_its_width()
    page.get_by_label(CHOOSE).set_input_files(page_gallery.photos.parent / path)
    expect(visit.cards.first).to_have_attribute("data-id", str(page_gallery.ids[path]))
    assert visit.fits_its_width()

    corner = query_card(visit).locator("[data-corner=se]").bounding_box()
    page.mouse.move(corner["x"] + corner["width"] / 2, corner["y"] + corner["height"] / 2)
    page.mouse.down()
    page.mouse.move(corner["x"] - 40, corner["y"] - 60, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile("crop="))
    page.get_by_role("button", name="Filters").tap()
    facets = page.get_by_role("region", name="Narrow down")
    facets.get_by_role("checkbox", name=re.compile("^outwear ")).check()
    assert visit.fits_its_width()
    page.get_by_role("button", name="Show results").tap()
    expect(page.get_by_role("list", name="Conditions")).to_contain_text("Label: outwear")
    wait_for(page, "document.querySelectorAll('ol[aria-label=Results] > li').length === 30")

    ids = visit.ids()
    open_card(visit, ids[1]).tap()
    panel = details(visit)
    expect(panel).to_contain_text("File and metadata")
    assert visit.fits_its_width()
    panel.get_by_role("button", name="More like").tap()
    page.wait_for_url(re.compile(f"more={ids[1]}"))
    if panel.is_visible():
        panel.get_by_role("button", name="Close").tap()
    expect(panel).to_be_hidden()
    visit.card(visit.ids()[0]).get_by_role("button", name="Select").tap()
    expect(page.get_by_role("toolbar", name="Selection")).to_contain_text("1 selected")
    assert visit.fits_its_width()
