from __future__ import annotations

import asyncio
from html.parser import HTMLParser
from typing import Any

import pytest

from index.hits import GalleryImage, Hit
from retrieval_app import markup
from retrieval_app.service import Query, SearchResult, SearchService

pytest.importorskip("gradio", reason="needs the extra `ui`")
from retrieval_app.ui import HISTORY_KEPT, build_page, search_shower

HOSTILE = (
    "<img src=x onerror=alert(1)>.jpg",
    '"><script>alert(1)</script>',
    "' onclick='alert(1)",
    "a\n\x1b[31m\udcff",
)


class _Reader(HTMLParser):
    """What a browser would make of a fragment: tags, attribute names, text."""

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(fragment)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.parametrize("name", HOSTILE)
def test_names_and_labels_are_text_wherever_they_are_drawn(name: str) -> None:
    query = Query(ref="member:1", title=name, image_id=1, label=name)
    hits = (Hit(rank=1, id=2, score=0.5, path=name, label=name, source=name),)
    fragments = [
        markup.draw_header(name, count=1, model=name, width=8),
        markup.draw_samples([GalleryImage(1, name, name, name)]),
        markup.draw_query(query, can_go_back=True),
        markup.draw_results(SearchResult(query, hits, 1.0)),
        markup.draw_error(name),
    ]
    for fragment in fragments:
        read = _Reader(fragment)
        assert "script" not in read.tags
        assert not {attribute for attribute in read.attributes if attribute.startswith("on")}
        assert fragment.encode()
    assert name.partition("\n")[0] in _Reader(fragments[-1]).words


def test_no_hits_are_said_to_be_none() -> None:
    assert "Nothing found" in markup.draw_results(SearchResult(Query(ref="member:1", title="a"), (), 1.0))


def test_a_hit_with_the_label_of_the_query_is_marked() -> None:
    query = Query(ref="member:1", title="a", image_id=1, label="hat")
    hits = tuple(
        Hit(rank=i, id=i, score=0.5, path="p", label=label, source="/s")
        for i, label in enumerate(("hat", "shoe", None))
    )
    assert markup.draw_results(SearchResult(query, hits, 1.0)).count('class="chip same"') == 1


def test_a_search_adds_to_the_history_and_back_returns(service: SearchService, ids: dict[str, int]) -> None:
    show = search_shower(service)
    first, second = f"member:{ids['red/0.jpg']}", f"member:{ids['blue/0.jpg']}"
    _, card, history = show([first], [], 6)
    assert "data-back" not in str(card)
    results, card, history = show([*history, second], history, 6)
    assert history == [first, second]
    assert results.count('class="card"') == 6
    assert "data-back" in str(card)
    assert "red/0.jpg" in str(show(history[:-1], history, 6)[1])


def test_a_failed_search_says_why_and_leaves_the_history_as_it_was(service: SearchService) -> None:
    results, _, history = search_shower(service)(["member:1", "upload:0000"], ["member:1"], 6)
    assert 'role="alert"' in results
    assert "upload it again" in results
    assert history == ["member:1"]


def test_the_history_is_bounded(service: SearchService, ids: dict[str, int]) -> None:
    wanted = [f"member:{ids['red/0.jpg']}"] * (HISTORY_KEPT + 9)
    assert len(search_shower(service)(wanted, [], 6)[2]) == HISTORY_KEPT


def test_without_a_query_the_page_welcomes(service: SearchService) -> None:
    assert search_shower(service)([], [], 6) == (markup.draw_welcome(), "", [])


def test_the_page_offers_no_named_endpoint_and_reports_nothing(service: SearchService) -> None:
    async def build() -> Any:  # Gradio leaves an event loop open where none is running
        return build_page(service)

    page = asyncio.run(build())
    assert page.get_api_info()["named_endpoints"] == {}
    assert page.analytics_enabled is False
