"""What a user reads of an index: what it finds, never rounded up, and which command mends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from index.gallery.info import GalleryInfo
from index.gallery.info_text import describe_index
from index.vectors.ann_building import build_ann_index
from index.vectors.ann_config import AnnConfig
from tests.index.vector_sources import VectorSource, split_rows, spread_ids

ROWS = 1500


@pytest.fixture(scope="module")
def ivf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    vectors, _ = VectorSource(width=32, decay=1.0).draw_gallery(ROWS, seed=3)
    shards = split_rows(vectors, spread_ids(ROWS), ends=[])
    config = AnnConfig(index_type="ivf", recall_target=0.9)
    with pytest.MonkeyPatch.context() as patched:
        for module in ("tuning", "ann_building"):
            patched.setattr(f"index.vectors.{module}.usable_cores", lambda: 1)
        return build_ann_index(shards, config=config, folder=tmp_path_factory.mktemp("ivf"))


def tell(index: dict[str, Any], *, beside: int = 0, deleted: int = 0, gallery: str = "photos") -> str:
    info = GalleryInfo(
        gallery=gallery, version="1", made="", model={}, counts={"indexed": ROWS, "deleted": deleted}, sources=[],
        labels={}, settings={}, index=index, disk_bytes={"vectors": 4 * 32 * ROWS}, beside_index=beside,
        unfinished=None,
    )  # fmt: skip
    return "\n".join(describe_index(info, gallery=Path(gallery)))


def test_what_is_measured_is_told_and_the_setting_in_use_is_marked_once(ivf: dict[str, Any]) -> None:
    text = tell(ivf)
    assert f"measured with {ivf['queries']} of its own vectors" in text
    assert sum(line.endswith("in use") for line in text.splitlines()) == 1
    assert "finds 99.99 %" in tell({**ivf, "recall_at_10": 0.99996})
    flat = {"type": "flat", "reason": "asked for", "queries_per_second": 9.0, "latency_ms_median": 1.0}
    assert tell(flat).startswith("Flat: every search reads all vectors, 192 kB; asked for\nexact; ")


def test_a_missed_target_and_a_better_one_are_told_with_a_command(ivf: dict[str, Any]) -> None:
    text = tell({**ivf, "target_met": False}, gallery="my photos/a'b")
    assert """NOT met""" in text
    assert """retrieval index tune 'my photos/a'"'"'b' --index-type flat""" in text
    point = {"recall_error": 0.0005, "latency_ms_median": 0.25, "parameters": ivf["parameters"]}
    better = {
        **point,
        "recall_at_10": 0.9962,
        "latency_ms_median": 0.5,
    }
    met = {**ivf, "target_met": True, "recall_at_10": 0.971, "recall_target": 0.95}
    text = tell({**met, "curve": [{**point, "recall_at_10": 0.971}, better]})
    assert "98 % would take 0.500 ms: retrieval index tune photos --recall-target 0.98" in text
    assert "would take" not in tell({**met, "curve": [{**point, "recall_at_10": 0.971}]})


def test_compacting_is_advised_where_much_lies_beside_the_index(ivf: dict[str, Any]) -> None:
    assert "added since" not in tell(ivf)
    assert "vectors added since: 7, deleted: 2; too few to compact" in tell(ivf, beside=7, deleted=2)
    assert "worth retrieval index compact photos" in tell(ivf, beside=5000)
