"""Every benchmark command runs for real at its smallest size and writes a record of its results."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.photos import KINDS, write_photos

pytestmark = pytest.mark.slow


def run(command: str, out: Path, *options: str | Path, record: str) -> dict[str, Any]:
    """The results in the record of `python -m benchmarks.COMMAND`."""
    module = importlib.import_module(f"benchmarks.{command}")
    module.main(["--out", str(out), *map(str, options)])
    (path,) = out.glob(record)
    document: dict[str, Any] = json.loads(path.read_text())
    assert document["machine"]["versions"]["numpy"]
    results: dict[str, Any] = document["results"]
    return results


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five kinds of image that train and three others that are searched, as `--dataset` takes them."""
    folder = tmp_path_factory.mktemp("pictures")
    for part, kinds in (("train", KINDS[:5]), ("test", KINDS[5:8])):
        write_photos(folder / part, kinds=kinds, pictures_per_kind=8, seed=0, size=48)
    return f"folder:{folder / 'train'}:{folder / 'test'}"


@pytest.fixture
def one_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers try one setting in the place of many, each of which is a process."""
    from benchmarks.indexing import peers
    from benchmarks.serving import speed

    climb = peers._climb
    monkeypatch.setattr(peers, "_climb", lambda *asked: climb(*asked[:3], [asked[3][0][:1]]))
    monkeypatch.setattr(speed, "VARIANTS", speed.VARIANTS[:1])


def test_noise(tmp_path: Path, dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    methods = [word for name in ("default", "proxy-nca", "spa", "raw") for word in ("--method", name)]
    small = ("--backbone", "squeezenet1_1", "--weights", "none", "--resize", "40", "--crop", "32", "--width", "4")
    asked = ("--dataset", dataset, "--noise", "uniform:0.25", "--seeds", "0", "--workers", "1")
    results = run("noise.__main__", tmp_path, *asked, *small, *methods, record="results/*.json")
    assert [row["name"] for row in results["rows"]] == ["default", "proxy-nca", "spa", "raw"]
    assert all(0 <= row["recall"]["1"]["mean"] <= 100 for row in results["rows"])
    for row in results["rows"]:
        assert row["recall_at_1"]["low"] <= row["recall"]["1"]["mean"] <= row["recall_at_1"]["high"]
        assert row["recall_at_1"]["mean"] == pytest.approx(row["recall"]["1"]["mean"])
    printed, cells = capsys.readouterr().out, sorted((tmp_path / "cells").iterdir())
    before = [path.stat().st_mtime_ns for path in cells]
    assert run("noise.__main__", tmp_path, *asked, *small, *methods, record="results/*.json") == results
    assert capsys.readouterr().out == printed
    assert [path.stat().st_mtime_ns for path in cells] == before, "nothing is trained twice"


def test_network(tmp_path: Path, dataset: str) -> None:
    small = ("--weights", "none", "--finetune", "last-1", "--epochs", "1", "--width", "4", "--image-size", "64")
    asked = (
        "--dataset",
        dataset,
        "--noise",
        "clean",
        "--rival",
        "crop:own",
        "--variant",
        "default",
        "--variant",
        "frozen",
    )
    results = run("network.__main__", tmp_path, *asked, *small, record="results/*.json")
    assert all(cell["seconds"]["processor"] > 0 for cell in results.pop("cells"))
    leads = {name: found["lead"] for name, found in results.items()}
    ours = [f"default, {head}" for head in ("exported", "whitening")]
    assert [name for name, lead in leads.items() if lead is None] == ours
    assert {"frozen, exported", "frozen, whitening", "raw, crop, own, exported"} < leads.keys()
    assert all(0 <= found[score]["mean"] <= 100 for found in results.values() for score in ("recall_at_1", "map_at_r"))


def test_network_sweep(tmp_path: Path, dataset: str) -> None:
    small = ("--weights", "none", "--backbone", "timm:test_resnet", "--epochs", "2", "--width", "4")
    variants = ("--variant", "default", "proxy-anchor", "likeliest classes", "no refresh")
    results = run("network.sweep", tmp_path, "--dataset", dataset, *variants, *small, record="results/*.json")["cases"]
    trials = {case["case"][2]: case["trials"][0] for case in results}
    whitened, trained = (trials["default"]["scores"][head] for head in ("wccn", "trained"))
    assert whitened.keys() == trained.keys()
    assert whitened != trained
    assert all(0 <= recall <= 100 for recall, _ in [*whitened.values(), *trained.values()])
    assert trials["default"]["log_q"][0] == trials["likeliest classes"]["log_q"][0] < 0
    assert trials["proxy-anchor"]["log_q"] == []


def keep_known_labels(folder: Path) -> None:
    """Features of 100 images of four classes, where the commands about labels keep them."""
    generator = np.random.default_rng(0)
    right = np.repeat(np.arange(4), 25)
    features = np.eye(10)[right] + 0.2 * generator.normal(size=(100, 10))
    names = np.array([f"class {number}" for number in right])
    (folder / "known").mkdir()
    known = folder / "known" / "groceries-report.npz"
    np.savez(known, features=features.astype(np.float32), right=names, paths=names)


def test_label_certificates(tmp_path: Path) -> None:
    keep_known_labels(tmp_path)
    asked = ("--dataset", "groceries", "--kind", "any:0.2", "--audits", "2", "--at-most", "0.1")
    (row,) = run("labels.certificate", tmp_path, *asked, record="certificate.json")["rows"]
    assert 0 < row["as they are"]["looks"] <= 100
    assert row["after 0"]["true"] == row["wrong"]


def test_label_chances(tmp_path: Path) -> None:
    keep_known_labels(tmp_path)
    has_datalab = importlib.util.find_spec("datasets") is not None
    alone = [] if has_datalab else ["--no-peers"]
    asked = ("--dataset", "groceries", "--kind", "any:0.2", "--seeds", "0", *alone)
    results = run("labels.chances", tmp_path, *asked, record="chances.json")
    assert results["rows"][0]["average_precision"] > 0.8
    if has_datalab:
        assert results["compared"][0]["average_precision"] > 0.8


@pytest.mark.parametrize("kind", ["any:.2", "near:.2", "any:.1+far:.1"])
def test_promised_shares_of_a_crawl(kind: str) -> None:
    from benchmarks.labels.known_labels import KnownLabels
    from benchmarks.labels.promise import COLUMNS, NONE, make_crawl, measure

    generator = np.random.default_rng(0)
    right = np.repeat(np.arange(30), 20)
    features = (3 * generator.normal(size=(30, 24))[right] + generator.normal(size=(600, 24))).astype(np.float32)
    known = KnownLabels(features, right, {}, tuple(map(str, range(30))), ())
    foreign = generator.normal(size=(200, 24)).astype(np.float32)
    seen, labels, truth = make_crawl(known, kind, foreign=foreign, seed=0)
    assert len(seen) == len(labels) == len(truth)
    assert (labels != truth).mean() == pytest.approx(0.2, abs=0.04)
    assert (truth == NONE).any() == (kind != "any:.2")
    cells = dict(zip(COLUMNS[3:], measure(seen, labels, truth), strict=True))
    assert cells["images"] == len(labels)
    assert cells["right"] >= 0.93


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_trial")
def test_indexing(tmp_path: Path, dataset: str, tiny_model: Path) -> None:
    import torchvision
    from safetensors.torch import save_file

    weights = tmp_path / "weights.safetensors"
    save_file(torchvision.models.mobilenet_v2().state_dict(), weights)
    photos = ("--photos", Path(dataset.split(":")[1]) / KINDS[0], "--weights", weights, "--model", tiny_model)
    few = ("--part", "photos", "--rounds", "1", "--warm-up", "4")
    results = run("indexing.__main__", tmp_path / "out", *photos, *few, record="record-photos.json")
    assert results["images"] == 8
    assert set(results["rates"]) == {"ours", "loop", "decoding", "inference"}
    assert results["over_loop"] > 0


def test_ann(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(50, 16))[generator.integers(50, size=1540)] + 0.5 * generator.normal(size=(1540, 16))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    np.save(tmp_path / "base.npy", rows[:1500])
    np.save(tmp_path / "queries.npy", rows[1500:])
    vectors = ("--base", tmp_path / "base.npy", "--queries", tmp_path / "queries.npy", "--index-type", "hnsw")
    peers = ("--rounds", "1", "--without", "hnswlib", "--without", "usearch")
    results = run("ann.__main__", tmp_path / "out", *vectors, *peers, record="record-curves-*.json")
    points = {row["contestant"]: row["points"] for row in results["rows"]}
    assert points["faiss HNSW32,Flat"][-1]["single"]["recall"] > 0.99
    assert all(point["batch"]["recall"] > 0.95 for point in points["ours"])
    (filters,) = (tmp_path / "out").glob("record-filters-*.json")
    assert len(json.loads(filters.read_text())["results"]["cells"]) == 8


@pytest.mark.usefixtures("one_trial")
def test_serving(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    few = ("--rounds", "1", "--seconds", "0.5", "--warm-up", "0", "--clients", "32", "--no-int8")
    photos = ("--photos", image_folder, "--model", tiny_model)
    results = run("serving.__main__", tmp_path, *photos, *few, record="serving.json")
    assert results["cells"].keys() >= {"by id", "by upload", "plain fastapi"}
    for measured in results["cells"].values():
        for cell in measured.values():
            assert "200" in cell["statuses"].keys() <= {"200", "503"}  # which tells that the machine is busy
    assert results["agreement"]["plain fastapi"]["mean"] > 0.9


def test_losses_at_scale(tmp_path: Path) -> None:
    few = ("--classes", "90", "--batch", "12", "--width", "6", "--repeats", "1", "--rounds", "1")
    rows = run("training.losses_at_scale", tmp_path, *few, "--part", "proxy-anchor", record="record-*.json")["rows"]
    assert set(rows) == {"ours", "the authors' formula", "pytorch-metric-learning"}
    for row in rows.values():
        assert row["seconds"]["median"] > 0
        assert max(row["apart"].values()) < 1e-5
