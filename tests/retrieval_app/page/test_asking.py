"""What the page's modules ask of the server when people decide: once, about what was seen, and undone by its step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.retrieval_app.page.test_static import page as page  # the fixture

pytestmark = pytest.mark.browser

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
    """What `code` returns where the server answers so."""
    whole = f"async ([turns, listed]) => {{ {ANSWER} try {{ {code} }} finally {{ window.fetch = real; }} }}"
    return page.evaluate(whole, [turns, listed])


def refuse(status: int, code: str, **headers: str) -> list[Any]:
    """An error of the server."""
    body = {"error": {"code": code, "message": f"it is {code}", "field": None}, "request_id": "1"}
    return [status, body, {name.replace("_", "-"): text for name, text in headers.items()}]


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


def test_a_label_is_decided_as_it_was_seen_and_undone_by_its_step(page: Any) -> None:
    decided = [200, {"decided": 1, "step": 7, "can_undo": True}]
    code = """
      const {drawLabelForm} = await import('/page/details/fix_label.js');
      const facts = {can: {review: true}, labels: {names: []}};
      let times = 0;
      const image = {id: 5, label: 'polo', decision: null, doubt: null};
      const form = drawLabelForm(image, {facts, decided: () => { times += 1; }});
      document.body.replaceChildren(form);
      const press = text => [...document.querySelectorAll('button')].find(b => b.textContent.includes(text)).click();
      press('Drop from');
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


def test_a_list_undoes_its_own_steps_and_asks_anew_where_others_decided(page: Any) -> None:
    listed = {"total": 1, "open": 1, "decided": 0, "can_undo": True, "items": [{"id": 5, "decision": None}]}
    turns = [
        [200, {"decided": 1, "step": 7, "can_undo": True}],
        refuse(409, "conflict"),
        [200, {"undone": [5], "can_undo": True}],
        [200, {"undone": [4], "can_undo": False}],
    ]
    code = """
      const {ReviewList} = await import('/page/review/review_list.js');
      const [place, more] = ['ul', 'p'].map(name => document.createElement(name));
      document.body.replaceChildren(place, more);
      const drawItem = () => ({node: document.createElement('li'), redraw() {}});
      const list = new ReviewList({
        path: 'labels/doubts', area: 'labels', size: 9, place, more, drawItem,
        readFilter: () => ({state: 'all'}), keyOf: item => item.id, idsOf: item => [item.id], words: () => '',
        drawNothing: () => null, onChange() {},
        pack: changes => changes.length,
      });
      const counts = () => asked.filter(([, path]) => path === '/v1/labels/undo').length;
      list.take(structuredClone(listed), true);
      list.decide([[list.items[0], {decision: 'keep', label: null}]]);
      for (let turn = 1; turn < 4; turn += 1) {
        await list.undo();
        await seconds(() => counts() === turn && !place.classList.contains('stale'));
      }
      return asked.filter(([method]) => method === 'POST').map(([, path, body]) => [path, body]);
    """
    assert run(page, turns, code, listed=listed) == [
        ["/v1/labels/decisions", 1],
        ["/v1/labels/undo", {"step": 7}],
        ["/v1/labels/undo", {"step": 7}],
        ["/v1/labels/undo", {}],  # nothing is left that was decided here
    ]
