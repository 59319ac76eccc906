"""Gradio's components for pictures, made to take files that were sent to them and nothing else.

Gradio's own fetch an address that a client names, open any image of the machine that is named without the mark of an
upload, and decode what they take in this process, in any format and number. These hand over the bytes of one file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from gradio.components import Component
from gradio.utils import get_upload_folder
from gradio_client.utils import is_http_url_like

Picture = TypeVar("Picture", bound=Component)
_ONLY_SENT = "send the picture itself: no other file and no address is opened"


def take_sent_only(component: Picture) -> Picture:
    """The same component, whose functions get the bytes of the picture that was sent, or None.

    It raises `gr.Error` for what was not sent to it. No class of its own does that: Gradio writes a file beside the
    source of each.
    """
    move = component.async_move_resource_to_block_cache

    async def move_sent(file: Any) -> str | None:
        _check_place(file)
        return await move(file)

    def read_sent(payload: Any) -> bytes | None:
        file = getattr(payload, "composite", payload)  # of the editor: what is seen of all layers
        if file is None:
            return None
        _check_place(file.path)
        return Path(file.path).read_bytes()

    component.async_move_resource_to_block_cache, component.preprocess = move_sent, read_sent
    return component


def _check_place(file: Any) -> None:
    folder = Path(get_upload_folder()).resolve()
    if file is None or is_http_url_like(str(file)) or not Path(file).resolve().is_relative_to(folder):
        raise gr.Error(_ONLY_SENT, print_exception=False)
