"""Results that the server ranks again by shared neighbours: in pages, folded, above a score."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from index.writing.build import build_gallery
from retrieval_app.serving.query import QueryPart, Ranking, SearchQuery
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.serving_config import ServingConfig
from tests.conftest import draw_folder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Engine]:
    """Thirty-six images, and three copies of one of them."""
    folder = tmp_path_factory.mktemp("reranked")
    images = draw_folder(folder / "images", per_class=12)
    for number in range(3):
        shutil.copy(images / "red" / "0.jpg", images / "green" / f"copy{number}.jpg")
    build_gallery(model_path=tiny_model, sources=[images], out=folder / "gallery")
    opened = Engine(folder / "gallery", config=ServingConfig(threads=1))
    yield opened
    opened.close()


def search(engine: Engine, **options: Any) -> Ranking:
    query = SearchQuery((QueryPart(image_id=5),), **options)
    ranking: Ranking = asyncio.run(engine.search(engine.snapshot(), query))
    return ranking


def test_the_server_ranks_again_as_the_gallery_does(engine: Engine) -> None:
    gallery = engine.snapshot().gallery
    expected = gallery.search(gallery.vector(5), k=39, exclude_id=5, rerank=True)
    assert [(hit.id, hit.score) for hit in search(engine, k=39, rerank=True).hits] == [
        (hit.id, hit.score) for hit in expected
    ]
    assert [hit.id for hit in search(engine, k=39).hits] != [hit.id for hit in expected]


def test_pages_go_on_where_the_last_one_ended(engine: Engine) -> None:
    whole = search(engine, k=39, rerank=True).hits
    pages = [search(engine, k=5, offset=offset, rerank=True).hits for offset in range(0, 39, 5)]
    assert [hit for page in pages for hit in page] == list(whole)


def test_copies_stay_folded_and_low_scores_stay_away(engine: Engine) -> None:
    plain = search(engine, k=39, group_copies=True)
    again = search(engine, k=39, group_copies=True, rerank=True)
    assert {hit.id for hit in again.hits if hit.copies} == {hit.id for hit in plain.hits if hit.copies} != set()
    assert {hit.id for hit in again.hits} == {hit.id for hit in plain.hits}
    least = plain.hits[9].score
    above = search(engine, k=39, rerank=True, min_score=least).hits
    assert {hit.id for hit in above} == {hit.id for hit in search(engine, k=39, min_score=least).hits}
