"""Many images at once in the page: selected as a whole, labelled, tagged, undone; searches that are saved."""

import re
import shlex
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, expect

from tests.page_browser import PageGallery, Visit, details, open_card

pytestmark = [pytest.mark.browser, pytest.mark.shared_data, pytest.mark.usefixtures("decisions")]
HATS = f"?f={quote(chr(39).join(('label = ', 'hat', '')))}"


def found(visit: Visit, where: str) -> int:
    answer = visit.server.get(f"/v1/images?limit=1&where={quote(where)}")
    return int(answer.json()["total"]) if answer.status == 200 else 0


def select_all(visit: Visit) -> tuple[Locator, int]:
    """The bar, and the number of images that the search found, all of them selected by the keyboard."""
    visit.ids()
    visit.page.keyboard.press("Control+a")
    bar = visit.page.get_by_role("toolbar", name="Selection")
    expect(bar).to_contain_text("selected")
    return bar, int(re.findall(r"(\d+) selected", bar.inner_text())[0])


def test_a_filter_is_labelled_and_tagged_by_keyboard_and_undone(visit: Visit) -> None:
    page = visit.open(HATS)
    bar, hats = select_all(visit)
    assert hats == found(visit, "label = 'hat'") >= 30
    page.keyboard.press("Shift+L")
    dialog = page.get_by_role("dialog", name=f"Set the label of {hats} images")
    expect(dialog.get_by_role("combobox", name="Label")).to_be_focused()
    page.keyboard.insert_text("x" * 300)
    page.keyboard.press("Enter")  # nothing is cut
    expect(dialog).to_contain_text("at most 200 characters, this one has 300")
    page.keyboard.press("Control+a")
    page.keyboard.type("cap/baseball")
    expect(dialog).to_contain_text("it would be a new one")
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"{hats} images labelled “cap/baseball”")).to_be_visible()
    expect(bar).to_be_hidden()
    assert (found(visit, "label = 'cap/baseball'"), found(visit, "label = 'hat'")) == (hats, 0)
    page.get_by_role("button", name="Undo").click()
    visit.wait_until(lambda: found(visit, "label = 'hat'") == hats)

    select_all(visit)
    page.keyboard.press("t")
    dialog = page.get_by_role("dialog", name=f"Tag {hats} images")
    dialog.get_by_role("combobox", name="Tag", exact=True).fill("headgear")
    dialog.get_by_role("button", name="Tag", exact=True).click()
    expect(page.get_by_text("images tagged “headgear”")).to_be_visible()
    tagged = found(visit, "tag = 'headgear'")  # a copy with another label has the tag, too
    assert tagged >= hats
    expect(bar).to_contain_text(f"{hats} selected")
    bar.get_by_role("button", name="Data set…").click()
    command = shlex.split(page.get_by_role("dialog").locator("pre").inner_text())
    assert command[:3] == ["retrieval", "dataset", "export"]
    assert found(visit, command[-1]) == hats
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(bar).to_be_hidden()

    page.get_by_role("checkbox", name=re.compile("^headgear")).check()
    expect(page.get_by_role("heading", name=f"{hats} images found")).to_be_visible()
    open_card(visit, visit.ids()[0]).click()
    details(visit).get_by_role("button", name="Remove the tag headgear").click()
    expect(details(visit).get_by_role("link", name="headgear")).to_have_count(0)
    assert tagged - 2 <= found(visit, "tag = 'headgear'") < tagged


def test_all_but_some_are_selected(visit: Visit, page_gallery: PageGallery) -> None:
    visit.open("?text=photos")
    bar, images = select_all(visit)
    assert images == len(page_gallery.ids)
    spared = visit.ids()[1]
    open_card(visit, spared).press("x")
    expect(bar).to_contain_text(f"{images - 1} selected")
    visit.page.keyboard.press("t")
    visit.page.get_by_role("dialog").get_by_role("combobox", name="Tag", exact=True).fill("most")
    visit.page.keyboard.press("Enter")
    visit.wait_until(lambda: found(visit, "tag = 'most'") == images - 1)
    assert visit.ask(f"images/{spared}")["tags"] == []
    visit.page.keyboard.press("Shift+D")
    expect(visit.page.get_by_text(f"{images - 1} images dropped")).to_be_visible()
    expect(visit.page.get_by_role("heading", name="1 image found")).to_be_visible()
    assert visit.ids() == [spared]


def test_a_search_is_saved_opened_and_deleted(visit: Visit) -> None:
    page = visit.open(HATS)
    saved = page.get_by_role("region", name="Saved searches")
    saved.get_by_role("button", name="Save…").click()
    page.get_by_role("dialog", name="Save this search").get_by_role("combobox", name="Name").fill("All <hats>")
    page.keyboard.press("Enter")
    link = saved.get_by_role("link", name="All <hats>")
    expect(link).to_have_attribute("aria-current", "true")
    page = visit.open("?text=shoes")
    link.click()
    visit.ids()
    assert visit.address == {"f": ["label = 'hat'"]}
    saved.get_by_role("button", name="Delete All <hats>").click()
    expect(link).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(link).to_be_visible()
    saved.get_by_role("button", name="Delete All <hats>").click()
    expect(link).to_have_count(0)


def test_a_selection_that_changed_meanwhile_is_looked_at_again(visit: Visit, page_gallery: PageGallery) -> None:
    visit.forgive("409")
    page = visit.open(HATS)
    bar, hats = select_all(visit)
    one = page_gallery.ids[page_gallery.of("hat")[0]]
    visit.server.post("/v1/labels/set", {"ids": [one], "label": "shoes"})
    bar.get_by_role("button", name="Set label…").click()
    page.get_by_role("dialog").get_by_role("combobox", name="Label").fill("cap")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(f"{hats - 1} images now, not the {hats}")
    page.get_by_role("button", name="Look again").click()
    expect(page.get_by_role("heading", name=f"{hats - 1} images found")).to_be_visible()
    assert found(visit, "label = 'cap'") == 0
