"""Parts of the page, and what is done to them, for tests in a real browser."""

import base64
import json
import re
from pathlib import Path

from tests.page_browser import Visit, skip_without_browser

skip_without_browser()
from playwright.sync_api import Locator  # noqa: E402

GIVE_FILES = """([kind, where, files]) => {
  const data = new DataTransfer();
  for (const [name, content] of files)
    data.items.add(new File([Uint8Array.from(atob(content), c => c.charCodeAt(0))], name));
  const target = document.querySelector(where);
  const given = {bubbles: true, cancelable: true};
  if (kind === 'paste') {
    const paste = new ClipboardEvent('paste', given);
    Object.defineProperty(paste, 'clipboardData', {value: data}); // which Firefox takes from nobody else
    target.dispatchEvent(paste);
  } else for (const name of ['dragenter', 'dragover', 'drop'])
    target.dispatchEvent(new DragEvent(name, {...given, dataTransfer: data}));
}"""
SLOW_ROUTE = """([path, milliseconds]) => { const fetch = window.fetch; window.fetch = async (url, request) => {
  if (new URL(url).pathname === path) await new Promise(resolve => setTimeout(resolve, milliseconds));
  return fetch(url, request); }; }"""
CHOOSE = re.compile("^Find images like yours")


def give_files(visit: Visit, kind: str, *photos: Path, where: str = "body") -> None:
    """Paste or drop photos."""
    files = [[photo.name, base64.b64encode(photo.read_bytes()).decode()] for photo in photos]
    visit.page.evaluate(GIVE_FILES, [kind, where, files])


def query_card(visit: Visit) -> Locator:
    return visit.page.get_by_role("region", name="Query", exact=True)


def details(visit: Visit) -> Locator:
    return visit.page.get_by_role("complementary", name="Details")


def open_card(visit: Visit, image: int) -> Locator:
    """The button of a result that is its image and opens its details."""
    return visit.card(image).get_by_role("button", name=re.compile("Details$"))


def last_body(visit: Visit, path: str) -> dict:
    """The JSON that the page sends to a route next, when `act` is done: kept by the page's own fetch."""
    return json.loads(visit.page.evaluate("path => window.sent?.[path] ?? 'null'", path))


def keep_bodies(visit: Visit) -> None:
    """Keep the last body that is sent to each route."""
    visit.page.evaluate(
        """() => { const fetch = window.fetch; window.sent = {}; window.fetch = (url, request) => {
        if (typeof request?.body === 'string') window.sent[new URL(url).pathname] = request.body;
        return fetch(url, request); }; }"""
    )


def draw_round(visit: Visit, panel: Locator, *, share: float = 1.0) -> None:
    """A rectangle round the map's left part."""
    mouse, margin, area = visit.page.mouse, 4, panel.get_by_role("application").bounding_box()
    assert area is not None
    left, top = area["x"] + margin, area["y"] + margin
    right, bottom = area["x"] + share * area["width"] - margin, area["y"] + area["height"] - margin
    mouse.move(left, top)
    mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top + 2)):
        mouse.move(x, y, steps=3)
    mouse.up()
