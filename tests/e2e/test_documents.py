"""The commands of the README and of docs/, run in their order in a folder like the one they speak of."""

import dataclasses
import json
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torchvision.models import resnet

from index.images.image_files import read_image
from index.images.preprocess import preprocess_image
from index.model.embedder import Embedder
from index.outputs import SEMANTIC
from retrieval_app.commands.cli import main
from tests.conftest import draw_image
from tests.documents import PAGES, ROOT, Step, broken_links, documents, missing_figures, steps_of
from tests.models import write_two_output_model
from tests.photos import KINDS, write_photos
from tests.serving_server import serve
from training.backbone.backbones import normalise_images
from training.options import resolve as options
from training.options.backbone_libraries import BUILTIN, DEFAULT_LIBRARY, LIBRARIES, preprocess_for


@pytest.fixture(scope="module")
def short_trainings() -> Iterator[None]:
    """Few steps, small images, and ResNets of one plain block a stage: what their features know is chance anyway."""
    whole = resnet._resnet

    def make(block: type[torch.nn.Module], layers: list[int], *rest: Any, **more: Any) -> torch.nn.Module:
        return whole(resnet.BasicBlock, [1] * 4, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "_resnet", make)
        patch.setattr(options, "DEFAULT", {**options.DEFAULT, "head_steps": 10})
        for name in (DEFAULT_LIBRARY, BUILTIN):
            small = dataclasses.replace(LIBRARIES[name].describe_input("resnet18"), resize=112, crop=96)
            patch.setitem(LIBRARIES, name, dataclasses.replace(LIBRARIES[name], preprocess=lambda _, own=small: own))
        for name in ("USUAL_EPOCHS", "USUAL_STEPS"):
            patch.setattr(f"training.options.finetuning.{name}", 1)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, short_trainings: None) -> Path:
    """Photos in class folders, other photos to test on, a query, and ImageNet weights as torchvision caches them."""
    folder = tmp_path_factory.mktemp("documents")
    write_photos(folder / "photos", kinds=KINDS[:3], pictures_per_kind=9, seed=0)
    write_photos(folder / "test", kinds=KINDS[3:5], pictures_per_kind=4, seed=0)
    write_photos(folder / "queries", kinds=KINDS[:3], pictures_per_kind=2, seed=1)
    for kind, name in zip(KINDS, ("shoes", "hat", "dress"), strict=False):  # the labels that the pages ask for
        for photos in ("photos", "queries"):
            (folder / photos / kind).rename(folder / photos / name)
    shutil.copy(next((folder / "test").rglob("*.jpg")), folder / "query.jpg")
    pack_shop(folder)
    checkpoints = folder / "torch" / "hub" / "checkpoints"
    checkpoints.mkdir(parents=True)
    photos = sorted((folder / "photos").rglob("*.jpg"))[::3]
    for backbone in ("resnet50", "resnet18"):
        name = Path(torchvision.models.get_model_weights(backbone).DEFAULT.url).name
        torch.save(make_backbone(backbone, photos).state_dict(), checkpoints / name)
    return folder


def pack_shop(folder: Path) -> None:
    """A tar shard, a zip, a table with metadata and a folder of new photos."""
    write_photos(folder / "new-photos", kinds=KINDS[:1], pictures_per_kind=3, seed=2)
    write_photos(folder / "products", kinds=KINDS[1:2], pictures_per_kind=4, seed=3)
    write_photos(folder / "packed", kinds=KINDS[2:3], pictures_per_kind=4, seed=4)
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards" / "00000.tar", "w") as shard:
        shard.add(folder / "packed", arcname=".")
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        for path in sorted((folder / "packed").rglob("*.jpg"))[:2]:
            archive.write(path, path.name)
    rows = [f"{path},{place},example.com" for place, path in enumerate(sorted((folder / "products").rglob("*.jpg")))]
    (folder / "products.csv").write_text("\n".join(["path,price,shop", *rows]))


@torch.random.fork_rng(devices=[])
def make_backbone(name: str, photos: list[Path]) -> torch.nn.Module:
    """A network of random weights whose features tell images apart: its batch norms have seen the photos.

    Without, features are so large and so alike that what the confidence module thinks of them is rounding.
    """
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # plain averages
    config = preprocess_for(name)
    pixels = np.stack([preprocess_image(read_image(path, target_side=config.resize), config) for path in photos])
    mean, std = (255 * torch.tensor(values).view(1, 3, 1, 1) for values in (config.mean, config.std))
    with torch.no_grad():
        model.train()(normalise_images(torch.from_numpy(pixels), mean, std))
    return model.eval()


@pytest.mark.timeout(1200)  # a dozen trainings
def test_every_command_of_the_documents_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TORCH_HOME", str(folder / "torch"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ran: set[str] = set()
    with Servers(folder) as servers:
        for step in (step for page in PAGES for step in steps_of(page)):
            if step.text in ran and "retrieval serve" not in step.text:
                continue  # an earlier page has made what it makes
            run_step(step, servers, capfd)
            ran.add(step.text)
    assert len(ran) >= 50


def test_the_code_for_onnx_runtime_alone_gives_the_same_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = write_two_output_model(Path("model.onnx"), threshold=0.9)
    draw_image((200, 30, 60), seed=1).save("query.jpg")
    (code,) = (step.text for step in steps_of(ROOT / "docs" / "formats.md") if step.language == "python")
    Path("block.py").write_text(code)
    vectors = runpy.run_path("block.py")["vectors"]
    embedder = Embedder(model)
    config = embedder.contract.preprocess
    pixels = preprocess_image(read_image(Path("query.jpg"), target_side=config.resize), config)
    np.testing.assert_allclose(vectors, embedder.with_outputs(SEMANTIC).embed_batch(pixels[None]), atol=1e-6)


def run_step(step: Step, servers: "Servers", capfd: pytest.CaptureFixture[str]) -> None:
    """Run it in this process, but servers and curl."""
    if step.language == "python":
        file = Path("block.py")
        file.write_text(step.text)
        runpy.run_path(str(file))
        return
    words, settings = shlex.split(step.text), {}
    while "=" in words[0]:  # VARIABLE=value before the command
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    assert words[0] in ("retrieval", "curl"), f"{step.page} shows a command that no test runs: {step.text}"
    if words[0] == "curl":
        servers.ask(words[1:])
    elif words[1] == "serve":
        servers.start(words[2:], settings)
    else:
        end = words.index(">") if ">" in words else len(words)
        capfd.readouterr()
        assert main(words[1:end]) == 0, f"{step.page}: {step.text}\n{capfd.readouterr().err}"
        for file in words[end + 1 :]:
            Path(file).write_text(capfd.readouterr().out)


class Servers(AbstractContextManager["Servers"]):
    """The server that the pages have started last, on a free port; it is asked as by `curl`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._last_job, self._running = folder, "", ExitStack()
        self._started: tuple[list[str], dict[str, str]] | None = None

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start(self, arguments: list[str], settings: dict[str, str]) -> None:
        """Start a server and get its page; one that runs already goes on."""
        if self._started == (arguments, settings):
            return
        self._running.close()
        self._started = (arguments, settings)
        gallery, *options = arguments
        log, token = self._folder / "server.log", settings.get("RETRIEVAL_TOKEN")
        self._port = self._running.enter_context(serve(self._folder / gallery, *options, log=log, token=token)).port
        if token is None:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/", timeout=30) as answer:
                assert b"app-frame" in answer.read()

    def ask(self, arguments: list[str]) -> None:
        """Run `curl`; an error of the API is one of the test."""
        assert shutil.which("curl"), "the pages' lines are run with curl: install it"
        host = f"127.0.0.1:{self._port}"
        words = [word.replace("localhost:7860", host).replace("JOB", self._last_job) for word in arguments]
        done = subprocess.run(["curl", "--fail-with-body", *words], capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, f"{words}\n{done.stdout.decode(errors='replace')}\n{done.stderr.decode()}"
        if done.stdout.startswith(b'{"job"'):
            self._last_job = json.loads(done.stdout)["job"]


def test_the_links_of_the_documents_lead_somewhere() -> None:
    for page in documents():
        assert broken_links(page) == [], page


def test_the_figures_of_the_documents_stand_in_the_results_that_they_link() -> None:
    for page in documents():
        if page.parent.name != "results":
            assert missing_figures(page) == [], page


def test_the_site_builds_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees", ROOT / "docs", site],
        cwd=ROOT,
        check=True,
        timeout=280,
    )
    assert "duplicates" in (site / "searchindex.js").read_text(encoding="utf-8")
