"""The page of duplicates: what is written into it, and how it looks and listens in a real browser."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from index.duplicates.duplicate_config import DuplicateConfig
from index.errors import InputError
from index.sources.items import Place
from retrieval_app.reports.duplicates_page import SIDE, write_duplicates_page
from retrieval_app.reports.duplicates_report import DuplicateGroup, DuplicateReport, GroupedImage
from tests.chromium import open_chromium, skip_without_playwright
from tests.photos import write_photos

skip_without_playwright()
from playwright.sync_api import Browser, Page, expect  # noqa: E402 - after the skip

TAG, CLOSER = '"><img src=x onerror=alert(1)>', "</style><script>alert(1)</script>"
HOSTILE_FILE = os.fsdecode(b'caf\xe9, "<img src=x onerror=alert(1)>\n.jpg')


def image(path: Path, label: str | None, *, number: int = 1, **more: Any) -> GroupedImage:
    """One image of a group, with what is not given made up."""
    data = path.read_bytes() if path.is_file() else os.fsencode(path)
    defaults = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    return GroupedImage(number, path.name, str(path.parent), label, **(defaults | more))


def report_of(*groups: DuplicateGroup, **more: Any) -> DuplicateReport:
    defaults: dict[str, Any] = {"gallery": "photos <b>", "images": 90, "config": DuplicateConfig().settle(None)}
    images = [image for group in groups for image in group.images]
    places = {
        image.id: Place(Path(image.source) / image.path, image.path, sha256=image.sha256) for image in images
    }
    return DuplicateReport(groups=groups, places=places, **(defaults | more))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four pictures, the third of a hostile name."""
    folder = tmp_path_factory.mktemp("pictures")
    write_photos(folder, kinds=("polo",), pictures_per_kind=4, seed=3, size=256)
    found = sorted((folder / "polo").iterdir())
    hostile = Path(os.fsdecode(os.fsencode(folder) + b"/" + os.fsencode(HOSTILE_FILE)))
    found[2].rename(hostile)
    return [*found[:2], hostile, found[3]]


@pytest.fixture(scope="module")
def report(pictures: list[Path]) -> DuplicateReport:
    """Two groups: five images with different labels, of which two files are equal; and a pair that agrees."""
    first, second, hostile, last = pictures
    kept = image(first, "polo", number=7)
    large = DuplicateGroup(
        kept,
        (
            image(first, TAG, number=8, similarity=1.0, hash_distance=0),
            image(second, "polo", number=9, similarity=0.98765, hash_distance=2),
            image(hostile, CLOSER, number=10, similarity=0.93, hash_distance=6),
            image(last, None, number=11, indexed=False),
        ),
    )
    pair = DuplicateGroup(
        image(last, "lime", number=12), (image(second, None, number=13, similarity=0.95, hash_distance=4),)
    )
    return report_of(large, pair)


def embedded_sizes(html: str) -> list[tuple[int, int]]:
    sizes = []
    for data in re.findall(r'src="data:image/webp;base64,([^"]+)"', html):
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            assert picture.format == "WEBP"
            sizes.append(picture.size)
    return sizes


def test_equal_files_share_one_small_picture(report: DuplicateReport, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    out = tmp_path / "duplicates.html"
    assert write_duplicates_page(report, out, limit=9, progress=lambda *done: seen.append(done)) == 2
    assert embedded_sizes(out.read_text(encoding="utf-8")) == [(SIDE, SIDE)] * 6
    assert seen == [(1, 2), (2, 2)]
    assert [path.name for path in tmp_path.iterdir()] == ["duplicates.html"]


def test_a_picture_that_is_damaged_gone_or_another_one_by_now_is_a_placeholder(tmp_path: Path) -> None:
    (tmp_path / "damaged.jpg").write_bytes(b"\xff\xd8\xff no more")
    Image.new("RGB", (8, 8)).save(tmp_path / "other.png")
    group = DuplicateGroup(
        image(tmp_path / "damaged.jpg", None),
        (
            image(tmp_path / "gone.jpg", None, number=2),
            image(tmp_path / "other.png", None, number=3, sha256="0" * 64),
        ),
    )
    write_duplicates_page(report_of(group), tmp_path / "page.html", limit=1)
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'class="problem">([^<]+)<', html)[1:] == [
        "reading failed or the file vanished",
        "the file has changed since it was indexed",
    ]
    assert "<img" not in html


def test_the_limit_takes_groups_with_different_labels_first_and_they_keep_their_numbers(tmp_path: Path) -> None:
    def group(name: str, *labels: str | None) -> DuplicateGroup:
        first, *others = (image(tmp_path / f"{name}{i}.jpg", label) for i, label in enumerate(labels))
        return DuplicateGroup(first, tuple(others))

    groups = [group("a", "x", "x", "x"), group("b", "x", None, None), group("c", "x", "y"), group("d", "x", "x")]
    out = tmp_path / "page.html"
    assert write_duplicates_page(report_of(*groups), out, limit=2) == 2
    html = out.read_text(encoding="utf-8")
    assert re.findall(r'class="panel group([^"]*)" id="group-(\d)"', html) == [("", "1"), (" differ", "3")]
    assert "<b>2 of 4 groups</b> are on this page" in html
    write_duplicates_page(report_of(*groups), out, limit=4)
    assert "are on this page" not in out.read_text(encoding="utf-8")


def test_nothing_of_a_name_or_label_is_markup_and_the_policy_lets_nothing_in(
    report: DuplicateReport, tmp_path: Path
) -> None:
    write_duplicates_page(report, tmp_path / "page.html", limit=9)
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in html
    assert html.count("</style>") == 1
    assert html.count("<img") == html.count('<img src="data:image/webp;base64,')
    assert "default-src 'none'; style-src 'sha256-" in unescape(html)
    assert "unsafe" not in html
    assert r"caf\xe9, &#34;&lt;img src=x onerror=alert(1)&gt;\n.jpg" in html


def test_a_page_that_cannot_be_written_is_said_to_be_so(report: DuplicateReport, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing/page\.html: the page cannot be written"):
        write_duplicates_page(report, tmp_path / "missing" / "page.html", limit=1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser, report: DuplicateReport, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Write the page and open it; it may ask for nothing but its own data, and complain of nothing."""
    write_duplicates_page(report, tmp_path / "page.html", limit=9)
    complaints: list[str] = []

    def open_page(**context: Any) -> Page:
        page = browser.new_context(**context).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda asked: asked.url.startswith(("data:", "file:")) or complaints.append(asked.url))
        page.goto((tmp_path / "page.html").as_uri())
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert complaints == []


@pytest.mark.browser
def test_the_page_shows_the_groups_and_what_differs(open_page: Callable[..., Page]) -> None:
    page = open_page()
    expect(page.locator("h1")).to_have_text("Duplicates · photos <b>")
    expect(page.locator(".facts")).to_have_text("90 images 2 groups 5 duplicates 1 group with different labels")
    first = page.locator(".group").first
    expect(first.locator("h2")).to_have_text(f"Group 1 5 images Labels differ: polo 2 · {TAG} 1 · {CLOSER} 1")
    contents = first.locator(".contents > li")
    expect(contents).to_have_count(4)
    expect(contents.nth(0).locator(".measures")).to_have_text("Kept image 2 equal files")
    expect(contents.nth(1).locator(".measures")).to_have_text("0.988 similarity 2 of 64 hash bits differ")
    expect(contents.nth(3).locator(".measures")).to_have_text("unknown similarity")
    expect(contents.nth(3).locator(".files")).to_contain_text("set aside")
    assert first.locator(".files .warn").all_text_contents() == [TAG, CLOSER]
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
