"""The sizing model's arithmetic: bytes, hours, machines, replicas, shards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scale.costs import Cost
from benchmarks.scale.sizing import (
    Machine,
    UnitCosts,
    Wish,
    count_embedding_machines,
    count_shards,
    find_needs,
)

UNITS = UnitCosts(
    embedding={"fast": 0.036, "slow": 0.36},
    costs={
        "catalogue bytes": Cost(0, 300), "vector bytes": Cost(0, 4, "all numbers"),
        "rows while made bytes": Cost(1000, 900), "build memory": Cost(1e8, 100), "serve memory": Cost(1e8, 10),
        "scan s": Cost(0, 1e-5), "settle s": Cost(0, 2e-5), "publish s": Cost(0, 0.6e-5), "change s": Cost(1, 6e-6),
        "flat: search s": Cost(1e-3, 1e-9, "numbers"), "ivf: search s": Cost(1e-3, 1e-9, "lists"),
        "ivf: index bytes": Cost(0, 1, "ivf plan"), "ivf: build memory": Cost(1e8, 2, "ivf plan"),
        "ivf: build s": Cost(0, 1e-11, "clustering"), "ivf: measure s": Cost(0, 1e-8, "all numbers"),
    },
)  # fmt: skip
MACHINE = Machine(cores=10, memory_bytes=10e9, disk_bytes=1e12)
WISH = Wish(1_000_000, 50_000, (128, 64), "flat", "fast")


def test_disk_memory_and_hours_are_sums_of_products() -> None:
    needs = find_needs(WISH, UNITS, MACHINE)
    assert needs.images_disk == 50e9
    assert needs.gallery_disk == 1_000_000 * (300 + 4 * 192)
    assert needs.peak_disk == 1000 + 1_000_000 * (900 + 2 * 4 * 192)
    assert needs.build_memory == pytest.approx(2e8)
    assert needs.serve_memory == pytest.approx(1.1e8 + 4 * 192e6)
    assert needs.embed_core_hours == pytest.approx(10)
    assert needs.write_hours == pytest.approx(36 / 3600)
    assert needs.change_seconds == pytest.approx(7)
    assert needs.search_seconds == pytest.approx(0.129)


def test_another_index_costs_disk_memory_and_hours_and_saves_seconds_of_a_search() -> None:
    flat, lists = (find_needs(replace(WISH, kind=kind), UNITS, MACHINE) for kind in ("flat", "ivf"))
    assert lists.gallery_disk > flat.gallery_disk
    assert lists.build_memory > flat.build_memory
    assert lists.write_hours > flat.write_hours
    assert lists.search_seconds < flat.search_seconds
    assert lists.serve_memory < flat.serve_memory  # whose vectors are all read by every search


@pytest.mark.parametrize("change", [{"images": 2_000_000}, {"widths": (256, 128)}, {"model": "slow"}])
def test_no_need_falls_where_more_is_wished(change: dict[str, object]) -> None:
    for kind in ("flat", "ivf"):
        wish = replace(WISH, kind=kind)
        less, more = (find_needs(w, UNITS, MACHINE) for w in (wish, replace(wish, **change)))
        pairs = [(getattr(less, name), getattr(more, name)) for name in less.__slots__]
        assert all(a <= b for a, b in pairs)
        assert any(a < b for a, b in pairs)


def test_replicas_are_served_by_as_many_machines_where_one_holds_the_gallery() -> None:
    three = replace(WISH, replicas=3)
    assert find_needs(three, UNITS, MACHINE).serving_machines == 3
    assert find_needs(three, UNITS, replace(MACHINE, memory_bytes=1e9)).serving_machines is None
    assert find_needs(three, UNITS, replace(MACHINE, disk_bytes=1e9)).serving_machines is None


def test_embedding_is_divided_among_machines_by_cores_and_hours() -> None:
    needs = find_needs(WISH, UNITS, MACHINE)  # ten core hours
    assert count_embedding_machines(needs, MACHINE, hours=1) == 1
    assert count_embedding_machines(needs, MACHINE, hours=0.3) == 4
    with pytest.raises(ValueError, match="hours must be above 0"):
        count_embedding_machines(needs, MACHINE, hours=0)


def test_a_collection_is_divided_until_each_part_keeps_the_limits() -> None:
    large = replace(WISH, images=100_000_000)

    def count(**limits: float) -> int:
        most = {"most_change_s": 1e9, "most_search_s": 1e9} | limits
        return count_shards(large, UNITS, MACHINE, **most)

    by_memory = count()  # 8 GB may be used, 778 bytes an image and 100 MB: some ten million images
    assert by_memory == 16
    assert count(most_change_s=10.0) == 128  # 1.5 million images
    assert count(most_search_s=0.01) == 2048
    assert count_shards(WISH, UNITS, MACHINE, most_change_s=60, most_search_s=1) == 1
    with pytest.raises(ValueError, match="a gallery of one image exceeds"):
        count(most_change_s=0.5)


def test_what_was_not_measured_or_is_no_wish_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="model must be one of fast, slow, got 'other'"):
        find_needs(replace(WISH, model="other"), UNITS, MACHINE)
    with pytest.raises(ValueError, match="hnsw: index bytes was not measured"):
        find_needs(replace(WISH, kind="hnsw"), UNITS, MACHINE)
    for change in ({"images": 0}, {"replicas": 0}, {"file_bytes": -1}, {"widths": ()}, {"widths": (128, 0)}):
        with pytest.raises(ValueError, match="must be at least"):
            replace(WISH, **change)
