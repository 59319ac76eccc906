import json
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest

from index.errors import GalleryDamagedError
from index.faiss_library import faiss_threads
from index.vectors.ann_building import find_reduced_axes
from index.vectors.ann_index import AnnIndex, build_ann, map_ann, write_ann
from index.vectors.kinds import AnnPlan
from index.vectors.stored_rows import StoredRows, pack
from tests.index.vector_sources import VectorSource, split_rows, spread_ids

ROWS, WIDTH = 3000, 160
EFFORT = {"hnsw": 100, "ivf": 20}
PLANS = {
    "hnsw": AnnPlan("hnsw", "HNSW16,SQ8", None, 0, ""),
    "ivf": AnnPlan("ivf", "IVF32,SQ8", None, 0, ""),
    "turned hnsw": AnnPlan("hnsw", "HNSW16,SQ8", 32, 0, ""),
    "turned ivf": AnnPlan("ivf", "IVF32,SQ8", 32, 0, ""),
    "graph of centres": AnnPlan("ivf", "IVF32_HNSW8,SQ8", None, 0, ""),
}


@pytest.fixture(scope="module")
def stored() -> StoredRows:
    vectors, _ = VectorSource(width=WIDTH, decay=1.0).draw_gallery(ROWS, seed=2)
    return StoredRows.of(split_rows(vectors, spread_ids(ROWS), ends=[1234]))


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return VectorSource(width=WIDTH, decay=1.0).draw(50, seed=3)[0]


@pytest.fixture(scope="module")
@faiss_threads(1)
def indexes(stored: StoredRows) -> dict[str, AnnIndex]:
    rows, axes = np.flatnonzero(np.arange(ROWS) % 20 != 7), find_reduced_axes(stored)
    return {
        name: build_ann(
            plan, stored, rows, axes=None if plan.reduced_width is None else axes[: plan.reduced_width], seed=0
        )
        for name, plan in PLANS.items()
    }


@pytest.fixture(params=list(PLANS))
def index(request: pytest.FixtureRequest, indexes: dict[str, AnnIndex]) -> AnnIndex:
    return indexes[request.param]


def test_a_selector_keeps_all_others_out(index: AnnIndex, stored: StoredRows, queries: np.ndarray) -> None:
    effort = index.most_effort
    before = index.search(queries, k=5, effort=EFFORT[index.type])
    mask = np.random.default_rng(1).random(len(index.rows)) < 0.1
    _, positions = index.search(queries, k=20, effort=effort, among=pack(mask))
    assert np.isin(positions[positions >= 0], index.rows[mask]).all()
    assert (positions >= 0).mean() > 0.9  # what no link leads to is not found
    few = np.zeros(len(index.rows), dtype=bool)
    few[:3] = True
    _, positions = index.search(queries, k=5, effort=effort, among=pack(few))
    assert np.isin(positions, [-1, *index.rows[:3]]).all()
    assert ((positions >= 0).sum(axis=1) <= 3).all()
    after = index.search(queries, k=5, effort=EFFORT[index.type])
    assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))


def test_a_written_index_is_equal(index: AnnIndex, stored: StoredRows, queries: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "index.faiss"
    write_ann(index, path)
    mapped = map_ann(path, described={"type": index.type}, width=WIDTH, rows=index.rows)
    assert (mapped.type, mapped.is_reduced, mapped.most_effort) == (index.type, index.is_reduced, index.most_effort)
    third = pack(np.arange(len(index.rows)) % 3 == 0)
    for among in (None, third):
        for count in (1, 50):
            expected = index.search(queries[:count], k=15, effort=EFFORT[index.type], among=among)
            found = mapped.search(queries[:count], k=15, effort=EFFORT[index.type], among=among)
            assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    again = tmp_path / "again.faiss"
    write_ann(mapped, again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["hnsw", "ivf", "turned hnsw"])
def test_other_counts_and_widths_are_damage(name: str, indexes: dict[str, AnnIndex], tmp_path: Path) -> None:
    index, path = indexes[name], tmp_path / "index.faiss"
    write_ann(index, path)
    for rows, width in ((index.rows[:-1], WIDTH), (np.append(index.rows, 0), WIDTH), (index.rows, 32)):
        with pytest.raises(GalleryDamagedError, match=r"index\.faiss.*vectors of width 160, expected"):
            map_ann(path, described={"type": index.type}, width=width, rows=rows)


@pytest.mark.parametrize("name", ["hnsw", "turned ivf"])
def test_a_cut_or_foreign_file_is_damage(name: str, indexes: dict[str, AnnIndex], tmp_path: Path) -> None:
    index, path = indexes[name], tmp_path / "index.faiss"
    write_ann(index, path)
    whole = path.read_bytes()
    cuts = [whole[:size] for size in (0, 3, 4, 100, len(whole) // 2, len(whole) - 100)]
    for content in (*cuts, b"<html>not found</html>" * 100, bytes(5000), b"IxFI" + b"\xff" * 300):
        path.write_bytes(content)
        with pytest.raises(GalleryDamagedError, match=r"index\.faiss"):
            map_ann(path, described={"type": index.type}, width=WIDTH, rows=index.rows)


OPENING = """
import json, sys
from pathlib import Path
import numpy as np
from index.vectors.ann_index import map_ann
from index.faiss_library import import_faiss

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

import_faiss()
path, kind, count, width = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rows = np.arange(count)
map_ann(Path(path + ".small"), described={"type": kind}, width=width, rows=rows[:1])
before = anonymous()
index = map_ann(Path(path), described={"type": kind}, width=width, rows=rows)
print(json.dumps(1024 * (anonymous() - before)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells how memory is used")
@pytest.mark.parametrize("name", ["ivf", "hnsw"])
@faiss_threads(1)
def test_opening_maps_what_is_large(name: str, tmp_path: Path) -> None:
    """20 MB of codes; what a graph counts by the row and the pages of the reader are far less."""
    count, width = 20_000, 1024
    vectors = np.zeros((count, width), dtype=np.float32)
    vectors[np.arange(count), np.arange(count) % width] = 1
    factory = {"ivf": "IVF1,SQ8", "hnsw": "HNSW2,SQ8"}[name]
    path = tmp_path / "index.faiss"
    for rows, target in ((vectors[:1], Path(f"{path}.small")), (vectors, path)):
        built = faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
        if name == "hnsw":
            built.hnsw.efConstruction = 2
        built.train(vectors[:64])
        built.add(rows)
        write_ann(AnnIndex(built, name, np.arange(len(rows))), target)
    assert path.stat().st_size > 20_000_000
    arguments = [str(path), name, str(count), str(width)]
    ran = subprocess.run(
        [sys.executable, "-c", OPENING, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert json.loads(ran.stdout) < 5_000_000
