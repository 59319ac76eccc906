"""The Gradio app over a gallery of its own: what it answers, how it is launched, and that it lets go."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")

from index.errors import GalleryError, InputError, RetrievalError
from index.gallery.gallery import Gallery
from retrieval_app.gallery_answers import GalleryAnswers
from retrieval_app.gradio_app import build_app
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.serving_config import ServingConfig
from tests.retrieval_app.conftest import VANISHED

Value = TypeVar("Value")


@pytest.fixture(scope="module")
def answers(small_gallery: Path) -> Iterator[GalleryAnswers]:
    engine = Engine(small_gallery, config=ServingConfig(threads=1))
    yield GalleryAnswers(engine)
    engine.close()


def _run(answer: Coroutine[Any, Any, Value]) -> Value:
    return asyncio.run(answer)


def test_photos_match_vectors(
    answers: GalleryAnswers, gallery: Gallery, small_gallery: Path, ids: dict[str, int]
) -> None:
    photo = (small_gallery.parent / "images/red" / "0.jpg").read_bytes()
    hits = _run(answers.search(photo, None, k=5, where="", by="kind"))
    expected = gallery.search(gallery.vector(ids["red/0.jpg"]), k=5)
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-4)


def test_hits_name_no_file_by_a_path(answers: GalleryAnswers, ids: dict[str, int]) -> None:
    hits = _run(answers.search(None, next(iter(ids.values())), k=3, where="label = 'blue'", by="kind"))
    assert {hit["label"] for hit in hits} == {"blue"}
    assert all("path" not in hit and hit["name"].startswith("blue/") for hit in hits)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"image_id": None}, "either a photo or the id"),
        ({"image_id": 10**9}, "no image 1000000000"),
        ({"image_id": 1, "k": 0}, "k must be in"),
        ({"image_id": 1, "by": "picture"}, "picture"),
        ({"image_id": 1, "where": "source = '/'"}, "source is a folder of the machine"),
    ],
)
def test_errors_are_told(answers: GalleryAnswers, given: dict[str, Any], message: str) -> None:
    with pytest.raises(RetrievalError, match=message):
        _run(answers.search(None, **{"k": 3, "where": "", "by": "kind", **given}))


def test_quality_and_doubts_are_those_of_the_gallery(answers: GalleryAnswers) -> None:
    told: list[tuple[int, int]] = []
    found = _run(answers.evaluate(lambda done, total: told.append((done, total))))
    assert [one["k"] for one in found["recall_at"]] == [1, 2, 4, 8, 16, 32]
    assert told
    doubts = _run(answers.list_doubts(2))
    assert len(doubts["items"]) <= 2
    assert _run(answers.list_doubts(-1))["items"] == []
    assert doubts["judged"] > 0
    json.dumps([found, doubts])


def test_an_image_whose_file_is_gone_has_no_thumbnail(answers: GalleryAnswers, ids: dict[str, int]) -> None:
    with pytest.raises(InputError):
        _run(answers.thumbnail(ids[VANISHED]))
    assert _run(answers.thumbnail(ids["blue/0.jpg"]))[8:12] == b"WEBP"


def test_a_folder_without_a_gallery_is_told(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match="an empty folder: neither a gallery nor images"):
        build_app(tmp_path)


def test_it_asks_who_a_user_is_reports_nothing_and_lets_go_of_its_gallery(small_gallery: Path) -> None:
    program = (
        "import os, sys, pathlib, threading, retrieval_app.gradio_app as package\n"
        f"app = package.build_app({str(small_gallery)!r})\n"
        "held = [one for one in threading.enumerate() if one is not threading.main_thread()]\n"
        "from gradio_client import Client\n"
        "_, url, _ = app.launch(prevent_thread_lock=True, quiet=True, auth=('me', 'secret'), max_file_size='1mb')\n"
        "try: Client(url, verbose=False)\n"
        "except Exception as error: print(type(error).__name__)\n"
        "client = Client(url, auth=('me', 'secret'), verbose=False)\n"
        "print(len(client.predict(image=None, image_id=1, k=2, api_name='/search')), app.max_file_size)\n"
        "app.close(verbose=False)\n"
        "for one in held: one.join(10)\n"
        "print(len(held) > 0, any(one.is_alive() for one in held))\n"
        "folder = pathlib.Path(package.__file__).parent\n"
        "print(os.environ['GRADIO_ANALYTICS_ENABLED'], 'torch' in sys.modules, sorted(folder.glob('*.pyi')))\n"
    )
    # Gradio leaves an event loop open in its process.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == f"AuthenticationError\n2 {1024**2}\nTrue False\nFalse False []\n", done.stderr
