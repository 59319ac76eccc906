"""A GPU gives what the CPU gives: training, embedding, and search."""

import tarfile
from pathlib import Path

import numpy as np
import pytest

from index.faiss_library import import_faiss
from index.model.backends.onnxruntime import OnnxRuntimeBackend, OnnxRuntimeOnCpu
from index.model.backends.registry import LEAST_AGREEMENT, compare
from index.model.builtin import find_builtin
from index.model.checksum import read_model_file
from index.model.embedder import Embedder
from index.vectors.kinds import KINDS
from retrieval_app import train
from retrieval_app.demo.story import PHOTOS

pytestmark = [pytest.mark.slow, pytest.mark.gpu]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Some photos of `retrieval demo`, in folders of their classes."""
    with tarfile.open(PHOTOS) as archive:
        by_kind: dict[str, list[tarfile.TarInfo]] = {}
        for member in archive.getmembers():
            by_kind.setdefault(Path(member.name).parent.name, []).append(member)
        for kind in sorted(by_kind)[:3]:
            archive.extractall(tmp_path / "photos", by_kind[kind][:5], filter="data")
    return tmp_path / "photos"


def test_two_epochs_of_fine_tuning_end_with_the_same_loss(photos: Path, tmp_path: Path) -> None:
    def fine_tune(where: str, folder: Path) -> float:
        options = {"device": where, "cache": folder / "cache", "precision": "float32", "holdout": False}
        report = train(photos, folder / "run", epochs=2, image_size=96, finetune="last-3", **options)
        return float(report["finetuning"]["epochs"][-1]["loss"])

    assert fine_tune("cuda", tmp_path / "cuda") == pytest.approx(fine_tune("cpu", tmp_path / "cpu"), rel=0.1)


def test_photos_have_the_same_vectors(photos: Path) -> None:
    model, reader = read_model_file(find_builtin()), Embedder(find_builtin(), runs=False)
    pixels = np.stack([reader.preprocess(path.read_bytes(), name=path.name) for path in sorted(photos.rglob("*.jpg"))])
    reference, backend = OnnxRuntimeOnCpu(model, threads=None), OnnxRuntimeBackend(model, threads=None)
    assert backend.on_gpu
    assert compare(backend, pixels, reference.run(pixels)).agreement >= LEAST_AGREEMENT


def test_a_scan_finds_the_same_and_lists_lose_nothing() -> None:
    faiss, generator = import_faiss(), np.random.default_rng(0)
    centres = generator.normal(size=(200, 64))
    vectors = centres[generator.integers(200, size=20_200)]
    vectors = vectors + 0.7 * generator.normal(size=vectors.shape)
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    rows, queries = unit[:20_000], unit[20_000:]
    scan = faiss.IndexFlatIP(64)
    scan.add(rows)
    expected = scan.search(queries, 10)[1]
    assert faiss.get_num_gpus()
    scan = faiss.index_cpu_to_all_gpus(scan)
    assert np.mean(scan.search(queries, 10)[1] != expected) <= 0.01

    def recall(trained: object) -> float:
        index = faiss.index_factory(64, "IVF200,SQ8", faiss.METRIC_INNER_PRODUCT)
        trained(index)
        index.add(rows)
        index.nprobe = 10
        found = index.search(queries, 10)[1]
        return float(np.mean([len(np.intersect1d(*pair)) / 10 for pair in zip(found, expected, strict=True)]))

    on_cpu = recall(lambda index: index.train(rows))
    assert recall(lambda index: KINDS["ivf"].train(index, rows)) >= on_cpu - 0.03
