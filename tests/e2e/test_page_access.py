"""Coming to a server in a real browser: tokens, sessions, several galleries, other sites, and what may run there."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from retrieval_app.api.security.tokens import add_token
from tests.answering_server import answer_paths
from tests.page_browser import DESKTOP, PHONE, OpenVisit
from tests.serving_server import TOKEN, Server, serve

pytestmark = pytest.mark.browser
NAME = "<script>alert(1)<!--\" ' & {{7*7}}"
VANISHED = r"404 .*/thumbnail"  # one image of the gallery has no file any more
INJECTED = """() => {
  const script = document.createElement('script');
  script.textContent = 'window.injected = true';
  document.head.append(script);
  const box = document.createElement('div');
  box.innerHTML = '<img src="data:," onerror="injected = true"><a href="javascript:injected = true">x</a>';
  document.body.append(box);
  box.querySelector('a').click();
}"""
FOREIGN = """
<img id="thumbnail" src="http://127.0.0.1:{port}/v1/images/1/thumbnail">
<iframe id="frame" src="http://127.0.0.1:{port}/"></iframe><a href="http://127.0.0.1:{port}/?view=map">open</a>
"""


@pytest.fixture(scope="module")
def odd(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without a token of a gallery with a hostile name."""
    folder = tmp_path_factory.mktemp("policy")
    shutil.copytree(gallery, folder / NAME)
    with serve(folder / NAME, log=folder / "log") as server:
        yield server


@pytest.fixture(scope="module")
def asking(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks for the token."""
    with serve(gallery, log=tmp_path_factory.mktemp("asking") / "log", token=TOKEN) as server:
        yield server
        assert TOKEN not in server.log.read_text()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own context in which no script of a page runs."""
    context = browser.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()


def sign_in(page: Page, address: str, token: str) -> None:
    """Type the token into the field."""
    page.goto(address)
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.get_by_label("Token").wait_for(state="detached")


def test_the_page_keeps_its_policy_and_a_script_put_into_it_does_not_run(odd: Server, open_visit: OpenVisit) -> None:
    visit = open_visit(server=odd)
    visit.forgive(VANISHED)
    page = visit.open()
    expect(page.locator("h1")).to_have_text(NAME)
    page.wait_for_load_state("networkidle")
    assert [text for text in visit.complaints if "Content Security Policy" in text] == []
    page.evaluate(INJECTED)
    visit.wait_until(lambda: sum("Content Security Policy" in text for text in visit.complaints) >= 3)
    assert page.evaluate("window.injected") is None
    visit.forgive("Content Security Policy")


def test_the_documentation_tries_an_operation_and_shows_no_other_document(odd: Server, open_visit: OpenVisit) -> None:
    visit = open_visit(server=odd)
    page = visit.page
    page.goto(f"{odd.url}/docs/?url=https://evil.example/openapi.json&configUrl=https://evil.example/c")
    expect(page.get_by_role("heading", name="Image retrieval")).to_be_visible()
    page.locator("[id$=-get_health]").first.click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table tbody td.response-col_status").first).to_contain_text("200")
    visit.leave()


def test_the_field_works_without_scripts_and_leads_to_where_one_was_going(page: Page, asking: Server) -> None:
    page.goto(f"{asking.url}/?view=map&words=red")
    field = page.get_by_label("Token")
    field.fill("not-the-token-at-all")
    page.get_by_role("button", name="Open the gallery").click()
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_value("")
    field.fill(TOKEN)
    page.keyboard.press("Enter")
    field.wait_for(state="detached")
    assert page.url == f"{asking.url}/?view=map&words=red"
    [cookie] = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (f"retrieval_{asking.port}", True, "Lax")
    assert cookie["expires"] == -1  # of this session of the browser


@pytest.mark.parametrize(("query", "dark"), [("", False), ("?code=used", True)], ids=["asked", "refused"])
def test_everybody_can_use_the_field(browser: Browser, asking: Server, query: str, dark: bool) -> None:
    context = browser.new_context(
        color_scheme="dark" if dark else "light", viewport=PHONE if dark else DESKTOP, bypass_csp=True
    )
    page = context.new_page()
    page.goto(f"{asking.url}/{query}")
    assert page.evaluate("document.activeElement.id") == "token"
    assert Axe().run(page).response["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_a_page_of_another_site_gets_no_picture_and_no_frame_but_may_link(browser: Browser, asking: Server) -> None:
    context = browser.new_context()
    page = context.new_page()
    sign_in(page, f"{asking.url}/", TOKEN)
    page.locator("nav a[aria-current=page]").wait_for()
    assert page.evaluate("fetch('v1/images/1/thumbnail').then(answer => answer.status)") == 200
    html = FOREIGN.format(port=asking.port).encode()
    with answer_paths(lambda _: (200, {"Content-Type": "text/html"}, html)) as port:  # another origin of the same site
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_function("document.getElementById('thumbnail').complete")
        assert page.evaluate("document.getElementById('thumbnail').naturalWidth") == 0
        assert page.frames[1].url.startswith("chrome-error://")
        page.get_by_text("open").click()
        page.locator("nav a[aria-current=page]").wait_for()  # a link opens the page, with its cookie
    assert page.url == f"{asking.url}/?view=map"
    context.close()


def test_from_the_list_of_galleries_to_ones_own_and_out(browser: Browser, gallery: Path, tmp_path: Path) -> None:
    tokens = {
        who: add_token(tmp_path / "team", who, may=may)[1]
        for who, may in (("anna", ["read", "review:shop"]), ("ben", ["read:shop"]))
    }
    for name in ("shop", "fashion"):
        shutil.copytree(gallery, tmp_path / "galleries" / name)
    with serve(tmp_path / "galleries", "--tokens", str(tmp_path / "team"), log=tmp_path / "log") as server:
        context = browser.new_context(color_scheme="dark", viewport=PHONE, bypass_csp=True, reduced_motion="reduce")
        page, other = context.new_page(), context.new_page()
        sign_in(page, server.url, tokens["anna"])
        links = page.get_by_role("main").get_by_role("link")
        expect(links).to_have_text(["fashion", "shop"])
        expect(page.get_by_text("19 images · you may search, review")).to_have_count(1)
        found = Axe().run(page).response["violations"]
        assert not [one for one in found if one["impact"] in ("serious", "critical")]
        links.first.click()
        page.locator("ol[aria-label=Results] > li[data-id]").first.wait_for()
        assert page.url == f"{server.url}/g/fashion/"
        page.locator(".facts:has-text('images')").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert Axe().run(page, "header, .top").response["violations"] == []
        page.get_by_role("link", name="Galleries").click()
        links.first.wait_for()
        other.goto(f"{server.url}/g/shop/?view=labels")
        leave = page.get_by_role("button", name="Sign out")
        expect(leave).to_have_attribute("title", "Signed in as anna")
        leave.click()
        page.get_by_label("Token").wait_for()
        other.reload()
        other.get_by_label("Token").wait_for()  # the session has ended, and not this page alone
        assert context.cookies() == []

        sign_in(page, f"{server.url}/g/shop/", tokens["ben"])
        page.goto(f"{server.url}/g/fashion/")
        expect(page.get_by_role("alert")).to_contain_text("There is no such gallery here")
        page.get_by_role("link", name="The galleries that your token opens").click()
        expect(links).to_have_text(["shop"])
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        context.close()
        assert "Traceback" not in server.log.read_text()
