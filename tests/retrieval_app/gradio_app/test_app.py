"""The Gradio app over a gallery of its own: what it answers, how it is launched, and that it lets go."""

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from retrieval_app.gallery_answers import GalleryAnswers

if TYPE_CHECKING:
    import gradio as gr

pytestmark = [
    pytest.mark.slow,  # Gradio takes seconds to import
    pytest.mark.skipif(find_spec("gradio") is None, reason="needs the extra `ui`"),
]
Value = TypeVar("Value")


def _run(answer: Coroutine[Any, Any, Value]) -> Value:
    return asyncio.run(answer)


def test_hits_name_no_file_by_a_path(answers: GalleryAnswers, ids: dict[str, int]) -> None:
    hits = _run(answers.search(None, next(iter(ids.values())), k=3, where="label = 'blue'", by="semantic"))
    assert {hit["label"] for hit in hits} == {"blue"}
    assert all("path" not in hit and hit["name"].startswith("blue/") for hit in hits)


def test_it_asks_who_a_user_is_reports_nothing_rests_and_lets_go_of_its_gallery(small_gallery: Path) -> None:
    program = (
        "import os, sys, pathlib, threading, time, retrieval_app.gradio_app as package\n"
        f"app = package.build_app({str(small_gallery)!r})\n"
        "held = [one for one in threading.enumerate() if one is not threading.main_thread()]\n"
        "from gradio_client import Client\n"
        "_, url, _ = app.launch(prevent_thread_lock=True, quiet=True, auth=('me', 'secret'), max_file_size='1mb')\n"
        "try: Client(url, verbose=False)\n"
        "except Exception as error: print(type(error).__name__)\n"
        "client = Client(url, auth=('me', 'secret'), verbose=False)\n"
        "print(len(client.predict(image=None, image_id=1, k=2, api_name='/search')), app.max_file_size)\n"
        "time.sleep(1); used = time.process_time(); time.sleep(3); print(time.process_time() - used < 0.1)\n"
        "app.close(verbose=False)\n"
        "for one in held: one.join(10)\n"
        "print(len(held) > 0, any(one.is_alive() for one in held))\n"
        "folder = pathlib.Path(package.__file__).parent\n"
        "print(os.environ['GRADIO_ANALYTICS_ENABLED'], 'torch' in sys.modules, sorted(folder.glob('*.pyi')))\n"
    )
    # Gradio leaves an event loop open in its process.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == f"AuthenticationError\n2 {1024**2}\nTrue\nTrue False\nFalse False []\n", done.stderr


SENT = b"bytes of a photo"


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "gradio"))
    return _write(tmp_path / "gradio/ab/photo.png")


def _write(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(SENT)
    return file


def _image() -> "gr.Image":
    import gradio as gr

    from retrieval_app.gradio_app.app import take_sent_only

    return take_sent_only(gr.Image(type="pil"))


def _take(path: Path | None, url: str | None = None) -> Any:
    """What the component hands over of an image that a client names."""
    from gradio.data_classes import ImageData

    return _image().preprocess(ImageData(path=None if path is None else str(path), url=url))


def _take_edited(composite: Path | None) -> Any:
    """The same of the editor's image."""
    import gradio as gr
    from gradio.components.image_editor import EditorData
    from gradio.data_classes import FileData

    from retrieval_app.gradio_app.app import take_sent_only

    shown = None if composite is None else FileData(path=str(composite))
    sent = EditorData(background=None, layers=[FileData(path="/nowhere")] * 1000, composite=shown)
    return take_sent_only(gr.ImageEditor(type="pil")).preprocess(sent)


def _refused() -> Any:
    import gradio as gr

    return pytest.raises(gr.Error, match="upload the image itself")


def test_what_was_sent_is_handed_over_and_of_the_editor_nothing_but_what_is_seen(sent: Path) -> None:
    assert _take(sent) == SENT
    assert _image().preprocess(None) is None
    assert _take_edited(sent) == SENT
    assert _take_edited(None) is None


@pytest.mark.parametrize("place", ["elsewhere/photo.png", "gradio/../photo.png", "gradio-other/photo.png"])
def test_no_other_file_of_the_machine_is_opened(sent: Path, tmp_path: Path, place: str) -> None:
    _write((tmp_path / place).resolve())
    with _refused():
        _take(tmp_path / place)
    with _refused():
        _take_edited(tmp_path / place)


def test_a_link_in_gradios_folder_leads_nowhere(sent: Path, tmp_path: Path) -> None:
    link = sent.with_name("link.png")
    link.symlink_to(_write(tmp_path / "elsewhere.png"))
    with _refused():
        _take(link)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/x.png", "data:image/png;base64,AAAA"])
def test_a_picture_that_stands_in_its_address_is_not_taken(sent: Path, address: str) -> None:
    with _refused():
        _take(None, address)
    assert _take(sent, address) == SENT


@pytest.mark.parametrize("named", ["http://127.0.0.1:1/x.png", "https://example.org/x.png", __file__, None])
def test_no_address_is_fetched_and_no_file_copied_for_a_client(sent: Path, named: str | None) -> None:
    with _refused():
        asyncio.run(_image().async_move_resource_to_block_cache(named))
    assert asyncio.run(_image().async_move_resource_to_block_cache(str(sent))) is not None
