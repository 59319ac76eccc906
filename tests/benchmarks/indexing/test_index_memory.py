"""What the benchmark of indexing reads off the memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.indexing.index_memory import RowCounter, Sample, describe_memory

MIB = 2**20


def _build(*, slope: float, images: int = 1000) -> list[Sample]:
    """A build of 100 images a second, then a publication that writes the rows again."""
    embedding = [Sample(i / 100, int(300 * MIB + slope * i), 400 * MIB, i) for i in range(0, images + 1, 50)]
    return [*embedding, *(Sample(10 + i, 350 * MIB, 500 * MIB, 2 * images) for i in range(1, 4))]


def test_the_line_through_the_memory_has_its_slope_and_leaves_publication_out() -> None:
    found = describe_memory(_build(slope=64), total=1000)
    assert found["bytes_per_image"]["slope"] == pytest.approx(64, abs=0.1)
    assert found["anonymous_mib"]["peak at publication"] == 350
    assert found["anonymous_mib"]["peak while embedding"] == pytest.approx(300, abs=0.1)
    assert found["resident_mib"]["peak at publication"] == 500
    assert found["images_per_second"] == pytest.approx({"first fifth": 100, "last fifth": 100})
    assert found["publication_seconds"] == pytest.approx(3)


def test_a_pace_that_falls_is_seen() -> None:
    samples = [Sample((i / 100) ** 2, 0, 0, i) for i in range(0, 1001, 20)]
    pace = describe_memory(samples, total=1000)["images_per_second"]
    assert pace["first fifth"] > 3 * pace["last fifth"]


def test_a_build_whose_vectors_were_not_seen_gives_no_line() -> None:
    with pytest.raises(SystemExit, match="no vectors were seen"):
        describe_memory([Sample(1, MIB, MIB, 0)], total=10)


def test_rows_are_counted_with_their_ids_or_without_and_other_arrays_are_not(tmp_path: Path) -> None:
    counter = RowCounter(tmp_path / "building", width=4)
    assert counter.count() == 0
    (tmp_path / "building" / "deep").mkdir(parents=True)
    table = np.zeros(3, dtype=[("id", "<i8"), ("vector", "<f4", (4,))])
    np.save(tmp_path / "building" / "table.npy", table)
    np.save(tmp_path / "building" / "deep" / "plain.npy", np.zeros((5, 4), dtype=np.float16))
    np.save(tmp_path / "building" / "ids.npy", np.zeros(7))
    (tmp_path / "building" / "half.npy").write_bytes(b"\x93NUM")
    assert counter.count() == 8
    (tmp_path / "building" / "table.npy").unlink()
    assert counter.count() == 5
