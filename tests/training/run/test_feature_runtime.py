"""What computes a run's features is settled once, told, noted, and the same whoever asks again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from index.errors import InputError, MissingDependencyError, RunError
from index.model.backends import measuring
from index.model.backends.names import AUTO
from index.model.seal import SealedModel
from tests.training.conftest import make_config, make_machine
from tests.training.runs import InterruptionError, figures, interrupt_at, weights
from training.audit.run_audit import audit_labels
from training.backbone import onnx_writing
from training.backbone.backbones import load_backbone
from training.backbone.extract import Extractor, open_store
from training.backbone.kept_graphs import keep_graph
from training.options.machine import Machine
from training.options.runtimes import GRAPH_RUNTIMES, TORCH
from training.run import feature_runtime
from training.run.extraction import SentExtractor
from training.run.feature_runtime import reopen_extractor, require_runtime
from training.run.phases import Watcher
from training.run.run_folder import RunFolder
from training.run.train import train

QUICK: dict[str, Any] = {"method": "pca"}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_SECONDS", 0.0)


def _train(
    pictures: Path,
    out: Path,
    machine: Machine,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    **changes: Any,
) -> dict[str, Any]:
    config = make_config(**(QUICK | changes))
    train(pictures, out, config=config, machine=machine, resume=resume, watcher=watcher)
    return RunFolder(out).read_json("runtime.json")


def _reopen(run: Path, cache: Path) -> Extractor:
    opened = RunFolder.open(run)
    return reopen_extractor(opened, opened.load_backbone(), device=torch.device("cpu"), cache=cache)


@pytest.mark.parametrize("name", ["onnxruntime", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_runtime_that_is_named_computes_the_features_and_is_noted(
    name: str, pictures: Path, cache: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    machine = make_machine(cache, backend=name)
    noted = _train(pictures, tmp_path / "run", machine, watcher=Watcher(on_note=told.append))
    assert (noted["name"], noted["asked"]) == (name, name)
    assert noted["measured"].keys() == {TORCH, *GRAPH_RUNTIMES}
    assert told
    assert told[0].startswith(f"features: by {name}, as it is named (images/s: ")
    features = json.loads((tmp_path / "run" / "features.json").read_text())
    assert (features["runtime"], features["precision"]) == (name, "float32")
    by_torch = _train(pictures, tmp_path / "torch", make_machine(cache, backend=TORCH))
    assert (by_torch["name"], by_torch["measured"]) == (TORCH, {})
    assert "runtime" not in json.loads((tmp_path / "torch" / "features.json").read_text())


def test_few_images_are_left_to_torch_and_more_to_the_fastest(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = _train(pictures, tmp_path / "few", make_machine(cache))
    assert (few["name"], few["asked"]) == (TORCH, AUTO)
    assert few["why"] == "as 48 images are done before another runtime is ready"
    monkeypatch.setattr(feature_runtime, "LEAST_IMAGES", 48)
    more = _train(pictures, tmp_path / "more", make_machine(cache))
    rates = {name: one["images_per_s"] for name, one in more["measured"].items()}
    assert more["name"] == max(rates, key=lambda name: rates[name])


@pytest.mark.slow
def test_a_run_in_bfloat16_is_not_given_to_a_runtime_that_has_no_such_numbers(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_runtime, "LEAST_IMAGES", 48)
    noted = _train(pictures, tmp_path / "run", make_machine(cache, precision="bfloat16"))
    assert noted["name"] in (TORCH, "openvino")


def test_an_interrupted_run_goes_on_with_its_runtime_to_the_same_bits(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    named, trained = make_machine(cache, backend="onnxruntime"), {"method": "spa"}
    _train(pictures, tmp_path / "whole", named, **trained)
    with pytest.raises(InterruptionError):
        _train(pictures, tmp_path / "run", named, watcher=interrupt_at("embedding", 2), **trained)
    noted = _train(pictures, tmp_path / "run", make_machine(cache), resume=True, **trained)
    assert noted["name"] == "onnxruntime"
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert figures(tmp_path / "run") == figures(tmp_path / "whole")


def test_a_run_is_not_resumed_with_another_runtime(pictures: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(InterruptionError):
        _train(pictures, tmp_path / "run", make_machine(cache), watcher=interrupt_at("embedding", 1), method="spa")
    with pytest.raises(RunError, match="its features are by torch, --backend is 'onnxruntime'"):
        _train(pictures, tmp_path / "run", make_machine(cache, backend="onnxruntime"), resume=True, method="spa")
    (tmp_path / "run" / "runtime.json").unlink()  # as a version left it that knew torch alone
    train(
        pictures, tmp_path / "run", config=make_config(method="spa"), resume=True,
        machine=make_machine(cache, backend=TORCH),
    )  # fmt: skip


def test_a_backbone_without_a_graph_falls_back_to_torch_and_says_why(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(onnx_writing, "MAX_WEIGHT_BYTES", 1000)
    machine = make_machine(tmp_path / "cache", backend="onnxruntime")
    noted = _train(pictures, tmp_path / "run", machine)
    assert noted["name"] == TORCH
    assert noted["why"].startswith("as its graph cannot be used: squeezenet1_1: 0.0 GB of weights do not fit")
    assert "features are computed by torch: squeezenet1_1: " in caplog.text
    again = _train(pictures, tmp_path / "run", machine, resume=True)
    assert again == noted


def test_features_that_are_not_those_of_torch_are_not_taken(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def keep_another(extractor: Extractor, *, cache: Path) -> SealedModel:
        other = load_backbone("squeezenet1_1", "none", seed=1)
        sizes, device = extractor.preprocess, extractor.device
        return keep_graph(Extractor(other, sizes, device=device, precision="float32"), cache=cache)

    monkeypatch.setattr(feature_runtime, "keep_graph", keep_another)
    noted = _train(pictures, tmp_path / "run", make_machine(cache, backend="onnxruntime"))
    assert (noted["name"], noted["why"]) == (
        TORCH, "as onnxruntime cannot give the same features of this backbone"
    )  # fmt: skip
    assert "onnxruntime gives other features than torch (a cosine of " in caplog.text


@pytest.mark.slow
def test_audit_and_other_processes_have_the_same_features_from_the_same_runtime(
    pictures: Path, cache: Path, tmp_path: Path
) -> None:
    machine = make_machine(cache, backend="onnxruntime")
    _train(pictures, tmp_path / "run", machine, method="spa")
    reopened = _reopen(tmp_path / "run", cache)
    assert reopened.describe(views=1) == json.loads((tmp_path / "run" / "features.json").read_text())
    sent = SentExtractor.of(reopened).open(machine)
    assert open_store(cache, sent, views=1).folder == open_store(cache, reopened, views=1).folder
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    assert torch.equal(sent.extract(pixels), reopened.extract(pixels))
    report = audit_labels(RunFolder.open(tmp_path / "run"), machine=make_machine(cache))
    assert len(report.images) == 48


@pytest.mark.slow
def test_who_needs_features_of_a_run_whose_runtime_is_gone_has_them_by_torch(
    pictures: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InterruptionError):
        _train(
            pictures, tmp_path / "run", make_machine(cache, backend="openvino"),
            watcher=interrupt_at("embedding", 1), method="spa",
        )  # fmt: skip
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    assert _reopen(tmp_path / "run", cache).runtime == TORCH
    assert "its features are by openvino, and now by torch: " in caplog.text
    with pytest.raises(
        RunError, match=r"its features are by openvino, which cannot compute them now: .*'openvino'"
    ):
        _train(pictures, tmp_path / "run", make_machine(cache), resume=True, method="spa")


@pytest.mark.parametrize(
    ("changes", "trains", "message"),
    [
        ({"backend": "onnxruntime"}, True, "--unfreeze trains it: leave one of them out"),
        ({"backend": "openvino", "device": torch.device("cuda")}, False, "computes features on the CPU"),
        ({"backend": "onnxruntime", "precision": "bfloat16"}, False, "with it, no --precision bfloat16"),
    ],
)
def test_what_a_runtime_cannot_do_is_refused(
    changes: dict[str, Any], trains: bool, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        require_runtime(make_machine(tmp_path, **changes), trains_network=trains)


def test_a_runtime_that_is_not_installed_is_named_before_any_work(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_runtime, "installed_backends", lambda: {"onnxruntime": "1"})
    with pytest.raises(MissingDependencyError, match=r"openvino.*\[fast\]"):
        _train(pictures, tmp_path / "run", make_machine(tmp_path / "cache", backend="openvino"))
    assert not (tmp_path / "run").exists()


def test_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--backend must be one of auto, torch, onnxruntime, openvino, got 'jax'"):
        make_machine(tmp_path, backend="jax")
