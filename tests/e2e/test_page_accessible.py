"""axe-core over every view and state of the page: nothing that keeps people out."""

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page_browser import DESKTOP, PHONE, OpenVisit, PageGallery, Visit

pytestmark = [pytest.mark.browser, pytest.mark.shared_data]

AXE = Axe()
MORE_OF_A_LIST = {"exclude": [["li:nth-child(n+7)"], ["article:nth-child(n+7)"]]}  # the first stand for all


def find_barriers(visit: Visit) -> list[str]:
    """What axe-core finds serious or critical, with the elements that it concerns."""
    options = {"resultTypes": ["violations"], "elementRef": False}
    results = AXE.run(visit.page, context=MORE_OF_A_LIST, options=options).response
    return [
        f"{found['id']} ({found['impact']}): {[[node['target'], node['failureSummary']] for node in found['nodes']]}"
        for found in results["violations"]
        if found["impact"] in ("serious", "critical")
    ]


def show_start(visit: Visit, gallery: PageGallery) -> None:
    visit.open("?k=12")
    visit.ids()


def show_results(visit: Visit, gallery: PageGallery) -> None:
    one, other, copied = (gallery.ids[path] for path in (*gallery.of("dress")[:2], gallery.copies[2][0]))
    visit.open(
        f"?k=12&image={copied}&more={one}&less={other}&f=label+%3D+%27dress%27&collapse=1&crop=i{copied}:0.1,0.1,0.5,0.6"
    )
    visit.ids()
    visit.cards.first.get_by_role("button", name="Select").dispatch_event("click")
    expect(visit.page.get_by_role("toolbar", name="Selection")).to_be_visible()


def show_details(visit: Visit, gallery: PageGallery) -> None:
    wrong = gallery.ids[next(iter(gallery.wrong))]
    visit.open(f"?k=12&image={gallery.ids[gallery.copies[0][0]]}&details={wrong}")
    panel = visit.page.get_by_role("complementary", name="Details")
    expect(panel.get_by_role("button", name=re.compile("^Details of photos"))).to_have_count(12)
    panel.get_by_role("button", name="Fix label").click()
    visit.ids()


def show_nothing(visit: Visit, gallery: PageGallery) -> None:
    visit.open("?text=zebra&f=label+%3D+%27hat%27")
    expect(visit.page.get_by_text("No image fits")).to_be_visible()


def show_help(visit: Visit, gallery: PageGallery) -> None:
    visit.open("?k=12")
    visit.ids()
    visit.page.keyboard.press("?")
    expect(visit.page.get_by_role("dialog", name="Keyboard")).to_be_visible()


def show_map(visit: Visit, gallery: PageGallery) -> None:
    panel = visit.open_view("map", "&only=.hat")
    expect(panel.get_by_role("link", name="Show them")).to_be_visible()


def show_quality(visit: Visit, gallery: PageGallery) -> None:
    panel = visit.open_view("quality")
    expect(panel.get_by_role("figure")).to_have_count(3)
    panel.get_by_text("The numbers").first.click()


def show_problems(visit: Visit, gallery: PageGallery) -> None:
    panel = visit.open_view("problems", "&kind=blurred&at=5000")
    panel.get_by_role("button", name="Select").first.dispatch_event("click")
    expect(visit.page.get_by_role("toolbar", name="Selection")).to_be_visible()


def show_labels(visit: Visit, gallery: PageGallery) -> None:
    panel = visit.open_view("labels")
    panel.get_by_role("checkbox", name=re.compile("^Select photos")).first.check()
    expect(panel.get_by_role("group", name="Selected images")).to_be_visible()


def show_class(visit: Visit, gallery: PageGallery) -> None:
    visit.open("?view=labels&look=hat")
    images = visit.page.get_by_role("list", name="Images of the class").get_by_role("button")
    images.first.click()
    expect(visit.page.get_by_role("group", name="Marked images")).to_be_visible()


def show_picture(visit: Visit, gallery: PageGallery) -> None:
    visit.open_view("labels").get_by_role("button", name=re.compile("^Enlarge photos")).first.click()
    expect(visit.page.get_by_role("dialog", name="Picture")).to_be_visible()


def show_duplicates(visit: Visit, gallery: PageGallery) -> None:
    expect(visit.open_view("duplicates").get_by_role("article")).to_have_count(3)


STATES: list[Callable[[Visit, PageGallery], None]] = [
    *(show_start, show_results, show_details, show_nothing, show_help, show_map, show_quality, show_problems),
    *(show_labels, show_class, show_picture, show_duplicates),
]


def test_no_view_or_state_keeps_people_out(open_visit: OpenVisit, page_gallery: PageGallery) -> None:
    visit = open_visit(newcomer=True)
    barriers = {}
    for show in STATES:
        visit.page.emulate_media(color_scheme="light")
        visit.page.set_viewport_size(DESKTOP)
        show(visit, page_gallery)
        for look in ("light desktop", "dark phone"):
            if look == "dark phone":
                visit.page.emulate_media(color_scheme="dark")
                visit.page.set_viewport_size(PHONE)
            barriers[show.__name__, look] = find_barriers(visit)
            assert visit.fits_its_width(), (show.__name__, look)
    assert {state: found for state, found in barriers.items() if found} == {}


def test_a_barrier_would_be_found(visit: Visit) -> None:
    visit.open()
    visit.ids()
    visit.cards.first.locator("img").evaluate("image => image.removeAttribute('alt')")
    visit.page.get_by_role("combobox", name="Words or a condition").evaluate(
        "box => { Object.assign(box.style, {color: '#888', background: '#777'}); box.value = 'a'; }"
    )
    assert {found.partition(" ")[0] for found in find_barriers(visit)} == {"image-alt", "color-contrast"}
