"""Label noise and benchmarks as a whole run meets them: what is on record, and what is scored."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from index.errors import InputError
from index.labels.noise_model import LabelPrior
from tests.training.conftest import Trainer, draw_over
from tests.training.data.test_protocols import write_lines
from tests.training.runs import read_csv
from training.options.config import NOISE_KINDS
from training.run.phases import EpochReport, Watcher
from training.run.prepare import TrainingSet
from training.run.run_folder import LabelledImage


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_of_every_kind_is_on_record_and_reported(trainer: Trainer, kind: str) -> None:
    report = trainer(method="raw", label_noise=f"{kind}:0.3")
    rows = read_csv(trainer.folder / "run" / "labels.csv")
    assert all(Path(row["path"]).parent.name == row["given"] for row in rows)
    assert len(rows) == report["noise"]["samples"] == 48
    assert report["noise"]["wrong"] == sum(row["given"] != row["label"] for row in rows) == 14


def test_noise_with_a_seed_of_its_own_stays_the_same_in_other_trainings(trainer: Trainer) -> None:
    options = {"method": "raw", "label_noise": "uniform:0.3"}
    found = []
    for seeds in ({"seed": 0, "label_noise_seed": 5}, {"seed": 1, "label_noise_seed": 5}, {"seed": 1}):
        trainer(**options, **seeds)
        found.append([row["label"] for row in read_csv(trainer.folder / "run" / "labels.csv")])
        shutil.rmtree(trainer.folder / "run")
    assert found[0] == found[1] != found[2]


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


def test_in_shop_queries_search_the_gallery_alone_and_those_that_cannot_be_read_are_left_out(trainer) -> None:
    root = _make_in_shop(trainer.folder / "download")
    report = trainer(data=root, protocol="in-shop", method="proxy-anchor", embedding_dim=5)
    assert {row["given"] for row in read_csv(trainer.folder / "run" / "labels.csv")} == {"id_1", "id_2"}
    assert report["images"] == 7
    assert (report["val"]["queries"], report["val"]["lone_queries"]) == (5, 2)
    assert list(report["val"]["recall"]) == ["1", "10", "20", "40"]
    assert report["val"]["recall"]["10"] == 1, "the gallery has only 8 images"
    assert all(scores["queries"] == 5 for scores in report["baselines"].values())
    (root / "Img/img/id_3/00.jpg").write_bytes(b"no image")
    report = trainer("capped", data=root, protocol="in-shop", method="raw", max_per_class=2)
    assert report["images"] == 4, "of the classes that train, not of those that are searched"
    assert (report["val"]["queries"], report["val"]["lone_queries"]) == (4, 2)


def test_a_gallery_whose_images_cannot_be_read_is_refused_before_training(trainer: Trainer) -> None:
    root, reports = _make_in_shop(trainer.folder / "download"), list[EpochReport]()
    for item, statuses in IN_SHOP.items():
        for number, status in enumerate(statuses):
            if status == "gallery" and item != "id_7":
                (root / "Img/img" / item / f"{number:02}.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match="needs a query with an image of its class in the gallery"):
        trainer(data=root, protocol="in-shop", method="proxy-anchor", watcher=Watcher(on_epoch=reports.append))
    assert reports == []
    assert not (trainer.folder / "run").exists()


def _prior_of(*images: LabelledImage) -> LabelPrior | None:
    """What training knows of these images' labels."""
    classes = ("blue", "green", "red")
    labels = torch.tensor([classes.index(image.used) for image in images])
    known = SimpleNamespace(images=images, classes=classes, labels=labels)
    prior: LabelPrior | None = TrainingSet.__dict__["prior"].func(known)
    return prior


def test_who_set_the_labels_is_known_in_training_unless_their_noise_is_simulated() -> None:
    path = Path("a.png")
    images = [
        LabelledImage(path, "a", "red", "red"),
        LabelledImage(path, "b", "red", "red", 0.8, "blue"),
        LabelledImage(path, "c", "green", "green", 1.0),
        LabelledImage(path, "d", "blue", "blue", 0.6, "owl"),  # which no image has any more
    ]
    prior = _prior_of(*images)
    np.testing.assert_array_equal(prior.p_right, [np.nan, 0.8, 1, 0.6])
    assert prior.before.tolist() == [2, 0, 1, 0]
    assert _prior_of(*images, LabelledImage(path, "e", "red", "blue", 0.9)) is None
    assert _prior_of(images[0]) is None


def test_a_run_keeps_what_is_known_of_its_labels(trainer: Trainer, tmp_path: Path) -> None:
    table, rows = tmp_path / "labels.csv", []
    for number, path in enumerate(sorted(trainer.pictures.rglob("*.*"))):
        known = ["", "1", "0.75"][number % 3]
        rows.append(f"{path},{path.parent.name},{'other' if known == '0.75' else path.parent.name},{known}")
    write_lines(table, ["path,label,given,p_right", *rows])
    trainer(data=table, method="raw")
    found = {row["path"]: (row["p_right"], row["before"]) for row in read_csv(trainer.folder / "run" / "labels.csv")}
    assert found == {
        path: (str(float(known)) if known else "", "other" if known == "0.75" else "")
        for path, _, _, known in (row.rsplit(",", 3) for row in rows)
    }
