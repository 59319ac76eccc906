"""The README's commands, run in their order in a folder like the one it speaks of."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from index.images import read_image
from index.preprocess import PreprocessConfig, preprocess_image
from retrieval_app.drawing.catalogue import KINDS, draw_catalogue
from training.model import normalise_images

README = Path(__file__).parents[2] / "README.md"
# Not run here: making the environment, the two make targets (they run everything, this test too), the benchmarks.
ELSEWHERE = ("pip ", "make ", "git ", "cd ", "python -m benchmarks")
# Run by the slow test of the demo.
SLOW = ("retrieval demo",)


def readme_commands() -> list[str]:
    """Every `$ command` of the README's console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [line[2:] for block in blocks for line in block.replace("\\\n", " ").splitlines() if line[:2] == "$ "]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in class folders, other photos to test on, a query, and ImageNet weights as torchvision caches them."""
    folder = tmp_path_factory.mktemp("readme")
    draw_catalogue(folder / "photos", kinds=KINDS[:3], pictures_per_kind=24, seed=0)
    draw_catalogue(folder / "test", kinds=KINDS[3:5], pictures_per_kind=4, seed=0)
    draw_catalogue(folder / "queries", kinds=KINDS[:3], pictures_per_kind=2, seed=1)
    shutil.copy(next((folder / "test").rglob("*.jpg")), folder / "query.jpg")
    pack_shop(folder)
    checkpoints = folder / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    name = Path(torchvision.models.ResNet50_Weights.DEFAULT.url).name
    torch.save(make_backbone(sorted((folder / "photos").rglob("*.jpg"))).state_dict(), checkpoints / name)
    return folder


def pack_shop(folder: Path) -> None:
    """A tar shard, a zip, a table with metadata and a folder of new photos."""
    draw_catalogue(folder / "new-photos", kinds=KINDS[:1], pictures_per_kind=3, seed=2)
    draw_catalogue(folder / "products", kinds=KINDS[1:2], pictures_per_kind=4, seed=3)
    draw_catalogue(folder / "packed", kinds=KINDS[2:3], pictures_per_kind=4, seed=4)
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards" / "00000.tar", "w") as shard:
        shard.add(folder / "packed", arcname=".")
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        for path in sorted((folder / "packed").rglob("*.jpg"))[:2]:
            archive.write(path, path.name)
    rows = [
        f"{path},{place},example.com" for place, path in enumerate(sorted((folder / "products").rglob("*.jpg")))
    ]
    (folder / "products.csv").write_text("\n".join(["path,price,shop", *rows]))


@torch.random.fork_rng(devices=[])
def make_backbone(photos: list[Path]) -> torch.nn.Module:
    """A ResNet-50 of random weights whose features tell pictures apart: its batch norms have seen the photos.

    Without, features are so large and so alike that what the confidence module thinks of them is rounding.
    """
    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # plain averages
    config = PreprocessConfig(resize=256, crop=224)
    pixels = np.stack([preprocess_image(read_image(path, target_side=256).image, config) for path in photos])
    mean, std = (255 * torch.tensor(values).view(1, 3, 1, 1) for values in (config.mean, config.std))
    with torch.no_grad():
        model.train()(normalise_images(torch.from_numpy(pixels), mean, std))
    return model.eval()


def test_the_readme_shows_every_command_of_the_program() -> None:
    shown = readme_commands()
    for name in (
        "train",
        "export",
        "index build",
        "index add",
        "index update",
        "index remove",
        "index compact",
        "index info",
        "index list",
        "index verify",
        "index export-vectors",
        "duplicates",
        "search",
        "evaluate",
        "audit",
        "serve",
        "demo",
    ):
        assert any(command.startswith(f"retrieval {name}") for command in shown), name


@pytest.mark.timeout(1200)  # a dozen trainings with a ResNet-50
def test_every_command_of_the_readme_runs(folder: Path) -> None:
    environment = {
        **os.environ,
        "TORCH_HOME": str(folder / "torch"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(README.parent),
    }
    ran = 0
    with Servers(folder, environment) as servers:
        for command in readme_commands():
            if command.startswith((*ELSEWHERE, *SLOW)):
                continue
            words = shlex.split(command)
            settings = {}
            while "=" in words[0]:  # VARIABLE=value before the command
                name, _, value = words.pop(0).partition("=")
                settings[name] = value
            assert words[0] in ("retrieval", "curl"), f"the README shows a command that no test runs: {command}"
            if words[0] == "curl":
                servers.ask(words[1:])
            elif words[1] == "serve":
                servers.start(words[1:], settings)
            else:
                program = [sys.executable, "-m", "retrieval_app", *words[1:]]
                done = subprocess.run(
                    program, cwd=folder, env=environment, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{command}\n{done.stderr}"
            ran += 1
    assert ran >= 8


class Servers(AbstractContextManager["Servers"]):
    """The server that the README has started last, on a free port; it is asked as by `curl`, and ended by Ctrl-C."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder, self._environment, self._last_job = folder, environment, ""
        self._process: subprocess.Popen[str] | None = None

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            out, _ = self._process.communicate(timeout=60)
            assert (self._process.returncode, out) == (0, "")
            self._process = None

    def start(self, arguments: list[str], settings: dict[str, str]) -> None:
        """Start a server and get its page."""
        self.__exit__()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "retrieval_app", *arguments, "--port", "0", "--json"],
            cwd=self._folder, env={**self._environment, **settings}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._url = json.loads(self._process.stdout.readline())["url"]
        if not settings:
            with urllib.request.urlopen(self._url, timeout=30) as answer:
                assert b"gradio" in answer.read()

    def ask(self, arguments: list[str]) -> None:
        """Run `curl`; an error of the API is one of the test."""
        assert shutil.which("curl"), "the README's lines are run with curl: install it"
        host = self._url.removeprefix("http://").rstrip("/")
        words = [word.replace("localhost:7860", host).replace("JOB", self._last_job) for word in arguments]
        done = subprocess.run(
            ["curl", "--fail-with-body", *words], cwd=self._folder, capture_output=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{words}\n{done.stdout.decode(errors='replace')}\n{done.stderr.decode()}"
        if done.stdout.startswith(b'{"job"'):
            self._last_job = json.loads(done.stdout)["job"]


def test_the_readme_has_no_gaps_and_its_links_lead_somewhere() -> None:
    text = README.read_text(encoding="utf-8")
    assert re.findall(r"\b[A-Z]+_(?:TEXT|TABLE)\b|TODO|TBD|XXX", text) == []
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []
