"""A published gallery in real browsers, from a plain file server, below a sub-path."""

import base64
import csv
import re
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from index.filters.parser import parse_filter, parse_order
from index.gallery.gallery import Gallery
from index.model.builtin import find_builtin
from index.writing.build import build_gallery
from retrieval_app.commands.cli import main
from tests.chromium import open_chromium
from tests.firefox import open_firefox
from tests.index.galleries import change_catalog

pytestmark = pytest.mark.browser
PHOTOS = Path(__file__).parents[2] / "retrieval_app/demo/photos.tar"
HOSTILE = ("</script><script>document.title='hacked'</script>", "../../../etc", "turned \u202e round", "'\" OR 1=1 --")
OTHER_LENSES = """UPDATE images SET metadata = json_set(metadata, '$.lens', json(iif(id % 3, '""', '[35,50]')))
    WHERE json_extract(metadata, '$.lens') IS NULL"""
ABOUT = "# Our *shop*\n\n<script>alert(1)</script> [x](javascript:alert(1)) ![y](https://example.org/y.png)\n"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
SEARCH = """async ([bytes, query]) => {
  const {get, post} = await import(document.querySelector('script[type=module]').src.replace('nav.js', 'core/api.js'));
  if (bytes === null) return (await get('images', {...query, limit: 500})).images;
  const file = new Blob([Uint8Array.from(atob(bytes), letter => letter.charCodeAt(0))]);
  const {photo} = await post('photos', file, {params: {name: 'a.jpg'}});
  return (await post('search', {...query, queries: [{photo}]})).hits;
}"""


@dataclass(frozen=True)
class Published:
    gallery: Gallery
    photos: list[Path]
    url: str


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """Every second photo of the demo, with hostile labels, as a site."""
    folder = tmp_path_factory.mktemp("published")
    with tarfile.open(PHOTOS) as archive:
        archive.extractall(folder, filter="data")
    photos = sorted(folder.rglob("*.jpg"))
    with (folder / "photos.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "price", "</script>", "taken", "lens"])
        for number, path in enumerate(photos[::2]):
            label = HOSTILE[number] if number < len(HOSTILE) else path.parent.name
            taken = f"202{number % 4}-0{1 + number % 9}-01T12:00:00" if number % 5 else ""
            rows.writerow([path, label, number % 7 or "", "<b>bold</b>", taken, "35 mm" if number % 2 else ""])
    build_gallery(model_path=find_builtin(), sources=[folder / "photos.csv"], out=folder / "gallery")
    change_catalog(folder / "gallery", OTHER_LENSES)
    (folder / "about.md").write_text(ABOUT)
    site = folder / "web/below/site"
    site.parent.mkdir(parents=True)
    named = [
        "--include",
        "label,price,</script>,taken,lens",
        "--about",
        str(folder / "about.md"),
        "--licence",
        "CC0 <b>",
    ]
    assert main(["publish", str(folder / "gallery"), "--out", str(site), "--title", HOSTILE[0], *named]) == 0
    handler = partial(QuietHandler, directory=str(folder / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Published(Gallery.open(folder / "gallery"), photos, f"http://127.0.0.1:{server.server_port}/below/site/")
        server.shutdown()


@pytest.fixture(scope="module", params=["chromium", "firefox"])
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("firefox")
    with open_chromium() if request.param == "chromium" else open_firefox(folder) as opened:
        yield opened


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, browser: Browser, published: Published) -> Iterator[Page]:
    """A page that asks for nothing outside its folder, and complains of nothing."""
    context = browser.new_context(viewport=request.param)
    opened = context.new_page()
    asked, complaints = list[str](), list[str]()
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(published.url)
    yield opened
    assert opened.title() == f"{HOSTILE[0]} · image search"
    context.close()
    assert not [url for url in asked if not url.startswith((published.url, f"blob:{published.url[:-12]}"))]
    assert not complaints


def test_a_visitor_searches_by_an_image_by_a_photo_and_by_a_condition(page: Page, published: Published) -> None:
    expect(page.get_by_text("CC0 <b>")).to_be_visible()
    page.get_by_text("About", exact=True).click()
    expect(page.get_by_role("heading", name="Our shop")).to_be_visible()
    for text in ("Labels", "Duplicates", "Rank by shared neighbours"):
        expect(page.get_by_text(text, exact=True)).to_be_hidden()
    page.get_by_role("button", name=re.compile("^Search with image")).nth(2).click()
    expect(page.locator(".card .score").first).to_be_visible()
    page.locator(".card-open").nth(1).click()
    panel = page.get_by_role("complementary", name="Details")
    expect(panel).to_contain_text("<b>bold</b>")
    page.keyboard.press("Escape")
    photo = published.photos[1]
    page.goto(published.url)
    page.locator(".start input[type=file]").set_input_files(photo)
    cards = page.locator(".card")
    want = [hit.id for hit in published.gallery.search(photo, k=3)]
    expect(cards.nth(0)).to_have_attribute("data-id", str(want[0]))
    expect(cards.nth(1)).to_have_attribute("data-id", str(want[1]))
    page.goto(f"{published.url}?f=label+%3D+%27{HOSTILE[1]}%27")
    expect(page.get_by_role("heading", name="1 image found")).to_be_visible()
    expect(cards).to_have_count(1)
    page.goto(f"{published.url}?words=kiwi")
    expect(cards.first).to_contain_text("“kiwi”")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if page.get_by_role("link", name="Map").is_visible():
        page.get_by_role("link", name="Map").click()
        expect(page.get_by_role("application")).to_be_visible()


@pytest.mark.parametrize("page", [DESKTOP], indirect=True, ids=["desktop"])
def test_hits_and_conditions_are_those_of_the_server(page: Page, published: Published) -> None:
    page.locator(".card").first.wait_for()
    gallery, found = published.gallery, 0
    photos = published.photos[1::30]
    for photo in photos:
        content = base64.b64encode(photo.read_bytes()).decode()
        hits = {hit["id"]: hit["score"] for hit in page.evaluate(SEARCH, [content, {"k": 10}])}
        want = {hit.id: hit.score for hit in gallery.search(photo, k=10)}
        both = set(hits) & set(want)
        assert max(abs(hits[number] - want[number]) for number in both) < 0.02
        found += len(both)
    assert found >= 0.95 * 10 * len(photos)
    for where in (
        "price < 4 AND NOT label LIKE 'k%'",
        "price IS NULL OR price IN (1, 6)",
        "NOT (price != 3) OR label = '../../../etc'",
        "price BETWEEN 2 AND '3' AND \"</script>\" = '<b>bold</b>'",
        "label > 'm' AND price <> 'x'",
        "taken >= 2021-03 AND NOT taken LIKE '2023%'",
    ):
        shown = [image["id"] for image in page.evaluate(SEARCH, [None, {"where": where}])]
        assert shown == gallery.matching_ids(parse_filter(where)).tolist(), where
    with gallery.catalog() as catalog:
        newest = catalog.sorted_ids(parse_order("-taken")).tolist()
    assert [image["id"] for image in page.evaluate(SEARCH, [None, {"sort": "-taken"}])] == newest
    content = base64.b64encode(photos[0].read_bytes()).decode()
    for column in ("label", "lens"):  # of lenses some are empty, and some are lists
        grouped = page.evaluate(SEARCH, [content, {"k": 500, "group_by": column}])
        want = gallery.search(photos[0], k=500, group_by=column)
        assert [hit["id"] for hit in grouped[:2]] == [hit.id for hit in want[:2]]
        assert len(grouped) == len(want), column


@pytest.mark.parametrize("browser", ["chromium"], indirect=True)  # this Firefox reads modules of files
def test_opened_as_a_file_it_says_what_to_do(browser: Browser, published: Published) -> None:
    page = browser.new_page()
    page.goto((published.gallery.path.parent / "web/below/site/index.html").as_uri())
    expect(page.get_by_role("alert")).to_contain_text("python -m http.server")
    page.close()
