import json
import subprocess
import sys
from pathlib import Path

import pytest

from index.duplicates.duplicate_config import DuplicateConfig
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision
from index.labels.steps import SavedSearch
from retrieval_app.commands.cli import main
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import draw_folder
from tests.index.galleries import build
from tests.models import write_tiny_model


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path) -> Path:
    near = DuplicateConfig(min_similarity=0.9999)
    build(draw_folder(tmp_path / "images", per_class=8), tmp_path / "g", tiny_model, dedup="near", duplicates=near)
    return tmp_path / "g"


def test_decisions_and_searches_are_kept_and_a_lowest_score_is_named(
    gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_model(tmp_path / "wide.onnx", seed=5, width=24)
    (row,) = Gallery.open(gallery).rows([1])
    store = ReviewStore.of_gallery(gallery)
    store.decide([LabelDecision(row.sha256 or "", row.label, "change", "heron")])
    store.decide([SavedSearch("herons", "text=heron&min=0.4")])
    store.decide([SavedSearch("all", "view=search")])
    store.close()
    words = [sys.executable, "-m", "retrieval_app", "index", "upgrade", gallery, model, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)  # which lowers its priority
    report = json.loads(done.stdout)
    assert (report["version"], report["indexed"]) == ("000002", 24)
    threshold, searches, back = report["notes"]
    assert threshold.startswith("--min-similarity 0.9999 of near-duplicates was chosen for the former model")
    assert searches == "saved searches with a lowest score of the former model; choose another: herons"
    assert back.endswith("--back")
    (after,) = Gallery.open(gallery).rows([1])
    assert (after.label, after.sha256) == ("heron", row.sha256)
    store = ReviewStore.of_gallery(gallery)
    assert set(store.saved_searches()) == {"herons", "all"}
    store.close()
    assert main(["index", "upgrade", str(gallery), "--back"]) == 0
    assert Gallery.open(gallery).width == 16
    assert Gallery.open(gallery).image(1).label == "heron"
    capsys.readouterr()
    assert main(["index", "upgrade", str(gallery), "--back"]) == 1
    assert "no earlier version has another model" in capsys.readouterr().err
