import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from index.errors import ImageError, InputError
from index.images import decoding_pool
from index.images.decode import decode_here
from index.images.decoding_pool import DecodingPool
from index.limits import MAX_PIXELS
from index.threads import AbandonedError, map_ahead, stop_on_event
from tests.index.costly import jpeg_of_scans
from tests.index.decoding_workers import wait_for_busy_workers, worker_pids
from tests.index.hostile import PHOTO, contents, encode

ROOT = Path(__file__).parents[3]
TIFF = encode(PHOTO, "TIFF")


@pytest.fixture
def pool() -> Iterator[DecodingPool]:
    made = DecodingPool(2)
    yield made
    made.close()


def decode(pool: DecodingPool, data: bytes, *, max_pixels: int = MAX_PIXELS) -> bytes:
    return pool.decode(data, name="drawn", target_side=64, max_pixels=max_pixels).tobytes()


def test_a_worker_gives_the_pixels_and_the_reasons_of_a_decode_in_place(pool: DecodingPool) -> None:
    for name, (data, _) in contents().items():
        outcomes = []
        for decode_somewhere in (decode_here, pool.decode):
            try:
                image = decode_somewhere(data, name="x", target_side=64, max_pixels=MAX_PIXELS)
                outcomes.append((image.mode, image.size, image.tobytes()))
            except ImageError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], name


def test_threads_share_no_more_workers_than_the_pool_has(pool: DecodingPool) -> None:
    before, expected = worker_pids(os.getpid()), decode(pool, TIFF)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: decode(pool, TIFF), range(64)))
    assert set(found) == {expected}
    assert 1 <= len(worker_pids(os.getpid()) - before) <= 2


def test_a_worker_that_was_killed_between_two_images_is_replaced(pool: DecodingPool) -> None:
    before, expected = worker_pids(os.getpid()), decode(pool, TIFF)
    [worker] = worker_pids(os.getpid()) - before
    os.kill(worker, signal.SIGKILL)
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)  # until all its threads are gone
    assert decode(pool, TIFF) == expected


@pytest.mark.slow
def test_a_worker_killed_over_an_image_costs_that_image_alone(pool: DecodingPool) -> None:
    before, reasons = worker_pids(os.getpid()), list[str]()

    def decode_costly() -> None:
        with pytest.raises(ImageError) as caught:
            decode(pool, jpeg_of_scans(4000, 5000))
        reasons.append(caught.value.reason)

    thread = threading.Thread(target=decode_costly)
    thread.start()
    [worker] = wait_for_busy_workers(os.getpid(), beside=before)
    os.kill(worker, signal.SIGKILL)
    thread.join()
    assert reasons == ["too-costly"]
    assert decode(pool, TIFF)


def test_an_abandoned_decode_ends_soon(pool: DecodingPool) -> None:
    abandoned = threading.Event()
    with ThreadPoolExecutor(1, "decoder", stop_on_event, (abandoned,)) as threads:
        future = threads.submit(decode, pool, jpeg_of_scans(4000, 5000))
        abandoned.set()
        with pytest.raises(AbandonedError):
            future.result()


@pytest.mark.slow
def test_closing_a_map_of_decodes_waits_for_none_of_them(pool: DecodingPool) -> None:
    before, costly = worker_pids(os.getpid()), jpeg_of_scans(4000, 5000)

    def decode_or_keep(data: bytes) -> bytes | None:
        return data if data == b"first" else decode(pool, data)

    with closing(map_ahead(decode_or_keep, [b"first"] + [costly] * 50, workers=2, ahead=20)) as decoded:
        assert next(decoded) == b"first"
        while not worker_pids(os.getpid()) - before:
            time.sleep(0.01)
    assert worker_pids(os.getpid()) == before


def test_a_worker_holds_no_other_open_file_or_socket_of_its_parent(pool: DecodingPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        os.set_inheritable(listening.fileno(), True)
        before = worker_pids(os.getpid())
        decode(pool, TIFF)
        [worker] = worker_pids(os.getpid()) - before
        held = [os.readlink(f"/proc/{worker}/fd/{number}") for number in os.listdir(f"/proc/{worker}/fd")]
        assert sum(name.startswith("socket:") for name in held) == 1
        assert f"socket:[{os.fstat(listening.fileno()).st_ino}]" not in held


@pytest.mark.slow
def test_a_folder_of_images_gives_no_module_to_a_worker(tmp_path: Path) -> None:
    for name in ("PIL", "numpy", "index", "json", "socket"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close(); raise SystemExit(3)\n")
    (tmp_path / "photo.tif").write_bytes(TIFF)
    code = (
        "import os, sys; from pathlib import Path; from index.images.image_files import read_image\n"
        "import index.images.decoding_pool  # which is loaded at the first costly image\n"
        "os.chdir(sys.argv[1]); sys.path.insert(0, '')\n"
        "print(read_image(Path('photo.tif'), target_side=64).size)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "(300, 200)\n"
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_forked_child_has_workers_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "photo.tif").write_bytes(TIFF)
    code = (
        "import os, sys; from pathlib import Path; from index.images.image_files import read_image\n"
        "read = lambda: read_image(Path(sys.argv[1]), target_side=64).tobytes()\n"
        "expected = read()\n"
        "child = os.fork()\n"
        "same = all(read() == expected for _ in range(50))\n"
        "if not child: os._exit(0 if same else 1)\n"
        "assert same and os.waitpid(child, 0)[1] == 0"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "photo.tif")], cwd=ROOT, check=True, timeout=60)


def test_a_worker_that_cannot_start_is_an_error(pool: DecodingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_pool, "_START", "raise SystemExit(3)")
    with pytest.raises(InputError, match=r"does not start .*: it ends with status 3"):
        decode(pool, TIFF)
