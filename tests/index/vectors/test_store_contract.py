"""What every store of vectors must do, with its writer; a further one is tested here by an entry of `TRIED`."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from index.arrays import NO_ID, Ids, Vectors
from index.errors import GalleryDamagedError
from index.images.preprocess import PreprocessConfig
from index.outputs import SEMANTIC
from index.vectors.ann_config import AnnConfig, StoreConfig
from index.vectors.milvus.collection import TOKEN
from index.vectors.shards import VectorRows, find_checkpoint, write_checkpoint
from index.vectors.stores import VectorStore, WriterTask, load_store, open_store
from index.versions.gallery_parts import make_mark
from index.versions.manifest import Manifest, Version, describe_file
from tests.index.galleries import few_for_an_index
from tests.index.vector_sources import VectorSource, exact_scores, spread_ids
from tests.milvus_server import ROOT_TOKEN

ROWS, WIDTH = 300, 16
Publish = Callable[..., tuple[Version, VectorStore]]


class Versions:
    """Versions beside each other in a folder, with their vectors there or elsewhere."""

    def __init__(self, folder: Path, *, store: StoreConfig, index_type: str) -> None:
        self._folder, self.store, self.index_type = folder, store, index_type

    def publish(
        self, new: Mapping[int, Vectors], deleted: Ids, base: Version | None, *, rewrite: bool = False
    ) -> tuple[Version, VectorStore]:
        """A version with some new vectors by id, and how it opens."""
        folder, ids = (
            self._folder / f"{len(list(self._folder.iterdir())) + 1:06d}",
            np.array(sorted(new), dtype=np.int64),
        )
        folder.mkdir()
        made = []
        if len(ids):
            path = folder / "made.npy"
            sha256 = write_checkpoint(path, VectorRows(ids, np.stack([new[key] for key in ids.tolist()])))
            made = [find_checkpoint(path, sha256=sha256)]
        task = WriterTask(
            gallery=self._folder.parent,
            folder=folder,
            store=self.store,
            config=AnnConfig(index_type=self.index_type, recall_target=0.999),
            width=WIDTH,
            made=made,
            model_sha256="",
            rewrite=rewrite,
        )
        published = load_store(self.store.store).publish(task, ids, deleted, base)
        before = 0 if base is None else len(open_store(base.folder, Manifest.read(base), SEMANTIC).ids)
        files = {path.relative_to(folder).as_posix(): describe_file(path) for path in folder.rglob("*.*")}
        manifest = Manifest(
            model_sha256="",
            preprocessing=PreprocessConfig(),
            embedding_dim=WIDTH,
            counts={"indexed": before + len(ids) - len(deleted), "deleted": published.deleted},
            next_id=10**6,
            index=published.index,
            files=files,
            store=self.store.describe(),
        )
        content = manifest.to_json().encode()
        (folder / "manifest.json").write_bytes(content)
        version = Version(folder, hashlib.sha256(content).hexdigest())
        return version, open_store(folder, manifest, SEMANTIC)


TRIED: dict[str, tuple[str, str]] = {
    "files": ("files", "flat"),
    "files with an ANN index": ("files", "ivf"),
    "milvus": ("milvus", "flat"),
    "milvus with an ANN index": ("milvus", "hnsw"),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.cluster] * (kind[0] == "milvus")) for name, kind in TRIED.items()],
)
def publish(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publish]:
    store, index_type = TRIED[request.param]
    uri = request.getfixturevalue("milvus_server").uri if store == "milvus" else ""
    gallery = tmp_path_factory.mktemp("gallery")
    make_mark(gallery)
    (gallery / "versions").mkdir()
    with few_for_an_index(), pytest.MonkeyPatch.context() as patched:
        patched.setenv(TOKEN, ROOT_TOKEN)
        patched.setattr("index.vectors.ann_building._HELD_OUT_SHARE", 0.5)  # a few held-out vectors measure by chance
        yield Versions(gallery / "versions", store=StoreConfig(store, uri), index_type=index_type).publish


@pytest.fixture(scope="module")
def vectors() -> dict[int, Vectors]:
    rows, _ = VectorSource(width=WIDTH).draw_gallery(ROWS, seed=4)
    return dict(zip(spread_ids(ROWS).tolist(), rows, strict=True))


@pytest.fixture(scope="module")
def queries() -> Vectors:
    return VectorSource(width=WIDTH).draw(25, seed=5)[0]


@pytest.fixture(scope="module")
def first(publish: Publish, vectors: dict[int, Vectors]) -> tuple[Version, VectorStore]:
    return publish(dict(list(vectors.items())[:250]), np.empty(0, np.int64), None)


@pytest.fixture(scope="module")
def changed(
    publish: Publish, vectors: dict[int, Vectors], first: tuple[Version, VectorStore]
) -> tuple[Version, VectorStore]:
    """With fifty more, and without every tenth of the first."""
    deleted = first[1].ids[::10]
    return publish(dict(list(vectors.items())[250:]), deleted, first[0])


@pytest.fixture(scope="module", params=["first", "changed"])
def store(
    request: pytest.FixtureRequest, first: tuple[Version, VectorStore], changed: tuple[Version, VectorStore]
) -> VectorStore:
    return {"first": first, "changed": changed}[request.param][1]


def check(store: VectorStore, found: tuple[np.ndarray, Ids], queries: Vectors, allowed: Ids) -> None:
    """Best first, of equals the smaller id; exact cosines; nearly all of the nearest, and as many as there are."""
    scores, ids = found
    truth = exact_scores(queries, store.gather(allowed)).clip(-1, 1)
    k = min(scores.shape[1], len(allowed))
    assert (ids[:, k:] == NO_ID).all()
    assert np.isneginf(scores[:, k:]).all()
    assert np.isin(ids[:, :k], allowed).all()
    places = np.searchsorted(allowed, ids[:, :k])
    assert np.allclose(scores[:, :k], np.take_along_axis(truth, places, axis=1), atol=1e-6, rtol=0)
    order = np.lexsort((ids[:, :k], -scores[:, :k]), axis=1)
    assert (order == np.arange(k)).all()
    nearest = -np.sort(-truth, axis=1)[:, :k]
    assert (scores[:, :k] >= nearest - 1e-6).sum() >= 0.9 * nearest.size


def test_its_members_are_those_that_were_published(
    first: tuple[Version, VectorStore], changed: tuple[Version, VectorStore], vectors: dict[int, Vectors]
) -> None:
    ids = np.array(list(vectors), dtype=np.int64)
    assert first[1].ids.tolist() == ids[:250].tolist()
    assert changed[1].ids.tolist() == np.setdiff1d(ids, ids[:250:10]).tolist()


def test_vectors_come_back_as_they_were_given(store: VectorStore, vectors: dict[int, Vectors]) -> None:
    wanted = np.random.default_rng(0).permutation(store.ids)[:40]
    assert np.array_equal(store.gather(wanted), np.stack([vectors[key] for key in wanted.tolist()]))
    with pytest.raises(GalleryDamagedError, match="has no vector"):
        store.gather(np.array([10**7]))


def test_a_scan_gives_every_member_once_in_order(store: VectorStore, vectors: dict[int, Vectors]) -> None:
    blocks = list(store.scan())
    assert list(chain.from_iterable(ids.tolist() for ids, _ in blocks)) == store.ids.tolist()
    for ids, rows in blocks:
        assert np.array_equal(rows, store.gather(ids))


@pytest.mark.parametrize("k", [1, 10, ROWS + 5])
def test_a_search_gives_the_nearest(store: VectorStore, queries: Vectors, k: int) -> None:
    check(store, store.search(queries, k=k), queries, store.ids)
    check(store, store.search(queries, k=k, threads=3), queries, store.ids)


@pytest.mark.parametrize("count", [0, 1, 7, 200])
def test_only_what_is_chosen_is_found(store: VectorStore, queries: Vectors, count: int) -> None:
    ids = np.sort(np.random.default_rng(1).choice(store.ids, size=count, replace=False))
    among = store.subset(np.append(ids, 10**7))
    assert among.ids.tolist() == ids.tolist()
    assert store.ids[among.has(store.ids)].tolist() == ids.tolist()
    check(store, store.search(queries, k=10, among=among), queries, ids)


def test_all_that_are_similar_enough_are_found(store: VectorStore, queries: Vectors) -> None:
    truth, allowed = exact_scores(queries, store.gather(store.ids)), store.ids[::2]
    found = store.search_above(queries, min_score=0.3, among=store.subset(allowed))
    for row, (scores, ids) in zip(truth, found, strict=True):
        assert sorted(ids.tolist()) == np.intersect1d(store.ids[row >= 0.3], allowed).tolist()
        assert (np.diff(scores) <= 0).all()


def test_its_base_stays_as_it_is(
    first: tuple[Version, VectorStore], changed: tuple[Version, VectorStore], queries: Vectors
) -> None:
    gone = np.setdiff1d(first[1].ids, changed[1].ids)
    assert len(gone) == 25
    own = first[1].search(first[1].gather(gone), k=1)[0]
    assert (own >= 1 - 1e-6).all()


def test_what_was_deleted_may_come_back(
    publish: Publish, changed: tuple[Version, VectorStore], vectors: dict[int, Vectors]
) -> None:
    back = np.array(sorted(set(vectors) - set(changed[1].ids.tolist())), dtype=np.int64)
    _, store = publish({key: vectors[key] for key in back[:5].tolist()}, changed[1].ids[:0], changed[0])
    assert store.ids.tolist() == np.union1d(changed[1].ids, back[:5]).tolist()
    assert np.array_equal(store.gather(back[:5]), np.stack([vectors[key] for key in back[:5].tolist()]))


def test_a_rewritten_store(publish: Publish, changed: tuple[Version, VectorStore], queries: Vectors) -> None:
    _, store = publish({}, changed[1].ids[:0], changed[0], rewrite=True)
    assert store.ids.tolist() == changed[1].ids.tolist()
    assert store.count_unindexed() == 0
    check(store, store.search(queries, k=10), queries, store.ids)


def test_threads_share_it(store: VectorStore, queries: Vectors) -> None:
    expected = store.search(queries, k=5)[1]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: store.search(queries, k=5)[1], range(8)):
            assert np.array_equal(found, expected)
