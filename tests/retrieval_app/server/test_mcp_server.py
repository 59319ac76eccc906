"""A gallery as tools for agents, asked by the protocol's own client: in memory and over pipes."""

import asyncio
import base64
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from index.gallery.gallery import Gallery
from retrieval_app.gallery_answers import GalleryAnswers
from retrieval_app.review.activity_log import ActivityLog, read_log
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.serving_config import ServingConfig
from tests.retrieval_app.conftest import VANISHED, build_small_gallery

if TYPE_CHECKING:
    from mcp import Client

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra `agents`")
LOOKING = {
    *("describe_gallery", "list_images", "search_like_image", "search_by_words", "search_like_photo"),
    *("search_like_file", "look_at_image", "list_label_issues", "evaluate"),
}
Ask = Callable[["Client"], Awaitable[Any]]


def _ask(answers: GalleryAnswers, ask: Ask, **options: Any) -> Any:
    from mcp import Client  # which takes seconds

    from retrieval_app.server.serve_agents import make_server

    async def run() -> Any:
        async with Client(make_server(answers, **options)) as client:
            return await ask(client)

    return asyncio.run(run())


def _call(answers: GalleryAnswers, tool: str, **arguments: Any) -> Any:
    """What a tool answers; the text of its refusal."""

    async def call(client: "Client") -> Any:
        result = await client.call_tool(tool, arguments)
        if result.is_error:
            return result.content[0].text
        found = result.structured_content
        return found.get("result", found) if found is not None else result.content[0]

    return _ask(answers, call)


def _names(answers: GalleryAnswers, **options: Any) -> dict[str, bool]:
    """Of every tool whether it only looks."""

    async def names(client: "Client") -> dict[str, bool]:
        return {tool.name: tool.annotations.read_only_hint for tool in (await client.list_tools()).tools}

    return _ask(answers, names, **options)


def test_it_only_looks_unless_it_is_writable(answers: GalleryAnswers, small_gallery: Path) -> None:
    assert _names(answers) == dict.fromkeys(LOOKING, True)


def test_a_gallery_is_described_listed_seen_and_judged(answers: GalleryAnswers, ids: dict[str, int]) -> None:
    facts = _call(answers, "describe_gallery")
    assert (facts["images"], facts["similarity"]) == (len(ids), ["semantic"])
    blue = _call(answers, "list_images", where="label = 'blue'", limit=2)
    assert blue["total"] == sum(path.startswith("blue/") for path in ids)
    assert [image["label"] for image in blue["images"]] == ["blue", "blue"]
    assert _call(answers, "list_images", text="blue")["total"] >= blue["total"]
    assert _call(answers, "list_images", limit=-1) == {"total": len(ids), "images": []}
    shown = _call(answers, "look_at_image", image_id=ids["red/0.jpg"])
    assert (shown.type, shown.mime_type) == ("image", "image/webp")
    assert base64.b64decode(shown.data)[8:12] == b"WEBP"
    assert "Error executing tool look_at_image" in _call(answers, "look_at_image", image_id=ids[VANISHED])
    assert _call(answers, "evaluate")["recall_at"][0]["k"] == 1
    assert _call(answers, "list_label_issues", count=1)["checked"] > 0


def test_searches_match_gallery(answers: GalleryAnswers, gallery: Gallery, ids: dict[str, int]) -> None:
    own = ids["red/0.jpg"]
    expected = [hit.id for hit in gallery.search(gallery.vector(own), k=4, exclude_id=own)]
    assert [hit["id"] for hit in _call(answers, "search_like_image", image_id=own, k=4)] == expected
    assert [hit["id"] for hit in _call(answers, "search_by_words", text="red", k=4)] == [
        hit.id for hit in gallery.search("red", k=4)
    ]
    photo = gallery.place(own).file.read_bytes()
    hits = _call(answers, "search_like_photo", photo_base64=base64.b64encode(photo).decode(), k=2)
    assert hits[0]["id"] == own


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search_like_image", {"image_id": 10**9}, "no image 1000000000"),
        ("search_like_photo", {"photo_base64": "***"}, "not the base64 of a file"),
        ("search_like_photo", {"photo_base64": base64.b64encode(b"<html>").decode()}, "the photo"),
        ("list_images", {"where": "source = '/'"}, "source is a folder of the machine"),
    ],
)
def test_errors_are_told(answers: GalleryAnswers, tool: str, arguments: dict[str, Any], message: str) -> None:
    assert message in _call(answers, tool, **arguments)


def test_a_writable_one_decides_and_the_decision_stands(tmp_path: Path, tiny_model: Path) -> None:
    path = build_small_gallery(tmp_path, model=tiny_model)
    engine, review = Engine(path, config=ServingConfig(threads=1)), ReviewStore.of_gallery(path)
    log = ActivityLog(path)
    try:
        answers = GalleryAnswers(engine)

        async def decide(client: "Client") -> list[Any]:
            good = {"image_id": 1, "decision": "change", "label": "green"}
            bad = {"image_id": 1, "decision": "change"}
            return [await client.call_tool("decide_label", one) for one in (good, bad)]

        assert _names(answers, review=review)["decide_label"] is False
        good, bad = _ask(answers, decide, review=review, log=log)
        assert (good.is_error, bad.is_error) == (False, True)
        assert "the new label is empty" in bad.content[0].text
        assert [decision.new_label for decision in review.label_decisions().values()] == ["green"]
        logged = [(line["who"], line["decisions"]) for line in read_log(path)]
        assert logged == [("an agent", [{"image": 1, "decision": "change", "label": "green"}])]
    finally:
        log.close()
        review.close()
        engine.close()


@pytest.mark.slow
def test_the_command_speaks_on_its_pipes_and_ends_with_them(small_gallery: Path, ids: dict[str, int]) -> None:
    from mcp import Client, StdioServerParameters

    command = ["-m", "retrieval_app", "mcp", str(small_gallery)]
    photo = small_gallery.parent / "images/red/0.jpg"

    async def ask() -> Any:
        async with Client(StdioServerParameters(command=sys.executable, args=command)) as client:
            return await client.call_tool("search_like_file", {"path": str(photo), "k": 1})

    assert asyncio.run(ask()).structured_content["result"][0]["id"] == ids["red/0.jpg"]
