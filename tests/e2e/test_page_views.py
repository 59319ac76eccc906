"""What every view of the page does, whatever gallery it is given: a further one in views.json has to pass, too."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Route, expect

from index.writing.build import build_gallery
from retrieval_app.page.shell import VIEWS
from tests.conftest import CLASSES, draw_folder, draw_image
from tests.page_browser import CHOOSE, READY_MS, OpenVisit, PageGallery, Visit
from tests.serving_server import Server, serve

pytestmark = pytest.mark.browser

GALLERIES = {
    "one album beside loose images": [f"album/{i}.jpg" for i in range(8)] + [f"{i}.jpg" for i in range(4)],
    "one image without a label": ["only.jpg"],
}
"""As little as a gallery may hold: the album's name is the only label, and a gallery is never empty."""

SAID = {
    12: {"quality": "They all have the same label", "labels": "All labelled images have the same label"},
    1: {
        "map": "one image, with nothing to lie near",
        "quality": "This gallery has no labels",
        "labels": "This gallery has no labels",
        "duplicates": "No near-duplicates",
    },
}
"""What views say of them, by their number of images."""


@pytest.fixture(scope="module", params=GALLERIES)
def odd_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_model: Path
) -> Iterator[Server]:
    """The server of such a gallery."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "images" / "album").mkdir(parents=True)
    for number, name in enumerate(GALLERIES[request.param]):
        draw_image([*CLASSES.values()][number % 3], seed=number).save(folder / "images" / name)
    build_gallery(model_path=tiny_model, sources=[folder / "images"], out=folder / "gallery")
    with serve(folder / "gallery", log=folder / "log") as server:
        yield server
        assert "Traceback" not in server.log.read_text()


def test_every_view_opens_from_its_address_and_says_what_it_lacks(open_visit: OpenVisit, odd_server: Server) -> None:
    visit = open_visit(server=odd_server)
    said = SAID[visit.ask("gallery")["images"]]
    for view in VIEWS:
        page = visit.open(f"?view={view['name']}")
        expect(page.locator("nav a[aria-current=page]")).to_have_text(view["title"])
        panel = page.get_by_role("region", name=view["title"], exact=True)
        expect(panel.get_by_role("heading").first).to_be_visible()
        expect(panel).to_contain_text(said.get(view["name"], ""), timeout=READY_MS)
        page.wait_for_load_state("networkidle")
        expect(panel.locator(".spin, .skeleton, .notice .progress")).to_have_count(0, timeout=READY_MS)
        expect(panel.get_by_role("alert")).to_have_count(0)
    visit.leave()


def test_image_problems_have_a_threshold_that_moves_and_keys_that_select(open_visit: OpenVisit, small: Server) -> None:
    visit = open_visit(server=small)
    page = visit.open("?view=problems&kind=tiny&at=60")
    panel = page.get_by_role("region", name="Problems", exact=True)
    expect(panel.get_by_role("status")).to_contain_text("12 images")
    panel.get_by_role("button", name=re.compile("Details$")).first.press("x")
    expect(page.get_by_role("toolbar", name="Selection")).to_contain_text("1 selected")
    page.keyboard.press("h")
    page.keyboard.press("Home")
    expect(panel.get_by_role("heading", name="No such images")).to_be_visible()
    expect(page.get_by_role("toolbar", name="Selection")).to_be_hidden()
    page.keyboard.press("Tab")
    page.keyboard.press("j")
    expect(panel.get_by_role("heading", name="Odd shape")).to_be_visible()
    visit.leave()


NO_STORAGE = "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }})"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """The server of a gallery with twelve images of three labels."""
    folder = tmp_path_factory.mktemp("small")
    build_gallery(model_path=tiny_model, sources=[draw_folder(folder / "photos", per_class=4)], out=folder / "gallery")
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
    expect(strip).to_contain_text("to find images like it, or search by words")
    assert newcomer.fits_its_width()
    newcomer.open("?view=labels")
    expect(strip).to_be_visible()
    strip.get_by_role("button", name="Got it").press("Enter")
    expect(strip).to_have_count(0)
    expect(newcomer.page.get_by_role("region", name="Labels", exact=True)).to_be_focused()
    newcomer.open()
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


def test_what_is_still_computed_says_how_far_it_is_and_opens_by_itself(open_visit: OpenVisit, small: Server) -> None:
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


@pytest.mark.shared_data
def test_a_server_that_is_gone_is_told_of(open_visit: OpenVisit, page_gallery: PageGallery, tmp_path: Path) -> None:
    photo = page_gallery.photos.parent / page_gallery.of("hat")[2]
    with serve(page_gallery.path, log=tmp_path / "log") as server:
        visit = open_visit(server=server)
        page = visit.open()
        page.get_by_label(CHOOSE).set_input_files(photo)
        expect(visit.cards.first).to_contain_text("1.000")
        assert server.stop() == 0
        visit.forgive("ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
        # The words are sent a moment after they are typed; before, the alert may be of an earlier search.
        with page.expect_event("requestfailed", lambda request: '"text":"hat"' in (request.post_data or "")):
            page.get_by_role("combobox", name="Words or a condition").fill("hat")
        # Not any alert: a message at the foot of the page goes by itself.
        results = page.get_by_role("region", name="Search", exact=True)
        alert = results.get_by_role("alert").filter(has_text="The server gave no answer")
        expect(alert).to_be_visible()
        expect(visit.cards).to_have_count(0)
    with serve(page_gallery.path, log=tmp_path / "log", port=server.port):
        visit.forgive("status of 404")
        alert.get_by_role("button", name="Retry").click()
        lost = page.get_by_role("alert").filter(has_text="This photo is no longer kept")
        expect(lost).to_be_visible()
        lost.get_by_label("Choose the photo again").set_input_files(photo)
        expect(visit.cards.first).to_contain_text("hat")
        assert visit.address["words"] == ["hat"]
        assert len(visit.address["photo"]) == 1
        visit.leave()
