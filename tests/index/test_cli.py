from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from index import cli
from index.build import build_gallery
from index.build_config import BuildConfig
from index.errors import GalleryError, ImageError
from index.limits import MAX_PIXELS
from index.metrics import K_SETS
from tests.conftest import draw_folder, draw_image

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    build_gallery(model_path=tiny_model, folder=draw_folder(folder / "images"), out=folder / "gallery")
    return folder / "gallery"


def invoke(command: click.Command, *words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def test_build_reports_as_text_and_as_json(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (image_folder / "empty.jpg").write_bytes(b"")
    words = ("build", tiny_model, image_folder, "--out", tmp_path / "g", "--batch-size", 4, "--workers", 1)
    text = invoke(cli.index_group, *words)
    assert text.exit_code == 0, text.output
    assert "built version 000001, 15 images" in text.stdout
    assert "1  empty-file  the file has no bytes" in text.stdout
    again = invoke(cli.index_group, *words, "--json")
    assert json.loads(again.stdout) == {
        "gallery": str(tmp_path / "g"),
        "version": "000001",
        "changed": False,
        "new_images": 0,
        "indexed": 15,
        "skipped": 1,
        "skipped_by_reason": {"empty-file": 1},
        "seconds": pytest.approx(0, abs=60),
        "images_per_second": 0,
    }
    assert "already up to date" in invoke(cli.index_group, *words).stdout


def test_strict_fails_after_the_gallery_is_made(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    words = ("build", tiny_model, image_folder, "--out", tmp_path / "g", "--strict")
    assert invoke(cli.index_group, *words).exit_code == 0
    (image_folder / "empty.jpg").write_bytes(b"")
    result = invoke(cli.index_group, *words, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["skipped"] == 1
    assert (tmp_path / "g" / "CURRENT").read_text() == "000002\n"


def test_build_takes_labels_from_a_file(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\nimages/red/0.jpg,apple\nimages/red/2.jpg,apple\n")
    words = ("build", tiny_model, image_folder, "--out", tmp_path / "g", "--labels", tmp_path / "labels.csv")
    assert invoke(cli.index_group, *words).exit_code == 0
    scores = json.loads(invoke(cli.evaluate, tmp_path / "g", "--json").stdout)
    assert scores["queries"] == 2


def test_a_value_out_of_range_is_a_usage_error(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    result = invoke(cli.index_group, "build", tiny_model, image_folder, "--out", tmp_path / "g", "--batch-size", 0)
    assert result.exit_code == 2
    assert "batch_size must be a whole number in 1..4096, got 0" in result.output


def test_search_prints_a_table_or_json(gallery: Path) -> None:
    image = gallery.parent / "images" / "red" / "3.png"
    text = invoke(cli.search, gallery, image, "-k", 3)
    lines = text.stdout.splitlines()
    assert lines[0].split() == ["rank", "score", "label", "path"]
    assert lines[1].split() == ["1", "1.0000", "red", "red/3.png"]
    assert len(lines) == 4
    results = json.loads(invoke(cli.search, gallery, image, "-k", 3, "--json").stdout)["results"]
    assert [set(result) for result in results] == [{"rank", "id", "score", "path", "label"}] * 3
    assert (results[0]["rank"], results[0]["path"], results[0]["label"]) == (1, "red/3.png", "red")
    assert len(json.loads(invoke(cli.search, gallery, image, "--json").stdout)["results"]) == 10
    assert len(json.loads(invoke(cli.search, gallery, image, "--json", "-k", 99).stdout)["results"]) == 15


def test_search_with_something_that_is_no_image_or_gallery_is_an_expected_error(
    gallery: Path, tmp_path: Path
) -> None:
    (tmp_path / "page.jpg").write_text("<html>")
    assert isinstance(invoke(cli.search, gallery, tmp_path / "page.jpg").exception, ImageError)
    assert isinstance(invoke(cli.search, gallery, tmp_path / "none.jpg").exception, ImageError)
    assert isinstance(invoke(cli.search, tmp_path, tmp_path / "none.jpg").exception, GalleryError)
    assert invoke(cli.search, gallery, tmp_path / "page.jpg", "-k", 0).exit_code == 2


def test_evaluate_scores_a_gallery_or_a_model(gallery: Path, tiny_model: Path) -> None:
    images = gallery.parent / "images"
    scores = json.loads(invoke(cli.evaluate, gallery, "--json", "--k", "4,1").stdout)
    assert set(scores) == {
        "queries", "lone_queries", "recall", "map_at_r", "r_precision", "skipped", "recall_at_1_interval",
        "map_at_r_interval", "mean_class_recall_at_1", "nmi", "per_class",
    }  # fmt: skip
    assert scores["nmi"] is None
    assert scores["per_class"]["red"] == {"queries": 5, "recall_at_1": 1.0}
    low, high = scores["map_at_r_interval"]
    assert low <= scores["map_at_r"] <= high
    assert scores["skipped"] == 0
    assert list(scores["recall"]) == ["1", "4"]
    assert (
        json.loads(invoke(cli.evaluate, "--model", tiny_model, "--data", images, "--k", "1,4", "--json").stdout)
        == scores
    )
    text = invoke(cli.evaluate, gallery, "--query", images).stdout
    assert "Recall@1     100.00 %  [100.00, 100.00]\n" in text
    assert "Class mean   100.00 %  of Recall@1 over 3 labels\n" in text
    assert "lowest Recall@1" not in text  # of so few labels
    assert "NMI" not in text
    assert "over 15 queries" in text
    assert "skipped" not in text


def test_evaluate_says_how_many_files_it_skipped(gallery: Path, tiny_model: Path, image_folder: Path) -> None:
    (image_folder / "empty.jpg").write_bytes(b"")
    for words in ((gallery, "--query", image_folder), ("--model", tiny_model, "--data", image_folder)):
        assert json.loads(invoke(cli.evaluate, *words, "--json").stdout)["skipped"] == 1
        assert invoke(cli.evaluate, *words).stdout.endswith("skipped files: 1\n")


def test_evaluate_clusters_where_nmi_is_asked_for(gallery: Path) -> None:
    scores = json.loads(invoke(cli.evaluate, gallery, "--nmi", "--json").stdout)
    assert 0.5 < scores["nmi"] <= 1
    text = invoke(cli.evaluate, gallery, "--nmi").stdout
    assert f"{100 * scores['nmi']:.2f} %  of k-means clusters and labels\n" in text


def test_evaluate_lists_the_labels_that_are_found_worst(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):  # drawn alike under two labels each, beside three labels that are told apart
        for label in (f"{name}1", f"{name}2\n"):
            (tmp_path / label).mkdir()
            for i in range(3):
                draw_image((128, 128, 128), seed=ord(name) + i).save(tmp_path / label / f"{i}.png")
    draw_folder(tmp_path, per_class=3)
    words = ("--model", tiny_model, "--data", tmp_path)
    per_class = json.loads(invoke(cli.evaluate, *words, "--json").stdout)["per_class"]
    assert len(per_class) == 9
    lines = invoke(cli.evaluate, *words).stdout.splitlines()
    table = lines[lines.index("lowest Recall@1 of 9 labels:") + 1 :]
    worst = sorted(per_class, key=lambda name: (per_class[name]["recall_at_1"], name))[:5]
    assert [line.split()[-1] for line in table] == [name.replace("\n", "\\n") for name in worst]
    assert [line.split()[:4] for line in table] == [
        [f"{100 * per_class[name]['recall_at_1']:.2f}", "%", "3", "queries"] for name in worst
    ]
    assert per_class[worst[0]]["recall_at_1"] < per_class["red"]["recall_at_1"] == 1


def test_evaluate_takes_the_k_of_a_dataset_by_name(gallery: Path) -> None:
    for name, ks in K_SETS.items():
        scores = json.loads(invoke(cli.evaluate, gallery, "--k", name, "--json").stdout)
        assert list(scores["recall"]) == [str(k) for k in ks]
    told = invoke(cli.evaluate, gallery, "--k", "soap")
    assert told.exit_code == 2
    named = re.search("one of (.*)", " ".join(told.output.split()))
    assert named is not None
    assert re.findall("[a-z0-9-]{3,}", named[1]) == list(K_SETS)


def test_verify_lists_every_problem(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build_gallery(model_path=tiny_model, folder=image_folder, out=tmp_path / "g")
    sound = invoke(cli.index_group, "verify", tmp_path / "g")
    assert (sound.exit_code, sound.stdout) == (0, f"{tmp_path}/g: 5 files match\n")
    document = json.loads(invoke(cli.index_group, "verify", tmp_path / "g", "--json").stdout)
    assert document == {"gallery": f"{tmp_path}/g", "problems": []}
    for name in ("index.faiss", "model.onnx"):
        (tmp_path / "g" / "versions" / "000001" / name).write_bytes(b"")
    damaged = invoke(cli.index_group, "verify", tmp_path / "g")
    assert damaged.exit_code == 1
    assert len(damaged.stdout.splitlines()) == 2
    result = invoke(cli.index_group, "verify", tmp_path / "g", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"] == damaged.stdout.splitlines()
    assert isinstance(invoke(cli.index_group, "verify", tmp_path / "none").exception, GalleryError)


def test_build_takes_a_moved_folder(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    words = ("--out", tmp_path / "g", "--json")
    assert invoke(cli.index_group, "build", tiny_model, image_folder, *words).exit_code == 0
    moved = image_folder.rename(tmp_path / "moved")
    refused = invoke(cli.index_group, "build", tiny_model, moved, *words)
    assert "--moved" in str(refused.exception)
    report = json.loads(invoke(cli.index_group, "build", tiny_model, moved, *words, "--moved").stdout)
    assert (report["version"], report["changed"], report["new_images"]) == ("000002", True, 0)


def test_evaluate_wants_a_gallery_or_a_model_with_data(gallery: Path, tiny_model: Path, tmp_path: Path) -> None:
    for words in (
        (),
        (gallery, "--model", tiny_model, "--data", tmp_path),
        ("--model", tiny_model),
        (gallery, "--data", tmp_path),
        (gallery, "--k", "1,x"),
        (gallery, "--k", "0"),
    ):
        assert invoke(cli.evaluate, *words).exit_code == 2, words


@pytest.mark.parametrize("command", [*cli.index_group.commands.values(), cli.search, cli.evaluate])
def test_help_explains_every_option_and_gives_examples(command: click.Command) -> None:
    text = invoke(command, "--help").stdout
    assert re.search(r"Examples:\n +retrieval ", text)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.name == "help", parameter.name
            assert max(parameter.opts, key=len) in text


def test_loading_the_commands_loads_nothing_heavy() -> None:
    heavy = {"numpy", "PIL", "faiss", "onnxruntime", "torch", "rich"}
    code = f"import sys, index.cli; print({heavy} & set(sys.modules))"
    seen = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert seen.stdout == "set()\n"


def test_the_default_pixel_cap_is_the_one_that_decoding_uses() -> None:
    from index.images import MAX_PIXELS as DECODED

    assert BuildConfig().max_pixels == MAX_PIXELS == DECODED


def test_results_go_to_stdout_alone(gallery: Path) -> None:
    image = gallery.parent / "images" / "red" / "3.png"
    code = "import sys; from index.cli import search; search(sys.argv[1:])"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(gallery), str(image), "--json"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert json.loads(ran.stdout)["results"][0]["path"] == "red/3.png"
    assert ran.stderr == ""


def test_skipped_files_are_listed_with_their_reasons(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (image_folder / "red" / "new\nline.jpg").write_bytes(b"<html>")
    (image_folder / "empty.jpg").write_bytes(b"")
    build = invoke(cli.index_group, "build", tiny_model, image_folder, "--out", tmp_path / "g")
    assert f"list them: retrieval index skipped {tmp_path}/g" in build.stdout
    listed = invoke(cli.index_group, "skipped", tmp_path / "g").stdout.splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [
        ["empty-file", "empty.jpg"],
        ["not-an-image", "red/new\\nline.jpg"],
    ]
    document = json.loads(invoke(cli.index_group, "skipped", tmp_path / "g", "--json").stdout)
    assert [entry["reason"] for entry in document["skipped"]] == ["empty-file", "not-an-image"]


def test_a_run_folder_in_place_of_a_model_is_told_apart(tmp_path: Path, image_folder: Path) -> None:
    (tmp_path / "run").mkdir()
    result = invoke(cli.index_group, "build", tmp_path / "run", image_folder, "--out", tmp_path / "g")
    assert "found a folder; if it is a training run, export it first" in str(result.exception)
