"""The files of release 0.2.0: a gallery, its backup, a run and a model file, which every later version reads.

Once 0.2.0 is tagged its archive is never made again: if a change breaks this test, mend the reader. A release that
writes something new adds an archive of its own, by `kept_files.py`.
"""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.labels.decided_labels import read_label_probabilities
from index.labels.decisions import LabelDecision
from retrieval_app import audit, build, export
from retrieval_app.commands.cli import main
from retrieval_app.review.activity_log import record_command
from retrieval_app.review.review_store import ReviewStore
from tests.kept_files import CHANGED, MADE_IN, embed_file
from training.data.datasets import list_dataset

ARCHIVE = Path(__file__).with_name("kept-0.2.0.tar.xz")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """photos/, gallery/, backup.zip, run/, model.onnx, and answers.json with what 0.2.0 answered."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def _answers(kept: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kept / "answers.json").read_text())
    return found


def _search(capsys: pytest.CaptureFixture[str], kept: Path, *options: str) -> list[list[Any]]:
    """Path, label and score of each hit of the changed photo."""
    capsys.readouterr()
    assert main(["search", str(kept / "gallery"), str(kept / "photos" / CHANGED), "-k", "5", "--json", *options]) == 0
    hits = json.loads(capsys.readouterr().out)["results"]
    return [[hit["path"], hit["label"], hit["score"]] for hit in hits]


def _agree(found: list[list[Any]], expected: list[list[Any]]) -> None:
    assert [hit[:2] for hit in found] == [hit[:2] for hit in expected]
    assert [hit[2] for hit in found] == pytest.approx([hit[2] for hit in expected], abs=0.01)


def test_a_gallery_keeps_its_decisions_and_can_be_updated(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery, answers = str(kept / "gallery"), _answers(kept)
    assert main(["index", "verify", gallery]) == 0
    for by in ("semantic", "copy"):
        _agree(_search(capsys, kept, "--by", by), answers[by])
    with Gallery.open(Path(gallery)).catalog() as catalog:
        assert len(catalog.matching_ids(parse_filter("split = 'test'"))) == 1
        left_out = {row.path: row.status for row in catalog.rows() if row.status != "indexed"}
    assert left_out == {"lime/lime-005.jpg": "set_aside", "shoes/shoes-005.jpg": "dropped"}
    shutil.copy(kept / "photos" / CHANGED, kept / "photos" / "dress" / "new.jpg")
    assert main(["index", "update", gallery]) == 0
    found = _search(capsys, kept, "--where", "tag = 'kept' OR path = 'dress/new.jpg'")
    assert [hit[0] for hit in found] == [CHANGED, "dress/new.jpg"]


def test_decisions_are_read_and_added_to(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ReviewStore.of_gallery(kept / "gallery")
    before, steps = store.label_decisions(), store.steps()
    found = [(one.decision, one.new_label, one.source, one.p_right, one.decided_by) for one in before.values()]
    assert found == [("change", "hat", "rule", 1, None), ("set_aside", None, "person", 1, "anna")]
    assert (len(store.duplicate_decisions()), list(store.saved_searches())) == (1, ["limes"])
    assert (store.label_probabilities().others, read_label_probabilities(kept / "gallery").others) == (None, None)
    store.decide([LabelDecision("a" * 64, "dress", "set_aside", source="bulk", others_right=0.9, others_to=7)])
    assert store.steps()[:-1] == steps
    assert read_label_probabilities(kept / "gallery") == store.label_probabilities()
    assert store.label_probabilities().others == (0.9, 7)
    store.undo()
    assert (store.label_decisions(), store.steps()) == (before, steps)
    records = list_dataset(kept / "gallery").records
    assert [(one.label, one.before) for one in records if one.p_right == 1] == [("hat", None)]
    record_command(kept / "gallery", "check")  # its file has no newer version
    assert not caplog.text


def test_a_backup_is_restored_into_a_new_gallery(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(kept / "gallery")
    build(kept / "model.onnx", kept / "photos", kept / "gallery")
    assert main(["restore", str(kept / "backup.zip"), "--gallery", str(kept / "gallery")]) == 0
    assert [hit[:2] for hit in _search(capsys, kept, "--where", "tag = 'kept'")] == [[CHANGED, "hat"]]


def test_a_model_file_gives_the_same_vector(kept: Path) -> None:
    assert embed_file(kept / "model.onnx", kept / "photos" / CHANGED) == pytest.approx(
        _answers(kept)["vector"], abs=0.01
    )


@pytest.mark.slow
def test_a_run_is_exported_and_audited(kept: Path) -> None:
    export(kept / "run", kept / "again.onnx")
    expected = _answers(kept)["vector of run"]
    assert embed_file(kept / "again.onnx", kept / "photos" / CHANGED) == pytest.approx(expected, abs=0.01)
    labels = kept / "run" / "labels.csv"
    labels.write_text(labels.read_text().replace(str(MADE_IN), str(kept)))  # where the photos were
    assert len(audit(kept / "run", cache=kept / "cache").audited.items) == 24
