"""Files that cost a decoder minutes or gigabytes: each is given up in time, or decodes for little."""

import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from index.catalog.reader import read_catalog
from index.embedding.engine import ThreadedEngine
from index.errors import ImageError
from index.images import decoding_pool
from index.images.decoding_pool import DecodingPool
from index.images.image_files import MAX_PIXELS, REASONS, decode_image
from index.items import Place
from index.model.embedder import Embedder
from tests.conftest import mostly_slow
from tests.index.costly import COSTLY, jpeg_of_scans
from tests.index.decoding_workers import wait_for_busy_workers, wait_for_the_end_of
from tests.index.hostile import PHOTO, encode

ROOT = Path(__file__).parents[3]
DAMAGED = {"large_tile.tif": "corrupt", "one_tile.tif": "too-many-pixels", "strips.tif": "corrupt"}
ALWAYS_TOO_COSTLY = {"comment.gif", "scans.jpg", "tags.tif", "prefixes.png", "tags.png"}
# Prints what the program and, at most, one of its workers had in memory, and the processor time of all workers.
# The program's is the kernel's own peak: `ru_maxrss` would count what the parent held before the program started.
MEASURED = """
import re, resource, sys
from pathlib import Path
from index.commands.index_group import index_group
from index.images.decoding_pool import shared_pool
index_group(sys.argv[1:], standalone_mode=False)
shared_pool().close()
peak_kb = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
workers = resource.getrusage(resource.RUSAGE_CHILDREN)
print(peak_kb // 1024, workers.ru_maxrss // 1024, workers.ru_utime + workers.ru_stime, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def hurried() -> Iterator[DecodingPool]:
    """Workers that give an image up after one second of processor time."""
    pool = DecodingPool(2, cpu_s=1)
    yield pool
    pool.close()


@pytest.mark.parametrize("name", mostly_slow(COSTLY, fast=(*DAMAGED, "scans.jpg")))
def test_a_costly_file_is_cheap_here(name: str, hurried: DecodingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_pool, "shared_pool", lambda: hurried)
    data = COSTLY[name]()
    assert len(data) < 20_000_000
    begun_s, begun_kb = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        decode_image(data, name=name, target_side=64)
        reason = None
    except ImageError as error:
        reason = error.reason
    assert time.process_time() - begun_s < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun_kb < 200 * 1024
    if name in DAMAGED:
        assert reason == DAMAGED[name]
    else:
        assert reason == "too-costly" if name in ALWAYS_TOO_COSTLY else reason in (None, "too-costly")


@pytest.mark.slow
def test_other_threads_go_on_while_a_costly_file_is_decoded(hurried: DecodingPool) -> None:
    data, photo, done = jpeg_of_scans(4000, 2000), encode(PHOTO, "JPEG"), threading.Event()

    def decode_costly() -> None:
        with pytest.raises(ImageError):
            hurried.decode(data, name="scans", target_side=64, max_pixels=MAX_PIXELS)
        done.set()

    thread = threading.Thread(target=decode_costly)
    thread.start()
    count = 0
    while not done.is_set():
        decode_image(photo, name="photo", target_side=64)
        count += 1
    thread.join()
    assert count > 20  # hundreds on an idle machine, none if the interpreter were held


@pytest.mark.slow
def test_a_folder_of_costly_files_is_indexed_in_bounded_memory(tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    costly = ("scans.jpg", "tags.tif")  # the decoder's own loop, and one before it
    for name in costly:
        (folder / name).write_bytes(COSTLY[name]())
    encoded = encode(PHOTO, "JPEG")
    (folder / "sound.jpg").write_bytes(encoded)
    words = ["build", str(tiny_model), str(folder), "--out", str(tmp_path / "gallery"), "--json"]
    ran = subprocess.run([sys.executable, "-c", MEASURED, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    peak_mb, worker_mb, cpu_s = map(float, ran.stderr.splitlines()[-1].split())
    assert peak_mb < 600
    assert worker_mb < 1024 + 100
    assert cpu_s < 6 * len(costly)
    with read_catalog(tmp_path / "gallery" / "versions" / "000001" / "catalog.sqlite") as catalog:
        found = {row.path: row.reason for row in catalog.rows()}
    assert found["sound.jpg"] is None
    assert {found[name] for name in costly} == {"too-costly"}
    assert "Traceback" not in ran.stderr
    assert json.loads(ran.stdout)["skipped_by_reason"]["too-costly"] == len(costly)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_a_build_of_costly_files_stops_at_once(tmp_path: Path, tiny_model: Path, stop: signal.Signals) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    data = jpeg_of_scans(4000, 5000)
    for number in range(64):  # minutes of work
        (folder / f"{number}.jpg").write_bytes(data)
    command = [sys.executable, "-m", "retrieval_app", "index", "build", str(tiny_model), str(folder), "--out"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "gallery")], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    workers = wait_for_busy_workers(process.pid)
    process.send_signal(stop)
    _, stderr = process.communicate(timeout=20)  # a moment, on an idle machine
    assert process.returncode not in (0, None)
    assert "Traceback" not in stderr
    wait_for_the_end_of(workers)


@pytest.mark.slow
def test_workers_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "scans.jpg").write_bytes(jpeg_of_scans(4000, 5000))
    code = (
        "import sys; from pathlib import Path; from index.images.image_files import read_image\n"
        "read_image(Path(sys.argv[1]), target_side=64)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "scans.jpg")], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    workers = wait_for_busy_workers(process.pid)
    process.kill()
    process.wait()
    wait_for_the_end_of(workers)


def test_a_kept_problem_holds_nothing_of_its_file(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "cut.jpg").write_bytes(encode(PHOTO, "JPEG")[:2000])
    [[outcome]] = ThreadedEngine(Embedder(tiny_model), workers=1).embed([(1, Place(tmp_path / "cut.jpg", "cut.jpg"))])
    problem = outcome.problem
    assert problem.reason in REASONS
    assert (problem.__traceback__, problem.__context__, problem.__cause__) == (None, None, None)


@pytest.mark.slow
def test_large_files_that_are_no_images_are_not_read(tmp_path: Path, tiny_model: Path) -> None:
    for number in range(40):
        with open(tmp_path / f"{number}.jpg", "wb") as file:
            file.truncate(400 << 20)  # takes no room on the disk, 16 GB in memory
    (tmp_path / "sound.png").write_bytes(encode(PHOTO, "PNG"))
    words = ["build", str(tiny_model), str(tmp_path), "--out", str(tmp_path.with_name("gallery")), "--json"]
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    peak_mb, _, _ = map(float, ran.stderr.splitlines()[-1].split())
    assert peak_mb < 400
    assert json.loads(ran.stdout)["skipped_by_reason"] == {"not-an-image": 40}
