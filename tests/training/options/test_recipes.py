"""The default recipe and the paper's, from the command line to the exported model."""

import colorsys
import dataclasses
import json
import shutil
from inspect import get_annotations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from retrieval_app.commands.cli import main
from tests.training.conftest import IMAGES, Trainer, all_options, make_machine
from tests.training.runs import figures, read_csv, read_metrics
from training.audit.run_audit import audit_labels
from training.head.embedding_heads import ProjectionHead
from training.options import config as configs
from training.options.config import TrainConfig
from training.options.losses import METHODS, RIVALS, LossConfig, option_groups
from training.options.resolve import DEFAULT, recipe_values, resolve
from training.run.checkpoint import load_checkpoint
from training.run.phases import Watcher
from training.run.run_folder import RunFolder

PAIR_METHODS = {"multi-similarity", "prism"}
SMALL = (*IMAGES, "--embedding-dim", "8", "--frozen")
"""A quick command line on which the recipe decides everything about the head that it has a value for."""
QUICK: dict[str, Any] = {
    "recipe": "default",
    "holdout": True,
    "select": "trained",
    "head_steps": 10,
    "head_batch_size": 16,
    "head_lr": 0.01,
    "l2_sp": 0.2,
}


def _train(*arguments: object) -> int:
    return main(["train", *map(str, arguments)])


@pytest.mark.parametrize("method", METHODS)
def test_either_recipe_goes_with_every_method(method: str) -> None:
    pairs = {"images_per_class": 4} if method in PAIR_METHODS else {}
    assert recipe_values("spa-paper", method=method) == pairs
    paper = resolve("spa-paper", method=method, weights="none").head
    assert paper.images_per_class == pairs.get("images_per_class", 0)
    values = recipe_values("default", method=method)
    config = resolve(method=method, weights="none", frozen=True)
    assert config.loss.method == method
    if method in RIVALS:
        assert values == {}
        return
    of_losses = {name for kind in option_groups() for name in get_annotations(kind)}
    own = {field.name for field in dataclasses.fields(config.loss.options)}
    assert values.keys() == (DEFAULT.keys() - (of_losses - own)) | pairs.keys()
    flat = config.options()
    assert {name: flat[name] for name in values} == {**values, "select": "trained"}, "a method that is named is wanted"


def test_the_default_recipe_is_the_default_in_python_too() -> None:
    config = resolve(weights="none", frozen=True)
    assert (config.loss.method, config.head.confidences) == ("spa", "leave-one-out")
    assert (config.head.init, config.head.head_steps, config.head.head_epochs) == ("wccn", 300, 40)
    assert config.select == "auto"
    assert config == resolve("default", weights="none", frozen=True, select="auto", method="spa")
    assert set(DEFAULT) <= set(all_options())
    with pytest.raises(TypeError, match="recipe"):
        TrainConfig(recipe="default")  # type: ignore[call-arg]


def test_the_default_recipe_leaves_the_holdout_and_the_confidences_of_the_others(
    pictures: Path, other_pictures: Path, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    options = ("--select", "trained", "--head-steps", "20", "--val", other_pictures)
    assert _train(pictures, "--out", out, "--cache", cache, *SMALL, *options) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["method"] == "spa"
    assert report["holdout"] == json.loads((out / "holdout.json").read_text())
    assert report["holdout"]["folds"] == 2
    assert report["holdout"]["unseen"]["queries"] == 48
    assert not (48 * report["holdout"]["unseen"]["scores"]["raw"]).is_integer(), "by probable true labels"
    assert set(report["phases"]) == {"features", "holdout", "confidence", "embedding"}
    rows = read_csv(out / "confidences.csv")
    assert len(rows) == 48
    assert all(0 <= float(row["confidence"]) <= 1 for row in rows)
    assert not (out / "checkpoints" / "confidence.safetensors").exists(), "it takes seconds and keeps none"
    _, head, state = RunFolder.open(out).load_trained()
    assert isinstance(head, ProjectionHead)
    assert state == {"method": "spa", "class_count": 4, "embedding_dim": 8}
    last = load_checkpoint(RunFolder.open(out).checkpoint("embedding"))[0]
    torch.testing.assert_close(head.weight, last["head.mix"] @ last["head.weight"])
    torch.testing.assert_close(head.bias, last["head.mix"] @ last["head.bias"])
    lines = read_metrics(out)
    assert [line["epoch"] for line in lines if line["phase"] == "embedding"] == list(range(1, 21))
    assert {line["phase"] for line in lines} == {"embedding"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("method", "multi-similarity"), ("confidences", "module"), ("l2_sp", 0.0), ("head_lr", 1e-4), ("beta", 100.0)],
)
def test_a_given_option_wins_over_the_recipe_even_with_the_papers_value(name: str, value: Any) -> None:
    config = resolve(weights="none", frozen=True, holdout=False, **{name: value}).options()
    recipe = {**recipe_values("default", method=config["method"]), "select": "trained"}
    assert config.items() >= ({**recipe, name: value}).items()


def test_the_papers_recipe_is_exactly_the_defaults_of_the_configs() -> None:
    found = resolve("spa-paper", backbone="squeezenet1_1", weights="none", method="pca", embedding_dim=8)
    expected = TrainConfig(
        backbone="squeezenet1_1",
        weights="none",
        data=configs.DataConfig(),
        input=configs.InputConfig(),
        loss=LossConfig(method="pca"),
        head=configs.HeadConfig(embedding_dim=8),
        finetuning=configs.FinetuneConfig(frozen=True),
    )
    assert found == expected


def test_epochs_take_the_place_of_the_recipes_steps_and_a_random_start_has_nothing_to_be_held_at() -> None:
    embedding = resolve(weights="none", head_epochs=2, holdout=False, init="random").head
    assert (embedding.head_epochs, embedding.head_steps) == (2, None)
    assert (embedding.init, embedding.l2_sp) == ("random", 0.0)


def test_a_width_beyond_the_usable_images_leaves_no_run(pictures: Path, cache: Path, tmp_path: Path, capsys) -> None:
    data = tmp_path / "data"
    shutil.copytree(pictures, data)
    for picture in sorted(data.rglob("*.jpg"))[:3]:
        picture.write_bytes(b"no image")
    arguments = (data, "--out", tmp_path / "run", "--cache", cache, *SMALL, "--head-steps", "2", "--no-holdout")
    assert _train(*arguments, "--embedding-dim", "45") == 1
    assert "45 images of 512 features span at most 44 directions" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    arguments = tuple(one for one in arguments if one not in ("--embedding-dim", "8"))
    capsys.readouterr()
    assert _train(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["embedding_dim"] == 44, "as wide as they span, if not told"


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten classes of ten images, a patch of the class's colour on any ground, which untrained features can tell."""
    folder = tmp_path_factory.mktemp("patches")
    generator = np.random.default_rng(0)
    for number in range(10):
        hue = np.array(colorsys.hsv_to_rgb(number / 10, 1, 1))
        (folder / f"hue {number}").mkdir()
        for picture in range(10):
            pixels = np.full((48, 48, 3), generator.integers(256, size=3), dtype=np.uint8)
            pixels[15:33, 15:33] = (255 * hue).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"hue {number}" / f"{picture}.png")
    return folder


WRECKED = ("--embedding-dim", "1", "--init", "random", "--head-lr", "100", "--head-steps", "30", "--select", "auto")
"""A head thrown about by its optimizer, which no data makes worth having."""


@pytest.mark.parametrize(("val_classes", "by"), [(0, "holdout"), (10, "--val")])
def test_auto_exports_the_untrained_that_wins(patches, cache, tmp_path, capsys, val_classes: int, by: str) -> None:
    out, val = tmp_path / "run", tmp_path / "val"
    arguments = (patches, "--out", out, "--cache", cache, *SMALL, *WRECKED)
    for kind in sorted(patches.iterdir())[:val_classes]:
        shutil.copytree(kind, val / kind.name)
    arguments += ("--val", val) if val_classes else ()
    assert _train(*arguments) == 0
    report, text = json.loads((out / "report.json").read_text()), capsys.readouterr().out
    verdict, method = report["verdict"], report["method"]
    assert method in RIVALS
    assert (verdict["outcome"], verdict["exported"]) == ("untrained", method)
    known, new = verdict["known"], verdict["new"]
    assert (known["by"], new["by"]) == (by, "holdout"), "the classes of --val are those that train"
    assert method in (known["winner"], new["winner"])
    assert min(known["difference_interval"][1], new["difference_interval"][1]) < 0
    assert text.endswith(f"verdict: {verdict['text']}\n")
    run = RunFolder.open(out)
    _, head, state = run.load_trained()
    assert state["method"] == method
    assert head.embedding_dim == report["embedding_dim"] == verdict["embedding_dim"][method]
    if val_classes:
        assert report["val"]["recall"] == report["baselines"][method]["recall"]
        assert report["baselines"]["trained"]["recall"]["1"] == known["scores"]["trained"]
    else:
        assert set(report["phases"]) == {"features", "holdout", "confidence", "projection"}
        assert len(audit_labels(run, machine=make_machine(cache)).items) == 100
    assert _train(*arguments, "--resume", "--json") == 0
    assert json.loads(capsys.readouterr().out) == report


def test_a_run_stopped_after_its_holdout_goes_on_to_the_same_bits(trainer: Trainer, other_pictures: Path) -> None:
    out, first, watched = trainer.folder / "run", trainer.folder / "straight", list[str]()
    options = {**QUICK, "val": other_pictures}
    straight = trainer("straight", **options)
    assert len({line["epoch"] for line in read_metrics(first)}) == 4, "10 steps, 3 an epoch"
    for epoch in (1, 4):
        trainer(stop=("embedding", epoch), resume=epoch > 1, **options)
    written = (out / "holdout.json").stat().st_mtime_ns
    watcher = Watcher(on_images=lambda name, done, total: watched.append(name))
    report = trainer(resume=True, watcher=watcher, **options)
    assert "holdout" not in watched
    assert (out / "holdout.json").stat().st_mtime_ns == written
    assert report["holdout"] == straight["holdout"]
    assert trainer.weights() == trainer.weights("straight")
    assert figures(out) == figures(first)
    assert (out / "confidences.csv").read_bytes() == (first / "confidences.csv").read_bytes()


def test_the_holdout_changes_nothing_in_the_head_that_is_trained(trainer: Trainer) -> None:
    for name, holdout in (("with", True), ("without", False)):
        trainer(name, **QUICK | {"holdout": holdout})
        assert (trainer.folder / name / "holdout.json").exists() == holdout
    assert trainer.weights("with") == trainer.weights("without")
