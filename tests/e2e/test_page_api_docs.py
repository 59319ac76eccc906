"""The API's interactive documentation in a real browser: nothing from elsewhere, and what it tries is answered."""

from __future__ import annotations

import pytest

from tests.page_browser import OpenVisit, skip_without_browser
from tests.serving_server import Server

skip_without_browser()
from playwright.sync_api import expect  # noqa: E402

pytestmark = pytest.mark.browser


def test_a_reader_tries_an_operation_and_sees_its_answer(page_server: Server, open_visit: OpenVisit) -> None:
    visit = open_visit()
    page = visit.page
    page.goto(f"{page_server.url}/docs")
    assert page.url == f"{page_server.url}/docs/"
    operation = page.locator("[id$=-get_health]").first
    operation.click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table tbody td.response-col_status").first).to_contain_text("200")
    visit.leave()


def test_an_address_cannot_choose_another_document(page_server: Server, open_visit: OpenVisit) -> None:
    visit = open_visit()
    visit.page.goto(
        f"{page_server.url}/docs/?url=https://evil.example/openapi.json&configUrl=https://evil.example/c"
    )
    expect(visit.page.get_by_role("heading", name="Image retrieval")).to_be_visible()
    visit.leave()


def test_it_has_the_policy_of_the_page_and_nothing_else_is_there(page_server: Server) -> None:
    docs, page = (page_server.get(path).headers["content-security-policy"] for path in ("/docs/", "/"))
    assert docs == page
    assert "unsafe" not in docs
    assert page_server.get("/docs/nothing.js").status == 404
    assert page_server.ask("POST", "/docs/").status == 405


def test_a_browser_keeps_its_files(page_server: Server) -> None:
    script = page_server.get("/docs/swagger-ui-bundle.js")
    assert (script.status, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    again = page_server.get("/docs/swagger-ui-bundle.js", **{"If-None-Match": script.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
