"""The benchmark of indexing: when it is void, wrong usage; a tiny run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.indexing.__main__ import check_agreement, main
from benchmarks.indexing.index_bench import check_counts


def test_a_comparison_of_different_vectors_or_counts_is_void() -> None:
    check_agreement({"mean_cosine": 0.995})
    with pytest.raises(SystemExit, match=r"mean cosine 0\.9000"):
        check_agreement({"mean_cosine": 0.9})
    with pytest.raises(SystemExit, match="mean cosine nan"):
        check_agreement({"mean_cosine": float("nan")})
    check_counts([{"new_images": 3}], expected=3)
    with pytest.raises(SystemExit, match="indexed 2 of 3"):
        check_counts([{"new_images": 3}, {"new_images": 2}], expected=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--rounds", "0"), "--rounds must be at least 1"), (("--part", "tea"), "invalid choice: 'tea'"),
     (("--limit", "0"), "--limit must be at least 1")],
)  # fmt: skip
def test_wrong_usage_is_said_and_exits_with_two(options, message: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--out", str(tmp_path), *options])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.timeout(900)
def test_parts_run_on_few_images_and_what_stands_is_not_measured_again(shared: Path, tmp_path: Path) -> None:
    parts = ("photos", "models", "hundred-thousand", "decoding", "decoding-quality")
    options = [word for part in parts for word in ("--part", part)]
    options += ["--rounds", "1", "--limit", "40", "--warm-up", "8", "--count", "300", "--shard-images", "150"]
    options += ["--decoded-images", "20", "--compared-images", "40"]
    options += ["--model", "mobilenet_v2", "--model", "box", "--precision", "fp32", "--backend", "onnxruntime"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "benchmarks.indexing", "--out", str(tmp_path), *options],
            env={**os.environ, "RETRIEVAL_SHARED": str(shared)}, capture_output=True, text=True,
        )  # fmt: skip

    first = run()
    assert first.returncode == 0, first.stderr
    records = {part: json.loads((tmp_path / f"record-{part}.json").read_text())["results"] for part in parts}
    assert records["photos"]["images"] == 40
    assert records["photos"]["agreement"]["mean_cosine"] > 0.99
    assert f"{records['photos']['over_loop']:.2f} (goal 2.5" in first.stdout
    (mobilenet, box) = records["models"]["rows"]
    assert mobilenet["agreement"]["mean_cosine"] > 0.99
    assert mobilenet["recall_at_1"] == pytest.approx(mobilenet["loop_recall_at_1"], abs=0.1)
    assert box["loop"] == "mobilenet_v2"
    tried = records["photos"]["by_batch_size"]
    assert set(tried["rates"]) >= {"4", "8", "16", "32"}
    assert f"| ours by batch size, 8 of them (default {tried['default']}) | 4: " in first.stdout
    assert records["hundred-thousand"]["build"]["new_images"] == 300
    assert records["hundred-thousand"]["anonymous_mib"]["peak while embedding"] > 50
    assert set(records["decoding"]["rates"]) == {"threads", "processes"}
    assert [row["images"] for row in records["decoding"]["datasets"]] == [20, 20, 20, 20, 1]
    for row in records["decoding-quality"]["rows"]:
        assert (row["identical"] == 1) == (row["photos"] == "as they are")
    assert first.stdout.endswith(
        "\n\n".join((tmp_path / f"table-{part}.md").read_text().strip() for part in parts) + "\n"
    )
    second = run()
    assert second.stdout == first.stdout
    assert "$ retrieval" not in second.stderr
