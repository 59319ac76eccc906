from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from index.errors import GalleryError, InputError
from retrieval_app.server.options import ServeOptions
from retrieval_app.server.serve import import_gradio, listen, serve_gallery

SERVE = """
import sys
from retrieval_app.commands.serve_command import serve
serve.main([sys.argv[1], "--port", "0", "--json"], standalone_mode=False)
print([name for name in ("torch", "torchvision", "safetensors", "onnx") if name in sys.modules])
"""


def test_a_taken_port_is_named(small_gallery: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: already in use"):
            serve_gallery(ServeOptions.of(small_gallery, port=port))


def test_a_host_of_another_machine_is_named() -> None:
    with pytest.raises(InputError, match=r"--host 192\.0\.2\.1"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(InputError, match=rf"--port {port}: a port is a number in 0\.\.65535"):
        ServeOptions.of(Path("gallery"), port=port)


def test_a_token_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(InputError, match="a token has 16 to 512 characters"):
        ServeOptions.of(Path("gallery"), token="fifteen-letters")


def test_a_host_that_is_no_name_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(InputError, match="--allowed-host http://photos"):
        ServeOptions.of(Path("gallery"), allowed_hosts=("http://photos.example.org",))


def test_writing_needs_a_token() -> None:
    with pytest.raises(
        InputError, match="--writable needs a token: give --token-file FILE, or set the variable RETRIEVAL_TOKEN"
    ):
        ServeOptions.of(Path("gallery"), writable=True)


def test_a_folder_that_is_no_audit_is_refused_before_anything_is_opened(
    small_gallery: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="expected the folder that `retrieval audit` wrote"):
        serve_gallery(ServeOptions.of(small_gallery, port=0, audit=tmp_path))


def test_a_folder_that_is_no_gallery_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match="an empty folder"):
        serve_gallery(ServeOptions.of(tmp_path, port=0))
    with listen("127.0.0.1", 0) as taken, pytest.raises(GalleryError, match="an empty folder"):
        serve_gallery(ServeOptions.of(tmp_path, port=taken.getsockname()[1]))


def test_without_fastapi_the_extra_is_named(small_gallery: Path) -> None:
    program = (
        "import sys; sys.modules['fastapi'] = None; "  # as if it were not installed
        f"from retrieval_app.commands.cli import main; sys.exit(main(['serve', {str(small_gallery)!r}, '--port', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "retrieval-app[ui]" in done.stderr


@pytest.mark.slow
def test_the_command_announces_its_url_never_loads_torch_and_ends_cleanly_on_ctrl_c(small_gallery: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the extra `ui`")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(small_gallery)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert b"app-frame" in answer.read()
        with urllib.request.urlopen(f"{url}gradio/config", timeout=5) as config:  # as patient as gradio_client
            assert "search" in [one["api_name"] for one in json.load(config)["dependencies"]]
        port = int(url.rstrip("/").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as open_page:  # which waits for more
            open_page.sendall(b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert open_page.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "[]\n")
    app = f"As a Gradio app: http://127.0.0.1:{port}/gradio/"
    assert err.splitlines() == [f"Opening {small_gallery} …", app, "Ctrl-C ends it."]


def test_gradio_that_cannot_be_imported_is_logged_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "retrieval_app.gradio_app.app", raising=False)
    monkeypatch.setitem(sys.modules, "gradio", None)  # as if it were not installed
    import_gradio()
    assert "Gradio cannot be imported" in caplog.text
    assert "Traceback" not in caplog.text
