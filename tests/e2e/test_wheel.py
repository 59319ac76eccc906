"""The wheel, built from the source distribution and installed without the clone trains, exports, indexes and serves."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.forked import RUN_EACH
from tests.photos import KINDS, write_photos

_SOURCE = ("index", "training", "export", "retrieval_app", "pyproject.toml", "README.md", "LICENSE", "NOTICE")


@pytest.fixture
def retrieval(tmp_path: Path) -> Path:
    """The installed command, beside the libraries of this environment."""
    source = tmp_path / "source"
    source.mkdir()
    for name in _SOURCE:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, source / name)
    pack = "from setuptools.build_meta import build_sdist; build_sdist('..')"
    subprocess.run([sys.executable, "-c", pack], cwd=source, check=True, stdout=subprocess.DEVNULL)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    (packed,) = tmp_path.glob("*.tar.gz")
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, packed], check=True)
    venv.create(tmp_path / "venv", with_pip=False)
    (found,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (found / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (wheel,) = tmp_path.glob("*.whl")
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--ignore-installed", wheel], check=True)
    assert {"photos.tar", "photos.txt"} <= {path.name for path in (found / "retrieval_app" / "demo").iterdir()}
    return python.with_name("retrieval")


@pytest.mark.timeout(900)
def test_the_wheel_trains_exports_indexes_searches_audits_and_serves(retrieval: Path, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", kinds=KINDS[:3], pictures_per_kind=6, seed=0)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    query = next((tmp_path / "photos").rglob("*.jpg"))
    commands = (
        "train photos --frozen --head-steps 20 --out run",
        "export run --out model.onnx",
        "index build model.onnx photos --out gallery",
        f"search gallery {query} -k 3 --out found.csv",
        "audit run",
    )
    words = [retrieval.with_name("python"), "-c", RUN_EACH, *commands]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 4
    assert (tmp_path / "run" / "audit" / "audit.html").is_file()
    command = [retrieval, "serve", "gallery", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = json.loads(server.stdout.readline())["url"]
            with urllib.request.urlopen(url) as page, urllib.request.urlopen(f"{url}v1/gallery") as facts:
                assert b"<html" in page.read()
                assert json.loads(facts.read())["images"] == 18
        finally:
            server.terminate()
