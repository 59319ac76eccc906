from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.errors import InputError
from index.vectors.ann_config import AnnConfig
from index.vectors.kinds.registry import INDEX_TYPES


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1.5GB", 1_500_000_000),
        ("500 MiB", 500 * 2**20),
        ("500MB", 500_000_000),
        ("4g", 4_000_000_000),
        ("4Gi", 4 * 2**30),
        ("2 tib", 2 * 2**40),
        ("100", 100),
        ("100B", 100),
        ("0.5kB", 500),
        ("  7 K  ", 7000),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert AnnConfig(memory_limit=text).memory_bytes == size


@pytest.mark.parametrize(
    "text",
    [
        *("lots", "GB", "-1GB", "1,5GB", "1.GB", ".5GB", "1e9", "0GB", "0.1B", "5 PB", " ", "4GB4GB"),
        *("1 G B", "inf", "nan", "5iB", "0x10", 400 * "9" + "GB"),
    ],
)
def test_what_is_no_size_is_refused_and_shown(text: str) -> None:
    with pytest.raises(InputError, match=r"memory_limit must be a size like 500MB or 4GB, got"):
        AnnConfig(memory_limit=text)


@pytest.mark.parametrize("target", [0.4999, 0.9991, 98, float("nan")])
def test_targets_out_of_range_are_refused_with_a_way_out(target: float) -> None:
    with pytest.raises(
        InputError, match=r"recall_target must be a share in 0\.5\.\.0\.999, got .*--index-type flat"
    ):
        AnnConfig(recall_target=target)


@pytest.mark.parametrize("name", ["", "FLAT"])
def test_other_types_are_refused_and_those_there_are_named(name: str) -> None:
    with pytest.raises(InputError, match=r"index_type must be one of auto, flat, hnsw, ivf, pq, got"):
        AnnConfig(index_type=name)


@given(
    index_type=st.sampled_from(INDEX_TYPES),
    target=st.floats(0.5, 0.999),
    limit=st.sampled_from(["", "500MB", "1.5 GiB"]),
)
def test_a_config_comes_back_from_its_text(index_type: str, target: float, limit: str) -> None:
    config = AnnConfig(index_type=index_type, recall_target=target, memory_limit=limit)
    assert AnnConfig.from_text(config.to_text()) == config
