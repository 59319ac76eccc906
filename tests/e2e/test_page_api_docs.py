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
