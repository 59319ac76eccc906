"""The benchmark of search from end to end, on vectors that take no time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ann import ann_filters, ann_peers
from benchmarks.ann.__main__ import main


@pytest.fixture
def vectors(tmp_path: Path) -> list[str]:
    """Options that name 1,500 unit rows around 50 centres, and 40 more that ask."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(50, 16))[generator.integers(50, size=1540)] + 0.5 * generator.normal(
        size=(1540, 16)
    )
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    np.save(tmp_path / "base.npy", rows[:1500])
    np.save(tmp_path / "queries.npy", rows[1500:])
    return ["--base", str(tmp_path / "base.npy"), "--queries", str(tmp_path / "queries.npy")]


def test_every_part_measures_ours_beside_the_peers_and_writes_its_tables(
    vectors: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ann_peers, "EFFORTS", (10, 64))
    monkeypatch.setattr(ann_filters, "SHARES", (0.5, 0.01))
    out = tmp_path / "out"
    options = ["--out", str(out), *vectors, "--index-type", "hnsw", "--rounds", "2"]
    parts = ["--part", "curves", "--part", "filters", "--part", "memory"]
    main([*options, *parts, "--without", "hnswlib", "--without", "usearch"])
    curves = json.loads((out / "record-curves-1500-16.json").read_text())["results"]
    rows = {row["contestant"]: row["points"] for row in curves["rows"]}
    assert rows["faiss Flat"][0]["single"]["recall"] == rows["faiss Flat"][0]["batch"]["recall"] == 1
    assert len(rows["faiss Flat"][0]["batch"]["rates"]) == 2
    assert all(point["batch"]["recall"] > 0.95 for point in rows["ours"])
    assert all(each["ratio"] > 0 for each in curves["compared"]["single"])
    assert curves["builds"]["faiss Flat"]["disk_bytes"] >= 1500 * 16 * 4
    filters = json.loads((out / "record-filters-1500-16.json").read_text())["results"]
    assert [(cell["kind"], cell["kept"]) for cell in filters["cells"]] == [
        ("random", 750), ("random", 15), ("alike", 750), ("alike", 15),
    ]  # fmt: skip
    ours = [point for cell in filters["cells"] for point in cell["points"] if point["contestant"] == "ours"]
    assert [point["short"] for point in ours] == [0] * 4
    assert min(point["recall"] for point in ours) > 0.95
    assert (out / "curves-1500-16.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    for part in ("curves", "filters", "memory"):
        assert (out / f"table-{part}-1500-16.md").read_text().strip() in shown


def test_a_second_run_reads_what_the_first_one_measured(
    vectors: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--out", str(tmp_path / "out"), *vectors, "--part", "memory", "--index-type", "ivf"]
    main(options)
    first = capsys.readouterr()
    main(options)
    second = capsys.readouterr()
    assert "built ours" in first.err
    assert "built ours" not in second.err
    assert second.out == first.out


@pytest.mark.parametrize(("library", "settings"), [
    ("hnswlib", {"m": 16}), ("usearch", {"dtype": "f32", "m": 16, "metric": "ip"}),
])  # fmt: skip
def test_a_peer_finds_what_is_nearest(
    library: str, settings: dict[str, object], vectors: list[str], tmp_path: Path
) -> None:
    pytest.importorskip(library)
    contestant = ann_peers.Contestant(library, library, library, settings)
    base = tmp_path / "base.npy"
    folder = tmp_path / "built"
    folder.mkdir()
    contestant.build(contestant.load(base), folder, threads=2)
    opened = contestant.open(base, folder)
    rows, queries = np.load(base), np.load(tmp_path / "queries.npy")
    nearest = (queries @ rows.T).argmax(axis=1)
    for asked in (queries, queries[:1]):
        ids = ann_peers.as_ids(opened.prepare(opened.points[-1], threads=1)(asked), count=len(asked))
        assert (ids[:, 0] == nearest[: len(asked)]).mean() > 0.95
    if opened.filtered_points:
        allowed = np.arange(len(rows)) % 2 == 0
        found = opened.prepare(opened.filtered_points[-1], threads=1, allowed=allowed)(queries)
        assert (ann_peers.as_ids(found, count=len(queries)) % 2 == 0).all()


def test_a_peer_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hnswlib", None)
    with pytest.raises(SystemExit, match=r"hnswlib is not installed; pip install '\.\[benchmarks\]'"):
        ann_peers.import_peer("hnswlib")
