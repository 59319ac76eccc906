"""A test that leaves something behind fails, and is named."""

from __future__ import annotations

import gc
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from PIL import ImageFile

from tests import leftovers
from tests.forked import ForkedCommand, run
from tests.leftovers import ROOT, find_changes, find_living, find_stragglers, take_stock


@pytest.mark.parametrize(
    ("change", "restore", "named"),
    [
        (lambda: os.environ.update(LEFT="1"), lambda: os.environ.pop("LEFT"), "environment: LEFT None → '1'"),
        (lambda: os.chdir("/"), lambda: os.chdir(ROOT), "working folder"),
        (lambda: os.umask(0o077), lambda: os.umask(0o022), "umask"),
        (
            lambda: signal.signal(signal.SIGHUP, print),
            lambda: None,
            "signal",
        ),
        (gc.disable, gc.enable, "garbage collector"),
        (lambda: random.seed(1), lambda: None, "random"),
        (lambda: np.random.seed(1), lambda: None, r"numpy\.random"),
        (
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "torch: default type",
        ),
        (
            lambda: faiss.omp_set_num_threads(7),  # torch shares its OpenMP where it was loaded first
            lambda: faiss.omp_set_num_threads(1),
            "faiss|torch: threads",
        ),
        (
            lambda: faiss.set_deserialization_vector_byte_limit(9),
            lambda: faiss.set_deserialization_vector_byte_limit(1 << 40),
            "faiss",
        ),
        (
            lambda: setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True),
            lambda: setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False),
            "PIL",
        ),
        (lambda: sys.path.append("left"), lambda: sys.path.remove("left"), r"sys\.path"),
        (
            lambda: logging.getLogger("index").setLevel(5),
            lambda: logging.getLogger("index").setLevel(logging.NOTSET),
            "logger index",
        ),
        (lambda: logging.root.addHandler(LEFT), lambda: logging.root.removeHandler(LEFT), "logging"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_put_back_is_told(
    change: Callable[[], object], restore: Callable[[], object], named: str
) -> None:
    logging.getLogger("index")
    drawn, legacy, here, mask = random.getstate(), np.random.get_state(), os.getcwd(), os.umask(0o022)
    threads, limit = faiss.omp_get_max_threads(), faiss.get_deserialization_vector_byte_limit()
    hang_up = signal.getsignal(signal.SIGHUP)  # ignored below `nohup`
    try:
        before = take_stock()
        assert find_changes(before) == []
        if named == "random" and "random" not in before:
            pytest.skip("a browser draws from the same generator")
        change()
        told = find_changes(before)
        restore()
    finally:
        random.setstate(drawn)
        np.random.set_state(legacy)
        os.chdir(here)
        os.umask(mask)
        signal.signal(signal.SIGHUP, hang_up)
        faiss.omp_set_num_threads(threads)
        faiss.set_deserialization_vector_byte_limit(limit)
    assert told
    assert all(re.match(named, line) for line in told), told


LEFT = logging.StreamHandler()


def test_a_name_that_stays_in_the_checkout_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "ROOT", tmp_path)  # other workers look at the real one meanwhile
    before = take_stock()
    (tmp_path / "left").mkdir()
    assert find_changes(before) == ["names in the checkout: new ['left'], gone []"]


def test_threads_and_processes_that_do_not_end_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_GRACE_S", 0.2)
    before, end = find_living(), threading.Event()
    thread = threading.Thread(target=end.wait, name="straggler")
    thread.start()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        told = find_stragglers(before)
        end.set()
        thread.join()
    assert sorted(told) == [f"process {sys.executable} -c input()", "thread straggler"]
    assert child.returncode is not None
    assert find_stragglers(before) == []


def test_the_culprit_is_named_and_its_neighbour_is_not(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import leaves_no_trace as leaves_no_trace\n")
    (tmp_path / "test_two.py").write_text(
        "import os\n\ndef test_innocent():\n    pass\n\ndef test_culprit():\n    os.environ['LEFT'] = 'behind'\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout
    assert "test_two.py::test_culprit leaves behind" in ran.stdout
    assert "environment: LEFT None → 'behind'" in ran.stdout
    assert "test_innocent leaves" not in ran.stdout


def test_forked_processes_tell_their_output_and_end_and_are_told_where_they_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leftovers, "_GRACE_S", 0.2)
    ran = run(["a", 2], function=tell_words)
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "a 2\n", "")
    before = find_living()
    with open(os.devnull, "w") as nothing:
        process = ForkedCommand([60], function=sleep, stdout=nothing.fileno(), stderr=nothing.fileno())
    told = find_stragglers(before)
    process.kill()
    assert process.wait(20) == -signal.SIGKILL
    assert [line.partition(" -m ")[2].split()[0] for line in told] == ["tests.forked"]
    assert find_stragglers(before) == []


def tell_words() -> None:
    sys.stdout.write(" ".join(sys.argv[1:]) + "\n")
    sys.exit(3)


def sleep() -> None:
    time.sleep(float(sys.argv[1]))
