"""Pictures of the page for the documentation, of the real server on real photos, in docs/pictures/.

    python -m tests.pictures
    python -m tests.pictures groceries tour

`groceries`, `crawled`, `demo` and `tour` are the parts; by default all are made, in some six minutes. Photos and
galleries stay in /tmp/photos for the next call. `made.json` keeps the project's version of each picture.
"""

import csv
import json
import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps
from playwright.sync_api import Browser, Locator, expect

from benchmarks.cleaning import Person, Photo, drop_problems, plant
from benchmarks.common.record import run_retrieval, unpack_shared
from index.gallery.gallery import Gallery
from tests.chromium import open_chromium
from tests.page_browser import CHOOSE, DESKTOP, READY_MS, Visit, open_page, wait_for
from tests.photos import PHOTOS
from tests.serving_server import ROOT, serve

MADE = ROOT / "docs" / "pictures" / "made.json"
_GUIDE_WIDTH, _TOUR_WIDTH, _WORDS = 1000, 900, "orange juice"
_QUERIES, _SHOWN, _SIDE = 5, 5, 112
_BLUE, _GREEN, _RED = (79, 70, 229), (22, 163, 74), (220, 38, 38)
_SETTLED = """![...document.querySelectorAll('[aria-busy=true], .skeleton')].some(one => one.checkVisibility())
  && [...document.images].every(one => one.complete || !one.checkVisibility() || one.y > innerHeight)"""


def save(image: Image.Image, name: str, *, width: int = 2000, **options: Any) -> None:
    """Write a picture, at most so wide, and note its version."""
    image.thumbnail((width, 2 * width), Image.Resampling.LANCZOS)
    image.save(MADE.with_name(name), quality=85, **options)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    made = json.loads(MADE.read_text()) if MADE.exists() else {}
    MADE.write_text(json.dumps(made | {name: version}, indent=1, sort_keys=True) + "\n")


@contextmanager
def visiting(browser: Browser, gallery: Path, *, command: str = "serve", **options: bool) -> Iterator[Visit]:
    """A visit to the served gallery, of which nothing may have failed."""
    with serve(gallery, log=gallery.with_name("serve.log"), command=command) as server:
        visit = open_page(browser, server, **options)
        visit.forgive("GL Driver Message|WebGL")
        yield visit
        visit.leave()
        visit.check()


def shoot(visit: Visit) -> Image.Image:
    """The page from its top once nothing is computed or loaded any more, without a mouse over it."""
    visit.page.mouse.move(0, 0)
    wait_for(visit.page, _SETTLED)
    visit.page.evaluate("scrollTo(0, 0)")
    visit.page.wait_for_timeout(1500)  # what moves comes to rest
    return Image.open(BytesIO(visit.page.screenshot())).convert("RGB")


def search_by_photo(visit: Visit, photo: Path) -> list[int]:
    visit.open()
    visit.page.get_by_label(CHOOSE).set_input_files(photo)
    visit.page.wait_for_url(re.compile("photo="))
    return visit.ids()


def make_groceries(browser: Browser, work: Path) -> None:
    """Search by an edited photo and by words, map, quality, and the page on a phone."""
    gallery, photos = work / "groceries", unpack_shared("groceries.tar", work / "images") / "groceries"
    with (photos / "labels.csv").open(newline="") as file, (photos / "shop.csv").open("w", newline="") as written:
        rows = [(row["path"], row["label"].partition("_")[2].replace("-", " ")) for row in csv.DictReader(file)]
        csv.writer(written).writerows([("path", "label"), *rows])
    run_retrieval("index", "build", photos / "shop.csv", "--out", gallery)
    original, edited = "45_Oatly-Oat-Milk/test_Oatly-Oat-Milk_013.jpg", work / "my-photo.jpg"
    with Image.open(photos / original) as photo:
        part = ImageOps.crop(photo.rotate(9, Image.Resampling.BICUBIC), photo.width // 8)
        ImageEnhance.Brightness(part).enhance(1.25).save(edited, quality=90)
    with visiting(browser, gallery) as visit:
        for computed in ("quality", "map", "labels/issues"):  # which take minutes on a busy machine
            visit.wait_until(lambda one=computed: visit.server.get(f"/v1/{one}").status == 200, seconds=900)
        first = search_by_photo(visit, edited)[0]
        assert visit.ask(f"images/{first}")["path"] == original
        visit.page.reload()  # the first search after a start takes longer
        visit.ids()
        save(shoot(visit), "search-page.jpg")
        visit.open("?words=red+tomato")
        visit.ids()
        save(shoot(visit), "words-page.jpg")
        for view in ("map", "quality"):
            visit.open_view(view)
            save(shoot(visit), f"{view}-page.jpg")
    with visiting(browser, gallery, phone=True, dark=True) as visit:
        search_by_photo(visit, edited)
        searched = ImageOps.expand(shoot(visit), (0, 0, 24, 0), "white")
        visit.open_view("labels")
        save(Image.fromarray(np.hstack([searched, shoot(visit)])), "phone-page.jpg")


def build_crawled(work: Path, name: str, **settings: Any) -> tuple[Path, dict[int, Photo]]:
    """A gallery of photos with wrong labels and other trouble, as benchmarks.cleaning plants it; the truth by id."""
    gallery, images = work / name, work / f"{name}-photos"
    truth = {photo.path: photo for photo in plant(Namespace(out=work, seed=0, **settings), images)}
    run_retrieval("index", "build", images / "photos.csv", "--out", gallery)
    shutil.rmtree(gallery / "annotations", ignore_errors=True)
    opened = Gallery.open(gallery)
    return gallery, {row.id: truth[row.path] for row in opened.sample(opened.count, seed=0)}


def make_crawled(browser: Browser, work: Path) -> None:
    """The way from a crawled folder to a clean data set."""
    gallery, truth = build_crawled(work, "crawled-gallery", photos=None, images=2000, placeholders=30, leaks=20)
    with visiting(browser, gallery) as visit:
        page = visit.page
        visit.open()
        for text in ("near-duplicates", "without a label", "wrong labels"):
            page.get_by_role("link", name=re.compile(text)).wait_for(timeout=READY_MS)
        save(shoot(visit), "clean-start.jpg", width=_GUIDE_WIDTH)
        panel = visit.open_view("problems")
        panel.get_by_role("button", name=re.compile("^Blurred ")).click()
        panel.get_by_role("heading", name="Blurred").wait_for()
        shoot(visit)
        page.keyboard.press("Control+a")
        expect(page.get_by_role("toolbar", name="Selection")).to_contain_text("selected")
        save(shoot(visit), "clean-problems.jpg", width=_GUIDE_WIDTH)
        visit.open()
        drop_problems(Person(page, dict))
        visit.open_view("duplicates")
        save(shoot(visit), "clean-leaks.jpg", width=_GUIDE_WIDTH)
        panel = visit.open_view("labels")
        save(shoot(visit), "labels-page.jpg")
        panel.get_by_role("button", name="Propose labels").click()
        expect(panel.get_by_role("button", name="Back to label issues")).to_be_visible()
        save(shoot(visit), "clean-propose.jpg", width=_GUIDE_WIDTH)
        look_at_class(visit, truth)
        check_sample(visit, truth)


def look_at_class(visit: Visit, truth: Mapping[int, Photo]) -> None:
    """A class of which half of the wrong images are set aside, and the others marked."""
    shown = [image["id"] for image in visit.ask("labels/class?label=61_Cabbage")["images"]]
    wrong = [image for image in shown if truth[image].label != truth[image].right]
    visit.open("?view=labels&look=61_Cabbage")
    for number, image in enumerate(wrong, 1):
        visit.page.locator(f'[aria-label="Images of the class"] [data-id="{image}"]').click()
        if number == len(wrong) // 2:
            visit.page.keyboard.press("s")
            visit.page.get_by_role("list", name="Images set aside").wait_for()
    save(shoot(visit), "clean-class.jpg", width=_GUIDE_WIDTH)


def check_sample(visit: Visit, truth: Mapping[int, Photo]) -> None:
    """A certificate on its way, for which sixty images were looked at."""
    state = visit.server.post("/v1/labels/certificate", {"at_most": 0.1, "new": True}).json()
    while state["looked_at"] < 60:
        asked = [item["id"] for item in visit.ask("labels/issues?state=sample")["items"]]
        right = {image: truth[image].label == truth[image].right for image in asked}
        answers = [{"image_id": image, "decision": "keep" if right[image] else "drop"} for image in asked]
        visit.server.post("/v1/labels/decisions", {"decisions": answers})
        state = visit.server.post("/v1/labels/certificate", {}).json()
    visit.open("?view=labels&state=sample")
    visit.page.get_by_text(re.compile("looked at")).wait_for()
    save(shoot(visit), "certificate-page.jpg")


def make_demo(browser: Browser, work: Path) -> None:
    """Of `retrieval demo`: its audit, the Gradio app, and neighbours before and after training."""
    demo = work / "demo-out"
    run_retrieval("demo", "--out", demo, "--no-serve")
    photos = sorted((demo / "photos/new").glob("*/*.jpg"))
    with visiting(browser, demo / "gallery", command="gradio") as visit:
        page = visit.page
        page.goto(visit.server.url)
        page.set_viewport_size({"width": 1280, "height": 960})
        page.locator(".grid-container button").first.wait_for(timeout=READY_MS)
        page.set_input_files("input[type=file]", next(photo for photo in photos if photo.parent.name == "pineapple"))
        page.get_by_text("most similar to the photo").wait_for(timeout=READY_MS)
        save(shoot(visit), "gradio-app.jpg")
        page.set_viewport_size(DESKTOP)
        page.goto((demo / "run/audit/audit.html").as_uri())
        save(shoot(visit), "audit-page.jpg")
        visit.requests.clear()
    save(draw_neighbours(demo, photos), "before-after.jpg")


def draw_neighbours(demo: Path, photos: Sequence[Path]) -> Image.Image:
    """Some new photos with their nearest before and after training; green where they show the same product."""
    step, left, queries = _SIDE + 8, _SIDE + 40, photos[:: len(photos) // _QUERIES][:_QUERIES]
    picture = Image.new("RGB", (left + 2 * _SHOWN * step + 24, 34 + len(queries) * step), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(16)
    draw.text((4, 8), "new photo", "black", font)
    for column, (name, title) in enumerate((("gallery", "before training"), ("gallery-trained", "after training"))):
        gallery, start = Gallery.open(demo / name), left + column * (_SHOWN * step + 24)
        found = {photo: [gallery.place(hit.id).file for hit in gallery.search(photo, k=_SHOWN)] for photo in photos}
        right = [file.parent.name == photo.parent.name for photo, files in found.items() for file in files]
        share = f"{100 * sum(right) / len(right):.0f} % of the {_SHOWN} nearest to {len(photos)} new photos are right"
        draw.text((start, 8), f"{title}: {share}", "black", font)
        for row, query in enumerate(queries):
            for place, file in enumerate([query, *found[query]]):
                x, y = start + (place - 1) * step if place else 4, 34 + row * step
                colour = "white" if not place else _GREEN if file.parent.name == query.parent.name else _RED
                draw.rectangle((x - 4, y - 4, x + _SIDE + 3, y + _SIDE + 3), colour)
                with Image.open(file) as image:
                    picture.paste(ImageOps.fit(image, (_SIDE, _SIDE)), (x, y))
    return picture


def make_tour(browser: Browser, work: Path) -> None:
    """Search by a photo and by words; a wrong label found and accepted; the search again."""
    folder, frames, shown_ms = work / "photos", list[Image.Image](), list[int]()
    with tarfile.open(PHOTOS) as archive:
        archive.extractall(folder, filter="data")
    gallery, _ = build_crawled(work, "shop", photos=folder, images=800, placeholders=0, leaks=0)
    with visiting(browser, gallery) as visit:
        page = visit.page
        page.set_viewport_size({"width": 1100, "height": 780})

        def take(caption: str, milliseconds: int, ring: Locator | None = None) -> None:
            wait_for(page, _SETTLED)
            shot = Image.open(BytesIO(page.screenshot())).convert("RGB")
            frame = ImageOps.expand(shot, (0, 0, 0, 42), _BLUE)
            draw, area = ImageDraw.Draw(frame), ring and ring.bounding_box()
            draw.text((14, shot.height + 8), caption, "white", ImageFont.load_default(22))
            if area:
                x, y, width, height = area["x"], area["y"], area["width"], area["height"]
                draw.rounded_rectangle((x - 4, y - 4, x + width + 4, y + height + 4), 12, outline=_RED, width=4)
            frames.append(ImageOps.contain(frame, (_TOUR_WIDTH, _TOUR_WIDTH), Image.Resampling.LANCZOS))
            shown_ms.append(milliseconds)

        wrong = visit.ask("labels/issues?limit=1")["items"][0]
        visit.open()
        page.get_by_role("link", name=re.compile("wrong labels")).wait_for(timeout=READY_MS)
        take("800 photos, indexed by one command. Some labels are wrong.", 2200)
        assert wrong["id"] in search_by_photo(visit, folder / "pineapple" / "04.jpg")[:8]
        address, card = page.url, visit.card(wrong["id"])
        take("Search by a photo", 2200)
        take(f"This one is labelled {wrong['label']!r}", 2200, card)
        visit.open()
        page.get_by_role("region", name=re.compile("search by words")).wait_for(timeout=READY_MS)
        box = page.get_by_role("combobox", name="Words or a condition")
        for end in range(len(_WORDS) + 1):
            box.evaluate("(box, text) => { box.value = text }", _WORDS[:end])  # no search before all is typed
            take("Search by words", 90 if end else 900)
        box.fill(_WORDS)
        box.press("Enter")
        page.wait_for_url(re.compile("words="))
        visit.ids()
        take("Search by words", 2400)
        panel = visit.open_view("labels")
        row, to_row = panel.get_by_role("article").first, "row => scrollBy(0, row.getBoundingClientRect().top - 300)"
        row.evaluate(to_row)
        take("Labels: the most probable errors come first", 2600, row)
        row.focus()
        page.keyboard.press("a")
        expect(panel.get_by_text(re.compile("^1 of"))).to_be_visible()
        row.evaluate(to_row)
        take("One key accepts the suggested label", 2200, row)
        page.goto(address)
        visit.ids()
        take("Search again: the label is right at once", 3000, card)
    save(frames[0], "tour.webp", save_all=True, append_images=frames[1:], duration=shown_ms, loop=0, method=6)


PARTS = {"groceries": make_groceries, "crawled": make_crawled, "demo": make_demo, "tour": make_tour}

if __name__ == "__main__":
    with open_chromium() as chromium:
        for part in sys.argv[1:] or PARTS:
            PARTS[part](chromium, Path(tempfile.gettempdir(), "photos"))  # some pictures show this path
