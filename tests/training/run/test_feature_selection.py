"""What a look looks at: whole classes, as training would label them, each image extracted once a view."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from export.exports import export_run
from index.errors import InputError, RunError
from index.model.embedder import Embedder
from tests.training.conftest import Trainer, make_config, make_machine
from tests.training.runs import weights
from training.audit.run_audit import audit_labels
from training.backbone.backbones import load_backbone
from training.data.datasets import Record, list_dataset
from training.options.config import TrainConfig
from training.run import feature_selection
from training.run.feature_selection import (
    LEAST_CLASSES,
    MOST_IMAGES,
    SHARE,
    Candidate,
    Sample,
    afford_images,
    choose,
    draw_sample,
    list_candidates,
    read_sample,
    select_features,
)
from training.run.features import extract_together
from training.run.phases import Job, Watcher
from training.run.prepare import label_images, open_extractor
from training.run.run_folder import FEATURE_SELECTION, RunFolder
from training.run.train import train

OPEN = {"recipe": "default", "holdout": True, "view": "auto", "pooling": "auto"}


def read(
    records: tuple[Record, ...], cache: Path, *, images: int = 1000, watcher: Watcher | None = None, **changes: Any
) -> Sample:
    config = make_config(**(OPEN | changes))
    network = load_backbone(config.backbone, "none")
    candidates = list_candidates(network, config.input, embedding_dim=8)
    job = Job(RunFolder(cache), config, make_machine(cache), watcher or Watcher())
    return read_sample(job, records, candidates, images=images, network=network)


def test_a_sample_is_of_whole_classes_and_no_larger_than_it_must() -> None:
    labels = [f"class {number % 400}" for number in range(3200)] + ["alone"]
    rows = draw_sample(labels, images=MOST_IMAGES, seed=0)
    drawn = Counter(labels[row] for row in rows)
    assert MOST_IMAGES <= len(rows) < MOST_IMAGES + 8
    assert set(drawn.values()) == {8}
    assert (np.diff(rows) > 0).all()
    assert (
        rows.tolist()
        == draw_sample(labels, images=MOST_IMAGES, seed=0).tolist()
        != draw_sample(labels, images=MOST_IMAGES, seed=1).tolist()
    )


def test_large_classes_give_some_of_their_images_so_that_many_classes_are_in() -> None:
    labels = np.repeat(np.arange(2 * LEAST_CLASSES), 40).astype(str).tolist()
    drawn = Counter(labels[row] for row in draw_sample(labels, images=MOST_IMAGES, seed=0))
    assert len(drawn) == LEAST_CLASSES
    assert set(drawn.values()) == {MOST_IMAGES // LEAST_CLASSES}
    few = ["a"] * 700 + ["b"] * 600 + ["c"]
    assert Counter(few[row] for row in draw_sample(few, images=MOST_IMAGES, seed=0)) == {"a": 500, "b": 500}
    assert draw_sample(["a", "b"], images=MOST_IMAGES, seed=0).tolist() == []


def test_a_run_extracts_no_image_of_the_sample_again(pictures: Path, tmp_path: Path) -> None:
    config, machine, records = make_config(**OPEN), make_machine(tmp_path), list_dataset(pictures).records
    network, job = load_backbone(config.backbone, "none"), Job(RunFolder(tmp_path), config, machine, Watcher())
    candidates = list_candidates(network, config.input, embedding_dim=8)
    chosen = select_features(job, records, candidates, views=30_000, network=network)
    extractor = open_extractor(network, config.input, view=chosen.view, pooling=chosen.pooling, machine=machine)
    paths = [record.path for record in records]
    assert extract_together(paths, extractor=extractor, machine=machine)[1].computed == 0


@pytest.mark.parametrize("noise", ["uniform:0.5", "nearest-class:0.5", "small-cluster:0.5"])
def test_labels_are_as_wrong_as_those_that_will_train(pictures: Path, cache: Path, noise: str) -> None:
    records = list_dataset(pictures).records
    sample = read(records, cache, label_noise=noise)
    given = [record.label for record in records]
    config = make_config(label_noise=noise)
    used = label_images(given, features=lambda: sample.features[Candidate("crop", "own", 512)], config=config)
    assert sample.labels.tolist() == np.unique(used, return_inverse=True)[1].tolist()
    assert sum(one != other for one, other in zip(given, used, strict=True)) == len(given) // 2


def test_an_image_that_cannot_be_read_is_left_out_of_every_view(pictures, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(feature_selection, "SHARE", SHARE)  # whatever the runs below may afford
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    first, *others = list_dataset(pictures).records
    records = (Record(tmp_path / "broken.jpg", first.label), *others)
    told: list[tuple[int, int]] = []
    watcher = Watcher(on_images=lambda _, done, total: told.append((done, total)))
    sample = read(records, tmp_path / "cache", images=24, watcher=watcher)
    afforded = [afford_images(list(sample.features), views=views) for views in (1990, 2000, 30_000)]
    assert afforded == [0, 100, 1000], "a tenth of two views each"
    assert len(sample.labels) == len(set(sample.hashes))
    assert {len(features) for features in sample.features.values()} == {len(sample.labels)}
    assert told[-1] == (48, 48), "two views of the 24 that were drawn"
    assert hashlib.sha256(b"no image").hexdigest() not in sample.hashes


AUTO = {"recipe": "default", "holdout": True, "view": "auto", "pooling": "auto", "resize": 72, "crop": 64}


def candidates(backbone: str = "resnet18", *, embedding_dim: int = 8, **changes: Any) -> list[tuple[str, str]]:
    sizes = make_config(**(AUTO | changes)).input
    network = load_backbone(backbone, "none")
    return [(one.view, one.pooling) for one in list_candidates(network, sizes, embedding_dim=embedding_dim)]


@pytest.mark.parametrize(
    ("changes", "views", "poolings"),
    [
        ({}, ["crop", "whole"], ["own", "gem", "layers"]),
        ({"view": "both"}, ["both"], ["own", "gem", "layers"]),
        ({"pooling": "gem"}, ["crop", "whole"], ["gem"]),
        ({"resize": 64}, ["crop"], ["own", "gem", "layers"]),
        ({"view": "whole", "pooling": "layers", "resize": 64}, ["whole"], ["layers"]),
        ({"embedding_dim": 600}, ["crop", "whole"], ["layers"]),
        ({"embedding_dim": 6000}, ["crop", "whole"], ["own", "gem", "layers"]),
    ],
)
def test_what_the_options_leave_open_is_tried_within_the_cost(changes, views, poolings) -> None:
    width = changes.get("embedding_dim", 8)
    expected = [(view, pooling) for view in views for pooling in poolings]
    assert candidates(**{"embedding_dim": width, **changes}) == expected


def test_a_vision_transformer_has_views_but_its_own_pooling_only() -> None:
    assert candidates("timm:test_vit", resize=180, crop=160) == [("crop", "own"), ("whole", "own")]
    with pytest.raises(InputError, match="--pooling gem reads the feature maps"):
        candidates("timm:test_vit", resize=180, crop=160, pooling="gem")


def _tried(recall: float, low: float | None) -> dict[str, Any]:
    return {"recall_at_1": recall, "difference_interval": None if low is None else (low, 1.0)}


def test_the_usual_one_is_kept_unless_another_leads_it_by_more_than_chance() -> None:
    usual, level, better = _tried(0.5, 0.0), _tried(0.6, -0.01), _tried(0.7, 0.01)
    assert choose([usual, level]) == 0
    assert choose([usual, level, better]) == 2
    assert choose([usual, _tried(0.7, None)]) == 0


SIDE, CLASSES, OF_EACH = 64, 6, 8


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise in frames whose colour is the class; the middle, all that a crop of half the side sees, tells nothing."""
    folder = tmp_path_factory.mktemp("framed")
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"{label}").mkdir()
        for number in range(OF_EACH):
            pixels = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
            pixels[:] = [60 + 190 * (label >> channel & 1) for channel in range(3)]
            inner = slice(SIDE // 8, -SIDE // 8)
            pixels[inner, inner] = rng.integers(0, 256, (SIDE * 3 // 4, SIDE * 3 // 4, 3))
            Image.fromarray(pixels).save(folder / f"{label}" / f"{number}.png")
    return folder


@pytest.fixture(scope="module", autouse=True)
def affordable() -> Iterator[None]:
    """Let these few images be tried, of which no run of theirs would have the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_selection, "SHARE", 10.0)
        yield


def look_config(**changes: Any) -> TrainConfig:
    quick = {"recipe": "default", "holdout": True, "head_steps": 3, "resize": SIDE, "crop": SIDE // 2}
    return make_config(**(quick | {"view": "auto", "pooling": "auto"} | changes))


@pytest.fixture(scope="module")
def run(framed: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that has to see the frames. Not to be written to."""
    out = tmp_path_factory.mktemp("feature_selection") / "run"
    train(framed, out, config=look_config(), machine=make_machine(cache), val=framed)
    return RunFolder.open(out)


def test_the_whole_image_is_taken_where_the_crop_shows_nothing(run: RunFolder, framed: Path) -> None:
    report = run.read_json("report.json")
    choice = report["feature_selection"]
    assert choice == run.read_json("feature_selection.json")
    assert (choice["view"], choice["passes"], choice["images"]) == ("whole", 1, CLASSES * OF_EACH)
    assert len(choice["tried"]) == 6
    crop, whole = ([one["recall_at_1"] for one in choice["tried"] if one["view"] == view] for view in ("crop", "whole"))
    assert min(whole) > max(crop) + 0.3
    assert report["val"]["recall"]["1"] > 0.9
    config = run.read_json("config.json")["config"]["input"]
    assert (config["view"], config["pooling"]) == ("auto", "auto"), "what was asked for stays on record"


@pytest.mark.slow
def test_everything_after_the_look_sees_what_was_chosen(run: RunFolder, cache: Path, tmp_path: Path) -> None:
    choice = run.read_json("feature_selection.json")
    assert (run.preprocess().resize, run.preprocess().crop) == (SIDE // 2, SIDE // 2)
    for path in run.parity_paths():
        with Image.open(path) as image:
            assert image.size == (SIDE // 2, SIDE // 2)
    assert run.read_json("features.json")["preprocess"]["resize"] == SIDE // 2
    assert len(audit_labels(run, machine=make_machine(cache)).images) == CLASSES * OF_EACH
    contract = Embedder(Path(export_run(run.path, tmp_path / "m.onnx").model)).contract
    assert (contract.view, contract.pooling) == ("whole", choice["pooling"])


@pytest.mark.parametrize("stop", [("feature_selection", CLASSES * OF_EACH), ("features", CLASSES * OF_EACH // 2)])
def test_a_run_that_ends_before_or_after_its_choice_goes_on_to_the_same_bits(run, framed, trainer, stop) -> None:
    given = {"data": framed, "val": framed, "machine": make_machine(trainer.folder / "cache")}
    trainer(stop=stop, config=look_config(), **given)
    stopped = RunFolder.open(trainer.folder / "run")
    assert (stopped.find_json(FEATURE_SELECTION) is None) == (stop[0] == "feature_selection")
    if stop[0] == "feature_selection":
        with pytest.raises(RunError, match=r"gone through yet.* --resume"):
            stopped.preprocess()
    trainer(resume=True, config=look_config(), **given)
    assert stopped.find_json(FEATURE_SELECTION) == run.find_json(FEATURE_SELECTION)
    assert weights(stopped.path) == weights(run.path)
    with pytest.raises(RunError, match="view was 'auto', is 'whole'"):
        trainer(resume=True, config=look_config(view="whole", resize=SIDE // 2), **given)


def test_a_resumed_run_keeps_its_choice_whatever_a_look_would_say_now(framed: Path, trainer: Trainer) -> None:
    trainer(data=framed, stop=("features", CLASSES * OF_EACH), config=look_config())
    run = RunFolder.open(trainer.folder / "run")
    other = {**run.read_json("feature_selection.json"), "view": "crop", "pooling": "gem", "feature_dim": 512}
    (run.path / "feature_selection.json").write_text(json.dumps(other))
    (run.path / "features.json").unlink(missing_ok=True)
    report = trainer(data=framed, resume=True, config=look_config())
    assert report["feature_selection"] == other
    assert "feature_selection" in report["phases"]
    assert run.preprocess().resize == SIDE


def test_two_classes_of_two_images_are_too_few_to_choose_by_and_untrained_methods_may_look_too(
    framed: Path, trainer: Trainer
) -> None:
    table = trainer.folder / "few.csv"
    rows = [f"{framed}/{label}/{number}.png,{label}" for label in range(2) for number in range(2)]
    table.write_text("\n".join(["path,label", *rows]) + "\n")
    choice = trainer("few", data=table, config=look_config(embedding_dim=2, select="trained"))["feature_selection"]
    assert (choice["view"], choice["pooling"], choice["tried"]) == ("crop", "own", [])
    report = trainer(data=framed, recipe="default", method="pca", view="auto", resize=SIDE, crop=SIDE // 2)
    assert (report["method"], report["feature_selection"]["view"]) == ("pca", "whole")
