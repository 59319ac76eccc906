"""A test that leaves something behind fails, and is named."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import leftovers
from tests.leftovers import find_changes, find_living, find_stragglers, take_stock


def test_what_is_not_put_back_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "ROOT", tmp_path)  # other workers look at the real one meanwhile
    drawn, here, level = np.random.get_state(), os.getcwd(), logging.getLogger("index").level
    before = take_stock()
    assert find_changes(before) == []
    try:
        os.environ["LEFT"] = "1"
        os.chdir("/")
        np.random.seed(1)
        torch.set_default_dtype(torch.float64)
        logging.getLogger("index").setLevel(5)
        (tmp_path / "left").mkdir()
        told = find_changes(before)
    finally:
        del os.environ["LEFT"]
        os.chdir(here)
        np.random.set_state(drawn)
        torch.set_default_dtype(torch.float32)
        logging.getLogger("index").setLevel(level)
    assert "environment: LEFT None → '1'" in told
    assert "names in the checkout: new ['left'], gone []" in told
    assert {line.partition(":")[0] for line in told} == {
        *("environment", "working folder", "names in the checkout", "logger index", "numpy.random", "torch")
    }


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
