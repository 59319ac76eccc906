from pathlib import Path

import pytest

from index.errors import InputError
from index.vectors.ann_building import FLAT_ROWS, MIN_ROWS, choose_ann, machine_memory
from index.vectors.ann_config import AnnConfig
from index.vectors.kinds import INDEX_TYPES

GB = 10**9


@pytest.mark.parametrize("index_type", INDEX_TYPES)
def test_too_few_to_measure_with_are_scanned_whatever_is_asked(index_type: str) -> None:
    config = AnnConfig(index_type=index_type)
    assert choose_ann(count=MIN_ROWS - 1, width=64, config=config, machine_bytes=GB).type == "flat"
    least = choose_ann(count=MIN_ROWS, width=64, config=config, machine_bytes=GB)
    assert least.type == ("flat" if index_type == "auto" else index_type)


@pytest.mark.parametrize(
    ("count", "limit", "kinds"),
    [
        (FLAT_ROWS + 1, "10GB", {"hnsw"}),
        (1_000_000, "600MB", {"ivf"}),
        (50_000_000, "100GB", {"ivf"}),  # a graph of so many takes hours
    ],
)
def test_the_fastest_that_fits_is_taken(count: int, limit: str, kinds: set[str]) -> None:
    config = AnnConfig(memory_limit=limit)
    plan = choose_ann(count=count, width=512, config=config)
    assert plan.type in kinds
    assert plan.memory_bytes <= config.memory_bytes
    assert plan.reason


def test_less_memory_never_takes_more_nor_a_faster_type() -> None:
    order, before = ["hnsw", "ivf"], None
    for megabytes in (4000, 2000, 900, 700, 580):
        plan = choose_ann(count=1_000_000, width=512, config=AnnConfig(memory_limit=f"{megabytes}MB"))
        if before is not None:
            assert plan.memory_bytes <= before.memory_bytes
            assert order.index(plan.type) >= order.index(before.type)
        before = plan
    half_of_it = [
        choose_ann(count=1_000_000, width=512, config=AnnConfig(), machine_bytes=size).type for size in (4 * GB, GB)
    ]
    assert half_of_it[0] == "hnsw"
    assert half_of_it[1] == "ivf"


@pytest.mark.parametrize("index_type", ["auto", "hnsw", "ivf"])
def test_what_does_not_fit_is_refused_with_what_it_takes(index_type: str) -> None:
    config = AnnConfig(index_type=index_type, memory_limit="1MB")
    with pytest.raises(InputError, match=r"at least [\d,]+ bytes as .*1,000,000 are allowed.*--memory-limit") as seen:
        choose_ann(count=1_000_000, width=512, config=config)
    assert ("--index-type auto" in str(seen.value)) == (index_type != "auto")
    least = int(str(seen.value).split("at least ")[1].split(" ")[0].replace(",", ""))
    enough = AnnConfig(index_type=index_type, memory_limit=str(least))
    assert choose_ann(count=1_000_000, width=512, config=enough).memory_bytes == least


def test_the_memory_of_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("index.vectors.ann_building._CGROUP_LIMITS", (str(limit), str(tmp_path / "missing")))
    whole = machine_memory()
    assert whole > 10**7
    limit.write_text("max\n")
    assert machine_memory() == whole
    limit.write_text("12345678\n")
    assert machine_memory() == 12_345_678
    limit.write_text(str(2**63 - 4096))  # what an older kernel says where there is no limit
    assert machine_memory() == whole


@pytest.mark.parametrize(
    ("text", "size"),
    [("1.5GB", 1_500_000_000), ("500 MiB", 500 * 2**20), ("4Gi", 4 * 2**30), ("100B", 100), ("  7 K  ", 7000)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert AnnConfig(memory_limit=text).memory_bytes == size


@pytest.mark.parametrize("text", ["GB", "-1GB", "1,5GB", ".5GB", "1e9", "0.1B", "5 PB", " ", "nan", 400 * "9" + "GB"])
def test_what_is_no_size_is_refused_and_shown(text: str) -> None:
    with pytest.raises(InputError, match=r"--memory-limit must be a size like 500MB or 4GB, got"):
        AnnConfig(memory_limit=text)
