"""The benchmark of the server: wrong usage, and small runs against the real one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.tables import spread_all
from benchmarks.serving.__main__ import CLIENTS, main, parse_options
from benchmarks.serving.serve_servers import Server
from benchmarks.serving.serve_start import MOMENTS, drop_pages
from benchmarks.serving.serve_tables import format_start, format_workers
from benchmarks.serving.serve_workers import summarize_workers


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--rounds", "0"), "--rounds must be at least 1"),
     (("--alone-images", "0"), "--alone-images must be at least 1"),
     (("--clients", "8", "--clients", "0"), "--clients must be at least 1"),
     (("--seconds", "0"), "--seconds must be above 0"),
     (("--workers", "2", "--workers", "0"), "--workers must be at least 1"),
     (("--part", "all"), "invalid choice: 'all'")],
)  # fmt: skip
def test_wrong_usage_is_said_and_exits_with_two(options, message: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--out", str(tmp_path), *options])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_clients_are_asked_for_in_rising_order() -> None:
    assert parse_options(["--out", "x"]).clients == list(CLIENTS)
    assert parse_options(["--out", "x", "--clients", "8", "--clients", "1"]).clients == [1, 8]


def test_a_server_is_named_in_requests_without_what_follows_its_port() -> None:
    assert Server("http://127.0.0.1:1234/", 1, 0.0, 0.0).host == "127.0.0.1:1234"


def test_pages_are_dropped_of_files_that_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 10_000)
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    drop_pages([tmp_path])
    assert (tmp_path / "deep" / "file").read_bytes() == b"x" * 10_000


def test_the_table_of_starts_has_medians_and_verdicts() -> None:
    starts = [{**dict.fromkeys(MOMENTS, seconds), "read_mib": 10.0} for seconds in (1.0, 3.0, 2.0)]
    medians = {kind: spread_all(starts) for kind in ("warm", "cold")}
    goal = {"name": "warm", "measured": 2.0, "limit": 3.0, "unit": " s", "at_most": True, "met": True}
    table = format_start({
        "gallery": {"images": 5398, "what": "photos"}, "starts": {"warm": starts, "cold": starts},
        "medians": medians, "goals": [goal],
    })  # fmt: skip
    assert "| seconds from the start of the process, 3 starts | warm | cold |" in table
    assert "| ready | 2.00 (1.00 - 3.00) | 2.00 (1.00 - 3.00) |" in table
    assert "| read from the disk until ready, MiB | 10.00 (10.00 - 10.00) |" in table
    assert "| warm | 2.00 s | at most 3 s | met |" in table


@pytest.mark.slow
def test_a_small_gallery_is_served_and_measured(
    tmp_path: Path, tiny_model: Path, image_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = ("photos", "memory", "start")
    chosen = [word for part in parts for word in ("--part", part)]
    main([
        "--out", str(tmp_path), *chosen, "--photos", str(image_folder), "--model", str(tiny_model), "--rounds", "1",
        "--seconds", "0.5", "--warm-up", "0", "--clients", "1", "--clients", "32", "--without", "gradio",
        "--without", "int8", "--requests", "1000", "--starts", "1", "--alone-images", "15",
    ])  # fmt: skip
    printed = capfd.readouterr().out
    records = {part: json.loads((tmp_path / f"record-{part}.json").read_text())["results"] for part in parts}
    for part in parts:
        assert (tmp_path / f"table-{part}.md").read_text() in printed
    cells = records["photos"]["cells"]
    assert cells.keys() >= {"by id", "by upload", "plain fastapi"}
    for measured in cells.values():
        assert all(cell["statuses"].keys() == {"200"} and cell["answered"] > 0 for cell in measured.values())
    assert records["photos"]["agreement"]["plain fastapi"]["mean"] > 0.9
    assert len(records["photos"]["goals"]) >= 3
    load = records["memory"]["load"]
    assert (load["answered"] >= 1000, load["failed"], load["broken"]) == (True, 0, 0)
    ready = records["start"]["medians"]["cold"]["ready"]["median"]
    assert 0 < records["start"]["medians"]["cold"]["address"]["median"] <= ready
    assert np.load(tmp_path / "photos" / "ids.npy").shape == (15,)


def test_the_table_of_workers_has_medians_of_the_rounds_by_clients_and_workers() -> None:
    def measure(rate: float) -> dict[str, object]:
        counts = dict.fromkeys(("answered", "refused", "failed", "broken", "own_cores", "server_cores"), 1)
        return {"per_second": rate, "p50_ms": 2.0, "p99_ms": 3.0, "most_ms": 4.0, "statuses": {"200": 1}, **counts}

    rounds = [
        {"contestants": {f"by id, {workers}": {"8": measure(rate * workers)} for workers in (1, 2)}}
        for rate in (100, 300, 200)
    ]
    table = format_workers({
        "gallery": {"images": 5398, "what": "photos"}, "cores": 2, "rounds": rounds, "cells": summarize_workers(rounds),
        "memory": {"1": {"resident": 200 << 20}, "2": {"resident": 500 << 20}},
    })  # fmt: skip
    assert "| by id | 8 | 1 | 200 (100 - 300) | 2.0 | 3.0 | 200 |" in table
    assert "| by id | 8 | 2 | 400 (200 - 600) | 2.0 | 3.0 | 500 |" in table
