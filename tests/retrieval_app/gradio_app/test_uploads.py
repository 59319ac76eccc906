"""Gradio's components open what was sent to them: no other file of the machine, no address, nothing too large."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("gradio", reason="needs the extra `ui`")
import gradio as gr
from gradio.components.image_editor import EditorData
from gradio.data_classes import FileData, ImageData

from retrieval_app.gradio_app.uploads import take_sent_only

MOST = 1000


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A picture in Gradio's folder."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "gradio"))
    return _write(tmp_path / "gradio/ab/photo.png")


def _write(file: Path, *, side: int = 20) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side), (200, 30, 30)).save(file)
    return file


def _image() -> gr.Image:
    return take_sent_only(gr.Image(type="pil"), max_pixels=MOST)


def test_a_picture_that_was_sent_is_opened(sent: Path) -> None:
    image = _image().preprocess(ImageData(path=str(sent)))
    assert image.size == (20, 20)
    assert _image().preprocess(None) is None


def test_the_editor_opens_what_was_sent(sent: Path) -> None:
    editor = take_sent_only(gr.ImageEditor(type="pil"), max_pixels=MOST)
    file = FileData(path=str(sent))
    value = editor.preprocess(EditorData(background=file, layers=[file], composite=file))
    assert value["composite"].size == (20, 20)
    assert editor.preprocess(None) is None


@pytest.mark.parametrize("place", ["elsewhere/photo.png", "gradio/../photo.png", "gradio-other/photo.png"])
def test_no_other_picture_of_the_machine_is_opened(sent: Path, tmp_path: Path, place: str) -> None:
    _write((tmp_path / place).resolve())
    with pytest.raises(gr.Error, match="send the picture itself"):
        _image().preprocess(ImageData(path=str(tmp_path / place)))
    editor = take_sent_only(gr.ImageEditor(type="pil"), max_pixels=MOST)
    own, other = FileData(path=str(sent)), FileData(path=str(tmp_path / place))
    for data in (
        EditorData(background=other, layers=[], composite=own), EditorData(background=own, layers=[], composite=other),
        EditorData(background=own, layers=[other], composite=own),
    ):  # fmt: skip
        with pytest.raises(gr.Error, match="send the picture itself"):
            editor.preprocess(data)


def test_a_link_in_gradios_folder_leads_nowhere(sent: Path, tmp_path: Path) -> None:
    link = sent.with_name("link.png")
    link.symlink_to(_write(tmp_path / "elsewhere.png"))
    with pytest.raises(gr.Error, match="send the picture itself"):
        _image().preprocess(ImageData(path=str(link)))


def test_a_picture_without_a_file_is_refused() -> None:
    with pytest.raises(gr.Error, match="send the picture itself"):
        _image().preprocess(ImageData(path=None, url="http://127.0.0.1:1/x.png"))


@pytest.mark.parametrize("named", ["http://127.0.0.1:1/x.png", "https://example.org/x.png", __file__, None])
def test_no_address_is_fetched_and_no_file_copied_for_a_client(sent: Path, named: str | None) -> None:
    with pytest.raises(gr.Error, match="send the picture itself"):
        asyncio.run(_image().async_move_resource_to_block_cache(named))
    assert asyncio.run(_image().async_move_resource_to_block_cache(str(sent))) is not None


def test_what_is_no_picture_and_what_is_too_large_is_told(sent: Path) -> None:
    sent.write_bytes(b"<html>")
    with pytest.raises(gr.Error, match="no picture that can be read"):
        _image().preprocess(ImageData(path=str(sent)))
    _write(sent, side=32)
    with pytest.raises(gr.Error, match=r"32 x 32 pixels, at most 1,000 are taken"):
        _image().preprocess(ImageData(path=str(sent)))
