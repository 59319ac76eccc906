"""The fine-tuning in whole runs: what trains, what is held out, what ships, and what a resume gives."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from index.commands.exit_codes import run_command
from index.errors import InputError
from index.evaluation.metrics import RetrievalScores
from tests.forked import run
from tests.training.conftest import Trainer, make_machine
from tests.training.runs import figures, kill_at, read_csv, read_metrics, weights
from training.audit.run_audit import audit_labels
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor
from training.commands import train as train_command
from training.data.datasets import list_dataset
from training.head.untrained import LabelledFeatures
from training.network.model import find_blocks
from training.options.config import TrainConfig
from training.options.resolve import resolve
from training.run.checkpoint import load_checkpoint
from training.run.finetuning import data as network_data
from training.run.finetuning import fit
from training.run.finetuning import inputs as network_inputs
from training.run.finetuning import stage as network_stage
from training.run.finetuning.selection import choose_alpha, choose_parts, selects_finetuned
from training.run.finetuning.stage import fit_head
from training.run.fit import HeadPlan
from training.run.phases import Watcher
from training.run.prepare import prepare_validation
from training.run.report_text import describe_finetuning
from training.run.run_folder import RunFolder
from training.run.searches import embed_features
from training.run.train import train
from training.run.verdict import FROZEN_HEAD, HELD_OUT, HOLDOUT, TRAINED, VAL, MethodComparison

BACKBONE = "timm:test_resnet"
SMALL: dict[str, Any] = {
    "backbone": BACKBONE,
    "weights": "none",
    "resize": 40,
    "crop": 32,
    "embedding_dim": 8,
    "head_steps": 5,
    "finetune": "last-3",
    "epochs": 2,
    "batch_size": 16,
    "eval_every": 1,
    "image_size": 32,
}
FLAGS = [
    *("--no-holdout", "--workers", "1", "--precision", "float32"),
    *(text for name, value in SMALL.items() for text in ("--" + name.replace("_", "-"), str(value))),
]
"""The command line of `network_config` and `make_machine`."""


def network_config(**changes: Any) -> TrainConfig:
    """Two epochs of the last three blocks, after a short linear start."""
    values = {"holdout": False} | SMALL | changes
    return resolve(**{name: value for name, value in values.items() if value is not None})


def frozen_config(**changes: Any) -> TrainConfig:
    """The linear start alone."""
    idle = ("epochs", "batch_size", "eval_every", "image_size")
    return network_config(frozen=True, finetune=None, **dict.fromkeys(idle), **changes)


@pytest.fixture(scope="module")
def always_ships() -> Any:
    """Random weights learn little in two epochs: here what is trained ships all the same."""
    patch = pytest.MonkeyPatch()
    patch.setattr("training.run.finetuning.stage.selects_finetuned", lambda _: True)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def network_run(
    pictures: Path, other_pictures: Path, cache: Path, always_ships: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One uninterrupted run whose network trained, with validation images. Not to be written to."""
    out = tmp_path_factory.mktemp("finetuning") / "run"
    train(pictures, out, config=network_config(), machine=make_machine(cache), val=other_pictures)
    return out


def _backbone(run: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(RunFolder.open(run).exported_backbone)[0]


def test_the_unfrozen_blocks_of_the_run_have_moved_and_no_others(network_run: Path, tmp_path: Path) -> None:
    start = load_backbone(BACKBONE, "none")
    moved = {
        name
        for name, tensor in start.network.state_dict().items()
        if not torch.equal(tensor, _backbone(network_run)[f"backbone.{name}"])
    }
    blocks = find_blocks(start, side=32)[-3:]
    modules = {name: start.network.get_submodule(name) for block in blocks for name in block.names}
    assert moved == {f"{name}.{own}" for name, module in modules.items() for own, _ in module.named_parameters()}


def test_exported_weights_lie_between_start_and_end(network_run: Path, trainer: Trainer, always_ships: None) -> None:
    trainer(config=network_config(wise_ft_alpha=1))
    alpha = RunFolder.open(network_run).read_json("report.json")["finetuning"]["wise_ft_alpha"]
    start = load_backbone(BACKBONE, "none").network.state_dict()
    trained, shipped = _backbone(trainer.folder / "run"), _backbone(network_run)
    assert any(not torch.equal(tensor, trained[f"backbone.{name}"]) for name, tensor in start.items())
    for name, tensor in start.items():
        between = torch.lerp(tensor.double(), trained[f"backbone.{name}"].double(), alpha)
        torch.testing.assert_close(shipped[f"backbone.{name}"], between.to(tensor.dtype))


def test_no_head_is_trained_on_images_that_span_no_direction() -> None:
    config, image = network_config(), LabelledFeatures(np.ones((1, 16), np.float32), np.zeros(1, np.int64))
    plan, device = HeadPlan(8, 0.1), torch.device("cpu")
    assert fit_head(image, method=config.loss.method, plan=plan, config=config, device=device) is None


def test_fine_tuned_features_get_the_head_that_frozen_ones_get(trainer: Trainer, always_ships: None) -> None:
    """At a tiny alpha the fine-tuned network is the frozen one."""
    tried = trainer(config=network_config(wise_ft_alpha=1e-12, init="random"))["finetuning"]["tried"]
    assert tried["fine-tuned"] == pytest.approx(tried["frozen"])
    trainer("frozen", config=frozen_config(init="random"))
    heads = (RunFolder.open(trainer.folder / name).load_trained()[1] for name in ("run", "frozen"))
    tuned, frozen = (next(head.parameters()) for head in heads)
    assert torch.cosine_similarity(tuned, frozen).min() > 0.999


def test_for_new_classes_they_get_within_class_whitening(trainer: Trainer, always_ships: None) -> None:
    trainer(config=network_config(wise_ft_alpha=1e-12, for_="new"))
    trainer("frozen", config=frozen_config(method="wccn", head_steps=None))
    heads = (RunFolder.open(trainer.folder / name).load_trained()[1] for name in ("run", "frozen"))
    tuned, frozen = (head.get_buffer("weight") for head in heads)
    assert torch.cosine_similarity(tuned, frozen).abs().min() > 0.99999  # of a head after 5 steps .9990 to .9996


def test_the_report_says_what_was_tried_and_what_ships(network_run: Path) -> None:
    report = json.loads((network_run / "report.json").read_text())
    network = report["finetuning"]
    assert network["method"] == report["method"] == "spa"
    assert (network["blocks"], network["of_blocks"]) == (3, 7)
    assert (network["held_out"], network["trained_on"]) == ({"unseen": 0, "seen": 4}, 44)
    assert "last-3 (3 of 7 blocks" in "\n".join(describe_finetuning(network))
    assert [epoch["epoch"] for epoch in network["epochs"]] == [0, 1, 2]
    assert list(network["tried"]) == ["frozen", "fine-tuned"]
    assert list(network["alphas"]) == ["0.25", "0.5", "0.75"]
    assert network["wise_ft_alpha"] == 0.5, "four photos of four classes can tell nothing"
    known, new = (report["verdict"][name] for name in ("known", "new"))
    assert (known["by"], known["metric"], known["queries"], new["by"]) == (HELD_OUT, "MAP@R", 4, VAL)
    assert list(known["scores"].values()) == [network["tried"][name]["seen"] for name in ("fine-tuned", "frozen")]
    lines = [line for line in read_metrics(network_run) if line["phase"] == "finetuning"]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert all(0 <= line["seen"] <= 1 for line in lines)


def test_where_nothing_can_be_held_out_the_network_trains_all_the_same(trainer: Trainer, tmp_path: Path) -> None:
    for number in range(10):
        path = tmp_path / "photos" / f"class {number // 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (40, 40, 3), np.uint8)).save(path)
    network = trainer(data=tmp_path / "photos", config=network_config())["finetuning"]
    assert (network["trained_on"], network["wise_ft_alpha"], network["alphas"], network["tried"]) == (10, 0.5, {}, {})


def test_validation_is_asked_with_the_trained_network_and_baselines_with_the_frozen_one(
    network_run: Path, pictures: Path, other_pictures: Path, cache: Path, tmp_path: Path
) -> None:
    frozen = train(pictures, tmp_path / "run", config=frozen_config(), machine=make_machine(cache), val=other_pictures)
    report = json.loads((network_run / "report.json").read_text())
    frozen_head = report["baselines"].pop("frozen head")
    assert frozen_head["recall"] == frozen["val"]["recall"]
    assert report["baselines"] == frozen["baselines"]
    run = RunFolder.open(network_run)
    backbone, head, _ = run.load_trained()
    extractor = Extractor(backbone, run.preprocess(), device=torch.device("cpu"), precision="float32")
    records = list_dataset(other_pictures)
    prepared = prepare_validation(
        records, machine=make_machine(tmp_path / "new"), extractor=extractor, watcher=Watcher()
    )
    recall = prepared.ungrouped.score(embed_features(head, prepared.features)).recall
    assert {int(k): value for k, value in report["val"]["recall"].items()} == pytest.approx(recall)


def test_labels_are_audited_by_both_backbones_but_by_none_that_learnt_given_labels(network_run, trainer) -> None:
    def audit(run: Path) -> list[float]:
        return [image.p_error for image in audit_labels(RunFolder.open(run), machine=make_machine(trainer.cache)).items]

    trainer("frozen", config=frozen_config())
    trainer("by-labels", config=network_config(method="proxy-nca", targets="labels"))
    tuned = trainer.folder / "tuned"  # whose backbone before fine-tuning is the one after it
    shutil.copytree(network_run, tuned)
    shutil.copyfile(RunFolder.open(tuned).exported_backbone, tuned / "backbone.safetensors")
    both, frozen = audit(network_run), audit(trainer.folder / "frozen")
    assert audit(trainer.folder / "by-labels") == frozen
    assert both != frozen
    assert both != audit(tuned)
    assert RunFolder.open(trainer.folder / "by-labels").has_finetuned


def test_an_interrupted_stage_goes_on_to_the_same_bits(network_run, other_pictures, always_ships, trainer) -> None:
    out, options = trainer.folder / "run", {"config": network_config(), "val": other_pictures}
    trainer(stop=("finetuning", 1), **options)
    report = trainer(resume=True, **options)
    assert weights(out) == weights(network_run)
    assert figures(out) == figures(network_run)
    assert weights(out, "finetuned") == weights(network_run, "finetuned")
    assert report["val"] == json.loads((network_run / "report.json").read_text())["val"]


def test_a_loss_with_a_state_trains_the_network_and_goes_on_to_the_same_bits(trainer, always_ships) -> None:
    prism = {"method": "prism", "prism_memory": 40, "label_noise": "small-cluster:0.25"}
    config = network_config(head_steps=1, eval_every=2, **prism)
    trainer("whole", config=config)
    trainer(stop=("finetuning", 1), config=config)
    trainer(resume=True, config=config)
    whole, resumed = trainer.folder / "whole", trainer.folder / "run"
    assert figures(resumed) == figures(whole)
    ended, again = (load_checkpoint(run / "checkpoints/finetuning.safetensors")[0] for run in (whole, resumed))
    assert ended.keys() == again.keys()
    assert any(name.startswith("loss.") for name in ended)
    assert all(torch.equal(tensor, again[name]) for name, tensor in ended.items())
    assert trainer.weights() == trainer.weights("whole")
    assert weights(resumed, "finetuned") == weights(whole, "finetuned")
    start = load_backbone(BACKBONE, "none").network.state_dict()
    assert any(not torch.equal(tensor, _backbone(whole)[f"backbone.{name}"]) for name, tensor in start.items())


def train_until_killed() -> None:
    """In a process of its own, which is killed after the second epoch."""
    threads, *paths = sys.argv[1:]
    torch.set_num_threads(int(threads))
    data, out, cache, val = map(Path, paths)
    network_stage.selects_finetuned = lambda _: True
    train(data, out, config=network_config(), machine=make_machine(cache), val=val, watcher=kill_at("finetuning", 2))


@pytest.mark.slow
def test_a_killed_stage_leaves_a_run_that_goes_on_to_the_same_bits(network_run, other_pictures, trainer) -> None:
    out = trainer.folder / "run"
    arguments = (torch.get_num_threads(), trainer.pictures, out, trainer.cache, other_pictures)
    killed = run(arguments, function=train_until_killed)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (out / "head.safetensors").exists()
    trainer(config=network_config(), val=other_pictures, resume=True)
    assert weights(out) == weights(network_run)
    assert weights(out, "finetuned") == weights(network_run, "finetuned")


def train_until_interrupted() -> None:
    """`retrieval train` in a process of its own, which gets Ctrl-C in the second epoch, `0` to `2` times."""
    times, *arguments = sys.argv[1:]
    left, step = [signal.SIGINT] * int(times), fit.FinetuneLoop.step

    def interrupt(loop: fit.FinetuneLoop, rows: Any, views: Any, number: int, **others: Any) -> Any:
        while number == 4 and left:
            os.kill(os.getpid(), left.pop())
        return step(loop, rows, views, number, **others)

    fit.FinetuneLoop.step = interrupt  # type: ignore[method-assign]
    sys.exit(run_command(train_command, arguments, prog_name="train", how_to_go_on=lambda _: "again"))


def _interrupt(*arguments: object) -> CompletedProcess[str]:
    """`retrieval train`, which gets Ctrl-C in the second of three epochs of three steps, as often as is said first."""
    return run((*arguments, *FLAGS, "--epochs", "3", "--eval-every", "3"), function=train_until_interrupted)


def test_the_first_interrupt_ends_fine_tuning_and_keeps_the_best_so_far(pictures, cache, tmp_path) -> None:
    run = tmp_path / "run"
    ended = _interrupt(1, pictures, "--out", run, "--cache", cache)
    assert ended.returncode == 0, ended.stderr
    assert "Ctrl-C: fine-tuning ends early" in ended.stderr
    assert "stopped early by Ctrl-C in epoch 2" in ended.stdout
    network = json.loads((run / "report.json").read_text())["finetuning"]
    assert network["ended_by"] == "Ctrl-C"
    assert [epoch["epoch"] for epoch in network["epochs"]] == [0, 1, 2]
    assert network["epochs"][2]["map_at_r"], "the last epoch is evaluated, though only every third would be"
    assert "frozen" in network["tried"]
    _, head, _ = RunFolder.open(run).load_trained()
    assert head.embedding_dim == 8


def test_an_interrupt_of_the_preparation_keeps_the_frozen_embedding(trainer, tmp_path) -> None:
    def interrupt(step: str, *_: int) -> None:
        if step.startswith("decoding"):
            raise KeyboardInterrupt

    machine, watcher = make_machine(tmp_path / "empty"), Watcher(on_images=interrupt)
    network = trainer(config=network_config(), machine=machine, watcher=watcher)["finetuning"]
    assert (network["ended_by"], network["selected"]) == ("Ctrl-C", False)
    _, head, _ = RunFolder.open(trainer.folder / "run").load_trained()
    assert head.embedding_dim == 8


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once_and_a_resume_goes_on_after_the_last_epoch(pictures, cache, tmp_path) -> None:
    arguments = (pictures, "--out", tmp_path / "run", "--cache", cache)
    ended = _interrupt(2, *arguments)
    assert ended.returncode == 130, ended.stderr
    assert not (tmp_path / "run" / "report.json").exists()
    again = _interrupt(1, *arguments, "--resume")
    assert again.returncode == 0, again.stderr
    network = json.loads((tmp_path / "run" / "report.json").read_text())["finetuning"]
    assert [epoch["epoch"] for epoch in network["epochs"]] == [0, 1, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_network_trains_in_the_faster_precision_and_goes_on_after_a_stop(trainer, always_ships) -> None:
    machine = make_machine(trainer.folder / "cache", device=torch.device("cuda"), precision="auto", workers=4)
    options = {"config": network_config(finetune="all"), "machine": machine}
    trainer(stop=("finetuning", 1), **options)
    network = trainer(resume=True, **options)["finetuning"]
    assert network["precision"] in ("float32", "bfloat16")
    assert [epoch["epoch"] for epoch in network["epochs"]] == [0, 1, 2]
    assert all(np.isfinite(epoch["loss"]) for epoch in network["epochs"][1:])


def test_images_held_out_never_train_and_are_judged_by_posteriors(trainer: Trainer, monkeypatch) -> None:
    drawn: set[int] = set()
    judged_by, real_plan = [], network_data.plan_fold_searches
    monkeypatch.setattr(
        network_data,
        "plan_fold_searches",
        lambda *a, posteriors: judged_by.append(posteriors) or real_plan(*a, posteriors=posteriors),
    )
    splits, real, real_split = [], network_inputs.cut_windows, network_stage.split_for_finetuning

    def draw(pixels, rows, windows, **others):
        drawn.update(rows.tolist())
        return real(pixels, rows, windows, **others)

    monkeypatch.setattr(network_inputs, "cut_windows", draw)
    monkeypatch.setattr(
        network_stage, "split_for_finetuning", lambda *a, **b: splits.append(real_split(*a, **b)) or splits[-1]
    )
    trainer(config=network_config())
    assert drawn == set(splits[0].train.tolist())
    assert len(splits[0].seen) == 4
    rows = [
        [float(value) for name, value in row.items() if name.startswith("suggestion_confidence")]
        for row in read_csv(trainer.folder / "run" / "confidences.csv")
    ]
    for posteriors in judged_by:  # of held-out images, the last ones are by the fine-tuned features
        differ = np.abs(posteriors.max(axis=1).toarray().ravel() - np.max(rows, axis=1))
        assert differ[splits[0].train].max() < 1e-5
    assert judged_by


BEHIND = MethodComparison(
    4, 9, {TRAINED: 0.1, FROZEN_HEAD: 0.9}, FROZEN_HEAD, FROZEN_HEAD, -0.8, (-0.9, -0.7), by=HELD_OUT
)


@pytest.mark.parametrize(
    "patched", [{"selects_finetuned": False}, {"selects_finetuned": True, "_compare_parts": {"known": BEHIND}}]
)
def test_where_the_frozen_embedding_leads_it_ships_with_its_backbone(trainer: Trainer, monkeypatch, patched) -> None:
    for name, value in patched.items():
        monkeypatch.setattr(network_stage, name, lambda *_, value=value, **__: value)
    options = {"holdout": True, "select": "auto"}
    trainer("plain", config=frozen_config(**options))
    report = trainer(config=network_config(**options))
    assert (report["finetuning"]["selected"], report["method"]) == (False, "spa")
    assert report["verdict"]["known"]["by"] == (HELD_OUT if len(patched) > 1 else HOLDOUT)
    assert trainer.weights() == trainer.weights("plain")
    start, kept = _backbone(trainer.folder / "plain"), _backbone(trainer.folder / "run")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in start.items())


@pytest.mark.parametrize(
    ("lead", "spread", "selected"),
    [(0.05, 0.1, True), (-0.01, 0.1, True), (-0.05, 0.1, False), (-0.01, 0.01, False), (0.0, 0.0, False)],
)
def test_the_frozen_embedding_is_selected_where_it_leads_by_a_standard_error(lead, spread, selected) -> None:
    """Of 20 classes whose leads differ by `spread`: the standard error is .022 and .0022."""
    labels = np.repeat(np.arange(20), 5)
    frozen = np.full(100, 0.5)
    tuned = frozen + lead + spread * (-1.0) ** labels
    found = {
        name: {"seen": RetrievalScores({1: found}, found, found, labels, 0)}
        for name, found in (("frozen", frozen), ("fine-tuned", tuned))
    }
    assert selects_finetuned(found) == selected
    assert selects_finetuned({}), "nothing could be held out"


@pytest.mark.parametrize(
    ("leads", "chosen"), [((0.05, 0.0), 0.25), ((0.0, 0.05), 0.75), ((0.01, -0.1), 0.5), ((-0.1, -0.1), 0.5)]
)
def test_other_weights_are_exported_where_they_lead_by_a_standard_error(leads, chosen) -> None:
    """Leads of .25 and .75 over .5, of 20 classes whose leads differ by .1: the standard error is .022."""
    labels = np.repeat(np.arange(20), 5)
    spread = 0.1 * (-1.0) ** labels
    scores = {
        alpha: np.full(100, 0.5) + lead + (lead != 0) * spread for alpha, lead in zip((0.25, 0.75), leads, strict=True)
    }
    found = {
        alpha: {"unseen": RetrievalScores({1: one}, one, one, labels, 0)}
        for alpha, one in (scores | {0.5: np.full(100, 0.5)}).items()
    }
    assert choose_alpha(found) == chosen


def test_the_part_that_the_purpose_names_decides_and_what_there_is_where_it_was_not_held_out() -> None:
    seen, unseen = (RetrievalScores({}, np.ones(n), np.ones(n), np.arange(n), 0) for n in (5, 6))
    both = {"seen": seen, "unseen": unseen}
    assert choose_parts(both, purpose="known") == {"seen": seen}
    assert choose_parts(both, purpose="new") == {"unseen": unseen}
    assert choose_parts(both, purpose="both") == both
    assert choose_parts({"seen": seen}, purpose="new") == {"seen": seen}
    of_two = RetrievalScores({}, np.ones(9), np.ones(9), np.arange(9) % 2, 0)
    assert choose_parts({"seen": seen, "unseen": of_two}, purpose="new") == {"seen": seen, "unseen": of_two}


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "spa", "recipe": "spa-paper", "head_steps": None, "head_epochs": 1, "confidence_epochs": 1},
        {"backbone": "squeezenet1_1", "view": "both", "pooling": "layers", "resize": 48, "crop": 40, "image_size": 36},
        pytest.param(
            {"embedding_dim": 60, "init": "random", "method": "proxy-anchor", "min_confidence": 0.05},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_kind_of_run_can_train_its_network(trainer, other_pictures, always_ships, changes) -> None:
    """Methods of proxies and of pairs, judges of either kind, rivals, views and poolings; one epoch each."""
    config = network_config(epochs=1, **changes)
    report = trainer(config=config, val=other_pictures)
    assert report["method"] == report["finetuning"]["method"] == config.loss.method
    backbone, head, state = RunFolder.open(trainer.folder / "run").load_trained()
    assert head.embedding_dim == config.head.embedding_dim == state["embedding_dim"]
    assert np.isfinite(report["finetuning"]["epochs"][1]["loss"])
    assert backbone.view == config.input.view


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"finetune": "last-15"}, "last-15: --backbone timm:test_resnet has 7 blocks"),
        (
            {"backbone": "vit_b_32", "resize": 224, "crop": 224, "image_size": 160},
            "vit_b_32 cannot take images of --image-size 160 pixels",
        ),
    ],
)
def test_what_the_backbone_does_not_have_or_take_is_refused_before_any_work(trainer, changes, said) -> None:
    with pytest.raises(InputError, match=said):
        trainer(config=network_config(**changes), machine=make_machine(trainer.folder / "cache"))
    assert not list(trainer.folder.iterdir())


def test_the_precision_that_was_measured_is_kept_for_a_resume(trainer: Trainer, monkeypatch) -> None:
    asked = []

    def choose(model, images):
        asked.append(images.shape)
        return "bfloat16"

    monkeypatch.setattr("training.run.finetuning.inputs.choose_precision", choose)
    options = {"config": network_config(micro_batch_size=8), "machine": make_machine(trainer.cache, precision="auto")}
    trainer(stop=("finetuning", 1), **options)
    report = trainer(resume=True, **options)
    assert asked == [(8, 32, 32, 3)]
    assert report["finetuning"]["precision"] == "bfloat16"
