"""The whole job of cleaning a folder in a real browser, as the benchmark does it, and the data set that comes out."""

import json
import tarfile
from pathlib import Path

import pytest

import retrieval_app.demo
from benchmarks import cleaning
from index.gallery.gallery import Gallery

pytestmark = pytest.mark.browser

LABELS = 8


def test_a_folder_with_planted_trouble_becomes_a_clean_data_set(tmp_path: Path) -> None:
    with tarfile.open(Path(retrieval_app.demo.__path__[0], "photos.tar")) as archive:
        names = sorted({member.name.partition("/")[0] for member in archive.getmembers()})[:LABELS]
        wanted = [member for member in archive.getmembers() if member.name.partition("/")[0] in names]
        archive.extractall(tmp_path / "photos", wanted, filter="data")
    small = ("--photos", tmp_path / "photos", "--images", 120, "--placeholders", 8, "--leaks", 4)
    cleaning.main(["--out", str(tmp_path / "out"), *map(str, small)])
    results = json.loads((tmp_path / "out" / "photos-0.json").read_text())["results"]
    before, after, effort = results["before"], results["after"], results["effort"]
    assert (before["wrong labels"], before["blurred"], before["placeholders"], before["leaks"]) == (6, 4, 8, 4)
    assert (after["placeholders"], after["leaks"]) == (0, 0)
    assert after["right labels among the labelled"] > before["right labels among the labelled"]
    assert after["unlabelled"] < before["unlabelled"]
    assert effort["clicks"] > 0
    work = tmp_path / "out" / "photos-0"
    with Gallery.open(work / "gallery").catalog() as catalog:
        left = {row.path: row.label for row in catalog.rows(status="indexed")}
    assert {path: label for path, (label, _) in cleaning.read_dataset(work).items()} == left
