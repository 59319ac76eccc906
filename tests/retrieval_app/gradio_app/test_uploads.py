"""Gradio's components hand over the bytes of what was sent to them: of no other file of the machine, of no address."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="needs the extra `ui`")
import gradio as gr
from gradio.components.image_editor import EditorData
from gradio.data_classes import FileData, ImageData

from retrieval_app.gradio_app.app import take_sent_only

SENT = b"bytes of a photo"


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in Gradio's folder."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "gradio"))
    return _write(tmp_path / "gradio/ab/photo.png")


def _write(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(SENT)
    return file


def _image() -> gr.Image:
    return take_sent_only(gr.Image(type="pil"))


def _editor() -> gr.ImageEditor:
    return take_sent_only(gr.ImageEditor(type="pil"))


def test_what_was_sent_is_handed_over_and_of_the_editor_nothing_but_what_is_seen(sent: Path) -> None:
    assert _image().preprocess(ImageData(path=str(sent))) == SENT
    assert _image().preprocess(None) is None
    file, none = FileData(path=str(sent)), FileData(path="/nowhere")
    data = EditorData(background=none, layers=[none] * 1000, composite=file)
    assert _editor().preprocess(data) == SENT
    assert _editor().preprocess(EditorData(background=None, layers=[], composite=None)) is None
    assert _editor().preprocess(None) is None


@pytest.mark.parametrize("place", ["elsewhere/photo.png", "gradio/../photo.png", "gradio-other/photo.png"])
def test_no_other_file_of_the_machine_is_opened(sent: Path, tmp_path: Path, place: str) -> None:
    _write((tmp_path / place).resolve())
    with pytest.raises(gr.Error, match="send the picture itself"):
        _image().preprocess(ImageData(path=str(tmp_path / place)))
    data = EditorData(background=None, layers=[], composite=FileData(path=str(tmp_path / place)))
    with pytest.raises(gr.Error, match="send the picture itself"):
        _editor().preprocess(data)


def test_a_link_in_gradios_folder_leads_nowhere(sent: Path, tmp_path: Path) -> None:
    link = sent.with_name("link.png")
    link.symlink_to(_write(tmp_path / "elsewhere.png"))
    with pytest.raises(gr.Error, match="send the picture itself"):
        _image().preprocess(ImageData(path=str(link)))


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/x.png", "data:image/png;base64,AAAA"])
def test_a_picture_that_stands_in_its_address_is_not_taken(sent: Path, address: str) -> None:
    with pytest.raises(gr.Error, match="send the picture itself"):
        _image().preprocess(ImageData(path=None, url=address))
    assert _image().preprocess(ImageData(path=str(sent), url=address)) == SENT


@pytest.mark.parametrize("named", ["http://127.0.0.1:1/x.png", "https://example.org/x.png", __file__, None])
def test_no_address_is_fetched_and_no_file_copied_for_a_client(sent: Path, named: str | None) -> None:
    with pytest.raises(gr.Error, match="send the picture itself"):
        asyncio.run(_image().async_move_resource_to_block_cache(named))
    assert asyncio.run(_image().async_move_resource_to_block_cache(str(sent))) is not None
