"""One command for all benchmarks: records are gathered, failures told, goals judged, a stopped run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import format_list, main, parse_options, run_all
from benchmarks.everything.catalogue import BENCHMARKS, Benchmark
from benchmarks.everything.goals import GOALS, format_goals, judge

TINY = Benchmark(
    "how tiny?", "tests.benchmarks.everything.tiny_benchmark", ("cold-start.json",),
    options=("--seed", "{seed}"), quick=("--repeats", "3"), out="cold-start.json",
    code=("tests/benchmarks/everything",),
)  # fmt: skip
FAILING = replace(TINY, options=("--fail",))


def run(tmp_path: Path, benchmarks: dict[str, Benchmark], *options: str) -> tuple[int, dict]:
    out = tmp_path / "all.json"
    status = run_all(benchmarks, parse_options(["all", "--json", str(out), *options]))
    return status, json.loads(out.read_text())


def count_runs(folder: Path) -> int:
    return len((folder / "runs.txt").read_text().split())


def test_a_failing_one_is_told_and_the_others_go_on_and_their_records_are_gathered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = run(tmp_path, {"serving": FAILING, "cold-start": TINY})
    assert status == 1
    told = capsys.readouterr()
    assert "serving: failed\nexit status 1" in told.err
    assert "tiny_benchmark: it was told to fail" in told.err
    assert document["machine"]["versions"]["numpy"]
    assert document["settings"]["seed"] == 0
    failed, finished = document["results"]["benchmarks"].values()
    assert failed["status"] == "failed"
    assert "it was told to fail" in failed["error"]
    assert finished["status"] == "finished"
    record = finished["records"]["cold-start"]
    assert record["results"]["retrieval search"] == {"median": 0.2, "repeats": 11}
    assert record["settings"]["repeats"] == 11
    goals = {row["goal"]: row for row in document["results"]["goals"]}
    cold = goals["cold `retrieval search` / importing torch and faiss"]
    assert (cold["ratio"], cold["status"], cold["size"]) == (pytest.approx(0.1), "met", "11 cold starts")
    assert goals["uploads/s at 32 clients, ours in int8 / FastAPI in float32"]["status"] == "failed"
    assert goals["loss, seconds of a peer / ours"]["status"] == "not run"
    assert "| loss, seconds of a peer / ours |  | ≥ 2 | not run |  |  |" in (tmp_path / "all.md").read_text()


def test_what_finished_is_not_run_again_but_with_other_options_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, first = run(tmp_path, {"cold-start": TINY})
    _, second = run(tmp_path, {"cold-start": TINY})
    assert status == 0
    assert "cold-start: kept from before" in capsys.readouterr().err
    assert second["results"] == first["results"]
    assert count_runs(tmp_path / "cold-start") == 1
    run(tmp_path, {"cold-start": TINY}, "--seed", "7")
    assert count_runs(tmp_path / "cold-start") == 2
    (tmp_path / "cold-start" / "cold-start.json").unlink()
    run(tmp_path, {"cold-start": TINY}, "--seed", "7")
    assert count_runs(tmp_path / "cold-start") == 3


def test_a_failed_one_is_run_again_and_leaves_no_older_record(tmp_path: Path) -> None:
    run(tmp_path, {"cold-start": TINY})
    status, document = run(tmp_path, {"cold-start": FAILING})
    assert status == 1
    assert "records" not in document["results"]["benchmarks"]["cold-start"]
    assert run(tmp_path, {"cold-start": FAILING})[0] == 1
    assert count_runs(tmp_path / "cold-start") == 3


def test_one_that_writes_no_record_has_failed(tmp_path: Path) -> None:
    status, document = run(tmp_path, {"losses": replace(TINY, records=("record-*.json",))})
    assert status == 1
    assert document["results"]["benchmarks"]["losses"]["error"] == "it wrote no record-*.json"


def test_quick_runs_have_their_own_folder_and_sizes_and_only_those_asked_for_run(tmp_path: Path) -> None:
    _, document = run(tmp_path, {"cold-start": TINY, "losses": FAILING}, "--quick", "--only", "cold-start")
    large = replace(FAILING, quick=None)
    assert run(tmp_path, {"cold-start": TINY, "evaluation": large}, "--quick")[0] == 0
    assert count_runs(tmp_path / "quick" / "cold-start") == 1
    found = document["results"]["benchmarks"]
    assert found["cold-start"]["records"]["cold-start"]["settings"]["repeats"] == 3
    assert found["losses"] == {"status": "not run", "question": "how tiny?"}


def test_the_list_has_every_question_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out == format_list(BENCHMARKS) + "\n"
    for name, each in BENCHMARKS.items():
        assert f"| {name} | {each.question} | `python -m {each.module} --out " in format_list(BENCHMARKS)


def test_goals_name_known_benchmarks_and_say_where_none_was_run() -> None:
    assert {goal.benchmark for goal in GOALS} <= set(BENCHMARKS)
    rows = judge({})
    assert [row["status"] for row in rows] == ["not run"] * len(GOALS)
    assert format_goals(rows).count("| not run |") == len(GOALS)


def test_a_goal_of_indexing_has_recall_beside_it_and_says_where_the_size_is_another() -> None:
    row = {"model": "mobilenet_v2", "precision": "int8", "backend": "openvino", "weights": "trained",
           "over_loop": 6.5, "of_bound": 0.8, "recall_at_1": 0.5, "loop_recall_at_1": 0.51}  # fmt: skip
    slower = {**row, "precision": "fp32", "over_loop": 3.0}
    untrained = {**row, "model": "resnet50", "weights": "random", "over_loop": 4.0}
    records = {
        "record-photos": {"results": {"of_bound": 0.91, "images": 5398}},
        "record-models": {"results": {"images": 300, "rows": [slower, row, untrained]}},
    }
    table = format_goals(judge({"indexing": {"status": "finished", "records": records}})).splitlines()
    (resnet,) = (line for line in table if "ResNet-50" in line)
    (mobilenet,) = (line for line in table if "fastest precision" in line)
    assert "| 4.00 | ≥ 5 | not met, at another size |  | 300 photos |" in resnet
    assert "int8, openvino, random weights" in resnet
    assert mobilenet.endswith(
        ": int8, openvino | 6.50 | ≥ 6 | met, at another size | 50.00 / 51.00 | 300 photos |"
    )
    (box,) = (line for line in table if "the box" in line)
    assert "| not run |" in box
    assert sum("| 0.91 | ≥ 0.9 | met |  | 5,398 photos |" in line for line in table) == 1


def test_the_goal_of_uploads_is_of_the_model_in_int8_with_recall_beside_it() -> None:
    ratios = {"ours / plain fastapi": 1.1, "ours in int8 / plain fastapi": 2.1, "ours in int8 / plain gradio": 9}
    goals = [{"name": f"uploads, 32 clients: {name}", "measured": ratio} for name, ratio in ratios.items()]
    results = {"gallery": {"images": 5398}, "goals": goals, "recall_at_1": {"float32": 0.6076, "int8": 0.6141}}
    records = {"record-photos": {"results": results}}
    table = format_goals(judge({"serving": {"status": "finished", "records": records}}))
    (uploads,) = (line for line in table.splitlines() if "uploads/s" in line)
    assert uploads.endswith("plain fastapi | 2.10 | ≥ 2 | met | 61.41 / 60.76 | 5,398 photos |")
    results["recall_at_1"] = {}  # it was left out
    assert "| not run |" in format_goals(judge({"serving": {"status": "finished", "records": records}}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["all", "--json", "out.txt"], "--json must name a .json file"), ([], "required: command"),
     (["all", "--json", "a.json", "--only", "tea"], "invalid choice: 'tea'")],
)  # fmt: skip
def test_wrong_usage_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        parse_options(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_the_roofline_reads_the_serving_record_only_where_it_finished(tmp_path: Path) -> None:
    roofline = BENCHMARKS["roofline"]
    alone = roofline.command(tmp_path / "roofline", seed=3, is_quick=False)
    assert alone[3:] == ["--out", str(tmp_path / "roofline"), "--seed", "3"]
    after = roofline.command(tmp_path / "roofline", seed=3, is_quick=False, finished=["serving"])
    assert after == [*alone, "--serving", f"{tmp_path}/serving/record-photos.json"]
