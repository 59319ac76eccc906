"""The search page in a real browser."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.retrieval_app.conftest import HOSTILE_NAMES, VANISHED, build_small_gallery

pytestmark = pytest.mark.browser
if "CI" not in os.environ:
    pytest.importorskip("playwright", reason="playwright is not installed")
    pytest.importorskip("gradio", reason="needs the extra `ui`")
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright  # noqa: E402

SERVE = """
import sys
from retrieval_app.serve_command import serve
serve.main([sys.argv[1], "--port", "0", "--json"], standalone_mode=False)
"""
COPY_TO_CLIPBOARD_EVENT = """([name, content]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(atob(content), c => c.charCodeAt(0))], name));
  document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data}));
}"""


@dataclass
class Visit:
    """An open page, with what it asked for and what it complained about."""

    page: Page
    images: Path
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def upload(self, path: Path) -> None:
        self.page.set_input_files(".drop input", path)

    def expect_first(self, path: str) -> None:
        expect(self.page.locator(".card .path").first).to_have_attribute("title", path)

    def paths(self) -> list[str | None]:
        """The paths of the results, best first."""
        return [path.get_attribute("title") for path in self.page.locator(".card .path").all()]


@pytest.fixture(scope="module")
def gallery_folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return build_small_gallery(tmp_path_factory.mktemp("page"), model=tiny_model)


@pytest.fixture(scope="module")
def url(gallery_folder: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(gallery_folder)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None and "CI" not in os.environ:
        pytest.skip("no Chromium on this machine")
    assert chromium is not None, "CI must have a Chromium on its PATH"
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[*arguments, "--disable-sync"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, url: str, gallery_folder: Path) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    visit = Visit(context.new_page(), gallery_folder.parent / "images")

    def note_request(request: Request) -> None:
        visit.requests.append(request.url)

    visit.page.on("request", note_request)
    visit.page.on(
        "console", lambda message: visit.complaints.append(message.text) if message.type == "error" else None
    )
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("dialog", lambda dialog: (visit.complaints.append(dialog.message), dialog.dismiss()))
    visit.page.goto(url)
    visit.page.wait_for_selector(".strip button")
    yield visit
    context.close()


def test_the_page_greets_and_asks_nobody_but_its_own_server(visit: Visit, url: str) -> None:
    expect(visit.page.get_by_role("heading", name="Find images like yours")).to_be_visible()
    expect(visit.page.locator("header")).to_contain_text("19 images")
    visit.page.wait_for_load_state("load")
    assert len(visit.requests) > 10
    assert [asked for asked in visit.requests if not asked.startswith((url, "data:", "blob:"))] == []
    lost = [text for text in visit.complaints if "404" not in text]  # the vanished file may be among the samples
    assert lost == []


def test_an_uploaded_photo_is_found_first_and_a_result_leads_on(visit: Visit) -> None:
    page = visit.page
    visit.upload(visit.images / "green" / "0.jpg")
    first = page.locator(".card").first
    expect(first).to_contain_text("1.000")
    visit.expect_first("green/0.jpg")
    expect(page.locator(".query")).to_contain_text("Your photo")
    expect(page.locator(".back")).to_have_count(0)

    second = visit.paths()[1]
    page.locator(".card").nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".query .path")).to_have_attribute("title", str(second))
    expect(page.locator(".query")).to_contain_text("From the gallery")
    expect(page.locator(".card")).to_have_count(18)
    assert second not in visit.paths()

    page.locator(".back").click()
    expect(page.locator(".query .path")).to_have_attribute("title", "0.jpg")
    visit.expect_first("green/0.jpg")


def test_fewer_results_are_shown_where_fewer_are_wanted(visit: Visit) -> None:
    visit.page.locator(".strip button").first.click()
    expect(visit.page.locator(".card")).to_have_count(18)
    visit.page.locator("#count input[type=number]").fill("7")
    visit.page.keyboard.press("Tab")
    expect(visit.page.locator(".card")).to_have_count(7)


def test_an_upload_that_is_no_image_is_an_error_in_words(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("dear diary")
    visit.upload(tmp_path / "notes.jpg")
    expect(visit.page.get_by_role("alert")).to_contain_text("notes.jpg: the content is none of JPEG")
    visit.upload(visit.images / "red" / "0.jpg")
    expect(visit.page.locator(".card").first).to_contain_text("1.000")


def test_an_upload_that_is_too_large_is_refused_before_it_is_sent(visit: Visit, tmp_path: Path) -> None:
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(21 * 1024 * 1024)
    visit.upload(tmp_path / "huge.png")
    expect(visit.page.get_by_role("alert")).to_contain_text("huge.png: 21.0 MB, at most 20 MB")
    assert not [asked for asked in visit.requests if "/query" in asked]


def test_a_photo_can_be_pasted(visit: Visit) -> None:
    photo = base64.b64encode((visit.images / "blue" / "0.jpg").read_bytes()).decode()
    visit.page.evaluate(COPY_TO_CLIPBOARD_EVENT, ["pasted.jpg", photo])
    expect(visit.page.locator(".query .path")).to_have_attribute("title", "pasted.jpg")
    visit.expect_first("blue/0.jpg")


def test_hostile_file_names_are_text_and_a_vanished_file_is_said_to_be_gone(visit: Visit) -> None:
    for name in HOSTILE_NAMES:
        visit.upload(visit.images / "red" / name)
        expect(visit.page.locator(".query .path")).to_have_text(name)
        expect(visit.page.locator(".card .path").first).to_have_text(f"red/{name}")
    expect(visit.page.locator(".card").filter(has_text=VANISHED).locator(".gone")).to_be_visible()
    visit.page.locator(".card").first.click()
    expect(visit.page.locator(".query .path")).to_have_text(f"red/{HOSTILE_NAMES[-1]}")
    assert [text for text in visit.complaints if "404" not in text] == []
