"""The page's modules: they make no markup of data, and ask the server once, about what was seen."""

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
    assert 'title="Start over">&lt;img src=x onerror=&#34;alert(1)&#34;&gt;\\u202e</a>' in frame


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    with open_chromium() as browser:
        tab = browser.new_page()
        tab.route("**/*", answer)
        yield tab


@pytest.fixture
def page(tab: Any) -> Any:
    """A page of a real browser, opened anew, on an origin that has nothing but the static files."""
    tab.goto(f"{ORIGIN}/")
    return tab


def answer(route: Any) -> None:
    name = urlparse(route.request.url).path
    file = STATIC / name.removeprefix("/page/")
    if name == "/":
        route.fulfill(body=DOCUMENT, content_type="text/html")
    elif name.startswith("/page/") and file.is_file():
        route.fulfill(body=file.read_text(encoding="utf-8"), content_type=TYPES[file.suffix])
    else:
        route.fulfill(status=404, body='{"error": {"code": "not_found", "message": "no such address"}}')


@pytest.mark.browser
def test_an_address_is_read_and_written_back_as_it_was(page: Any) -> None:
    for address in (
        "?image=12&more=4&less=5",
        "?photo=ab12&crop=pab12:0.1,0.2,0.5,0.25",
        "?less=photo.ab12&image=3",
        "?image=3&text=red+shoe&f=price+%3C+20&f=label+%3D+%27a%27&k=24&min=0.5&collapse=1&details=9",
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
def test_data_becomes_text_and_never_an_element(page: Any) -> None:
    made = page.evaluate(
        """async () => {
          const {make, shownText} = await import('/page/core/dom.js');
          const element = make('p', {title: '"><b>'}, '<img src=x onerror=alert(1)>', null, [make('b', {}, 'x')]);
          return [element.childElementCount, element.textContent, element.title, shownText('a\\u202eb\\u0000c é 鞋')];
        }"""
    )
    assert made == [1, "<img src=x onerror=alert(1)>x", '"><b>', "a\\u202eb\\u0000c é 鞋"]


# Answers from `turns` in turn, [status, body, headers], and reading with `listed` where there is one; `asked` has
# [method, address, body] of every question.
ANSWER = """
  const asked = [], real = window.fetch;
  window.fetch = async (url, {method = 'GET', body = null} = {}) => {
    asked.push([method, new URL(url).pathname, body && JSON.parse(body)]);
    const [status, answer, headers = {}] = method === 'GET' && listed ? [200, listed] : turns.shift();
    return new Response(JSON.stringify(answer), {status, headers});
  };
  const seconds = async wanted => { while (!wanted()) await new Promise(go => setTimeout(go, 10)); };
"""


def run(page: Any, turns: list[Any], code: str, *, listed: Any = None) -> Any:
    whole = f"async ([turns, listed]) => {{ {ANSWER} try {{ {code} }} finally {{ window.fetch = real; }} }}"
    return page.evaluate(whole, [turns, listed])


def refuse(status: int, code: str, **headers: str) -> list[Any]:
    body = {"error": {"code": code, "message": f"it is {code}", "field": None}, "request_id": "1"}
    return [status, body, {name.replace("_", "-"): text for name, text in headers.items()}]


@pytest.mark.browser
@pytest.mark.parametrize("ask", ["get('x')", "post('x', {a: 1})"])
@pytest.mark.parametrize(
    ("refusal", "repeats"),
    [
        (refuse(503, "busy", Retry_After="0.01"), {"get", "post"}),
        (refuse(503, "not_ready", Retry_After="0.01"), {"get"}),
        (refuse(503, "timeout"), set()),
        (refuse(409, "conflict"), set()),
    ],
    ids=["busy", "not ready", "timeout", "conflict"],
)
def test_only_safe_requests_are_repeated(page: Any, ask: str, refusal: list[Any], repeats: set[str]) -> None:
    code = f"""
      const {{get, post}} = await import('/page/core/api.js');
      const error = await {ask}.then(() => null, error => error.code);
      return [asked.length, error];
    """
    repeated = ask.partition("(")[0] in repeats
    expected = [2, None] if repeated else [1, refusal[1]["error"]["code"]]
    assert run(page, [refusal, [200, {}]], code) == expected


@pytest.mark.browser
def test_a_label_is_decided_as_it_was_seen_and_undone_by_its_step(page: Any) -> None:
    decided = [200, {"changed": 1, "step": 7, "can_undo": True}]
    code = """
      const {drawLabelForm} = await import('/page/details/fix_label.js');
      const facts = {permissions: {review: true}, labels: {names: []}};
      let times = 0;
      const image = {id: 5, label: 'polo', decision: null, label_issue: null};
      const form = drawLabelForm(image, {facts, decided: () => { times += 1; }});
      document.body.replaceChildren(form);
      const press = text => [...document.querySelectorAll('button')].find(b => b.textContent.includes(text)).click();
      press('Drop');
      await seconds(() => times === 1);
      press('Undo');
      await seconds(() => times === 2);
      return asked;
    """
    choice = {"image_id": 5, "decision": "drop", "label": None, "label_seen": "polo"}
    assert run(page, [decided, [200, {"undone": [5], "can_undo": False}]], code) == [
        ["POST", "/v1/labels/decisions", {"decisions": [choice]}],
        ["POST", "/v1/labels/undo", {"step": 7}],
    ]
