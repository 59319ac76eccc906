"""The program where a system lacks what only Linux and macOS have: it imports, indexes, serves and trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

# Names that Python on Windows lacks. Libraries that ask for them here, where they exist, are loaded before.
_HIDE = """
import asyncio, concurrent.futures, logging, multiprocessing.util, os, random, select, signal, socketserver
import sys, tempfile
for library in sys.argv.pop().split():
    __import__(library)
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "pread", "sched_getaffinity"):
    delattr(os, name)
del select.poll
for name in ("SIGHUP", "SIGPROF", "setitimer"):
    delattr(signal, name)
"""
_IMPORT_ALL = """
import importlib, pkgutil
failed = []
for package in ("index", "training", "export", "retrieval_app"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if module.name == "index.images.decoding_worker" or module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed.append(f"{module.name}: {error!r}")
sys.exit("\\n".join(failed) or 0)
"""
_COMMAND = "from retrieval_app.commands.cli import run; sys.argv[0] = 'retrieval'; run()"


def _python(code: str, *arguments: str, cwd: Path, libraries: str = "numpy PIL faiss onnxruntime") -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", _HIDE + code, *arguments, libraries],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_module_is_imported_without_what_only_posix_has(tmp_path):
    _python(_IMPORT_ALL, cwd=tmp_path, libraries="torch torchvision onnx uvicorn fastapi gradio mcp.server")


@pytest.mark.slow
def test_a_folder_is_indexed_updated_and_searched_without_it(tmp_path):
    photos = tmp_path / "photos"
    for number, colour in enumerate(["red", "lime", "blue"]):
        (photos / colour).mkdir(parents=True)
        Image.new("RGB", (80, 60), colour).save(photos / colour / f"{number}.png")
    Image.new("RGB", (3000, 2000), "gray").save(photos / "wide.bmp")  # decoded in a process of its own elsewhere
    search = ("search", "photos", "photos/lime/1.png", "-k", "1")
    assert "lime/1.png" in _python(_COMMAND, *search, cwd=tmp_path)
    Image.new("RGB", (80, 60), "white").save(photos / "red" / "more.png")
    _python(_COMMAND, "index", "update", "photos-gallery", cwd=tmp_path)
    assert "lime/1.png" in _python(_COMMAND, *search, cwd=tmp_path)
