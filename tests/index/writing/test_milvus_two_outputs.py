"""A gallery of two outputs in a real Milvus server: duplicates set aside, both kinds of search, and a repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from index.duplicates.duplicate_config import DuplicateConfig
from index.gallery.export_vectors import export_vectors
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.progress import no_progress
from index.repair.repair import repair_gallery
from index.vectors.milvus.server import Server
from index.vectors.store_config import StoreConfig
from index.writing.build import update_gallery
from retrieval_app.reports.duplicates_report import read_report
from tests.conftest import draw_folder
from tests.index.galleries import SMALL, build, rows
from tests.milvus_server import RunningMilvus
from tests.models import write_two_output_model

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("milvus_rights")]
OUTPUTS = ("kind", "picture")
ALIKE = DuplicateConfig(min_similarity=0.99, max_hash_distance=8)


def save_again(path: Path, *, name: str) -> None:
    with Image.open(path) as image:
        image.save(path.with_name(name), quality=90)


def look_at(gallery: Path) -> dict[str, Any]:
    """Its rows, and what it answers by each output."""
    opened = Gallery.open(gallery)
    views = [opened.by(output) for output in OUTPUTS]
    report = read_report(
        opened, config=DuplicateConfig(min_similarity=0.9, max_hash_distance=64), progress=no_progress
    )
    return {
        "rows": [(row.id, row.path, row.status, row.kept_id) for row in rows(gallery)],
        "vectors": [view.vectors(view.ids).tobytes() for view in views],
        "found": [
            [(scores.tolist(), ids.tolist()) for scores, ids in view.rank_many(view.vectors(view.ids), k=4)]
            for view in views
        ],
        "duplicates": [
            (group.kept.id, [(each.id, each.similarity) for each in group.duplicates]) for group in report.groups
        ],
    }


def test_near_duplicates_and_both_outputs_are_as_those_of_its_twin(
    tmp_path: Path, milvus_server: RunningMilvus
) -> None:
    model, images = write_two_output_model(tmp_path / "two.onnx"), draw_folder(tmp_path / "images")
    twins = {name: tmp_path / name for name in ("files", "milvus")}
    save_again(images / "red" / "1.png", name="again.jpg")
    for name, gallery in twins.items():
        store = StoreConfig("milvus", milvus_server.uri) if name == "milvus" else None
        report = build(images, gallery, model, store=store, dedup="near", duplicates=ALIKE)
        assert (report.indexed, report.duplicate) == (15, 1)
    save_again(images / "blue" / "3.png", name="late.jpg")  # repeats a row that the server has
    for gallery in twins.values():
        assert update_gallery(gallery, config=SMALL).duplicate == 2
        export_vectors(gallery, gallery.with_suffix(".npy"), by="picture")
    assert look_at(twins["milvus"])["duplicates"]
    assert look_at(twins["milvus"]) == look_at(twins["files"])
    assert (tmp_path / "milvus.npy").read_bytes() == (tmp_path / "files.npy").read_bytes()
    lost = Gallery.open(twins["milvus"]).by("picture").index["collection"]
    Server(milvus_server.uri).ask(lambda client: client.drop_collection(lost), doing="")
    repaired = repair_gallery(twins["milvus"], config=SMALL)
    assert repaired.embedded == 15  # of an image all its vectors, or none
    assert look_at(twins["milvus"]) == look_at(twins["files"])
    assert verify_gallery(twins["milvus"], seed=0).problems == []
