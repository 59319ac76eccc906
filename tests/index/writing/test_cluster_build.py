"""A gallery made on a real Ray cluster, whose workers, nodes and driver are killed in the middle."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from index.writing.build import build_gallery
from index.writing.build_config import BuildConfig
from index.writing.shard_plan import find_outcome_files
from tests.conftest import draw_folder
from tests.index.galleries import ROOT
from tests.index.writing.test_shards import same

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None and not os.environ.get("CI"), reason="needs the extra `cluster`"
    ),
]
CONFIG = BuildConfig(batch_size=4, checkpoint_images=4)
HEAVY = 60  # of images that take long to decode, so that there is a middle


class RunningCluster:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._answer()

    def tell(self, command: str) -> None:
        """Give it a command, and wait until it is done."""
        print(command, file=self._process.stdin, flush=True)
        assert self._answer() == "done"

    def _answer(self) -> str:
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    errors = tmp_path_factory.mktemp("cluster") / "errors.txt"
    with (
        errors.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-m", "tests.ray_cluster"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        ) as process,
    ):
        running = RunningCluster(process)
        assert running.address, errors.read_text()
        yield running
        process.stdin.close()
        process.wait(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = draw_folder(tmp_path_factory.mktemp("photos") / "images", per_class=8)
    (folder / "grey").mkdir()
    Image.new("RGB", (4000, 4000), (90, 90, 90)).save(folder / "grey" / "0.png")
    for number in range(1, HEAVY):
        os.link(folder / "grey" / "0.png", folder / "grey" / f"{number}.png")
    (folder / "red" / "junk.jpg").write_bytes(b"junk")
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, folder: Path) -> Path:
    out = tmp_path_factory.mktemp("whole") / "g"
    build_gallery(model_path=tiny_model, sources=[folder], out=out, config=CONFIG)
    return out


def start(cluster: RunningCluster, model: Path, folder: Path, out: Path, *, code: str = "") -> subprocess.Popen[str]:
    """The command in a process of its own, after some code."""
    words = ["index", "build", model, folder, "--out", out, "--engine", "ray", "--batch-size", "4"]
    words += ["--checkpoint-images", "4", *(() if cluster is None else ("--address", cluster.address))]
    program = f"{code}\nimport sys; from retrieval_app.commands.cli import main; sys.exit(main({[*map(str, words)]}))"
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(found: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 90
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "nothing came"
        time.sleep(0.01)


def test_workers_and_nodes_die_and_the_gallery_is_that_of_one_build(
    tmp_path: Path, cluster: RunningCluster, tiny_model: Path, folder: Path, whole: Path
) -> None:
    out = tmp_path / "g"
    with start(cluster, tiny_model, folder, out) as process:
        wait_for(lambda: len(find_outcome_files(out / "shards")) >= 2, process)
        cluster.tell("kill worker")
        wait_for(lambda: len(find_outcome_files(out / "shards")) >= 5, process)
        cluster.tell("kill node")
        said, warned = process.communicate(timeout=240)
    cluster.tell("add node")
    assert process.returncode == 0, warned
    assert f"{24 + HEAVY} images, {24 + HEAVY} new" in said
    assert same(whole, out)


def test_a_killed_driver_goes_on_where_it_was(
    tmp_path: Path, cluster: RunningCluster, tiny_model: Path, folder: Path, whole: Path
) -> None:
    out = tmp_path / "g"
    with start(cluster, tiny_model, folder, out) as process:
        wait_for(lambda: len(find_outcome_files(out / "shards")) >= 3, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    before = {path.name: path.stat().st_mtime_ns for path in find_outcome_files(out / "shards")}
    keep = (  # what the merge would remove
        "from index.writing import sharding\nsharding._remove_shards = lambda gallery: None"
    )
    with start(cluster, tiny_model, folder, out, code=keep) as process:
        _, warned = process.communicate(timeout=240)
    assert process.returncode == 0, warned
    after = {path.name: path.stat().st_mtime_ns for path in find_outcome_files(out / "shards")}
    assert before.items() <= after.items()
    assert same(whole, out)


def test_without_nodes_work_ends(tmp_path: Path, cluster: RunningCluster, tiny_model: Path, folder: Path) -> None:
    out = tmp_path / "g"
    hasty = "import index.writing.cluster_build as cluster; cluster._NO_NODE_S = 2.0"
    with start(cluster, tiny_model, folder, out, code=hasty) as process:
        wait_for(lambda: len(find_outcome_files(out / "shards")) >= 2, process)
        cluster.tell("kill node")
        cluster.tell("kill node")
        _, warned = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "no node of the cluster is left to embed" in warned.splitlines()[-1]
    assert len(find_outcome_files(out / "shards")) >= 2
