import asyncio
import io
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from index.errors import ImageError, InputError, UnknownImageError
from index.gallery.gallery import Gallery
from index.gallery.ranking import Hit
from retrieval_app.serving import photos
from retrieval_app.serving.batching import Lane
from retrieval_app.serving.errors import BusyError, TimedOutError, UnknownPhotoError
from retrieval_app.serving.photos import Crop, Upload, decode_in_turn
from retrieval_app.serving.search_engine import Engine
from retrieval_app.serving.searching import MemberQuery, PhotoQuery, Search, SearchQuery, VectorQuery
from retrieval_app.serving.serving_config import ServingConfig
from tests.conftest import draw_image


@contextmanager
def _open(gallery: Path, **limits: Any) -> Iterator[Engine]:
    opened = Engine(gallery, config=ServingConfig(**{"threads": 1} | limits))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def engine(small_gallery: Path) -> Iterator[Engine]:
    with _open(small_gallery, threads=2) as opened:
        yield opened


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def _search(engine: Engine, *parts: Any, **options: Any) -> list[Hit]:
    hits: list[Hit] = _run(engine.search(engine.snapshot(), SearchQuery(parts, **options))).hits
    return hits


def _encode(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind)
    return file.getvalue()


def _ids(hits: list[Hit]) -> list[int]:
    return [hit.id for hit in hits]


def test_a_part_of_a_photo_is_searched_as_a_picture_of_its_own(engine: Engine, ids: Any) -> None:
    two = Image.new("RGB", (400, 200))
    two.paste(draw_image((220, 40, 40), seed=1, size=(200, 200)), (0, 0))
    two.paste(draw_image((40, 60, 220), seed=2, size=(200, 200)), (200, 0))
    photo = _run(engine.keep_photo(_encode(two), name="two.png"))
    left = _search(engine, PhotoQuery(photo=photo.token, crop=Crop(x=0, y=0, width=0.5, height=1)), k=4, with_rows=True)
    right = _search(
        engine, PhotoQuery(photo=photo.token, crop=Crop(x=0.5, y=0, width=0.5, height=1)), k=4, with_rows=True
    )
    assert {hit.label for hit in left} == {"red"}
    assert {hit.label for hit in right} == {"blue"}


def test_two_images_are_searched_with_their_weighted_sum(engine: Engine, gallery: Gallery, ids: Any) -> None:
    first, second = ids["red/0.jpg"], ids["green/0.jpg"]
    mixed = gallery.vector(first).astype(np.float64) * 2 - 0.5 * gallery.vector(second)
    vector = (mixed / np.linalg.norm(mixed)).astype(np.float32)
    expected = [hit.id for hit in gallery.search(vector, k=20) if hit.id not in (first, second)]
    hits = _search(engine, MemberQuery(image_id=first, weight=2.0), MemberQuery(image_id=second, weight=-0.5), k=20)
    assert _ids(hits) == expected[:20]


def test_a_vector_of_any_length_is_a_direction_or_refused(engine: Engine, gallery: Gallery, ids: Any) -> None:
    vector = gallery.vector(ids["red/0.jpg"])
    hits = _search(engine, VectorQuery(vector=(vector * 7).tolist()), k=1)
    assert hits[0].id == ids["red/0.jpg"]
    assert hits[0].score == pytest.approx(1, abs=1e-5)

    for wrong in ([0.0] * 16, [1.0] * 15):
        with pytest.raises(InputError, match="query vector"):
            _search(engine, VectorQuery(vector=wrong))
    red = ids["red/0.jpg"]
    with pytest.raises(InputError, match="cancel"):
        _search(engine, MemberQuery(image_id=red), MemberQuery(image_id=red, weight=-1.0))


def test_what_is_unknown_outside_the_picture_or_no_sensible_list_is_said_to_be(engine: Engine, ids: Any) -> None:
    with pytest.raises(UnknownImageError, match="no image 99999"):
        _search(engine, MemberQuery(image_id=99_999))
    with pytest.raises(UnknownPhotoError, match="no longer kept"):
        _search(engine, PhotoQuery(photo="ab" * 16))
    for crop in ((-0.1, 0, 0.5, 0.5), (0.6, 0, 0.5, 1), (0, 0, 0, 1), (float("nan"), 0, 1, 1)):
        with pytest.raises(ValidationError, match="Crop"):
            Crop(**dict(zip(("x", "y", "width", "height"), crop, strict=True)))
    with pytest.raises(InputError, match="choose a larger part"):
        _search(engine, MemberQuery(image_id=ids["red/0.jpg"], crop=Crop(x=0.1, y=0.1, width=0.01, height=0.01)))
    wrong: tuple[dict[str, Any], ...] = (
        *({"k": k} for k in (0, 1001, 2.5, "7", None)),
        *({"offset": offset} for offset in (-1, 9001)),
        *({"min_score": score} for score in (float("nan"), float("inf"), "0.5")),
    )
    for options in wrong:
        with pytest.raises(InputError, match=r"k must|min_score must"):
            _search(engine, MemberQuery(image_id=ids["red/0.jpg"]), **options)
    with pytest.raises(InputError, match="no longer in the gallery's source"):
        _run(engine.thumbnail(engine.snapshot(), ids["red/vanished.jpg"]))


def test_a_bad_photo_among_good_ones_fails_alone(engine: Engine) -> None:
    good = _encode(draw_image((220, 40, 40), seed=1))

    async def send() -> list[Any]:
        snapshot = engine.snapshot()
        work = [engine.embed(snapshot, data, name="p") for data in (good, b"<svg/>", good, good[:200])]
        return await asyncio.gather(*work, return_exceptions=True)

    first, svg, third, cut = _run(send())
    assert np.array_equal(first, third)
    assert isinstance(svg, ImageError)
    assert isinstance(cut, ImageError)
    assert cut.reason == "corrupt"


def test_a_photo_with_too_many_bytes_or_pixels_is_refused(small_gallery: Path) -> None:
    with _open(small_gallery, max_upload_bytes=2000, max_upload_pixels=5000) as engine:
        with pytest.raises(InputError, match="use a smaller copy"):
            _run(engine.keep_photo(bytes(2001), name="big.jpg"))
        with pytest.raises(ImageError, match="at most 5000"):
            _run(engine.keep_photo(_encode(Image.new("RGB", (100, 51))), name="wide.png"))


def test_pictures_do_not_wait_for_conditions_that_are_looked_up(engine: Engine, ids: Any) -> None:
    gate = threading.Event()

    async def ask() -> bytes:
        blocked = [asyncio.create_task(engine.look_up(gate.wait, 20)) for _ in range(10)]
        await asyncio.sleep(0)
        try:
            return await engine.thumbnail(engine.snapshot(), ids["red/1.png"], side=128)
        finally:
            gate.set()
            await asyncio.gather(*blocked)

    assert _run(ask())[:4] == b"RIFF"


def _is_reading(engine: Engine) -> bool:
    return any(pool._count for pool in engine._pools)


def test_what_was_begun_and_takes_too_long_is_told_apart_from_what_never_began(small_gallery: Path) -> None:
    gate = threading.Event()

    async def ask(engine: Engine) -> list[Any]:
        return await asyncio.gather(*(engine.run(gate.wait, 20) for _ in range(6)), return_exceptions=True)

    with _open(small_gallery, request_s=1) as engine:
        answers = _run(ask(engine))
        gate.set()
        while _is_reading(engine):  # room again for others
            time.sleep(0.001)
    assert [type(answer) for answer in answers] == [TimedOutError] * 4 + [BusyError] * 2  # four readers


def test_a_search_with_a_photo_waits_once_and_is_not_refused_when_the_model_has_run(small_gallery: Path) -> None:
    upload = Upload(_encode(draw_image((220, 40, 40), seed=1)), "p")

    def slow_down(lane: Lane[Any, Any]) -> None:
        answer = lane.answer
        lane.answer = lambda tasks: (time.sleep(0.7), answer(tasks))[1]  # type: ignore[func-returns-value]

    def search(engine: Engine) -> Search:
        return _run(engine.search(engine.snapshot(), SearchQuery(upload=upload)))

    with _open(small_gallery, request_s=60) as engine:
        engine.searches_lane.capacity = 0
        assert search(engine).hits
        with pytest.raises(BusyError):
            _search(engine, MemberQuery(image_id=int(engine.snapshot().gallery.ids[0])))
    with _open(small_gallery, request_s=1) as engine:
        slow_down(engine.photos_lane)
        slow_down(engine.searches_lane)
        with pytest.raises(TimedOutError):
            search(engine)


def test_many_searches_at_once_answer_as_one_by_one(engine: Engine, gallery: Gallery) -> None:
    wanted = gallery.ids.tolist() * 4

    async def ask() -> list[Search]:
        snapshot = engine.snapshot()
        queries = [SearchQuery((MemberQuery(image_id=image_id),), k=1 + n % 7) for n, image_id in enumerate(wanted)]
        return await asyncio.gather(*(engine.search(snapshot, query) for query in queries))

    lane, sizes = engine.searches_lane, list[int]()
    answer = lane.answer
    lane.answer = lambda tasks: (sizes.append(len(tasks)), answer(tasks))[1]  # type: ignore[func-returns-value]
    answers = _run(ask())
    lane.answer = answer
    for number, (image_id, search) in enumerate(zip(wanted, answers, strict=True)):
        expected = gallery.search(gallery.vector(image_id), k=1 + number % 7, exclude_id=image_id)
        assert _ids(search.hits) == [hit.id for hit in expected]
    assert len(sizes) < sum(sizes) == len(wanted)


def test_a_photo_that_may_cost_much_takes_one_turn(engine: Engine) -> None:
    photo, go_on = _encode(draw_image((90, 20, 30), seed=1), "TIFF"), threading.Event()

    async def ask() -> str:
        kept = asyncio.create_task(engine.keep_photo(photo, name="a.tif"))
        while not (_is_reading(engine) or kept.done()):
            await asyncio.sleep(0.01)
        behind = asyncio.create_task(engine.run_costly(lambda: go_on.wait(20)))
        name = (await kept).name
        go_on.set()
        assert await behind, "the photo waited for what came after it"
        return name

    assert _run(ask()) == "a.tif"


def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "LARGE_PIXELS", 10_000)
    decode, inside, most = photos.decode_image, list[int](), list[int]()
    small_is_done = threading.Event()

    def watch(data: bytes, *, max_pixels: int, **options: Any) -> Image.Image:
        image = decode(data, max_pixels=max_pixels, **options)  # refused here where it is large and not its turn
        if max_pixels > 10_000:
            inside.append(1)
            most.append(len(inside))
            assert small_is_done.wait(20)
            inside.pop()
        return image

    monkeypatch.setattr(photos, "decode_image", watch)
    with ThreadPoolExecutor(4) as pool:
        large = [
            pool.submit(decode_in_turn, _encode(Image.new("RGB", (200, 100))), name="large", target_side=64)
            for _ in range(3)
        ]
        small = pool.submit(decode_in_turn, _encode(Image.new("RGB", (50, 40))), name="small", target_side=64)
        assert small.result(20).size == (50, 40)
        small_is_done.set()
        assert {future.result(20).size for future in large} == {(200, 100)}
    assert most == [1, 1, 1]


def test_the_cap_holds_for_large_images_too() -> None:
    with pytest.raises(ImageError, match="at most 20000000"):
        decode_in_turn(_encode(Image.new("RGB", (5000, 4001))), name="huge", target_side=64, max_pixels=20_000_000)
    with pytest.raises(ImageError, match="at most 100"):
        decode_in_turn(_encode(Image.new("RGB", (50, 40))), name="small", target_side=64, max_pixels=100)


def test_pictures_say_nothing_of_the_file_they_came_from(gallery: Gallery, ids: dict[str, int]) -> None:
    image = Image.open(io.BytesIO(photos.encode_image(gallery, ids["red/0.jpg"], side=64)))
    assert (image.format, max(image.size) <= 64) == ("WEBP", True)
    assert not {"exif", "icc_profile", "comment"} & set(image.info)
