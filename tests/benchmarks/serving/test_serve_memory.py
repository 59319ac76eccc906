"""The line through a server's memory."""

from __future__ import annotations

import pytest

from benchmarks.serving.serve_memory import describe_memory
from benchmarks.serving.serve_tables import format_memory

MIB = 2**20


def samples(slope: float) -> list[dict[str, float]]:
    """Memory that grows by 50 MiB in the first half, and then by `slope` bytes a request."""
    found = []
    for answered in range(0, 1001, 10):
        anonymous = 200 * MIB + 50 * MIB * min(1, answered / 400) + slope * max(0, answered - 400)
        found.append(
            {"seconds": answered, "answered": answered, "anonymous": anonymous, "resident": anonymous + MIB}
        )
    return found


def test_only_growth_of_the_second_half_counts() -> None:
    found = describe_memory(samples(slope=1000))
    assert found["bytes_per_request"]["slope"] == pytest.approx(1000)
    assert found["rise_bytes"] == pytest.approx(500_000)
    assert found["anonymous"]["start"] == 200 * MIB
    assert found["anonymous"]["half-way"] == pytest.approx(250 * MIB + 100_000)
    assert found["resident"]["end"] == found["resident"]["peak"] == found["anonymous"]["end"] + MIB


def test_memory_that_stays_has_no_slope() -> None:
    assert describe_memory(samples(slope=0))["bytes_per_request"]["slope"] == pytest.approx(0, abs=1e-6)


def test_few_samples_give_no_line() -> None:
    with pytest.raises(SystemExit, match="too few for a line"):
        describe_memory(samples(slope=0)[-2:])


def test_the_table_tells_mix_moments_line_and_verdict() -> None:
    load = {
        "answered": 1000, "clients": 16, "seconds": 10.0, "per_second": 100.0, "refused": 3, "failed": 1, "broken": 1,
    }  # fmt: skip
    goal = {"name": "flat", "measured": 0.2, "limit": 2.0, "unit": " %", "at_most": True, "met": True}
    gallery = {"images": 5398, "what": "photos"}
    described = describe_memory(samples(slope=1000))
    table = format_memory({"gallery": gallery, "mix": {"by id": 0.7}, "load": load, "goals": [goal], **described})
    assert "## Memory of the server, 5,398 photos" in table
    assert "| requests | 1,000 (70 % by id) |" in table
    assert "| 503, failed | 3, 2 |" in table
    assert "| half-way: anonymous / resident | 250 / 251 MiB |" in table
    assert "| which adds | +0.48 MiB |" in table
    assert "| flat | 0.20 % | at most 2 % | met |" in table
