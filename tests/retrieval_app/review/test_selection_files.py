from __future__ import annotations

import csv
import io
import os
import tracemalloc
import zipfile
from collections.abc import Iterable
from functools import partial

import pytest
from PIL import Image

from index.errors import InputError, UnknownImageError
from index.gallery.gallery import Gallery
from index.images.image_files import decode_image
from index.sources.reading import read_place
from index.text import valid_text
from retrieval_app.review import selection_files
from retrieval_app.review.selection_files import name_attachment, stream_table, stream_zip
from tests.retrieval_app.review.conftest import HOSTILE, UNDECODABLE, ids_by_path


def render_from(gallery: Gallery, image_id: int) -> bytes:
    image = decode_image(read_place(gallery.place(image_id)), name="picture", target_side=512)
    file = io.BytesIO()
    image.save(file, format="JPEG")
    return file.getvalue()


def read_table(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def open_zip(blocks: Iterable[bytes]) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(b"".join(blocks)))


def test_a_table_has_each_image_once_in_the_order_asked(shop: Gallery) -> None:
    rows = read_table(b"".join(stream_table(shop, [9, 2, 9, 5])))
    assert [row["id"] for row in rows] == ["9", "2", "5"]
    assert [row["label"] for row in rows] == [shop.image(image_id).label for image_id in (9, 2, 5)]
    assert {row["source"] for row in rows} == {shop.roots[1]}


def test_no_cell_of_text_begins_as_a_formula(hostile: Gallery) -> None:
    ids = ids_by_path(hostile)
    rows = read_table(b"".join(stream_table(hostile, list(ids.values()))))
    assert [row["path"].removeprefix("'") for row in rows] == [valid_text(path) for path in ids]
    assert not any(
        row[name].startswith(tuple("=+-@\t\r\n")) for row in rows for name in ("path", "label", "source")
    )
    assert ("'=SUM(1;2)/1.png", "'=SUM(1;2)") in {(row["path"], row["label"]) for row in rows}
    assert r"red/caf\xe9.jpg" in {row["path"] for row in rows}


def test_what_cannot_be_sent_is_refused_first(shop: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_files, "MAX_ROWS", 3)
    monkeypatch.setattr(selection_files, "MAX_PICTURES", 3)
    for begin in (stream_table, partial(stream_zip, render=lambda image_id: b"")):
        for ids in ([], [1, 2, 3, 4]):
            with pytest.raises(InputError, match="1 to 3 images"):
                begin(shop, ids)
        with pytest.raises(UnknownImageError, match="no image 999"):
            begin(shop, [1, 999])


def test_a_zip_holds_the_pictures_under_safe_names_and_a_list_of_them(hostile: Gallery) -> None:
    ids = [ids_by_path(hostile)[os.fsdecode(b"red/" + name)] for name in (*HOSTILE, UNDECODABLE)]
    with open_zip(stream_zip(hostile, ids, render=lambda image_id: render_from(hostile, image_id))) as archive:
        assert archive.testzip() is None
        rows = read_table(archive.read("list.csv"))
        pictures = archive.namelist()[:-1]
        for name in pictures:
            with Image.open(archive.open(name)) as image:
                assert (image.format, image.size) == ("JPEG", (64, 48))
    assert [row["file"] for row in rows] == pictures
    assert [int(row["id"]) for row in rows] == ids
    for name in pictures:
        folder, _, file = name.partition("/")
        assert folder == "pictures"
        assert all(c.isascii() and (c.isalnum() or c in "-_.") for c in file), file
        assert ".." not in file


def test_a_picture_that_is_gone_is_left_out_and_the_list_says_why(shop: Gallery) -> None:
    def render(image_id: int) -> bytes:
        if image_id == 2:
            raise InputError("=2: the image is no longer there")
        return render_from(shop, image_id)

    with open_zip(stream_zip(shop, [1, 2, 3], render=render)) as archive:
        rows = read_table(archive.read("list.csv"))
        assert len(archive.namelist()) == 3
    assert [bool(row["file"]) for row in rows] == [True, False, True]
    assert rows[1]["problem"] == "'=2: the image is no longer there"


def test_a_zip_is_sent_holding_little_more_than_one_picture(shop: Gallery) -> None:
    picture, sent = os.urandom(1 << 20), 0
    blocks = stream_zip(shop, list(range(1, 18)), render=lambda image_id: picture)
    tracemalloc.start()
    for block in blocks:
        sent += len(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sent > 17 << 20
    assert peak < 6 << 20


def test_the_name_of_an_attachment_is_safe_in_a_header(shop: Gallery) -> None:
    class Named:
        name = 'my "shop"\r\nSet-Cookie: x=1; ../ü'

    assert name_attachment(shop, ".csv") == "shop-selection.csv"
    assert name_attachment(Named(), ".zip") == "my-shop-Set-Cookie-x-1-selection.zip"  # type: ignore[arg-type]
