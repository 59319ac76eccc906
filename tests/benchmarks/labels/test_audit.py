"""The audit against cleanlab: what is measured on labels made wrong, that it is done once, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.labels.audit import OURS, RANKINGS, SAME, SCALINGS, Finding, main, precision_at_count
from benchmarks.noise.cells import GridFolder
from benchmarks.noise.feature_sets import load_features

CLASSES, IMAGES, FEATURES = 4, 20, 10
ASKED = ("--dataset", "made", "--noise", "uniform:0.25", "--workers", "1")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with the features of one dataset: clusters around one centre a class."""
    load_features.cache_clear()
    folder, generator = GridFolder(tmp_path).features("made"), np.random.default_rng(0)
    folder.mkdir(parents=True)
    labels = [f"c{number}" for number in range(CLASSES) for _ in range(IMAGES)]
    features = np.eye(FEATURES)[:CLASSES].repeat(IMAGES, axis=0)
    features = (features + 0.2 * generator.normal(size=features.shape)).astype(np.float32)
    for part in ("train", "test"):
        np.save(folder / f"{part}.npy", features)
    document = {
        "name": "made", "train_labels": labels, "test_labels": labels, "test_paths": labels, "is_gallery": None,
        "ks": [1],
    }  # fmt: skip
    (folder / "set.json").write_text(json.dumps(document))
    return tmp_path


def test_an_audit_is_measured_tabled_and_recorded_and_only_once(out: Path, capsys) -> None:
    main(["--out", str(out), *ASKED, "--seeds", "0", "1"])
    printed = capsys.readouterr().out
    [table], [record] = (out / "results").glob("audit_*.md"), (out / "results").glob("audit_*.json")
    assert table.read_text() in printed
    assert printed.count("| made | uniform:0.25 |") == 2 + 3, "two tables of rankings, one of three sets"
    document = json.loads(record.read_text())
    assert document["settings"]["cleanlab"].startswith("2.9")
    [row] = document["results"]["rows"]
    assert row["samples"] == CLASSES * IMAGES
    assert row["wrong"] == {"mean": 0.25, "deviation": 0}
    assert set(row["routes"]) == {OURS, SAME, *SCALINGS}
    assert all(set(row["routes"][route]["rankings"]) == set(RANKINGS) for route in (SAME, *SCALINGS))
    assert row["routes"][OURS]["rankings"][OURS]["auc"]["mean"] > 0.95
    for lead in row["leads"].values():
        assert lead["low"] <= lead["mean"] <= lead["high"]
    before = {path: path.stat().st_mtime_ns for path in (out / "audits").iterdir()}
    assert len(before) == 4, "numbers and suspicions of two seeds"
    main(["--out", str(out), *ASKED, "--seeds", "0", "1"])
    assert {path: path.stat().st_mtime_ns for path in (out / "audits").iterdir()} == before
    assert capsys.readouterr().out == printed


def test_our_ranking_is_the_order_of_the_confidence_in_the_label(out: Path) -> None:
    main(["--out", str(out), *ASKED, "--seeds", "0"])
    [record] = (out / "audits").glob("*.json")
    routes = json.loads(record.read_text())["routes"]
    assert routes[OURS]["rankings"][OURS] == routes[SAME]["rankings"]["self-confidence"]


def test_the_record_agrees_with_the_suspicions_beside_it(out: Path) -> None:
    main(["--out", str(out), *ASKED, "--seeds", "0"])
    [record] = (out / "audits").glob("*.json")
    document = json.loads(record.read_text())
    with np.load(record.with_suffix(".npz")) as arrays:
        wrong = arrays["wrong"]
        assert wrong.sum() == document["wrong"] == CLASSES * IMAGES // 4
        for route, found in document["routes"].items():
            for name, scores in found["rankings"].items():
                assert scores["precision"] == precision_at_count(arrays[f"{route}: {name}"], wrong)


def test_a_finding_is_judged_by_its_rankings_and_by_what_it_calls_wrong() -> None:
    wrong = np.array([True, True, False, False])
    found = Finding(
        {"good": np.array([4, 3, 2, 1]), "mixed": np.array([4, 1, 3, 2])},
        suspects=np.array([True, False, True, True]), rate=0.75, seconds=1.0,
    ).judge(wrong)  # fmt: skip
    assert found["rankings"] == {
        "good": {"auc": 1.0, "precision": 1.0},
        "mixed": {"auc": 0.5, "precision": 0.5},
    }
    assert (found["suspects"], found["precision"], found["recall"]) == (3, pytest.approx(1 / 3), 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--noise", "clean"), "--noise clean: finding wrong labels is judged where some are known to be wrong"),
        (("--noise", "lots:0.3"), "--noise lots:0.3: "),
        (("--workers", "0"), "--workers must be at least 1"),
    ],
)
def test_wrong_usage_is_said_and_exits_with_two(out: Path, options, message: str, capsys) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--out", str(out), *options])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
