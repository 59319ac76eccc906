"""What ships after the trial, on small subsets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.noise.cells import GridFolder
from benchmarks.noise.feature_sets import load_features
from benchmarks.noise.shipping import draw_subset, main
from training.options.losses import RIVALS

CLASSES, IMAGES, WIDTH = 9, 12, 16


def _write_features(folder: Path) -> None:
    chance = np.random.default_rng(0)
    folder.mkdir(parents=True)
    labels = [f"c{number}" for number in range(CLASSES) for _ in range(IMAGES)]
    for part in ("train", "test"):
        centres = chance.normal(size=(CLASSES, WIDTH)).repeat(IMAGES, axis=0)
        np.save(folder / f"{part}.npy", (centres + chance.normal(size=centres.shape)).astype(np.float32))
    document = {
        "name": "made", "train_labels": labels, "test_labels": [f"t{name}" for name in labels],
        "test_paths": [f"{number}.jpg" for number in range(len(labels))], "is_gallery": None, "ks": [1],
    }  # fmt: skip
    (folder / "set.json").write_text(json.dumps(document))


def test_a_subset_is_of_whole_numbers_of_classes_and_its_labels_are_wrong_in_odd_seeds_alone(
    tmp_path: Path,
) -> None:
    load_features.cache_clear()
    _write_features(tmp_path / "made")
    features = load_features(tmp_path / "made")
    for seed in range(6):
        images, validation = draw_subset(features, seed=seed)
        rows = [np.flatnonzero((features.train == row).all(axis=1))[0] for row in images.features]
        true = np.unique(features.train_labels[rows], return_inverse=True)[1]
        assert 6 <= len(np.unique(true)) <= CLASSES
        assert np.bincount(true).min() >= 8
        assert (images.labels != true).sum() == (round(0.3 * len(true)) if seed % 2 else 0)
        assert len(validation.features) == CLASSES * IMAGES


def test_every_method_is_searched_and_the_table_says_what_was_chosen(tmp_path: Path, capsys) -> None:
    load_features.cache_clear()
    _write_features(GridFolder(tmp_path).features("made"))
    arguments = ["--out", str(tmp_path), "--dataset", "made", "--subsets", "2", "--width", "4", "--workers", "1"]
    main(arguments)
    out = capsys.readouterr().out
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "shipping").glob("*.json"))]
    assert len(records) == 2
    for record in records:
        assert set(record["recall_at_1"]) == {"trained", *RIVALS}
        assert record["ships"] in record["recall_at_1"]
        assert record["ships"] not in record["against"]
    (summary,) = (tmp_path / "results").glob("shipping_made_4d.json")
    result = json.loads(summary.read_text())["results"]
    assert sum(result["chosen"].values()) == result["subsets"] == 2
    assert result["ships"] == np.mean([record["recall_at_1"][record["ships"]] for record in records])
    for name in ("what ships", "trained", "class-whitened"):
        assert f"| {name} |" in out
    written = [path.stat().st_mtime_ns for path in sorted((tmp_path / "shipping").glob("*.json"))]
    main(arguments)
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "shipping").glob("*.json"))] == written
