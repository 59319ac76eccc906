"""Label noise and benchmarks as a whole run meets them: what is on record, and what is scored."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.exports import EmbeddingModel
from index.errors import InputError
from index.images.image_files import read_image
from index.images.preprocess import PreprocessConfig, preprocess_image
from tests.training.conftest import FinishedRun, draw_over, make_config, make_machine
from tests.training.data.protocols.test_load import write_lines
from tests.training.runs import InterruptionError, interrupt_at, read_csv, weights
from training.options.config import NOISE_KINDS
from training.run.phases import EpochReport, Watcher
from training.run.run_folder import RunFolder
from training.run.train import train


@pytest.fixture
def hierarchy(pictures: Path, tmp_path: Path) -> Path:
    """Two pairs of classes, each below a node of its own."""
    kinds = sorted(path.name for path in pictures.iterdir())
    path = tmp_path / "tree.csv"
    write_lines(path, ["class,parent", *(f"{kind},{'ab'[number // 2]}" for number, kind in enumerate(kinds))])
    return path


def _noisy(kind: str, hierarchy: Path, **changes: Any) -> dict[str, Any]:
    tree = str(hierarchy) if kind == "semantic" else None
    return {"label_noise": f"{kind}:0.3", "hierarchy": tree, "method": "proxy-anchor", **changes}


def _check_report(noise: dict[str, Any], rows: list[dict[str, str]]) -> None:
    """Every figure of the report against the run's labels.csv."""
    wrong = [row for row in rows if row["given"] != row["label"]]
    assert (noise["samples"], noise["wrong"]) == (len(rows), len(wrong))
    assert noise["rate"] == pytest.approx(len(wrong) / len(rows))
    given, used = Counter(row["given"] for row in rows), Counter(row["label"] for row in rows)
    away, wrongly = Counter(row["given"] for row in wrong), Counter(row["label"] for row in wrong)
    assert [found["name"] for found in noise["classes"]] == sorted(given)
    assert noise["emptied_classes"] == len(given.keys() - used.keys())
    for found in noise["classes"]:
        name = found["name"]
        assert found["samples"] == given[name]
        assert found["relabelled_away"] == away[name]
        assert found["wrongly_labelled"] == wrongly[name]
        assert found["purity"] == pytest.approx((used[name] - wrongly[name]) / used[name])
    swaps = Counter((row["given"], row["label"]) for row in wrong)
    assert {(swap["given"], swap["used"]): swap["samples"] for swap in noise["swaps"]} == swaps
    assert [swap["samples"] for swap in noise["swaps"]] == sorted(swaps.values(), reverse=True)


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_of_every_kind_is_on_record_and_reported(
    pictures: Path, cache: Path, tmp_path: Path, hierarchy: Path, kind: str
) -> None:
    config = make_config(**_noisy(kind, hierarchy, method="raw"))
    report = train(pictures, tmp_path / "run", config=config, machine=make_machine(cache))
    rows = read_csv(tmp_path / "run" / "labels.csv")
    assert all(Path(row["path"]).parent.name == row["given"] for row in rows)
    assert len(rows) == 48
    _check_report(report["noise"], rows)
    if kind == "bernoulli":
        assert 4 < report["noise"]["wrong"] < 26, "14.4 on average, 3.2 the deviation"
    else:
        assert report["noise"]["wrong"] == 14


def test_noise_is_the_same_after_an_interruption_and_another_with_another_seed(
    pictures: Path, cache: Path, tmp_path: Path, hierarchy: Path
) -> None:
    config, machine = make_config(**_noisy("semantic", hierarchy, epochs=2)), make_machine(cache)
    report = train(pictures, tmp_path / "straight", config=config, machine=machine)
    other = make_config(**_noisy("semantic", hierarchy, method="raw", seed=1))
    train(pictures, tmp_path / "other", config=other, machine=machine)
    with pytest.raises(InterruptionError):
        train(pictures, tmp_path / "run", config=config, machine=machine, watcher=interrupt_at("embedding", 1))
    hierarchy.unlink()  # the labels are fixed: nothing asks for it again
    again = train(pictures, tmp_path / "run", config=config, machine=machine, resume=True)
    assert again["noise"] == report["noise"]
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")
    rows, same, others = (read_csv(tmp_path / name / "labels.csv") for name in ("straight", "run", "other"))
    assert rows == same != others


def test_the_noise_of_a_finished_run_is_in_its_report(finished_run: FinishedRun) -> None:
    assert finished_run.report["noise"]["wrong"] == 12
    _check_report(finished_run.report["noise"], read_csv(finished_run.path / "labels.csv"))


IN_SHOP = {  # status of the images of every item, in the list's order
    "id_1": ("train", "train", "train"),
    "id_2": ("train", "train", "train", "train"),
    "id_3": ("query", "gallery", "query", "gallery", "gallery"),
    "id_4": ("gallery", "query", "gallery"),
    "id_5": ("gallery", "gallery", "query", "query"),
    "id_6": ("query", "query"),  # nothing of it can be found
    "id_7": ("gallery",),
}


def _make_in_shop(root: Path) -> Path:
    rows = [
        f"img/{item}/{number:02}.jpg {item} {status}"
        for item, statuses in IN_SHOP.items()
        for number, status in enumerate(statuses)
    ]
    header = "image_name item_id evaluation_status"
    write_lines(root / "Eval" / "list_eval_partition.txt", [len(rows), header, *rows])
    for row in rows:
        path = root / "Img" / row.split()[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return draw_over(root)


def _embed(run: RunFolder, paths: list[Path]) -> np.ndarray:
    """(N, D) rows of the run's model, image by image."""
    backbone, head, _ = run.load_trained()
    preprocess: PreprocessConfig = run.preprocess()
    model = EmbeddingModel(backbone, head, preprocess).eval()
    with torch.inference_mode():
        return np.stack([
            model(torch.from_numpy(
                preprocess_image(read_image(path, target_side=preprocess.resize).image, preprocess).copy()
            )[None])[0].numpy()
            for path in paths
        ])  # fmt: skip


def test_in_shop_scores_are_those_of_queries_that_search_the_gallery_alone(cache: Path, tmp_path: Path) -> None:
    root, out = _make_in_shop(tmp_path / "download"), tmp_path / "run"
    config = make_config(protocol="in-shop", method="proxy-anchor", embedding_dim=5)
    report = train(root, out, config=config, machine=make_machine(cache))
    assert {row["given"] for row in read_csv(out / "labels.csv")} == {"id_1", "id_2"}
    assert report["images"] == 7

    sides: dict[str, list[tuple[Path, str]]] = {"query": [], "gallery": []}
    for item, statuses in IN_SHOP.items():
        for number, status in enumerate(statuses):
            if status in sides:
                sides[status].append((root / "Img/img" / item / f"{number:02}.jpg", item))
    gallery_items = [item for _, item in sides["gallery"]]
    asked = [(path, item) for path, item in sides["query"] if item in gallery_items]
    queries, gallery = (
        _embed(RunFolder.open(out), [path for path, _ in side]) for side in (asked, sides["gallery"])
    )
    ranked = [[gallery_items[place] for place in np.argsort(-row)] for row in queries @ gallery.T]
    assert (report["val"]["queries"], report["val"]["lone_queries"]) == (5, 2)
    assert list(report["val"]["recall"]) == ["1", "10", "20", "40"]
    assert report["val"]["recall"]["10"] == 1, "the gallery has only 8 images"
    first = [items[0] == item for items, (_, item) in zip(ranked, asked, strict=True)]
    assert report["val"]["recall"]["1"] == np.mean(first)
    r_precision = [
        np.mean([found == item for found in items[: gallery_items.count(item)]])
        for items, (_, item) in zip(ranked, asked, strict=True)
    ]
    assert report["val"]["r_precision"] == pytest.approx(np.mean(r_precision))
    assert all(scores["queries"] == 5 for scores in report["baselines"].values())


def test_a_gallery_whose_images_cannot_be_read_is_refused_before_training(cache: Path, tmp_path: Path) -> None:
    root = _make_in_shop(tmp_path / "download")
    for item, statuses in IN_SHOP.items():
        for number, status in enumerate(statuses):
            if status == "gallery" and item != "id_7":
                (root / "Img/img" / item / f"{number:02}.jpg").write_bytes(b"no picture")
    reports: list[EpochReport] = []
    config = make_config(protocol="in-shop", method="proxy-anchor", embedding_dim=5)
    with pytest.raises(InputError, match="needs a query with an image of its class in the gallery"):
        train(root, tmp_path / "run", config=config, machine=make_machine(cache),
              watcher=Watcher(on_epoch=reports.append))  # fmt: skip
    assert reports == []
    assert not (tmp_path / "run").exists()


def test_queries_that_cannot_be_read_are_left_out_and_the_others_keep_their_side(
    cache: Path, tmp_path: Path
) -> None:
    root = _make_in_shop(tmp_path / "download")
    (root / "Img/img/id_3/00.jpg").write_bytes(b"no picture")
    config = make_config(protocol="in-shop", method="raw")
    report = train(root, tmp_path / "run", config=config, machine=make_machine(cache))
    assert (report["val"]["queries"], report["val"]["lone_queries"]) == (4, 2)


def test_a_cap_limits_the_classes_of_a_benchmark_and_leaves_its_test_part_alone(
    cache: Path, tmp_path: Path
) -> None:
    root = _make_in_shop(tmp_path / "download")
    config = make_config(protocol="in-shop", method="raw", max_per_class=2)
    report = train(root, tmp_path / "run", config=config, machine=make_machine(cache))
    assert report["images"] == 4
    assert report["val"]["queries"] == 5
