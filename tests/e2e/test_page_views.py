"""What every view of the page does, whatever gallery it is given: a further one in views.json has to pass, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from index.writing.build import build_gallery
from retrieval_app.page.shell import VIEWS
from tests.conftest import CLASSES, draw_image
from tests.page_browser import READY_MS, OpenVisit, skip_without_browser
from tests.serving_server import Server, serve

pytestmark = pytest.mark.browser
skip_without_browser()
from playwright.sync_api import expect  # noqa: E402

GALLERIES = {
    "one album beside loose images": [f"album/{i}.jpg" for i in range(8)] + [f"{i}.jpg" for i in range(4)],
    "one image without a label": ["only.jpg"],
}
"""As little as a gallery may hold: the album's name is the only label, and a gallery is never empty."""

SAID = {
    12: {"quality": "They all have the same label", "labels": "All labelled images have the same label"},
    1: {"map": "one image, with nothing to lie near", "quality": "This gallery has no labels",
        "labels": "This gallery has no labels", "duplicates": "No duplicates"},
}  # fmt: skip
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


def test_every_view_opens_from_its_address_and_shows_something(open_visit: OpenVisit, odd_server: Server) -> None:
    visit = open_visit(server=odd_server)
    for view in VIEWS:
        page = visit.open(f"?view={view['name']}")
        expect(page.locator("nav a[aria-current=page]")).to_have_text(view["title"])
        panel = page.get_by_role("region", name=view["title"], exact=True)
        expect(panel.get_by_role("heading").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        expect(panel.locator(".spin, .skeleton, .notice .progress")).to_have_count(0, timeout=READY_MS)
        expect(panel.get_by_role("alert")).to_have_count(0)
    visit.leave()


def test_what_a_gallery_is_too_small_for_is_said(open_visit: OpenVisit, odd_server: Server) -> None:
    visit = open_visit(server=odd_server)
    for view, words in SAID[visit.ask("gallery")["images"]].items():
        page = visit.open(f"?view={view}")
        expect(page.locator(f"#view-{view}")).to_contain_text(words, timeout=READY_MS)
    visit.leave()
