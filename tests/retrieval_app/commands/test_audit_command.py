"""`retrieval audit` as people and programs call it, and training again with what it wrote."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from index.sources.table_rows import read_labels
from retrieval_app.commands.cli import main
from tests.training.audits import BACKBONE, COPY, NOT_UTF8, ORIGINAL, PLANTED, MessyRun, draw_messy, train_messy
from tests.training.runs import read_csv

TRAIN = ("--backbone", BACKBONE, "--weights", "none", "--resize", "40", "--crop", "32", "--precision", "float32")


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> MessyRun:
    """A run of raw features on the messy folder; not to be written to."""
    folder = tmp_path_factory.mktemp("messy")
    return train_messy(draw_messy(folder / "photos"), folder / "run", cache=folder / "cache")


def _audit(run: MessyRun, out: Path, *flags: str) -> int:
    return main(["audit", str(run.path), "--out", str(out), "--cache", str(run.cache), "--workers", "1", *flags])


def _document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def _decide(path: Path, rows: list[dict[str, str]], **decisions: str) -> None:
    """Write decisions about the images whose file names are given, in the page's format."""
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "sha256", "label", "decision", "new_label"])
        for row in rows:
            decision = decisions.get(Path(row["path"]).stem)
            if decision is not None:
                verdict, _, new = decision.partition(":")
                writer.writerow([row["path"], row["sha256"], row["label"], verdict, new])


@pytest.mark.slow
def test_the_cleaned_labels_are_what_training_reads(
    messy: MessyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out, cleaned = tmp_path / "audit", tmp_path / "cleaned.csv"
    assert _audit(messy, out, "--json") == 0
    capsys.readouterr()
    rows = read_csv(out / "audit.csv")
    decisions = {Path(name).stem: f"change:{shown}" for name, shown in PLANTED.items()}
    decisions |= {"05": "drop", "00": "keep"}  # in every class
    others = {Path(row["path"]).stem: "keep" for row in rows if Path(row["path"]).name != Path(COPY).name}
    _decide(out / "decisions.csv", rows, **(others | decisions))
    before = (out / "decisions.csv").read_bytes()

    assert _audit(messy, out, "--apply", str(cleaned), "--json") == 0
    document = _document(capsys)
    assert document["decisions"] == {"file": str(out / "decisions.csv"), "images": 64}
    expected = document["cleaned"].pop("expected_right")
    assert document["cleaned"] == {"file": str(cleaned), "images": 60, "relabelled": 3, "set_aside": 0, "left_out": 5}
    assert (expected["images"], expected["share"]) == (60, 1)  # a person has decided all of them
    assert "caf\\udce9.png" in caplog.text, "its name cannot stand in a label file"
    assert (out / "decisions.csv").read_bytes() == before

    labels = {Path(image): label for image, label in read_labels(cleaned).items()}
    assert all(labels[messy.data / name] == shown for name, shown in PLANTED.items())
    assert labels[messy.data / ORIGINAL] == "blue"
    gone = {messy.data / name for name in (COPY, NOT_UTF8, "blue/05.png", "green/05.png", "red/05.png")}
    assert gone.isdisjoint(labels)
    assert not any(Path(row["path"]).is_absolute() for row in read_csv(cleaned))

    assert {float(row["p_right"]) for row in read_csv(cleaned)} == {1}

    train = ["train", str(cleaned), *TRAIN, "--out", str(tmp_path / "run"), "--method", "raw", "--json"]
    assert main([*train, "--cache", str(messy.cache), "--workers", "1"]) == 0
    assert _document(capsys)["images"] == 60
    used = {Path(row["path"]): row["label"] for row in read_csv(tmp_path / "run" / "labels.csv")}
    assert used == labels
    cached = sorted(messy.cache.rglob("*.npy"))
    again = ["audit", str(tmp_path / "run"), "--cache", str(messy.cache), "--json", "--workers", "1"]
    assert main([*again, "--decisions", str(out / "decisions.csv")]) == 0  # of an earlier run
    assert _document(capsys)["decisions"]["images"] == 57
    assert "about images or labels that this run does not have: 7 decisions" in caplog.text
    assert sorted(messy.cache.rglob("*.npy")) == cached


@pytest.mark.parametrize(
    "flags", [("--decisions", "{}/bad.csv"), ("--apply", "{}/bad.csv"), ("--apply", "{}/no/a.csv")]
)
def test_unusable_files_are_told_before_any_work(
    messy: MessyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    (tmp_path / "bad.csv").write_text("path,label\na.png,cat\n")
    assert (
        _audit(
            messy, tmp_path / "audit", flags[0], flags[1].format(tmp_path if "bad" in flags[1] else messy.data.parent)
        )
        == 1
    )
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "audit").exists()
    assert _audit(messy, messy.data / "audit") == 1  # among the images
    assert not (messy.data / "audit").exists()
    assert (tmp_path / "bad.csv").read_text() == "path,label\na.png,cat\n"
