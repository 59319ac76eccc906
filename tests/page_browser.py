"""The page in a real browser: a gallery of real photos, the real server, Chromium, and visits that are watched.

The photos have copies, wrong labels and metadata planted among them.
"""

import base64
import csv
import fcntl
import json
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Locator, Page

from index.gallery.gallery import Gallery
from index.model.builtin import find_builtin
from index.writing.build import build_gallery
from tests.chromium import open_chromium
from tests.serving_server import Server, serve

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
KNOWN = "try { localStorage.setItem('welcomed', '1'); } catch { /* about:blank keeps nothing */ }"
ACTION_MS = 30_000
READY_MS = 60_000  # for what the server has to compute first
LABELS = ("dress", "hat", "longsleeve", "outwear", "pants", "shirt", "shoes", "t-shirt")
PHOTOS_PER_LABEL = 30
WRONG_LABELS = {"shoes": "hat", "hat": "shoes", "pants": "dress"}
WRONG_PER_PAIR = 6
TWICE = "07b616c7-1ac6-48ea-8517-f0bc8d4ad4ec.jpg"  # almost a duplicate of another photo of pants
SHOPS = ("Nord", "Süd & Co", "<b>West</b>")
COPY_NAMES = ("<img src=x onerror=alert(1)>.jpg", "${alert(2)} & 'co'.jpg", "smaller.jpg")


@dataclass(frozen=True, slots=True)
class PageGallery:
    path: Path
    photos: Path  # the folder of the photos
    ids: dict[str, int]  # by path, as are the labels
    labels: dict[str, str]
    wrong: dict[str, str]  # the right labels of those that were given a wrong one, by path
    copies: tuple[tuple[str, str], ...]  # (path, path of its exact copy), twice, then (path, near-duplicate)

    def of(self, label: str) -> list[str]:
        """The paths with this label, rightly given, that were not copied; in their order."""
        copied = {path for pair in self.copies for path in pair}
        return [path for path, given in self.labels.items() if given == label and path not in copied | set(self.wrong)]


def build_page_gallery(folder: Path, *, shared: Path) -> PageGallery:
    """Plant, and build the gallery `folder/clothes` with the built-in model."""
    chosen: list[tuple[str, str]] = []
    wrong: dict[str, str] = {}
    for label in LABELS:
        files = [file for file in sorted((shared / "data/clothing" / label).iterdir()) if file.name != TWICE]
        for number, file in enumerate(files[:PHOTOS_PER_LABEL]):
            path = f"photos/{label}/{file.name}"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / path)
            is_wrong = label in WRONG_LABELS and number < WRONG_PER_PAIR
            if is_wrong:
                wrong[path] = label
            chosen.append((path, WRONG_LABELS[label] if is_wrong else label))
    copies = _plant_copies(folder, chosen)
    _write_table(folder / "clothes.csv", chosen)
    build_gallery(model_path=find_builtin(), sources=[folder / "clothes.csv"], out=folder / "clothes")
    gallery = Gallery.open(folder / "clothes")
    ids = {image.path: image.id for image in gallery.sample(gallery.count, seed=0)}
    return PageGallery(folder / "clothes", folder / "photos", ids, dict(chosen), wrong, copies)


def copy_page_gallery(folder: Path, *, run: Path, shared: Path) -> PageGallery:
    """The gallery in a folder of this process's own, over photos in `run`, where the first process builds it."""
    run.mkdir(exist_ok=True)
    built = run / "built"
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            built.write_bytes(pickle.dumps(build_page_gallery(run, shared=shared)))
    gallery: PageGallery = pickle.loads(built.read_bytes())
    return replace(gallery, path=Path(shutil.copytree(gallery.path, folder / gallery.path.name)))


def _plant_copies(folder: Path, chosen: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Two exact copies, the second of another label, and a smaller image of lower quality."""
    originals = [next(path for path, _ in chosen[::-1] if f"/{label}/" in path) for label in ("shoes", "hat", "dress")]
    (folder / "photos" / "again").mkdir()
    pairs = tuple((path, f"photos/again/{name}") for path, name in zip(originals, COPY_NAMES, strict=True))
    for path, copy in pairs[:2]:
        shutil.copyfile(folder / path, folder / copy)
    path, copy = pairs[2]
    with Image.open(folder / path) as image:
        image.resize((image.width * 9 // 10, image.height * 9 // 10)).save(folder / copy, quality=70)
    chosen += [(copy, label) for (_, copy), label in zip(pairs, ("shoes", "shirt", "dress"), strict=True)]
    return pairs


def _write_table(path: Path, chosen: list[tuple[str, str]]) -> None:
    chance = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "price", "shop"])
        for image, label in chosen:
            rows.writerow([image, label, chance.randrange(5, 100), chance.choice(SHOPS)])


@dataclass
class Visit:
    """A page of a browser context of its own, with all that it asked for and complained about."""

    page: Page
    server: Server
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)

    def open(self, query: str = "") -> Page:
        """Go to the page with that query string, and wait until its frame stands."""
        self.page.goto(f"{self.server.url}/{query}")
        self.page.locator("nav a[aria-current=page]").wait_for()
        return self.page

    def open_view(self, view: str, query: str = "") -> Locator:
        """Go to a view, and wait until it shows what it has."""
        self.open(f"?view={view}{query}")
        panel = self.page.get_by_role("region", name=view.capitalize(), exact=True)
        shown = {
            "search": self.cards.first,
            "map": panel.get_by_role("application"),
            "quality": panel.get_by_text("Recall@1", exact=True),
            "problems": panel.get_by_role("link", name="All of them in Search"),
            "labels": panel.get_by_role("button", name="Download label file"),
            "duplicates": panel.get_by_role("checkbox", name="Labels differ"),
        }[view]
        shown.wait_for(timeout=READY_MS)
        return panel

    @property
    def cards(self) -> Locator:
        return self.page.locator("ol[aria-label=Results] > li[data-id]")

    def card(self, image: int) -> Locator:
        return self.page.locator(f'ol[aria-label=Results] > li[data-id="{image}"]')

    def ids(self) -> list[int]:
        """The results' ids, best first, once there are some and none are on their way."""
        wait_for(
            self.page,
            "document.querySelector('ol[aria-label=Results] > li[data-id]') && !document.querySelector('[aria-busy]')",
        )
        return self.cards.evaluate_all("cards => cards.map(card => Number(card.dataset.id))")

    @property
    def address(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.page.url).query)

    def ask(self, path: str) -> Any:
        """What the API answers to a GET, as soon as it is ready."""
        for _ in range(600):
            answer = self.server.get(f"/v1/{path}")
            if answer.status != 202:
                assert answer.status == 200, answer.body
                return answer.json()
            self.page.wait_for_timeout(100)
        raise AssertionError(f"/v1/{path} was not ready in a minute")

    def search(self, **body: Any) -> list[dict[str, Any]]:
        answer = self.server.post("/v1/search", body)
        assert answer.status == 200, answer.body
        return answer.json()["hits"]

    def wait_until(self, condition: Callable[[], bool], *, seconds: int = 15) -> None:
        for _ in range(20 * seconds):
            if condition():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"the server does not say so after {seconds} s")

    def forgive(self, pattern: str) -> None:
        self.forgiven.append(pattern)

    def fits_its_width(self) -> bool:
        """Whether nothing is to be scrolled to sideways."""
        return self.page.evaluate(
            "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) <= innerWidth"
        )

    def leave(self) -> None:
        """Close the page: before its server ends, as what is still on its way would fail."""
        self.page.context.close()

    def check(self) -> None:
        """Nobody but the server was asked for anything, and nothing went wrong unnoticed."""
        others = [url for url in self.requests if not url.startswith((f"{self.server.url}/", "data:", "blob:"))]
        assert others == []
        assert [text for text in self.complaints if not any(re.search(p, text) for p in self.forgiven)] == []


OpenVisit = Callable[..., Visit]


def wait_for(page: Page, condition: str, arg: Any = None) -> None:
    """Wait until an expression, or a function of `arg`, holds; playwright's own would have to `eval` it in the page."""
    for _ in range(ACTION_MS // 50):
        if page.evaluate(condition, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"this never came to hold: {condition}")


def watch(context: BrowserContext, server: Server) -> Visit:
    visit = Visit(context.new_page(), server)

    def note_message(message: ConsoleMessage) -> None:
        if message.type == "error":
            visit.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def note_dialog(dialog: Dialog) -> None:
        visit.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    context.on("request", lambda request: visit.requests.append(request.url))
    context.on("console", note_message)
    context.on("weberror", lambda error: visit.complaints.append(f"uncaught: {error.error}"))
    context.on("dialog", note_dialog)
    visit.page.on("websocket", lambda socket: visit.requests.append(socket.url))
    return visit


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
CHOOSE = re.compile("^Find images like yours")


def give_files(visit: Visit, kind: str, *photos: Path, where: str = "body") -> None:
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
    visit.page.evaluate(
        """() => { const fetch = window.fetch; window.sent = {}; window.fetch = (url, request) => {
        if (typeof request?.body === 'string') window.sent[new URL(url).pathname] = request.body;
        return fetch(url, request); }; }"""
    )


def draw_round(visit: Visit, panel: Locator, *, share: float = 1.0) -> None:
    """A rectangle round the map's left part."""
    mouse, margin, area = visit.page.mouse, 4, panel.get_by_role("application").bounding_box()
    left, top = area["x"] + margin, area["y"] + margin
    right, bottom = area["x"] + share * area["width"] - margin, area["y"] + area["height"] - margin
    mouse.move(left, top)
    mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top + 2)):
        mouse.move(x, y, steps=3)
    mouse.up()


@pytest.fixture(scope="session")
def page_gallery(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> PageGallery:
    """Photos of clothes as a gallery, built once for all workers. Only decisions may be written to it."""
    folder = tmp_path_factory.mktemp("page")
    of_run = folder.parent.parent if "PYTEST_XDIST_WORKER" in os.environ else folder.parent
    return copy_page_gallery(folder, run=of_run / "page-gallery", shared=shared)


@pytest.fixture(scope="package")
def page_server(page_gallery: PageGallery) -> Iterator[Server]:
    """The server of that gallery; no request may have failed in it."""
    log = page_gallery.path.parent / "log"
    with serve(page_gallery.path, log=log) as server:
        yield server
        assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium; not for longer than a module, as it occupies the thread's event loop."""
    with open_chromium() as browser:
        yield browser


def open_page(
    browser: Browser, server: Server, *, dark: bool = False, phone: bool = False, newcomer: bool = False
) -> Visit:
    context = browser.new_context(
        viewport=PHONE if phone else DESKTOP,
        is_mobile=phone,
        has_touch=phone,
        locale="en-GB",
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(ACTION_MS)
    if not newcomer:
        context.add_init_script(KNOWN)
    return watch(context, server)


@pytest.fixture
def open_visit(browser: Browser, page_server: Server) -> Iterator[OpenVisit]:
    """A function that opens further visits: `open_visit(server=..., dark=True, phone=True)`; all are checked.

    They are of somebody who has been there before, but for a `newcomer`.
    """
    visits: list[Visit] = []

    def start(*, server: Server = page_server, **options: bool) -> Visit:
        visits.append(open_page(browser, server, **options))
        return visits[-1]

    yield start
    for visit in visits:
        visit.leave()
    for visit in visits:
        visit.check()


@pytest.fixture(scope="module")
def desk(browser: Browser, page_server: Server) -> Visit:
    """A visit on a desktop that the tests of a module take in turn, as a new page loads everything anew."""
    return open_page(browser, page_server)


@pytest.fixture
def visit(desk: Visit) -> Iterator[Visit]:
    """A visit on a desktop, to which nothing of the test before has come."""
    for noted in (desk.requests, desk.complaints, desk.forgiven):
        noted.clear()
    yield desk
    desk.page.unroute_all(behavior="ignoreErrors")
    if desk.page.url.startswith(desk.server.url):
        desk.page.evaluate("localStorage.clear()")
    desk.page.mouse.move(0, 0)
    desk.page.goto("about:blank")
    desk.check()


@pytest.fixture
def decisions(page_server: Server) -> Iterator[None]:
    """Whatever is decided in the test is undone after it."""
    yield
    for kind in ("labels", "duplicates", "tags"):
        while page_server.post(f"/v1/{kind}/undo", {}).json()["can_undo"]:
            pass
