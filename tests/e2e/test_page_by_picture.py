"""The page over a gallery whose model tells pictures: it can be asked for either, and says what is a copy."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from index.gallery.gallery import Gallery
from tests.page_browser import OpenVisit, Visit, skip_without_browser
from tests.serving_server import Server, serve

pytestmark = [pytest.mark.browser, pytest.mark.shared_data]
skip_without_browser()
from playwright.sync_api import expect  # noqa: E402


@pytest.fixture(scope="module")
def two_server(two: Gallery) -> Iterator[Server]:
    with serve(two.path, log=two.path.parent / "log") as server:
        yield server


def test_a_ranking_is_of_the_same_kind_until_the_same_picture_is_asked_for(
    two: Gallery, two_server: Server, open_visit: OpenVisit
) -> None:
    visit: Visit = open_visit(server=two_server)
    own = int(two.ids[0])
    page = visit.open(f"?image={own}")
    choice = page.get_by_role("region", name="Ranking").get_by_label("Find")
    expect(choice).to_have_value("kind")
    asked = {"queries": [{"image_id": own}], "k": 48}
    assert visit.ids() == [hit["id"] for hit in visit.search(**asked)]
    choice.select_option("the same picture")
    page.wait_for_url(re.compile("by=picture"))
    hits = visit.search(**asked, by="picture")
    visit.wait_until(lambda: visit.ids() == [hit["id"] for hit in hits])
    copies = [hit["id"] for hit in hits if hit["is_copy"]]
    assert 0 < len(copies) < len(hits)
    expect(page.get_by_text("the same picture", exact=True).locator("visible=true")).to_have_count(len(copies))
    expect(visit.card(copies[0])).to_contain_text("the same picture")
