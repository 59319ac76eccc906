"""`retrieval doctor --gpu`: the same checks run on the CPU, and what is missing is named."""

from __future__ import annotations

import json
import math

import pytest
import torch

from retrieval_app.commands.cli import main
from retrieval_app.commands.gpu_checks import Check, check_gpu, describe_checks, find_problems


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_device_agrees_with_the_cpu(device: str) -> None:
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
        ("training", False), ("embedding", False), ("search", False),
    ]  # fmt: skip
    assert [
        word in problem
        for word, problem in zip(("torch", "onnxruntime-gpu", "faiss-gpu"), report["problems"], strict=True)
    ] == [True] * 3


@pytest.mark.parametrize("difference", [0.5, math.nan])
def test_a_difference_above_the_allowed_one_fails(difference: float) -> None:
    check = Check("search: scan", "share of other results", difference, 0.01, 1.0, 0.5)
    assert len(find_problems([check])) == 1
    assert describe_checks([check])[1].endswith("FAIL")
