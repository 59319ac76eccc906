"""The text in images is read once a content, kept through every change, and never stops a build."""

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

from index.commands.index_group import index_group
from index.embedding.text_recognition import TextReader, join_lines
from index.errors import ImageError, InputError, MissingDependencyError
from index.filters.parser import parse_filter
from index.public import build as build_in_python
from index.writing import pending
from index.writing.build import build_gallery, update_gallery
from index.writing.build_config import BuildConfig
from index.writing.copying import cluster_gallery
from tests.conftest import draw_image
from tests.forked import run
from tests.index.galleries import build, invoke, rows

ONE_BY_ONE = BuildConfig(workers=1, checkpoint_images=1)


def draw_text(path: Path, *lines: str) -> None:
    image = Image.new("RGB", (420, 60 * len(lines) + 40), "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((20, 20 + 60 * number), line, "black", ImageFont.load_default(40))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two images with text, and one without."""
    draw_text((folder := tmp_path / "photos") / "milk" / "0.png", "FRESH MILK", "2 litres")
    draw_text(folder / "juice" / "0.png", "Orange juice")
    draw_image((40, 60, 220), seed=1).save(folder / "juice" / "1.png")
    return folder


def texts(gallery: Path) -> dict[str, str | None]:
    return {row.path: row.metadata.get("text_in_image") for row in rows(gallery) if row.status == "indexed"}


@contextmanager
def reading() -> Iterator[list[str]]:
    """The names of the images that are read meanwhile."""
    seen: list[str] = []
    real = TextReader._read
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TextReader, "_read", lambda self, place: seen.append(place.name) or real(self, place))
        yield seen


def test_updates_read_new_content_alone(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    gallery = tmp_path / "g"
    built = invoke(index_group, "build", tiny_model, photos, "--out", gallery, "--ocr", "--no-cache")
    known = {"milk/0.png": "FRESH MILK 2 litres", "juice/0.png": "Orange juice", "juice/1.png": None}
    assert (built.exit_code, texts(gallery)) == (0, known)
    listed = invoke(index_group, "list", gallery, "--json", "--where", "text_confidence > .8 AND NOT label = 'milk'")
    assert [item["metadata"]["text_in_image"] for item in json.loads(listed.stdout)["items"]] == ["Orange juice"]
    shutil.copy(photos / "juice" / "0.png", photos / "juice" / "2.png")
    (photos / "milk" / "0.png").rename(photos / "milk" / "1.png")
    draw_text(photos / "tea" / "0.png", "Green tea")
    cluster_gallery(gallery, count=2)
    with reading() as seen:
        assert update_gallery(gallery).moved == 1
    assert [Path(name).parent.name for name in seen] == ["tea"]
    known["milk/1.png"] = known.pop("milk/0.png")
    assert texts(gallery) == {**known, "juice/2.png": "Orange juice", "tea/0.png": "Green tea"}
    with reading() as seen:
        assert not update_gallery(gallery, thorough=True).changed
        assert not build(photos, gallery, tiny_model).changed
        draw_image((9, 9, 9), seed=2).save(photos / "tea" / "0.png")  # without text
        update_gallery(gallery, skip_if=parse_filter("text_in_image LIKE 'FRESH%'"))
    assert (len(seen), texts(gallery)["tea/0.png"], "milk/1.png" in texts(gallery)) == (1, None, False)
    assert invoke(index_group, "build", tiny_model, photos, "--out", gallery, "--no-ocr").exit_code == 0
    assert {name for row in rows(gallery) for name in row.metadata} == {"cluster"}


def die_while_reading() -> None:
    def dying(*words: Any, record: Any = pending.record_texts, calls: Any = itertools.count(1)) -> None:  # noqa: B008
        record(*words)
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    pending.record_texts = dying
    model, folder, out = map(Path, sys.argv[1:])
    build_gallery(model_path=model, sources=[folder], out=out, ocr=True, config=ONE_BY_ONE)


@pytest.mark.slow
def test_a_killed_build_reads_nothing_twice(tmp_path: Path, tiny_model: Path, photos: Path) -> None:
    killed = run([tiny_model, photos, tmp_path / "g"], function=die_while_reading)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with reading() as seen:
        update_gallery(tmp_path / "g", config=ONE_BY_ONE)
        for name in ("whole", "other"):  # which share a cache
            build_in_python(str(tiny_model), photos, tmp_path / name, ocr=True, cache=tmp_path / "cache")
            assert len(seen) == 1 + 3
    assert texts(tmp_path / "g") == texts(tmp_path / "whole") == texts(tmp_path / "other")


@pytest.mark.slow
def test_an_image_that_cannot_be_read_is_counted_and_the_build_goes_on(
    tmp_path: Path, tiny_model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Image.new("1", (20_000, 20_000)).save(photos / "bomb.png")

    def decode(data: bytes, *, name: str, target_side: int) -> Image.Image:
        raise ImageError(name, "too-costly", "too much")

    monkeypatch.setattr("index.embedding.text_recognition.decode_image", decode)
    assert build(photos, tmp_path / "g", tiny_model, ocr=True).skipped_by_reason == {"too-many-pixels": 1}
    assert "no text could be read in 3 images; the first is" in caplog.text
    with reading() as seen:
        assert (update_gallery(tmp_path / "g").changed, seen) == (False, [])


def test_without_the_extra_or_with_such_metadata_nothing_is_written(
    tmp_path: Path, tiny_model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.csv").write_text("path,text_in_image\nphotos/milk/0.png,mine\n")
    build(tmp_path / "t.csv", tmp_path / "g", tiny_model)
    with pytest.raises(InputError, match="metadata called text_in_image or text_confidence of its own"):
        update_gallery(tmp_path / "g", ocr=True)
    assert texts(tmp_path / "g") == {"photos/milk/0.png": "mine"}
    build(photos, tmp_path / "known", tiny_model, ocr=True)
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'retrieval-app\[ocr\]'"):
        build(photos, tmp_path / "new", tiny_model, ocr=True)
    draw_text(photos / "tea" / "0.png", "Green tea")
    assert update_gallery(tmp_path / "known").new_images == 1
    assert ("the text in 1 image was not read: " in caplog.text, (tmp_path / "new").exists()) == (True, False)


def test_lines_are_joined_in_nfc_without_control_characters_up_to_a_limit() -> None:
    assert join_lines([("caf\u0065\u0301\x07 au", 0.75), ("x", 0.49), (" \t", 0.9), ("l", 0.51)]) == ("café au l", 0.72)
    assert join_lines([]) == join_lines([("?", 0.1)]) == ("", 0.0)
    assert len(join_lines([("word " * 50, 0.9)] * 40)[0]) <= 4000
