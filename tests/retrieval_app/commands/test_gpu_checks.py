"""`retrieval doctor --gpu`: the same checks run on the CPU, and what is missing is named."""

import json
import math
from dataclasses import asdict

import pytest
import torch

from retrieval_app.commands import gpu_checks
from retrieval_app.commands.cli import main
from retrieval_app.commands.gpu_checks import Check, check_gpu, describe_checks, find_problems


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_device_agrees_with_the_cpu(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":  # which is compared with itself, and that on few data
        for name, few in (("_KINDS", 3), ("_PHOTOS_OF_KIND", 4)):
            monkeypatch.setattr(gpu_checks, name, few)
    checks = list(check_gpu(device))
    assert find_problems(checks) == []
    assert {check.name.partition(":")[0] for check in checks} == {"training", "embedding", "search"}
    assert all(check.cpu_s and check.device_s for check in checks)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_each_part_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(check["name"], check["passed"]) for check in report["gpu"]] == [
        ("training", False),
        ("embedding", False),
        ("search", False),
    ]
    assert [
        word in problem
        for word, problem in zip(("torch", "onnxruntime-gpu", "faiss-gpu"), report["problems"], strict=True)
    ] == [True] * 3


def test_a_difference_above_the_allowed_one_fails() -> None:
    check = Check("search: scan", "share of other results", 0.5, 0.01, 1.0, 0.5)
    assert len(find_problems([check])) == 1
    assert describe_checks([check])[1].endswith("FAIL")


def test_a_result_that_is_no_number_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_check_training", "_check_embedding", "_check_search"):
        monkeypatch.setattr(gpu_checks, name, lambda _: iter([Check("one", "loss", math.nan, 0.1, 1.0, 0.5)]))
    checks = list(gpu_checks.check_gpu())
    assert [check.passed for check in checks] == [False] * 3
    json.dumps([asdict(check) for check in checks], allow_nan=False)
