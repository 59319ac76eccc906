from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from index.commands import index_group as cli
from index.commands.evaluate_command import evaluate
from index.commands.search_command import search
from index.errors import InputError
from index.evaluation.metrics import K_SETS
from index.gallery.gallery import Gallery
from index.versions.versions import find_version
from index.writing.build import build_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import rows
from tests.index.invoking import invoke


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    build_gallery(model_path=tiny_model, sources=[draw_folder(folder / "images")], out=folder / "gallery")
    return folder / "gallery"


def test_build_reports_as_text_and_as_json(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    (image_folder / "empty.jpg").write_bytes(b"")
    words = ("build", tiny_model, image_folder, "--out", tmp_path / "g", "--batch-size", 4, "--workers", 1)
    text = invoke(cli.index_group, *words)
    assert text.exit_code == 0, text.output
    assert "built version 000001, 15 images" in text.stdout
    assert "1  empty-file  the file has no bytes" in text.stdout
    assert "  3 labels, of 15 images, by folder or table: blue 5, green 5, red 5\n" in text.stdout
    again = invoke(cli.index_group, *words, "--json")
    assert json.loads(again.stdout) == {
        "gallery": str(tmp_path / "g"),
        "version": "000001",
        "changed": False,
        "found": 16,
        "new_images": 0,
        "from_cache": 0,
        "indexed": 15,
        "duplicate": 0,
        "skipped": 1,
        "moved": 0,
        "vanished": 0,
        "removed": 0,
        "skipped_by_reason": {"empty-file": 1},
        "labels": None,
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
    assert find_version(tmp_path / "g").name == "000002"


def test_the_columns_of_a_table_can_be_named(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    table = tmp_path / "products.csv"
    table.write_text("image,class\nimages/red/0.jpg,apple\nimages/red/2.jpg,pear\n")
    build_gallery(model_path=tiny_model, sources=[image_folder / "blue"], out=tmp_path / "g")
    words = ("add", tmp_path / "g", table)
    refused = invoke(cli.index_group, *words)
    assert refused.exit_code == 1
    assert "expected a column path; found image, class" in str(refused.exception)
    assert invoke(cli.index_group, *words, "--path-column", "image", "--label-column", "class").exit_code == 0
    assert {row.label for row in rows(tmp_path / "g")} >= {"apple", "pear"}


def test_a_gallery_is_no_source(gallery: Path, tiny_model: Path, tmp_path: Path) -> None:
    result = invoke(cli.index_group, "build", tiny_model, gallery, "--out", tmp_path / "g")
    assert result.exit_code == 1
    assert f"a gallery, not images. Images are put into it by `retrieval index add {gallery}" in str(
        result.exception
    )
    assert not (tmp_path / "g").exists()


def test_evaluate_scores_a_gallery_or_a_model(gallery: Path, tiny_model: Path) -> None:
    images = gallery.parent / "images"
    scores = json.loads(invoke(evaluate, gallery, "--json", "--k", "4,1").stdout)
    assert set(scores) == {
        "queries", "lone_queries", "recall", "map_at_r", "r_precision", "skipped", "recall_at_1_interval",
        "map_at_r_interval", "mean_class_recall_at_1", "nmi", "per_class", "apart", "reranked",
    }  # fmt: skip
    assert scores["nmi"] is None
    assert scores["per_class"]["red"] == {"queries": 5, "recall_at_1": 1.0}
    low, high = scores["map_at_r_interval"]
    assert low <= scores["map_at_r"] <= high
    assert scores["skipped"] == 0
    assert list(scores["recall"]) == ["1", "4"]
    assert (
        json.loads(invoke(evaluate, "--model", tiny_model, "--data", images, "--k", "1,4", "--json").stdout)
        == scores
    )
    text = invoke(evaluate, gallery, "--query", images).stdout
    assert "Recall@1     100.00 %  [100.00, 100.00]\n" in text
    assert "Class mean   100.00 %  of Recall@1 over 3 labels\n" in text
    assert "lowest Recall@1" not in text  # of so few labels
    assert "NMI" not in text
    assert "over 15 queries" in text
    assert "skipped" not in text


def test_evaluate_keeps_scenes_apart_and_warns_where_they_are_all_that_is_found(
    tiny_model: Path, image_folder: Path
) -> None:
    """Each label is two scenes of one look and a colour of another label, so that only the own scene is like it."""
    rows = ["path,label,group,trip"]
    for number, label in enumerate(("a", "b", "c")):
        for scene in range(2):
            for shot in range(2):
                draw_image((90 * ((number + scene) % 3), 40, 60 * number), seed=10 * number + scene).save(
                    image_folder / (name := f"{label}{'xy'[scene]}{'pq'[shot]}.png")
                )
                rows.append(f"{name},{label},{label}{scene},{label}")
    (table := image_folder / "table.csv").write_text("\n".join(rows) + "\n")
    words = ("--model", tiny_model, "--data", table)
    text, apart = (invoke(evaluate, *words, *more).stdout for more in ((), ("--json",)))
    found = json.loads(apart)["apart"]
    assert (found["images"], found["scenes"], found["found_by"]) == (12, 6, "the column 'group'")
    assert f"apart: Recall@1 {100 * found['recall']['1']:.2f} % where no image finds one of its own scene" in text
    assert "(12 images in 6 scenes, by the column 'group')" in text
    assert "warning: Recall@1 above mostly says that shots of a scene find each other" in text
    alone = invoke(evaluate, *words, "--groups", "trip").stdout
    assert "warning: every image finds only its own scene (12 images in 3 scenes, by the column 'trip')" in alone
    assert invoke(evaluate, *words, "--groups", "none").exit_code == 1


def test_evaluate_takes_the_k_of_a_dataset_by_name(gallery: Path) -> None:
    for name, ks in K_SETS.items():
        scores = json.loads(invoke(evaluate, gallery, "--k", name, "--json").stdout)
        assert list(scores["recall"]) == [str(k) for k in ks]
    told = invoke(evaluate, gallery, "--k", "soap")
    assert told.exit_code == 2
    named = re.search("one of (.*)", " ".join(told.output.split()))
    assert named is not None
    assert re.findall("[a-z0-9-]{3,}", named[1]) == list(K_SETS)


def test_a_gallery_is_kept_up_to_date_command_by_command(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    def run(*words: object) -> dict[str, object]:
        result = invoke(cli.index_group, *words, "--json")
        assert result.exit_code == 0, result.output
        report: dict[str, object] = json.loads(result.stdout)
        return report

    gallery, other = tmp_path / "g", draw_folder(tmp_path / "other", per_class=2)
    run("build", tiny_model, image_folder, "--out", gallery)
    added = run("add", gallery, other, "--batch-size", 4)
    assert (added["new_images"], added["indexed"]) == (6, 21)
    (image_folder / "red" / "0.jpg").rename(image_folder / "blue" / "was red.jpg")
    (image_folder / "red" / "1.png").unlink()
    updated = run("update", gallery)
    assert (updated["moved"], updated["vanished"], updated["new_images"], updated["indexed"]) == (1, 1, 0, 20)
    listed = invoke(cli.index_group, "remove", gallery, "blue/*", "--dry-run").stdout.splitlines()
    assert listed[-1] == "8 would be removed"
    removed = run("remove", gallery, "blue/*")
    assert (removed["removed"], removed["indexed"], removed["skipped_by_reason"]) == (8, 12, {"removed": 8})
    assert run("remove", gallery, "--source", other)["indexed"] == 8
    moved = image_folder.rename(tmp_path / "moved")
    refused = invoke(cli.index_group, "build", tiny_model, moved, "--out", gallery)
    assert "--root" in str(refused.exception)
    assert run("update", gallery, "--root", moved)["new_images"] == 0
    back = run("add", gallery, moved / "blue")
    assert (back["indexed"], back["new_images"]) == (14, 6)
    text = invoke(cli.index_group, "compact", gallery).stdout
    assert text.startswith(f"{gallery}: built version 00000")


def test_what_fulfils_a_filter_is_removed_once_it_was_shown(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    paths = sorted(path.relative_to(tmp_path) for path in image_folder.glob("*/*"))
    lines = (f"{path},{path.parent.name},{number}" for number, path in enumerate(paths))
    (tmp_path / "t.csv").write_text("path,label,price\n" + "\n".join(lines) + "\n")
    build_gallery(model_path=tiny_model, sources=[tmp_path / "t.csv"], out=tmp_path / "g")
    words = ("remove", tmp_path / "g", "--where", "price >= 3 AND label IN ('blue', 'green')")
    *shown, count = invoke(cli.index_group, *words, "--dry-run").stdout.splitlines()
    assert [line.split()[2] for line in shown[1:]] == [str(path) for path in paths[3:10]]
    assert count == "7 would be removed"
    assert Gallery.open(tmp_path / "g").count == 15
    report = json.loads(invoke(cli.index_group, *words, "images/blue", "--json").stdout)
    assert (report["removed"], report["indexed"]) == (2, 13)
    assert json.loads(invoke(cli.index_group, *words, "--json").stdout)["indexed"] == 8
    assert [row.path for row in rows(tmp_path / "g") if row.status == "indexed"] == [
        str(path) for path in (*paths[:3], *paths[10:])
    ]
    misspelt = invoke(cli.index_group, "remove", tmp_path / "g", "--where", "prize < 5").exception
    assert isinstance(misspelt, InputError)
    assert "prize; there are id, label, path, price, source; did you mean price?" in str(misspelt)
    assert invoke(cli.index_group, "remove", tmp_path / "g", "--where", "price <").exit_code == 2


def test_repeated_images_are_set_aside_where_it_is_asked_for(
    tmp_path: Path, tiny_model: Path, image_folder: Path
) -> None:
    shutil.copy(image_folder / "red" / "0.jpg", image_folder / "red" / "zz copy.jpg")
    image = Image.open(image_folder / "blue" / "1.png")
    image.save(image_folder / "blue" / "1 saved again.jpg", quality=95)
    words = ("build", tiny_model, image_folder, "--out", tmp_path / "g", "--json")
    for kind, duplicates in (("off", 0), ("exact", 1), ("near", 2), ("exact", 1), ("off", 0)):
        report = json.loads(invoke(cli.index_group, *words, "--dedup", kind).stdout)
        assert (report["indexed"], report["duplicate"], report["found"]) == (17 - duplicates, duplicates, 17), kind


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "nothing is selected"),
        (("nowhere/*",), r"no item of the gallery is meant by: nowhere/\*; nothing was removed"),
        (("--id", "1,999"), "meant by: 999"),
        (("--id", "1", "--id", "998"), "meant by: 998"),
        (("--label", "violet"), "no item of the gallery has the label violet; there are blue, "),
        (("*",), "nothing would be left"),
        (("--source", "/nowhere"), "no source of the gallery; its sources are"),
    ],
)
def test_a_removal_that_means_nothing_or_everything_is_refused(
    tmp_path: Path, tiny_model: Path, image_folder: Path, words: tuple[str, ...], problem: str
) -> None:
    build_gallery(model_path=tiny_model, sources=[image_folder], out=tmp_path / "g")
    refused = invoke(cli.index_group, "remove", tmp_path / "g", *words)
    assert isinstance(refused.exception, InputError)
    assert re.search(problem, str(refused.exception))
    assert Gallery.open(tmp_path / "g").count == 15


def test_evaluate_wants_a_gallery_or_a_model_with_data(gallery: Path, tiny_model: Path, tmp_path: Path) -> None:
    for words in (
        (),
        (gallery, "--model", tiny_model, "--data", tmp_path),
        ("--model", tiny_model),
        (gallery, "--data", tmp_path),
        (gallery, "--k", "1,x"),
        (gallery, "--k", "0"),
    ):
        assert invoke(evaluate, *words).exit_code == 2, words


def test_evaluate_says_what_ranking_again_is_worth_and_search_does_it(gallery: Path) -> None:
    scores = json.loads(invoke(evaluate, gallery, "--rerank", "--json").stdout)["reranked"]
    text = invoke(evaluate, gallery, "--rerank").stdout
    assert f"MAP@R {100 * scores['map_at_r'][1]:.2f} %, plain {100 * scores['map_at_r'][0]:.2f} %" in text
    ranked = json.loads(invoke(search, gallery, "--id", "3", "--rerank", "--json").stdout)["results"]
    expected = Gallery.open(gallery).search(Gallery.open(gallery).vector(3), exclude_id=3, rerank=True)
    assert [hit["id"] for hit in ranked] == [hit.id for hit in expected]
