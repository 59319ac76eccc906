"""Gradio's components for pictures, made to take files that were sent to them and nothing else.

Gradio's own fetch an address that a client names, and open any image of the machine that is named without the mark of
an upload.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from gradio.components import Component
from gradio.utils import get_upload_folder
from gradio_client.utils import is_http_url_like
from PIL import Image

Picture = TypeVar("Picture", bound=Component)
_ONLY_SENT = "send the picture itself: no other file and no address is opened"


def take_sent_only(component: Picture, *, max_pixels: int) -> Picture:
    """The same component, which raises `gr.Error` for what was not sent to it, or has more pixels.

    No class of its own does that: Gradio writes a file beside the source of each.
    """
    move, preprocess = component.async_move_resource_to_block_cache, component.preprocess

    async def move_sent(file: Any) -> str | None:
        _check_place(file)
        return await move(file)

    def preprocess_sent(payload: Any) -> Any:
        for file in [] if payload is None else _find_files(payload.model_dump()):
            _check_place(file)
            _check_picture(file, max_pixels=max_pixels)
        return preprocess(payload)

    component.async_move_resource_to_block_cache, component.preprocess = move_sent, preprocess_sent
    return component


def _check_place(file: Any) -> None:
    folder = Path(get_upload_folder()).resolve()
    if file is None or is_http_url_like(str(file)) or not Path(file).resolve().is_relative_to(folder):
        raise gr.Error(_ONLY_SENT, print_exception=False)


def _check_picture(file: str, *, max_pixels: int) -> None:
    try:
        with Image.open(file) as image:
            width, height = image.size
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise gr.Error("this is no picture that can be read", print_exception=False) from error
    if width * height > max_pixels:
        message = f"this picture has {width:,} x {height:,} pixels, at most {max_pixels:,} are taken"
        raise gr.Error(message, print_exception=False)


def _find_files(value: Any) -> Iterator[Any]:
    """The `path` of every file in a payload."""
    if isinstance(value, dict):
        if "path" in value:
            yield value["path"]
        for part in value.values():
            yield from _find_files(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _find_files(part)
