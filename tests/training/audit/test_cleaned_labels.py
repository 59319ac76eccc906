"""The label file that an audit makes, and what it may not replace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from index.errors import InputError
from index.labels.decisions import CHANGE, DROP, KEEP
from index.sources.given_labels import read_label_file
from tests.training.audits import audited
from tests.training.conftest import make_config
from training.audit.cleaned_labels import check_label_target, choose_labels, write_cleaned_labels
from training.audit.report import AuditedImage, AuditReport
from training.run.run_folder import RunFolder

NOBODY: frozenset[int] = frozenset()


def test_verdicts_keep_change_and_leave_out() -> None:
    images = [
        audited("a", "cat"),
        audited("b", "cat", verdict=CHANGE, new_label="dog"),
        audited("c", "cat", verdict=DROP),
    ]
    assert choose_labels(images, decided=NOBODY) == ["cat", "dog", None]


def _copies(*rows: tuple[str, float, int]) -> list[AuditedImage]:
    return [
        audited(str(row), label, confidence=confidence, verdict=KEEP, duplicate_of=other)
        for row, (label, confidence, other) in enumerate(rows)
    ]


def test_what_a_person_decided_about_one_copy_settles_the_others() -> None:
    first, second = _copies(("cat", 0.2, 1), ("dog", 0.7, 0))
    kept = audited("0", "cat", verdict=KEEP, duplicate_of=1)
    moved = audited("0", "cat", verdict=CHANGE, new_label="dog", duplicate_of=1)
    dropped = audited("0", "cat", verdict=DROP, duplicate_of=1)
    assert choose_labels([kept, second], decided=frozenset({0})) == ["cat", None]
    assert choose_labels([moved, second], decided=frozenset({0})) == ["dog", "dog"]
    assert choose_labels([dropped, second], decided=frozenset({0})) == [None, "dog"]
    both = [kept, audited("1", "dog", verdict=KEEP, duplicate_of=0)]
    assert choose_labels(both, decided=frozenset({0, 1})) == ["cat", "dog"]
    assert choose_labels([first, second], decided=NOBODY) == ["cat", "dog"]  # both labels are rare
    more = [audited(f"{number}", "cat", verdict=KEEP) for number in range(2, 6)]
    assert choose_labels([first, second, *more], decided=NOBODY)[:2] == [None, "dog"]


def _report(images: list[AuditedImage]) -> AuditReport:
    return AuditReport(Path("run"), tuple(images), (), (), 0.0)


def test_paths_are_relative_and_hostile_names_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["plain.png", 'quo"te, and\nlines\r.png', " spaces .png", "emoji 🐈.png", os.fsdecode(b"caf\xe9.png")]
    photos = tmp_path / "photos"
    images = [
        AuditedImage(photos / name, "h", "cat", 0, 1, (), KEEP, None, (), (), None)
        for name in (*names, "last.png")
    ]
    (tmp_path / "lists").mkdir()
    file = tmp_path / "lists" / "cleaned.csv"
    cleaned = write_cleaned_labels(_report(images), file, decided=NOBODY)
    assert (cleaned.images, cleaned.relabelled, cleaned.left_out) == (5, 0, 1)
    assert read_label_file(file) == {photos / name: "cat" for name in (*names[:-1], "last.png")}
    assert "1 images, the first is" in caplog.text
    assert "caf\\udce9.png" in caplog.text
    (tmp_path / "moved").mkdir()
    (tmp_path / "lists").rename(tmp_path / "moved" / "lists")
    assert set(read_label_file(tmp_path / "moved/lists/cleaned.csv")) == {
        tmp_path / "moved/photos" / name for name in (*names[:-1], "last.png")
    }


def test_classes_too_small_to_train_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = [
        audited("a", "cat"), audited("b", "cat"), audited("c", "dog"), audited("d", "dog", verdict=DROP),
        audited("e", "owl", verdict=DROP),
    ]  # fmt: skip
    write_cleaned_labels(_report(images), tmp_path / "cleaned.csv", decided=NOBODY)
    assert "class 'dog' keeps 1 image;" in caplog.text
    assert "class 'owl' keeps no image;" in caplog.text
    assert "'cat'" not in caplog.text


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """The label file that the run was trained from."""
    path = tmp_path / "labels.csv"
    path.write_text("path,label,given,verdict\n")  # even where an audit wrote it
    return path


@pytest.fixture
def run(tmp_path: Path, labels: Path) -> RunFolder:
    """A run that has only begun."""
    return RunFolder.create(tmp_path / "run", config=make_config(), data=labels)


def test_the_label_file_of_the_run_is_never_replaced(run: RunFolder, labels: Path, tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(labels)
    for path in (labels, tmp_path / "run" / ".." / "labels.csv", tmp_path / "link.csv"):
        with pytest.raises(InputError, match="the run was trained from this file"):
            check_label_target(path, run=run)


def test_only_what_an_audit_wrote_is_replaced(run: RunFolder, tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("path,label\na.png,cat\n")
    with pytest.raises(InputError, match="no audit wrote it"):
        check_label_target(mine, run=run)
    ours = tmp_path / "ours.csv"
    check_label_target(ours, run=run)
    write_cleaned_labels(_report([audited("a", "cat")]), ours, decided=NOBODY)
    check_label_target(ours, run=run)


def test_places_that_cannot_be_are_refused(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"name a file that ends in \.csv"):
        check_label_target(tmp_path / "cleaned.parquet", run=run)
    with pytest.raises(InputError, match="no such folder"):
        check_label_target(tmp_path / "nowhere" / "cleaned.csv", run=run)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="exists already"):
        check_label_target(tmp_path / "folder.csv", run=run)


def test_a_place_among_the_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    run = RunFolder.create(tmp_path / "other", config=make_config(), data=tmp_path / "photos")
    with pytest.raises(InputError, match=r"--apply .* lies inside the images"):
        check_label_target(tmp_path / "photos" / "cat" / "cleaned.csv", run=run)
