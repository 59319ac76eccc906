"""What computes a run's features is settled once, told, noted, and the same whoever asks again."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from index.errors import InputError, MissingDependencyError, RunError
from index.model.backends.names import AUTO
from index.model.backends.onnxruntime import OnnxRuntimeBackend
from index.model.backends.registry import Compared
from index.model.checksum import ModelFile
from tests.training.conftest import Trainer, make_config, make_machine
from tests.training.runs import figures
from training.audit.run_audit import audit_labels
from training.backbone import graphs
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor, open_store
from training.backbone.graphs import keep_graph
from training.options.machine import GRAPH_RUNTIMES, TORCH
from training.run import features
from training.run.features import SentExtractor, open_run_extractor, reopen_extractor, require_runtime
from training.run.phases import TrainingJob, Watcher
from training.run.run_folder import RunFolder


def _train(trainer: Trainer, name: str = "run", *, method: str = "pca", **given: Any) -> dict[str, Any]:
    """What was noted of the runtime; of the machine only the cache, the precision and the backend are given."""
    machine = {key: given.pop(key) for key in ("backend", "precision") if key in given}
    trainer(name, machine=make_machine(given.pop("cache", trainer.cache), **machine), method=method, **given)
    return RunFolder(trainer.folder / name).read_json("runtime.json") if "stop" not in given else {}


def _reopen(trainer: Trainer) -> Extractor:
    run = RunFolder.open(trainer.folder / "run")
    return reopen_extractor(run, run.load_backbone(), device=torch.device("cpu"), cache=trainer.cache)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_runtime_that_is_named_computes_the_features_and_is_noted(name: str, trainer: Trainer) -> None:
    told: list[str] = []
    noted = _train(trainer, backend=name, watcher=Watcher(on_note=told.append))
    assert (noted["name"], noted["asked"]) == (name, name)
    assert noted["compared"].keys() == set(GRAPH_RUNTIMES)
    assert told[0] == f"features: by {name}, as it is named"
    noted_features = json.loads((trainer.folder / "run" / "features.json").read_text())
    assert (noted_features["runtime"], noted_features["precision"]) == (name, "float32")
    by_torch = _train(trainer, "torch", backend=TORCH)
    assert (by_torch["name"], by_torch["compared"]) == (TORCH, {})
    assert "runtime" not in json.loads((trainer.folder / "torch" / "features.json").read_text())


def test_few_images_are_left_to_torch_and_more_to_the_first_that_agrees(trainer: Trainer, monkeypatch) -> None:
    few = _train(trainer, "few")
    assert (few["name"], few["asked"]) == (TORCH, AUTO)
    assert few["why"] == "as 48 images are done before another runtime is ready"
    monkeypatch.setattr(features, "LEAST_IMAGES", 48)
    more = _train(trainer, "more")
    assert (more["name"], more["why"]) == ("onnxruntime", "the first choice of those that agree")


@pytest.mark.parametrize(("precision", "name"), [("float32", "onnxruntime"), ("bfloat16", "openvino")])
def test_the_precision_that_auto_comes_to_decides_which_runtime_is_taken(
    precision: str, name: str, tmp_path: Path, monkeypatch
) -> None:
    compared = {one: Compared("1", "float32", 1.0) for one in GRAPH_RUNTIMES}
    monkeypatch.setattr(features, "keep_graph", lambda extractor, *, cache: None)
    monkeypatch.setattr(features, "compare_runtimes", lambda extractor, graph, paths: compared)
    monkeypatch.setattr(features, "compute_by_graph", lambda extractor, name, graph: name)
    job = TrainingJob(RunFolder(tmp_path), make_config(), make_machine(tmp_path, precision="auto"), Watcher())
    extractor = SimpleNamespace(precision=precision)
    settled = open_run_extractor(job, extractor, [tmp_path], views=features.LEAST_IMAGES)
    assert settled == name


def test_a_runtime_that_would_use_a_gpu_is_passed_over(trainer: Trainer, monkeypatch) -> None:
    monkeypatch.setattr(features, "LEAST_IMAGES", 48)
    monkeypatch.setattr(
        OnnxRuntimeBackend, "on_gpu", property(lambda self: True, lambda self, value: None), raising=False
    )
    assert _train(trainer)["name"] == "openvino"


def test_an_interrupted_run_goes_on_with_its_runtime_to_the_same_bits(trainer: Trainer) -> None:
    _train(trainer, "whole", method="spa", backend="onnxruntime")
    _train(trainer, method="spa", backend="onnxruntime", stop=("embedding", 2))
    noted = _train(trainer, method="spa", resume=True)
    assert noted["name"] == "onnxruntime"
    assert trainer.weights() == trainer.weights("whole")
    assert figures(trainer.folder / "run") == figures(trainer.folder / "whole")


def test_a_run_is_not_resumed_with_another_runtime(trainer: Trainer) -> None:
    _train(trainer, method="spa", stop=("embedding", 1))
    with pytest.raises(RunError, match="its features are by torch, --backend is 'onnxruntime'"):
        _train(trainer, method="spa", backend="onnxruntime", resume=True)


def test_a_backbone_without_a_graph_falls_back_to_torch_and_says_why(trainer, monkeypatch, caplog) -> None:
    monkeypatch.setattr(graphs, "MAX_WEIGHT_BYTES", 1000)
    given = {"cache": trainer.folder / "cache", "backend": "onnxruntime"}
    noted = _train(trainer, **given)
    assert noted["name"] == TORCH
    assert noted["why"].startswith("as its graph cannot be used: squeezenet1_1: 0.0 GB of weights do not fit")
    assert "features are computed by torch: squeezenet1_1: " in caplog.text
    assert _train(trainer, resume=True, **given) == noted


@pytest.mark.slow
def test_features_that_are_not_those_of_torch_are_not_taken(trainer: Trainer, monkeypatch, caplog) -> None:
    def keep_another(extractor: Extractor, *, cache: Path) -> ModelFile:
        other = load_backbone("squeezenet1_1", "none", seed=1)
        sizes, device = extractor.preprocess, extractor.device
        return keep_graph(Extractor(other, sizes, device=device, precision="float32"), cache=cache)

    monkeypatch.setattr(features, "keep_graph", keep_another)
    noted = _train(trainer, backend="onnxruntime")
    assert noted["name"] == TORCH
    assert noted["why"] == "as onnxruntime cannot give the same features of this backbone"
    assert "onnxruntime gives other features than torch (a cosine of " in caplog.text


@pytest.mark.slow
def test_audit_and_other_processes_have_the_same_features_from_the_same_runtime(trainer: Trainer) -> None:
    _train(trainer, method="spa", backend="onnxruntime")
    run, reopened = RunFolder.open(trainer.folder / "run"), _reopen(trainer)
    assert reopened.describe() == run.read_json("features.json")
    sent = SentExtractor.of(reopened).open(make_machine(trainer.cache, backend="onnxruntime"))
    assert open_store(trainer.cache, sent).folder == open_store(trainer.cache, reopened).folder
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    assert torch.equal(sent.extract(pixels), reopened.extract(pixels))
    assert len(audit_labels(run, machine=make_machine(trainer.cache)).items) == 48


@pytest.mark.slow
def test_who_needs_features_of_a_run_whose_runtime_is_gone_has_them_by_torch(trainer, monkeypatch, caplog) -> None:
    _train(trainer, method="spa", backend="openvino", stop=("embedding", 1))
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert _reopen(trainer).runtime == TORCH
    assert "its features are by openvino, and now by torch: " in caplog.text
    with pytest.raises(RunError, match=r"its features are by openvino, which cannot compute them now: .*'openvino'"):
        _train(trainer, method="spa", resume=True)


@pytest.mark.parametrize(
    ("changes", "trains", "message"),
    [
        ({"backend": "onnxruntime"}, True, "computes features of a frozen backbone: with it, --frozen"),
        ({"backend": "openvino", "device": torch.device("cuda")}, False, "computes features on the CPU"),
        ({"backend": "onnxruntime", "precision": "bfloat16"}, False, "with it, no --precision bfloat16"),
    ],
)
def test_what_a_runtime_cannot_do_is_refused(changes, trains: bool, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        require_runtime(make_machine(tmp_path, **changes), trains_network=trains)


def test_a_runtime_that_is_not_installed_or_that_there_is_not_is_named_before_any_work(
    trainer: Trainer, monkeypatch
) -> None:
    monkeypatch.setattr(features, "installed_backends", lambda: {"onnxruntime": "1"})
    with pytest.raises(MissingDependencyError, match=r"openvino.*\[fast\]"):
        _train(trainer, cache=trainer.folder / "cache", backend="openvino")
    assert not (trainer.folder / "run").exists()
    with pytest.raises(InputError, match="--backend must be one of auto, torch, onnxruntime, openvino, got 'jax'"):
        make_machine(trainer.folder, backend="jax")
