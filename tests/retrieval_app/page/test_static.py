"""The page's modules and styles as files: they load, find each other, and make no markup of data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

import retrieval_app.page
from tests.chromium import open_chromium

STATIC = Path(retrieval_app.page.__file__).parent / "static"
MODULES = sorted(STATIC.rglob("*.js"))
STYLES = sorted(STATIC.rglob("*.css"))
ORIGIN = "http://page.test"
SVG_NAMESPACE = "http://www.w3.org/2000/svg"  # a name, which nothing ever asks for
MARKUP_FROM_TEXT = r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function|DOMParser|srcdoc)\b"
DOCUMENT = '<!doctype html><title>test</title><nav><a data-view="labels"></a></nav>'
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


def code_of(path: Path) -> str:
    """The text of a module without its comments."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"(?m)(^|\s)//.*$", "", text)


def test_no_module_makes_markup_or_code_of_text() -> None:
    assert [path.name for path in MODULES if re.search(MARKUP_FROM_TEXT, code_of(path))] == []


def test_no_file_names_an_address_elsewhere() -> None:
    for path in (*MODULES, *STYLES):
        text = path.read_text(encoding="utf-8").replace(SVG_NAMESPACE, "")
        assert re.findall(r"\b(?:https?|wss?)://|['\"(]//", text) == [], path.name


def test_the_frame_shows_a_name_as_text() -> None:
    pytest.importorskip("fastapi", reason="needs the extra `ui`")
    from retrieval_app.page.shell import draw_page

    frame = draw_page('<img src=x onerror="alert(1)">\u202e')
    assert 'title="Start anew">&lt;img src=x onerror=&#34;alert(1)&#34;&gt;\\u202e</a>' in frame


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page of a real browser, on an origin that has nothing but the static files."""
    with open_chromium() as browser:
        page = browser.new_page()
        page.route("**/*", answer)
        page.goto(f"{ORIGIN}/")
        yield page


def answer(route: Any) -> None:
    """The static files under /page; an empty document for /; nothing else."""
    name = urlparse(route.request.url).path
    file = STATIC / name.removeprefix("/page/")
    if name == "/":
        route.fulfill(body=DOCUMENT, content_type="text/html")
    elif name.startswith("/page/") and file.is_file():
        route.fulfill(body=file.read_text(encoding="utf-8"), content_type=TYPES[file.suffix])
    else:
        route.fulfill(status=404, body='{"error": {"code": "not_found", "message": "no such address"}}')


@pytest.mark.browser
def test_a_browser_takes_every_module(page: Any) -> None:
    for path in (path for path in MODULES if path.parent.name != "reports"):
        name = str(path.relative_to(STATIC))
        assert page.evaluate("async name => Object.keys(await import(`/page/${name}`))", name), name


@pytest.mark.browser
def test_an_address_is_read_and_written_back_as_it_was(page: Any) -> None:
    for address in (
        "?image=12&more=4&less=5",
        "?photo=ab12&crop=pab12:0.1,0.2,0.5,0.25",
        "?less=photo.ab12&image=3",
        "?image=3&text=red+shoe&f=price+%3C+20&f=label+%3D+%27a%27&k=24&min=0.5&group=1&details=9",
        "?ids=1,2,3",
        "?view=labels&label=hat",
    ):
        written = page.evaluate(
            """async address => {
              const {linkTo} = await import('/page/core/url_state.js');
              history.replaceState(null, '', address);
              return linkTo({});
            }""",
            address,
        )
        assert written.split("&") == address.split("&")


@pytest.mark.browser
def test_an_address_of_nonsense_is_an_empty_search(page: Any) -> None:
    state = page.evaluate(
        """async () => (await import('/page/core/url_state.js')).readState(
          '?view=x&image=abc&image=-1&photo=%3Cb%3E&crop=i1:2,2,2,2&k=1e9&min=NaN&details=x&ids=a,b&more=')"""
    )
    assert state["view"] == "search"
    assert state["parts"] == []
    assert (state["ids"], state["min"], state["details"], state["k"]) == ([], None, None, 48)


@pytest.mark.browser
def test_conditions_and_plain_words_are_told_apart(page: Any) -> None:
    conditions = [
        "price < 20",
        "price <",
        "label='hat'",
        "tags IS NOT NULL",
        "label in ('a', 'b')",
        "path LIKE 'a%'",
    ]
    words = ["red dress", "dress in red", "shoes like new"]
    ask = "async texts => texts.map((await import('/page/search/filters.js')).isCondition)"
    assert page.evaluate(ask, conditions + words) == [True] * len(conditions) + [False] * len(words)


@pytest.mark.browser
def test_data_becomes_text_and_never_an_element(page: Any) -> None:
    made = page.evaluate(
        """async () => {
          const {make, shownText} = await import('/page/core/dom.js');
          const element = make('p', {title: '"><b>'}, '<img src=x onerror=alert(1)>', null, [make('b', {}, 'x')]);
          return [element.childElementCount, element.textContent, element.title, shownText('a\\u202eb\\u0000c é 鞋')];
        }"""
    )
    assert made == [1, "<img src=x onerror=alert(1)>x", '"><b>', "a\\u202eb\\u0000c é 鞋"]
