"""A person cleans a crawled folder on the page: labels before and after, and the clicks and keys that it takes.

Trouble of known truth is planted in photos: 5 % wrong labels, 3 % blurred, 10 % without label, one "not available"
picture under many labels, and photos saved again in another split. A headless Chromium does on the page what a person
would: drops image problems and leaks, keeps one of near-duplicates, accepts label issues and proposals by the page's
own goal, and then decides the open issues at the top of the list one by one. Only there it looks up the truth of
the image that it sees. `retrieval dataset export` ends the job. `each` is the clicks and keys so far for each label
set right.

    python -m benchmarks.cleaning --out bench/cleaning
    python -m benchmarks.cleaning --out bench/cleaning --photos PHOTOS --images 500 --model model.onnx
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from benchmarks.common.record import ending_in_words, print_machine, run_retrieval, unpack_shared, write_record
from benchmarks.common.tables import format_table
from benchmarks.serving.servers import run_ours
from index.gallery.gallery import Gallery

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

WRONG, BLURRED, UNLABELLED = 0.05, 0.03, 0.1
IN_A_ROW = 10
TRAIN, TEST = "train", "test"
_WAIT_MS, _COUNT_MS = 90_000, 2000  # for a list; for a count that follows a change


@dataclass(frozen=True, slots=True)
class Photo:
    """An image of the folder, and what is true of it; `right` is None where it should be dropped."""

    path: str
    label: str
    right: str | None
    split: str
    kind: str  # good, wrong, unlabelled, blurred, placeholder or leak
    copy_of: str | None = None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for photos, gallery, data set and record")
    parser.add_argument("--photos", type=Path, help="folder of one folder a label (default: the groceries)")
    parser.add_argument("--images", type=int, default=2000, help="in all (default: %(default)s)")
    parser.add_argument("--placeholders", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--leaks", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--model", type=Path, help="default: the built-in model")
    parser.add_argument("--seed", type=int, default=0, help="of what is planted")
    options = parser.parse_args(arguments)
    with ending_in_words("cleaning"):
        print_machine([options.seed])
        work = options.out / f"{options.photos.name if options.photos else 'groceries'}-{options.seed}"
        shutil.rmtree(work, ignore_errors=True)  # decisions are made once
        photos = plant(options, work / "photos")
        model = [options.model] if options.model else []
        run_retrieval("index", "build", *model, work / "photos" / "photos.csv", "--out", work / "gallery")
        person = clean(work / "gallery", photos)
        run_retrieval("dataset", "export", work / "gallery", "--out", work / "dataset")
        gallery = Gallery.open(work / "gallery")
        before = judge(photos, {photo.path: (photo.label or None, photo.split) for photo in photos}, gallery)
        made = read_dataset(work)
        after = judge(photos, made, gallery)
        effort = {"clicks": person.clicks, "keys": person.keys, "images looked at": person.looked}
        results = {"before": before, "after": after, "effort": effort, "stages": person.stages}
        rows = [[name, _show(before[name]), _show(after[name])] for name in before]
        stages = [[name, *map(str, one.values())] for name, one in person.stages.items()]
        columns = ["step", *next(iter(person.stages.values()))]
        text = format_table(["", "before", "after"], rows) + "\n\n" + format_table(columns, stages)
        print(f"\n{text}")
        write_record(options.out / f"{work.name}.json", settings=vars(options), results=results, text=text)


def _show(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{100 * value:.1f} %"


def plant(options: argparse.Namespace, folder: Path) -> list[Photo]:
    """Write the photos with their trouble, and their table of path, label and split."""
    random = np.random.default_rng(options.seed)
    listed = list(_list_photos(options))
    originals = options.images - options.placeholders - options.leaks
    chosen = [listed[place] for place in np.sort(random.permutation(len(listed))[:originals])]
    classes = sorted({label for _, label, _ in chosen})
    kinds = np.full(len(chosen), "good", dtype=object)
    order, start = random.permutation(len(chosen)), 0
    for kind, share in (("wrong", WRONG), ("blurred", BLURRED), ("unlabelled", UNLABELLED)):
        end = start + round(share * options.images)
        kinds[order[start:end]], start = kind, end
    photos = []
    for number, ((source, right, split), kind) in enumerate(zip(chosen, kinds.tolist(), strict=True)):
        path = f"{right}/{number:05}{source.suffix.lower()}"
        others = [label for label in classes if label != right]
        label = "" if kind == "unlabelled" else str(random.choice(others)) if kind == "wrong" else right
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if kind == "blurred":
            with Image.open(source) as image:
                blurred = image.convert("RGB").filter(ImageFilter.GaussianBlur(max(image.size) / 40))
                blurred.save(folder / path, quality=90)
        else:
            shutil.copyfile(source, folder / path)
        photos.append(Photo(path, label, None if kind == "blurred" else right, split, kind))
    good = [photo for photo in photos if photo.kind == "good" and photo.split == TRAIN]
    for place in random.permutation(len(good))[: options.leaks].tolist():
        photo = good[place]
        path = f"{photo.right}/again-{Path(photo.path).stem}.jpg"
        with Image.open(folder / photo.path) as image:
            smaller = image.convert("RGB").resize((image.width * 9 // 10, image.height * 9 // 10))
            smaller.save(folder / path, quality=75)
        photos.append(Photo(path, photo.label, photo.right, TEST, "leak", photo.path))
    for number in range(options.placeholders):
        label = classes[number * len(classes) // options.placeholders]
        path = f"{label}/not-available-{number}.jpg"
        (folder / path).parent.mkdir(exist_ok=True)
        _draw_placeholder().save(folder / path, quality=75 + number % 20)
        photos.append(Photo(path, label, None, TRAIN, "placeholder"))
    with (folder / "photos.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [(photo.path, photo.label, photo.split) for photo in photos]
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    return photos


def _list_photos(options: argparse.Namespace) -> Iterator[tuple[Path, str, str]]:
    """Path, right label and split of each photo; of a folder every fifth photo of a label is for tests."""
    if options.photos is None:
        folder = unpack_shared("groceries.tar", options.out / "images") / "groceries"
        with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield folder / row["path"], row["label"], TEST if row["split"] == TEST else TRAIN
        return
    for label in sorted(path for path in options.photos.iterdir() if path.is_dir()):
        for number, path in enumerate(sorted(label.iterdir())):
            yield path, label.name, TEST if number % 5 == 4 else TRAIN


def _draw_placeholder() -> Image.Image:
    image = Image.new("RGB", (240, 240), (236, 236, 236))
    draw = ImageDraw.Draw(image)
    draw.rectangle((60, 60, 180, 150), outline=(150, 150, 150), width=4)
    draw.ellipse((100, 80, 140, 120), outline=(150, 150, 150), width=4)
    draw.text((70, 180), "image not available", fill=(110, 110, 110))
    return image


@dataclass
class Person:
    """A page with what was done on it: clicks, keys, images looked at one by one, and the same by stage."""

    page: Page
    count_left: Callable[[], dict[str, int]]
    clicks: int = 0
    keys: int = 0
    looked: int = 0
    stages: dict[str, dict[str, float | str]] = field(default_factory=dict)

    def click(self, what: Locator) -> None:
        what.click()
        self.clicks += 1

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.keys += 1

    def write(self, text: str) -> None:
        self.page.keyboard.type(text)
        self.keys += len(text)

    def open_view(self, title: str) -> Locator:
        self.click(self.page.get_by_role("navigation").get_by_role("link", name=title))
        return self.page.locator(".view:not([hidden])")

    def confirm(self, name: str) -> None:
        """Press that button of the open dialog, and wait until it is gone."""
        dialog = self.page.get_by_role("dialog")
        self.click(dialog.get_by_role("button", name=name, exact=True))
        dialog.wait_for(state="detached")

    def see(self, text: str) -> Locator:
        """Wait until the page says so."""
        found = self.page.get_by_text(re.compile(text)).locator("visible=true").first
        found.wait_for()
        return found

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started, before = time.perf_counter(), (self.clicks, self.keys, self.looked)
        yield
        spent = [now - then for now, then in zip((self.clicks, self.keys, self.looked), before, strict=True)]
        seconds = round(time.perf_counter() - started, 1)
        effort = dict(zip(("clicks", "keys", "looked at"), spent, strict=True))
        left = self.count_left()
        each = {"each": round((self.clicks + self.keys) / left["set right"], 2) if left["set right"] else "-"}
        self.stages[name] = effort | {"seconds": seconds} | left | each
        print(name, self.stages[name], file=sys.stderr, flush=True)


def clean(gallery: Path, photos: Sequence[Photo]) -> Person:
    """Serve the gallery, and do the whole job on its page."""
    truth = {photo.path: photo for photo in photos}
    with run_ours(gallery, log=gallery.with_name("serve.log")) as server, open_page(server.url) as page:

        def count_left() -> dict[str, int]:
            with Gallery.open(gallery).catalog() as catalog:
                rows = [(row.label, truth[row.path]) for row in catalog.rows(status="indexed")]
            return {
                "set right": sum(photo.label != label == photo.right for label, photo in rows),
                "wrong labels left": sum(None not in (label, one.right) and label != one.right for label, one in rows),
                "unlabelled left": sum(label is None for label, _ in rows),
            }

        person = Person(page, count_left)
        with person.stage("image problems"):
            drop_problems(person)
        with person.stage("leaks and near-duplicates"):
            mend_duplicates(person)
        with person.stage("label issues in bulk"):
            accept_bulk(person, person.open_view("Labels"))
        with person.stage("unlabelled images in bulk"):
            panel = person.page.locator(".view:not([hidden])")
            person.click(panel.get_by_role("button", name="Propose labels"))
            accept_bulk(person, panel, proposals=True)
        with person.stage("label issues one by one"):
            person.click(panel.get_by_role("button", name="Back to label issues"))
            person.see("are still estimated to be wrong")
            page.wait_for_timeout(_COUNT_MS)
            decide_one_by_one(person, truth)
        return person


def drop_problems(person: Person) -> None:
    """Drop what the page lists as blurred and as placeholders, from what its start lists on."""
    person.click(person.page.get_by_role("link", name=re.compile("^Image problems: ")))
    panel = person.page.locator(".view:not([hidden])")
    panel.get_by_role("heading", name="Image problems").wait_for()
    for title in ("Blurred", "Placeholders"):
        kind = panel.get_by_role("button", name=re.compile(f"^{title} "))
        kind.wait_for()
        if kind.inner_text().endswith(" 0"):
            continue
        person.click(kind)
        panel.get_by_role("heading", name=title).wait_for()
        person.page.wait_for_timeout(_COUNT_MS)
        panel.get_by_role("button", name=re.compile("^Select all")).wait_for()
        person.press("Control+a", "Shift+D")
        person.see("No such images")


def mend_duplicates(person: Person) -> None:
    """Drop the photos of the training part that are nearly those for tests; keep the largest of near-duplicates."""
    panel = person.open_view("Duplicates")
    panel.get_by_role("checkbox", name="Labels differ").wait_for()
    person.see("leaks?:")
    person.click(panel.get_by_role("button", name="Apply…").first)
    person.confirm("Apply")
    person.see("leaks? fixed")
    apply = panel.locator(".accept-line", has_text="Keep of every open group").get_by_role("button", name="Apply…")
    person.page.wait_for_timeout(_COUNT_MS)
    if apply.is_enabled():
        person.click(apply)
        person.confirm("Apply")
        person.see("^Decided")


def accept_bulk(person: Person, panel: Locator, *, proposals: bool = False) -> None:
    """Accept what the page proposes by its own goal."""
    person.page.wait_for_timeout(_COUNT_MS)
    begin = panel.get_by_role("button", name="Accept in bulk…")
    if not begin.is_enabled():
        return
    person.click(begin)
    dialog = person.page.get_by_role("dialog")
    dialog.get_by_text("get the proposed label" if proposals else re.compile("labels? changes? ")).wait_for()
    accept = dialog.get_by_role("button", name="Accept", exact=True)
    for _ in range(3):  # refused where the list was ranked again meanwhile: a person looks again
        person.page.wait_for_timeout(_COUNT_MS)
        if not accept.is_visible():
            return
        if not accept.is_enabled():
            person.click(dialog.get_by_role("button", name="Cancel"))
            return
        person.click(accept)
    dialog.wait_for(state="detached")


def decide_one_by_one(person: Person, truth: Mapping[str, Photo]) -> None:
    """Look at the list from its top, each image once, until it hardly pays to go on or ten in a row were right."""
    panel = person.page.locator(".view:not([hidden])")
    done = panel.get_by_text(re.compile("It hardly pays to go on|^Hardly any|No label issues|All decided"))
    before, right = None, 0
    while not done.is_visible() and right < IN_A_ROW:
        row = panel.locator("article.current")
        path = row.locator(".issue-path").get_attribute("title") or ""
        if path == before:
            return
        before, photo = path, truth[path]
        person.looked += 1
        right = right + 1 if photo.label == photo.right else 0
        offered = [name.get_attribute("title") for name in row.locator(".suggestion .name").all()]
        if photo.right is None:
            person.press("x")
        elif photo.right in offered:
            person.press(str(offered.index(photo.right) + 1))
        elif photo.right == photo.label:
            person.press("l")
        else:
            person.press("r")
            person.write(photo.right)
            person.press("Enter")
        person.page.wait_for_timeout(100)


@contextmanager
def open_page(url: str) -> Iterator[Page]:
    """The page in a headless Chromium, as somebody sees it who has been there before."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        page.set_default_timeout(_WAIT_MS)
        page.add_init_script("localStorage.setItem('welcomed', '1')")
        page.goto(url)
        yield page
        browser.close()


def read_dataset(work: Path) -> dict[str, tuple[str | None, str]]:
    """Label and split of each exported image, by its path below the photos."""
    import pyarrow.parquet as parquet

    columns = ["original_path", "label", "split"]
    rows = [
        row
        for file in (work / "dataset").rglob("metadata.parquet")
        for row in parquet.read_table(file, columns=columns).to_pylist()
    ]
    return {row["original_path"]: (row["label"], row["split"]) for row in rows}


def judge(photos: Sequence[Photo], given: Mapping[str, tuple[str | None, str]], gallery: Gallery) -> dict[str, Any]:
    """How true a data set is: counts, shares, and Recall@1 of the untouched test photos in its training part."""
    kept = [photo for photo in photos if photo.path in given]
    labelled = [photo for photo in kept if given[photo.path][0] is not None]
    right = [photo for photo in labelled if given[photo.path][0] == photo.right]
    leaks = [one for one in kept if one.copy_of in given and given[one.path][1] != given[one.copy_of or ""][1]]
    sound = [photo for photo in photos if photo.right is not None and photo.kind != "leak"]
    ids = {row.path: row.id for row in gallery.without_decisions.sample(gallery.without_decisions.count, seed=0)}
    tests = [photo for photo in photos if photo.split == TEST and photo.kind == "good"]
    train = [path for path, (_, split) in given.items() if split == TRAIN]
    vectors = {path: gallery.vectors(np.array([ids[path]]))[0] for path in {*train, *(photo.path for photo in tests)}}
    scores = np.stack([vectors[one.path] for one in tests]) @ np.stack([vectors[path] for path in train]).T
    nearest = [given[train[place]][0] for place in scores.argmax(axis=1).tolist()]
    return {
        "images": len(kept),
        "right labels among the labelled": len(right) / len(labelled),
        "wrong labels": sum(photo.right is not None for photo in labelled) - len(right),
        "unlabelled": sum(photo.right is not None for photo in kept)
        - sum(photo.right is not None for photo in labelled),
        "blurred": sum(photo.kind == "blurred" for photo in kept),
        "placeholders": sum(photo.kind == "placeholder" for photo in kept),
        "leaks": len(leaks),
        "sound photos lost": sum(photo.path not in given for photo in sound),
        "Recall@1 of the test photos": sum(a == b.right for a, b in zip(nearest, tests, strict=True)) / len(tests),
    }


if __name__ == "__main__":
    main()
