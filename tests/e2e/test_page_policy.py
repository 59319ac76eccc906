"""The page's Content-Security-Policy: it names the scripts of the page, and in a real browser nothing else runs."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page_browser import OpenVisit, Visit, skip_without_browser
from tests.serving_server import Server, serve

skip_without_browser()
from playwright.sync_api import expect  # noqa: E402

NAME = "<script>alert(1)<!--\" ' & {{7*7}}"
VANISHED = r"404 .*/thumbnail"  # one image of the gallery has no file any more
SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL)
INJECTED = """() => {
  const script = document.createElement('script');
  script.textContent = 'window.injected = true';
  document.head.append(script);
  const box = document.createElement('div');
  box.innerHTML = '<img src="data:," onerror="injected = true"><a href="javascript:injected = true">x</a>';
  document.body.append(box);
  box.querySelector('a').click();
}"""


@pytest.fixture(scope="module")
def odd(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a gallery with a hostile name."""
    folder = tmp_path_factory.mktemp("policy")
    shutil.copytree(gallery, folder / NAME)
    with serve(folder / NAME, log=folder / "log") as server:
        yield server


def _read_policy(server: Server, path: str = "/") -> dict[str, str]:
    policy = server.get(path).headers["content-security-policy"]
    return dict(part.strip().split(" ", 1) for part in policy.split(";"))


def test_no_script_stands_in_the_page_and_its_policy_lets_none_run(odd: Server) -> None:
    page = odd.get("/").body.decode()
    assert all(" src=" in attributes and not text for attributes, text in SCRIPT.findall(page))
    policy = _read_policy(odd)
    assert policy["default-src"] == "'self'"
    assert not {"script-src", "style-src"} & policy.keys()
    assert "unsafe" not in str(policy)
    assert "<script>alert" not in page


def test_the_policy_of_gradios_page_names_every_script_that_stands_in_it_and_no_other(odd: Server) -> None:
    page = odd.get("/gradio/").body.decode()
    inline = [text for attributes, text in SCRIPT.findall(page) if "src=" not in attributes]
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in inline}
    assert len(inline) >= 4
    scripts = _read_policy(odd, "/gradio/")["script-src"].split()
    assert set(scripts) == hashes | {"'self'", "'unsafe-eval'"}
    assert "<script>alert" not in page


@pytest.mark.browser
def test_the_page_runs_without_a_violation_of_its_policy(odd: Server, open_visit: OpenVisit) -> None:
    visit: Visit = open_visit(server=odd)
    visit.forgive(VANISHED)
    page = visit.open()
    page.locator("h1").wait_for()
    assert page.locator("h1").inner_text() == NAME
    page.wait_for_load_state("networkidle")
    assert [text for text in visit.complaints if "Content Security Policy" in text] == []


@pytest.mark.browser
def test_a_script_that_is_put_into_the_page_does_not_run(odd: Server, open_visit: OpenVisit) -> None:
    visit = open_visit(server=odd)
    visit.forgive(VANISHED)
    page = visit.open()
    page.evaluate(INJECTED)
    page.wait_for_timeout(300)
    assert page.evaluate("window.injected") is None
    assert sum("Content Security Policy" in text for text in visit.complaints) >= 3
    visit.forgive("Content Security Policy")


@pytest.mark.browser
def test_a_reader_tries_an_operation_and_sees_its_answer(odd: Server, open_visit: OpenVisit) -> None:
    visit = open_visit(server=odd)
    page = visit.page
    page.goto(f"{odd.url}/docs")
    assert page.url == f"{odd.url}/docs/"
    operation = page.locator("[id$=-get_health]").first
    operation.click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table tbody td.response-col_status").first).to_contain_text("200")
    visit.leave()


@pytest.mark.browser
def test_an_address_cannot_choose_another_document(odd: Server, open_visit: OpenVisit) -> None:
    visit = open_visit(server=odd)
    visit.page.goto(f"{odd.url}/docs/?url=https://evil.example/openapi.json&configUrl=https://evil.example/c")
    expect(visit.page.get_by_role("heading", name="Image retrieval")).to_be_visible()
    visit.leave()
