"""Near-duplicates in results, and which image stands for them."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from index.filters.parser import parse_filter
from index.writing.build import build_gallery
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.searching import MemberQuery, Search, SearchQuery
from retrieval_app.serving.serving_config import ServingConfig
from tests.conftest import draw_folder

COPIES = 4


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Engine]:
    """Thirty-six images, of one of which there are four copies in two folders."""
    folder = tmp_path_factory.mktemp("collapsing")
    images = draw_folder(folder / "images", per_class=12)
    (images / "copies").mkdir()
    for number in range(COPIES):
        shutil.copy(images / "red" / "0.jpg", images / ("copies" if number % 2 else "red") / f"copy{number}.jpg")
    build_gallery(model_path=tiny_model, sources=[images], out=folder / "gallery")
    opened = Engine(folder / "gallery", config=ServingConfig(threads=1, duplicates_wait_s=30))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def ids(engine: Engine) -> dict[str, int]:
    gallery = engine.snapshot().gallery
    return {image.path: image.id for image in gallery.sample(gallery.count, seed=0)}


def _search(engine: Engine, image_id: int, *, collapse_duplicates: bool = True, **options: Any) -> Search:
    query = SearchQuery((MemberQuery(image_id=image_id),), collapse_duplicates=collapse_duplicates, **options)
    return asyncio.run(engine.search(engine.snapshot(), query))


def _paths(ids: dict[str, int], found: Any) -> set[str]:
    names = {number: path for path, number in ids.items()}
    return {names[number] for number, _ in found}


def test_copies_stand_under_one_of_them_and_all_are_named(engine: Engine, ids: dict[str, int]) -> None:
    search = _search(engine, ids["red/1.png"], k=50)
    collapsed = [hit for hit in search.hits if hit.duplicates]
    assert len(collapsed) == 1
    same = {"red/0.jpg", "red/copy0.jpg", "red/copy2.jpg", "copies/copy1.jpg", "copies/copy3.jpg"}
    assert _paths(ids, [*collapsed[0].duplicates, (collapsed[0].id, 1)]) == same
    assert len(search.hits) == len(ids) - 1 - COPIES


def test_pages_hold_every_image_once_and_the_first_names_all_copies(engine: Engine, ids: dict[str, int]) -> None:
    seen, offset, ranks = list[int](), 0, list[int]()
    while offset is not None:
        page = _search(engine, ids["red/1.png"], k=3, offset=offset)
        for hit in page.hits:
            ranks.append(hit.rank)
            seen += [hit.id, *(number for number, _ in hit.duplicates)]
        offset = page.next_offset
    assert sorted(seen) == sorted(set(ids.values()) - {ids["red/1.png"]})
    assert ranks == list(range(1, len(ranks) + 1))


def test_copies_keep_to_the_filter_the_threshold_and_what_is_left_out(engine: Engine, ids: dict[str, int]) -> None:
    left_out = frozenset([ids["red/copy2.jpg"]])
    search = _search(engine, ids["red/1.png"], k=50, where=parse_filter("label = 'red'"), exclude_ids=left_out)
    collapsed = next(hit for hit in search.hits if hit.duplicates)
    assert _paths(ids, [*collapsed.duplicates, (collapsed.id, 1)]) == {"red/0.jpg", "red/copy0.jpg"}
    above = _search(engine, ids["red/1.png"], k=50, min_score=collapsed.score + 1e-4)
    assert not {ids["red/0.jpg"], ids["red/copy0.jpg"]} & {hit.id for hit in above.hits}


def test_a_copy_of_the_query_is_found_without_the_query(engine: Engine, ids: dict[str, int]) -> None:
    first = _search(engine, ids["red/0.jpg"], k=3).hits[0]
    assert first.score == pytest.approx(1, abs=1e-5)
    assert ids["red/0.jpg"] not in (first.id, *(number for number, _ in first.duplicates))
    assert 1 + len(first.duplicates) == COPIES
