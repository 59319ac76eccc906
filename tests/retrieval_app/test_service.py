from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from index.errors import ImageError, InputError
from index.gallery import Gallery
from retrieval_app.service import (
    MAX_RESULTS,
    MAX_UPLOAD_BYTES,
    MAX_UPLOAD_PIXELS,
    SearchService,
    _RecentlyUsed,
    explain,
)
from tests.retrieval_app.conftest import VANISHED


def test_an_uploaded_copy_of_a_gallery_image_finds_that_image_first(
    service: SearchService, gallery: Gallery, ids: dict[str, int]
) -> None:
    data = (gallery.sources[1].root / "green/0.jpg").read_bytes()
    result = service.search(service.hold_upload(data, name="mine.jpg").ref, k=5)
    assert [hit.rank for hit in result.hits] == [1, 2, 3, 4, 5]
    assert result.hits[0].id == ids["green/0.jpg"]
    assert result.hits[0].score == pytest.approx(1, abs=1e-5)
    assert result.query.title == "mine.jpg"
    assert result.query.image_id is None
    assert result.milliseconds >= 0


def test_a_member_is_no_result_of_its_own(service: SearchService, gallery: Gallery, ids: dict[str, int]) -> None:
    wanted = ids["blue/1.png"]
    result = service.search_member(wanted, k=gallery.count)
    assert len(result.hits) == gallery.count - 1
    assert wanted not in {hit.id for hit in result.hits}
    assert (result.query.title, result.query.label) == ("blue/1.png", "blue")


def test_a_query_is_repeated_by_its_ref_with_another_number_of_results(
    service: SearchService, gallery: Gallery, ids: dict[str, int]
) -> None:
    upload = service.hold_upload((gallery.sources[1].root / "red/0.jpg").read_bytes(), name="mine.jpg")
    for ref in (upload.ref, f"member:{ids['red/0.jpg']}"):
        first = service.search(ref, k=3)
        again = service.search(first.query.ref, k=8)
        assert again.hits[:3] == first.hits
        assert len(again.hits) == 8


@pytest.mark.parametrize(
    "ref", ["", "member:", "member:-1", "member:²", "member:" + "9" * 40, "upload:none", "x:1"]
)
def test_an_unknown_query_is_refused(service: SearchService, ref: str) -> None:
    with pytest.raises(InputError):
        service.search(ref, k=3)


@pytest.mark.parametrize("k", [0, MAX_RESULTS + 1])
def test_an_unreasonable_number_of_results_is_refused(service: SearchService, ids: dict[str, int], k: int) -> None:
    with pytest.raises(InputError, match=f"1..{MAX_RESULTS}"):
        service.search_member(ids["red/0.jpg"], k=k)


def test_an_upload_that_is_no_image_is_explained_in_words(service: SearchService) -> None:
    with pytest.raises(ImageError) as caught:
        service.hold_upload(b"dear diary", name="notes.jpg")
    assert explain(caught.value).startswith("notes.jpg: the content is none of JPEG")


def test_a_truncated_upload_is_explained_in_words(service: SearchService, gallery: Gallery) -> None:
    data = (gallery.sources[1].root / "red/0.jpg").read_bytes()
    with pytest.raises(ImageError) as caught:
        service.hold_upload(data[: len(data) // 2], name="half.jpg")
    assert explain(caught.value).startswith("half.jpg: an image that is truncated or damaged")


def test_an_upload_above_the_limit_is_refused_unread(service: SearchService) -> None:
    with pytest.raises(InputError, match=r"big.png: 20\.0 MB, at most 20 MB"):
        service.hold_upload(bytes(MAX_UPLOAD_BYTES + 1), name="big.png")


def test_a_small_file_of_too_many_pixels_is_refused_with_both_numbers(service: SearchService) -> None:
    file = io.BytesIO()
    Image.new("1", (8000, 7501)).save(file, format="PNG")
    assert len(file.getvalue()) < 100_000
    with pytest.raises(ImageError) as caught:
        service.hold_upload(file.getvalue(), name="vast.png")
    expected = f"vast.png: 8000 x 7501 pixels, at most {MAX_UPLOAD_PIXELS} are decoded; use a smaller copy"
    assert explain(caught.value) == expected


def test_thumbnails_are_small_upright_and_carry_nothing_of_the_file_but_its_pixels(
    tmp_path: Path, service: SearchService
) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a secret place"
    file = io.BytesIO()
    Image.new("RGB", (600, 300), "teal").save(file, format="JPEG", exif=exif)
    query = service.hold_upload(file.getvalue(), name="turned.jpg")
    data = service.upload_thumbnail(query.ref.partition(":")[2])
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.size) == ("WEBP", (128, 256))
    assert b"a secret place" not in data


def test_a_vanished_file_has_no_thumbnail_but_still_a_search(service: SearchService, ids: dict[str, int]) -> None:
    with pytest.raises(InputError, match="no longer"):
        service.thumbnail(ids[VANISHED])
    assert service.search_member(ids[VANISHED], k=3).hits


def test_only_the_most_recently_used_are_kept() -> None:
    kept: _RecentlyUsed[int] = _RecentlyUsed(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]
