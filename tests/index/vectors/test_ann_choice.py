from __future__ import annotations

from pathlib import Path

import pytest

from index.errors import InputError
from index.vectors.ann_choice import FLAT_ROWS, MIN_ROWS, choose_ann, machine_memory
from index.vectors.ann_config import AnnConfig
from index.vectors.kinds.lists import count_lists
from index.vectors.kinds.registry import INDEX_TYPES

GB = 10**9


@pytest.mark.parametrize("count", [1, FLAT_ROWS])
def test_a_small_gallery_is_scanned(count: int) -> None:
    plan = choose_ann(count=count, width=512, config=AnnConfig(), machine_bytes=8 * GB)
    assert (plan.type, plan.factory, plan.reduced_width) == ("flat", "Flat", None)
    assert plan.memory_bytes == 4 * 512 * count


@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_too_few_to_measure_with_are_scanned_whatever_is_asked(index_type: str) -> None:
    config = AnnConfig(index_type=index_type)
    assert choose_ann(count=MIN_ROWS - 1, width=64, config=config, machine_bytes=GB).type == "flat"
    least = choose_ann(count=MIN_ROWS, width=64, config=config, machine_bytes=GB)
    assert least.type == ("flat" if index_type == "auto" else index_type)


def test_a_scan_that_is_asked_for_needs_no_memory_of_its_own() -> None:
    config = AnnConfig(index_type="flat", memory_limit="1kB")
    assert choose_ann(count=10**7, width=512, config=config).type == "flat"


@pytest.mark.parametrize(
    ("count", "limit", "kinds"),
    [
        (FLAT_ROWS + 1, "10GB", {"hnsw"}),
        (1_000_000, "2GB", {"hnsw"}),
        (1_000_000, "600MB", {"ivf"}),
        (1_000_000, "300MB", {"pq"}),
        (1_000_000, "84MB", {"pq"}),
        (50_000_000, "100GB", {"ivf"}),  # a graph of so many takes hours
        (50_000_000, "10GB", {"pq"}),
    ],
)
def test_the_fastest_that_fits_is_taken(count: int, limit: str, kinds: set[str]) -> None:
    config = AnnConfig(memory_limit=limit)
    plan = choose_ann(count=count, width=512, config=config)
    assert plan.type in kinds
    assert plan.memory_bytes <= config.memory_bytes
    assert plan.reason


def test_less_memory_never_takes_more_nor_a_faster_type() -> None:
    order, before = ["hnsw", "ivf", "pq"], None
    for megabytes in (4000, 2000, 900, 700, 500, 300, 200, 150, 100, 90, 80):
        plan = choose_ann(count=1_000_000, width=512, config=AnnConfig(memory_limit=f"{megabytes}MB"))
        if before is not None:
            assert plan.memory_bytes <= before.memory_bytes
            assert order.index(plan.type) >= order.index(before.type)
        before = plan


def test_half_of_the_machine_is_taken_where_nothing_is_said() -> None:
    chosen = [
        choose_ann(count=1_000_000, width=512, config=AnnConfig(), machine_bytes=size).type
        for size in (4 * GB, GB)
    ]
    assert chosen[0] == "hnsw"
    assert chosen[1] in ("ivf", "pq")


@pytest.mark.parametrize("index_type", ["auto", "hnsw", "ivf", "pq"])
def test_what_does_not_fit_is_refused_with_what_it_takes(index_type: str) -> None:
    config = AnnConfig(index_type=index_type, memory_limit="1MB")
    with pytest.raises(
        InputError, match=r"at least [\d,]+ bytes as .*1,000,000 are allowed.*--memory-limit"
    ) as seen:
        choose_ann(count=1_000_000, width=512, config=config)
    assert ("--index-type auto" in str(seen.value)) == (index_type != "auto")
    least = int(str(seen.value).split("at least ")[1].split(" ")[0].replace(",", ""))
    enough = AnnConfig(index_type=index_type, memory_limit=str(least))
    assert choose_ann(count=1_000_000, width=512, config=enough).memory_bytes == least


def test_reduced_vectors_take_less_but_codes_of_parts_are_of_all() -> None:
    for index_type in ("hnsw", "ivf"):
        config = AnnConfig(index_type=index_type)
        full = choose_ann(count=200_000, width=768, config=config, machine_bytes=64 * GB)
        less = choose_ann(count=200_000, width=768, config=config, machine_bytes=64 * GB, reduced_width=128)
        assert (full.reduced_width, less.reduced_width) == (None, 128)
        assert full.memory_bytes - less.memory_bytes >= 200_000 * (768 - 128)
    config = AnnConfig(index_type="pq")
    assert (
        choose_ann(count=200_000, width=768, config=config, machine_bytes=GB, reduced_width=128).reduced_width
        is None
    )


@pytest.mark.parametrize("count", [1, 38, 39, 78, 1000, 5000, 100_000, 1_000_000, 10**7, 10**8, 10**9])
def test_lists_are_powers_of_two_with_enough_to_train_them(count: int) -> None:
    lists = count_lists(count)
    assert lists & (lists - 1) == 0
    assert 1 <= lists <= 65_536
    assert lists == 1 or 39 * lists <= count
    if 100_000 <= count <= 10**8:
        assert 0.6 <= lists / (4 * count**0.5) <= 1.5


def test_the_memory_of_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("index.vectors.ann_choice._CGROUP_LIMITS", (str(limit), str(tmp_path / "missing")))
    whole = machine_memory()
    assert whole > 10**7
    limit.write_text("max\n")
    assert machine_memory() == whole
    limit.write_text("12345678\n")
    assert machine_memory() == 12_345_678
    limit.write_text(str(2**63 - 4096))  # what an older kernel says where there is no limit
    assert machine_memory() == whole
