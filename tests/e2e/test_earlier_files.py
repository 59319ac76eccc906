"""Runs, models and galleries that version 0.1.0 wrote open as before; `earlier.tar.xz` has some.

It holds 18 drawn pictures, a finished run and an interrupted one on them, its exported model, a gallery of the pictures
with an image taken out and a label decided, galleries of 320 small images in a tar with every kind of ANN index, and
what their searches found.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from export.exports import export_run
from index.arrays import Vectors
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.model.embedder import Embedder
from retrieval_app.commands.cli import main
from retrieval_app.review.review_store import ReviewStore
from tests.models import read_pixels
from tests.training.conftest import make_config, make_machine
from training.run.train import train

ARCHIVE = Path(__file__).with_name("earlier.tar.xz")
GALLERIES = ("gallery", "gallery-hnsw", "gallery-ivf", "gallery-pq")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "earlier"


def embed_all(model: Path, photos: list[Path]) -> Vectors:
    embedder = Embedder(model, threads=1)
    return embedder.embed_batch(np.stack([read_pixels(embedder, photo) for photo in photos]))


def test_galleries_find_what_they_found(earlier: Path) -> None:
    expected = json.loads((earlier / "expected.json").read_text())
    assert set(expected["found"]) == set(GALLERIES)
    for name, found in expected["found"].items():
        gallery = Gallery.open(earlier / name)
        hits = gallery.search_many(gallery.vectors(np.array(expected["asked"])), k=5)
        assert [[hit.id for hit in row] for row in hits] == [[image for image, _ in row] for row in found], name
        scores = [hit.score for row in hits for hit in row]
        np.testing.assert_allclose(scores, [score for row in found for _, score in row], atol=2e-6)


def test_galleries_are_whole_and_are_brought_up_to_date(earlier: Path) -> None:
    for name in GALLERIES:
        assert verify_gallery(earlier / name).problems == [], name
    (earlier / "pictures/mug/mug-001.jpg").unlink()
    assert main(["index", "update", str(earlier / "gallery")]) == 0
    assert Gallery.open(earlier / "gallery").count == 16


def test_what_people_decided_is_kept(earlier: Path) -> None:
    store = ReviewStore.of_gallery(earlier / "gallery")
    (decision,) = store.label_decisions().values()
    assert (decision.decision, decision.new_label, decision.image_id) == ("change", "teacup", 1)
    store.close()


def test_a_finished_run_is_exported_to_the_same_model(earlier: Path) -> None:
    export_run(earlier / "run", earlier / "again.onnx")
    photos = sorted((earlier / "pictures").rglob("*.jpg"))
    before, after = (embed_all(earlier / name, photos) for name in ("model.onnx", "again.onnx"))
    np.testing.assert_allclose(after, before, atol=1e-5)


def test_an_interrupted_run_goes_on_to_the_finished_ones_weights(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(earlier)
    for name in ("config.json", "labels.csv"):  # a run goes on where it began
        file = Path("interrupted", name)
        file.write_text(file.read_text().replace("/srv/earlier", str(earlier)))
    config = make_config(weights="weights.safetensors", epochs=4)
    train(
        Path("pictures"), Path("interrupted"), config=config, machine=make_machine(earlier / "cache"), resume=True
    )
    resumed, finished = (load_file(earlier / name / "head.safetensors") for name in ("interrupted", "run"))
    assert resumed.keys() == finished.keys()
    for name, weights in finished.items():  # other processors add up in another order
        np.testing.assert_allclose(resumed[name], weights, rtol=0, atol=1e-4 * np.abs(weights).max(), err_msg=name)
