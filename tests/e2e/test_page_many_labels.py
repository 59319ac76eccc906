"""A gallery of sixty labels with long names: found among the facets, read on the cards, told apart on the map."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from index.writing.build import build_gallery
from tests.conftest import draw_image
from tests.page_browser import OpenVisit, skip_without_browser
from tests.serving_server import Server, serve

pytestmark = [pytest.mark.browser]
skip_without_browser()
from playwright.sync_api import expect  # noqa: E402

LABELS = [f"{number:02d}_God-Morgon-Red-Grapefruit-Juice-{number:02d}" for number in range(60)]
COLOURS = """async map => {
  const {rankLabels} = await import('/page/map/map_legend.js');
  return rankLabels(map).map(({name, colour, centre}) => ({name, colour, centre}));
}"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server for two images of each label."""
    folder = tmp_path_factory.mktemp("many")
    for number, label in enumerate(LABELS):
        (folder / "photos" / label).mkdir(parents=True)
        for copy in range(2):
            colour = (4 * number, 255 - 4 * number, 40 * (number % 6))
            draw_image(colour, seed=10 * number + copy).save(folder / "photos" / label / f"{copy}.jpg")
    build_gallery(model_path=tiny_model, sources=[folder / "photos"], out=folder / "gallery")
    with serve(folder / "gallery", log=folder / "log") as server:
        yield server


def test_a_label_that_is_not_among_the_listed_ones_is_found_and_chosen(
    open_visit: OpenVisit, many: Server
) -> None:
    page = open_visit(server=many).open()
    facets = page.get_by_role("region", name="Narrow down")
    last = facets.get_by_role("checkbox", name=re.compile(f"^{LABELS[-1]} "))
    facets.get_by_role("checkbox").first.wait_for()
    expect(last).to_have_count(0)
    field = facets.get_by_label("Find a value of Label")
    expect(field).to_have_attribute("placeholder", "Find among 60")
    field.press_sequentially("JUICE-59", delay=30)
    expect(facets.locator("details").first.get_by_role("checkbox")).to_have_count(1)
    expect(field).to_be_focused()
    expect(field).to_have_value("JUICE-59")
    last.check()
    expect(page.get_by_role("heading", name="2 images found")).to_be_visible()
    field.fill("nothing of the kind")
    expect(facets.get_by_text("No such value")).to_be_visible()
    field.fill("")
    expect(facets.get_by_role("checkbox", name=re.compile(f"^{LABELS[0]} "))).to_be_visible()


def test_a_long_label_is_read_to_its_end_on_a_card(open_visit: OpenVisit, many: Server) -> None:
    visit = open_visit(server=many)
    visit.open("?text=59").wait_for_load_state()
    chip = visit.cards.first.locator(".chip > span")
    expect(chip).to_have_text(LABELS[-1])
    assert chip.evaluate("chip => chip.scrollHeight <= chip.clientHeight + 1")
    assert chip.evaluate("chip => chip.scrollWidth <= chip.clientWidth + 1")


def test_an_image_of_another_label_is_not_said_to_have_the_same(open_visit: OpenVisit, many: Server) -> None:
    visit = open_visit(server=many)
    visit.open("?image=1")
    expect(visit.cards.first.locator(".band")).to_be_visible(timeout=60_000)  # once it is known what scores mean
    others = visit.cards.filter(has_not=visit.page.locator(".chip.same"))
    expect(others.first.locator(".band")).to_have_text("another label")
    expect(others.first.locator(".band .dot")).to_have_class("dot")  # nor by its colour
    expect(others.first.get_by_role("button", name=re.compile("another label.*Details$"))).to_be_visible()
    same = visit.cards.filter(has=visit.page.locator(".chip.same"))
    expect(same.first.locator(".band")).to_contain_text("% same label")


def test_every_label_has_a_colour_on_the_map_and_its_nearest_ones_have_others(
    open_visit: OpenVisit, many: Server
) -> None:
    page = open_visit(server=many).open()
    places = [(column / 10, row / 10) for column in range(8) for row in range(8)]
    layout = {
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "label": list(range(64)),
        "labels": [f"label {number}" for number in range(64)],
    }
    entries = page.evaluate(COLOURS, layout)
    assert {entry["colour"] for entry in entries} == set(range(1, 13))
    for entry in entries:
        x, y = entry["centre"]
        near = [other for other in entries if 0 < abs(other["centre"][0] - x) + abs(other["centre"][1] - y) < 0.11]
        assert near
        assert entry["colour"] not in {other["colour"] for other in near}


def test_images_without_a_label_are_grey(open_visit: OpenVisit, many: Server) -> None:
    page = open_visit(server=many).open()
    entries = page.evaluate(COLOURS, {"x": [0, 1], "y": [0, 1], "label": [-1, 0], "labels": ["a"]})
    assert {entry["name"]: entry["colour"] for entry in entries} == {None: 0, "a": 1}
