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


@pytest.fixture
def newcomer(open_visit: OpenVisit, small: Server) -> Visit:
    """A visit of somebody who was never there."""
    return open_visit(server=small, phone=True, newcomer=True)


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


def test_a_browser_that_keeps_nothing_shows_the_page_all_the_same(newcomer: Visit) -> None:
    newcomer.page.add_init_script(NO_STORAGE)
    newcomer.open()
    newcomer.page.get_by_role("button", name=re.compile("^(Dark|Light) theme$")).click()
    hint(newcomer).get_by_role("button", name="Got it").click()
    expect(hint(newcomer)).to_have_count(0)
    expect(newcomer.page.get_by_role("heading", name="All 12 images")).to_be_visible()
    newcomer.leave()


def test_what_is_still_computed_says_how_far_it_is_and_opens_by_itself(
    open_visit: OpenVisit, small: Server
) -> None:
    visit = open_visit(server=small)
    progress = {"done": 0, "total": 0}

    def answer(route: Route) -> None:
        if progress:
            route.fulfill(status=202, json={"state": "computing", **progress})
        else:
            route.fallback()

    visit.page.route("**/v1/map", answer)
    page = visit.open("?view=map")
    panel = page.get_by_role("region", name="Map", exact=True)
    expect(panel).to_contain_text("Waiting for its turn")
    expect(panel).to_contain_text("It opens here by itself as soon as it is done")
    progress.update(done=10, total=100)
    expect(panel.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "10")
    page.wait_for_timeout(2000)  # before that the time left would be a guess
    progress.update(done=90)
    expect(panel).to_contain_text(re.compile(r"90\s% · about \d+ seconds left"))
    progress.clear()
    expect(panel.get_by_text("It opens here by itself")).to_have_count(0)
    expect(panel.get_by_role("alert")).to_have_count(0)
    visit.leave()
