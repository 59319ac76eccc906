"""What the page tells whoever comes for the first time, and what it shows while the server still computes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from index.writing.build import build_gallery
from tests.conftest import draw_image
from tests.page_browser import VIEWS, OpenVisit, Visit, skip_without_browser
from tests.serving_server import Server, serve

pytestmark = pytest.mark.browser
skip_without_browser()
from playwright.sync_api import Locator, Route, expect  # noqa: E402

NO_STORAGE = (
    "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }})"
)
SLOWLY = {"map": "map", "quality": "quality", "labels/doubts": "labels", "duplicates": "duplicates"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """The server of a gallery with twelve images of two labels."""
    folder = tmp_path_factory.mktemp("small")
    for number in range(12):
        label = ("red", "blue")[number % 2]
        (folder / "photos" / label).mkdir(parents=True, exist_ok=True)
        image = draw_image((250, 9 * number, 20) if label == "red" else (20, 9 * number, 250), seed=number)
        image.save(folder / "photos" / label / f"{number}.jpg")
    build_gallery(model_path=tiny_model, sources=[folder / "photos"], out=folder / "gallery")
    with serve(folder / "gallery", log=folder / "log") as server:
        yield server


@pytest.fixture(params=[False, True], ids=["desk", "phone"])
def newcomer(open_visit: OpenVisit, small: Server, request: pytest.FixtureRequest) -> Visit:
    """A visit of somebody who was never there."""
    return open_visit(server=small, phone=request.param, newcomer=True)


def hint(visit: Visit) -> Locator:
    return visit.page.get_by_role("complementary", name="What can be done here")


def test_who_comes_first_is_told_what_can_be_done_until_that_is_read(newcomer: Visit) -> None:
    newcomer.open()
    strip = hint(newcomer)
    expect(strip).to_contain_text("to find images like it, or filter by words")
    box = strip.bounding_box()
    assert box is not None
    assert box["height"] < 90
    assert newcomer.fits_its_width()
    newcomer.open("?view=labels")
    expect(strip).to_be_visible()
    strip.get_by_role("button", name="Got it").press("Enter")
    expect(strip).to_have_count(0)
    expect(newcomer.page.get_by_role("region", name="Labels", exact=True)).to_be_focused()
    for view in VIEWS:
        newcomer.open(f"?view={view}")
        assert hint(newcomer).count() == 0
    newcomer.leave()


def test_the_hint_leads_to_the_keys(open_visit: OpenVisit, small: Server) -> None:
    visit = open_visit(server=small, newcomer=True)
    visit.open()
    hint(visit).get_by_role("button", name="All keys").click()
    expect(visit.page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    visit.leave()


def test_a_browser_that_keeps_nothing_shows_the_page_all_the_same(newcomer: Visit) -> None:
    newcomer.page.add_init_script(NO_STORAGE)
    newcomer.open()
    newcomer.page.get_by_role("button", name=re.compile("^(Dark|Light) theme$")).click()
    hint(newcomer).get_by_role("button", name="Got it").click()
    expect(hint(newcomer)).to_have_count(0)
    expect(newcomer.page.get_by_role("heading", name="All 12 images")).to_be_visible()
    newcomer.leave()


@pytest.mark.parametrize("path", SLOWLY)
def test_what_is_still_computed_says_how_far_it_is_and_opens_by_itself(
    open_visit: OpenVisit, small: Server, path: str
) -> None:
    visit = open_visit(server=small)
    progress = {"done": 0, "total": 0}

    def answer(route: Route) -> None:
        if progress:
            route.fulfill(status=202, json={"state": "computing", **progress})
        else:
            route.fallback()

    visit.page.route(re.compile(rf"/v1/{path}(\?.*)?$"), answer)
    page = visit.open(f"?view={SLOWLY[path]}")
    panel = page.get_by_role("region", name=SLOWLY[path].capitalize(), exact=True)
    expect(panel).to_contain_text("Waiting for its turn")
    expect(panel).to_contain_text("It opens here by itself as soon as it is done")
    progress.update(done=10, total=100)
    expect(panel.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "10")
    if path == "map":
        page.wait_for_timeout(2000)  # before that the time left would be a guess
        progress.update(done=90)
        expect(panel).to_contain_text(re.compile(r"90\s% · about \d+ seconds left"))
    progress.clear()
    expect(panel.get_by_text("It opens here by itself")).to_have_count(0)
    expect(panel.get_by_role("alert")).to_have_count(0)
    visit.leave()


def test_searching_goes_on_meanwhile(open_visit: OpenVisit, small: Server) -> None:
    visit = open_visit(server=small)
    computing = {"state": "computing", "done": 0, "total": 0}
    visit.page.route("**/v1/map", lambda route: route.fulfill(status=202, json=computing))
    page = visit.open("?text=red")
    page.get_by_role("link", name="Map", exact=True).click()
    page.get_by_role("link", name="Searching works meanwhile").click()
    expect(page.get_by_role("heading", name="6 images found")).to_be_visible()
    visit.leave()
