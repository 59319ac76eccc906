"""A run's audit: what was planted is found, and nothing is computed twice."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from index.errors import InputError, RunError
from index.labels.decisions import CHANGE, DECISIONS, DROP, KEEP, LabelDecision
from index.labels.issues import LabelIssues
from tests.training.audits import (
    COLOURS,
    COPY,
    NOT_UTF8,
    ORIGINAL,
    PER_CLASS,
    PLANTED,
    MessyRun,
    draw_messy,
    train_messy,
)
from tests.training.conftest import make_config, make_machine
from tests.training.runs import InterruptionError, interrupt_at, read_csv
from training.audit.run_audit import CleanedLabels, audit_labels, rank_images, write_cleaned_labels
from training.run.run_folder import RunFolder


def _audit(run: MessyRun) -> LabelIssues:
    return audit_labels(RunFolder.open(run.path), machine=make_machine(run.cache))


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> MessyRun:
    """A run of raw features on the messy folder."""
    folder = tmp_path_factory.mktemp("messy")
    return train_messy(draw_messy(folder / "photos"), folder / "run", cache=folder / "cache")


@pytest.fixture(scope="module")
def report(messy: MessyRun) -> LabelIssues:
    return _audit(messy)


def test_planted_mistakes_are_the_most_suspicious_with_what_they_show(messy, report) -> None:
    copies = {messy.data / ORIGINAL, messy.data / COPY}  # one of the two is wrong as well
    worst = [image for image in rank_images(report) if Path(image.path) not in copies][: len(PLANTED)]
    assert {Path(image.path) for image in worst} == {messy.data / name for name in PLANTED}
    shown = {messy.data / name: label for name, label in PLANTED.items()}
    for image in worst:
        assert image.suggested == shown[Path(image.path)]
        assert image.p_error >= 0.5
        assert image.verdict != KEEP


def test_a_report_says_everything_of_every_image_in_the_order_of_the_run(messy, report) -> None:
    labelled = RunFolder.open(messy.path).read_labels()
    assert labelled is not None
    assert [(Path(i.path), i.sha256, i.label) for i in report.items] == [(i.path, i.sha256, i.used) for i in labelled]
    assert str(messy.data / NOT_UTF8) in {image.path for image in report.items}
    for image in report.items:
        assert 0 <= image.p_error <= 1
        assert image.verdict in DECISIONS
        assert [share for _, share in image.suggestions] == sorted((s for _, s in image.suggestions), reverse=True)
        assert {label for label, _ in image.suggestions} <= COLOURS.keys() - {image.label}
        assert sum(share for _, share in image.suggestions) + image.p_none == pytest.approx(image.p_error)
        assert 0 <= image.confidence <= 1


def test_a_copy_with_another_label_is_told_on_both_sides_and_has_no_say_in_the_other(messy, report) -> None:
    rows = {Path(image.path): row for row, image in enumerate(report.items)}
    first, second = rows[messy.data / ORIGINAL], rows[messy.data / COPY]
    original, copy = report.items[first], report.items[second]
    assert sorted((original.verdict, copy.verdict)) == [DROP, KEEP]
    assert (original.duplicate_of, copy.duplicate_of) == (second, first)
    assert original.confidence + copy.confidence <= 1 + 1e-6  # two of the confidences in the same image


def test_a_run_is_audited_in_its_own_embedding_by_its_labels_as_they_were_used(messy, report, tmp_path) -> None:
    run = train_messy(messy.data, tmp_path / "run", cache=messy.cache, method="pca", label_noise="uniform:0.2")
    again, labelled = _audit(run), RunFolder.open(run.path).read_labels()
    cosines, raw = ([c for i in r.items for _, c in i.agreeing] for r in (again, report))
    assert cosines != raw
    assert labelled is not None
    assert [i.label for i in again.items] == [i.used for i in labelled] != [i.given for i in labelled]


def test_a_run_stopped_in_training_is_audited_by_its_features(messy, report, tmp_path) -> None:
    stop = {"method": "proxy-anchor", "watcher": interrupt_at("embedding", 1)}
    with pytest.raises(InterruptionError):
        train_messy(messy.data, tmp_path / "run", cache=messy.cache, **stop)
    again = _audit(MessyRun(tmp_path / "run", messy.data, messy.cache))
    assert [image.verdict for image in again.items] == [image.verdict for image in report.items]
    cosines, raw = ([c for i in r.items for _, c, *_ in (*i.agreeing, *i.disagreeing)] for r in (again, report))
    np.testing.assert_allclose(cosines, raw, atol=1e-6)


def test_images_that_are_not_what_they_were_are_refused_by_name(messy: MessyRun, tmp_path: Path) -> None:
    shutil.copytree(messy.data, tmp_path / "photos")
    run = train_messy(tmp_path / "photos", tmp_path / "run", cache=messy.cache)
    image = run.data / "blue" / "03.png"
    for content in ((run.data / "red" / "03.png").read_bytes(), b"no image", None):
        image.unlink() if content is None else image.write_bytes(content)
        with pytest.raises(RunError, match=r"1 of 65 images .* the first is .*blue/03\.png; put them back"):
            _audit(run)


def test_a_run_without_features_or_with_one_label_is_refused(messy: MessyRun, tmp_path: Path) -> None:
    bare = RunFolder.create(tmp_path / "bare", config=make_config(), data=messy.data)
    with pytest.raises(RunError, match="its features are not made yet"):
        audit_labels(bare, machine=make_machine(messy.cache))
    shutil.copytree(messy.path, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    labelled = run.read_labels() or []
    run.write_labels(image for image in labelled if image.used == "blue")
    with pytest.raises(InputError, match="all images are labelled 'blue'"):
        audit_labels(run, machine=make_machine(messy.cache))


def _apply(messy: MessyRun, file: Path, *, at_least_right: float, kept: int = 0) -> CleanedLabels:
    """With as many labels of the first images kept by a person."""
    run = RunFolder.open(messy.path)
    report = audit_labels(run, machine=make_machine(messy.cache), at_least_right=at_least_right)
    made = {one.key: LabelDecision(*one.key, KEEP) for one in report.items[:kept]}
    return write_cleaned_labels(report.with_decisions(made), file)


def test_a_higher_share_of_right_labels_sets_doubtful_images_aside(messy: MessyRun, tmp_path: Path) -> None:
    loose, strict = (_apply(messy, tmp_path / f"{share}.csv", at_least_right=share) for share in (0.9, 0.995))
    assert (loose.relabelled, loose.set_aside) == (len(PLANTED), 0)
    assert (strict.relabelled, strict.set_aside) == (0, len(PLANTED))
    for cleaned, share in ((loose, 0.9), (strict, 0.995)):
        assert cleaned.images + cleaned.set_aside + cleaned.left_out == 3 * PER_CLASS + len(PLANTED) + 2
        assert cleaned.expected_right.images == cleaned.images
        assert cleaned.expected_right.share >= share
    rows = {row["path"]: row for row in read_csv(loose.file)}
    planted = {os.path.relpath(messy.data / name, tmp_path): label for name, label in PLANTED.items()}
    assert not {row["path"] for row in read_csv(strict.file)} & planted.keys()
    assert all(0 <= float(row["p_right"]) < 1 for row in rows.values())  # nobody looked
    for path, label in planted.items():
        row = rows[path]
        assert (row["label"], row["given"], row["verdict"]) == (label, Path(path).parent.name, CHANGE)
        assert 0.5 < float(row["p_right"]) < 0.99


def test_an_audit_of_a_cleaned_label_file_keeps_the_doubt_of_what_was_changed(messy: MessyRun, tmp_path: Path) -> None:
    file = tmp_path / "cleaned.csv"
    cleaned = _apply(messy, file, at_least_right=0.9, kept=3)
    rows = read_csv(file)
    doubts = {(tmp_path / row["path"]).resolve(): 1 - float(row["p_right"]) for row in rows}
    looked = [path for path, doubt in doubts.items() if doubt == 0]
    assert len(looked) == 3
    again = train_messy(file, tmp_path / "run", cache=messy.cache)
    known = {image.path.resolve(): image for image in RunFolder.open(again.path).read_labels() or []}
    report = _audit(again)
    assert len(report.items) == cleaned.images
    assert report.noise_rate * len(report.items) >= sum(doubts.values()) - 1e-6 > 0.3
    for image in report.items:
        place = Path(image.path).resolve()
        assert image.p_right == known[place].p_right == pytest.approx(1 - doubts[place])
        assert image.p_error == 0 if place in looked else image.p_error >= doubts[place] - 1e-9
    planted = {(messy.data / name).resolve(): name for name in PLANTED}
    assert {place: image.before for place, image in known.items() if image.before is not None} == {
        place: name.partition("/")[0] for place, name in planted.items()
    }
    twice = write_cleaned_labels(report, tmp_path / "twice.csv")
    given = {(tmp_path / row["path"]).resolve(): row for row in read_csv(twice.file)}
    assert {place: given[place]["given"] for place in planted} == {
        place: name.partition("/")[0] for place, name in planted.items()
    }
    assert [place for place, row in given.items() if float(row["p_right"]) == 1] == looked


def test_labels_with_simulated_noise_are_not_trusted_as_those_that_were_given(messy, tmp_path: Path) -> None:
    file = tmp_path / "looked.csv"
    lines = [f"{messy.data}/{label}/{i:02}.png,{label},1" for label in COLOURS for i in range(PER_CLASS)]
    file.write_text("\n".join(["path,label,p_right", *lines]) + "\n")
    report = _audit(train_messy(file, tmp_path / "run", cache=messy.cache, label_noise="uniform:0.2"))
    wrong = [image for image in report.items if Path(image.path).parent.name != image.label]
    assert wrong
    assert all(image.p_right is None for image in wrong)
    assert sum(image.p_error > 0.5 for image in wrong) > 0.7 * len(wrong)
    assert all(image.p_error == 0 for image in report.items if Path(image.path).parent.name == image.label)
