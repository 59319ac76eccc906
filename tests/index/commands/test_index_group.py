import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from index.commands import index_group as cli
from index.commands.evaluate_command import evaluate
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from tests.conftest import draw_folder
from tests.index.galleries import invoke


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
    again = invoke(cli.index_group, *words, "--json")
    report = json.loads(again.stdout)
    assert (report["version"], report["changed"], report["found"], report["indexed"]) == ("000001", False, 16, 15)
    assert report["skipped_by_reason"] == {"empty-file": 1}
    assert "already up to date" in invoke(cli.index_group, *words).stdout
    assert invoke(cli.index_group, *words, "--strict").exit_code == 1  # after the gallery is made


def test_commands_keep_a_gallery_up_to_date(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    def run(*words: object) -> dict[str, Any]:
        result = invoke(cli.index_group, *words, "--json")
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    gallery, other = tmp_path / "g", draw_folder(tmp_path / "other", per_class=2)
    shutil.copy(image_folder / "red" / "0.jpg", tmp_path / "copy.jpg")
    twice = (image_folder, tmp_path / "copy.jpg")
    assert run("build", tiny_model, *twice, "--dedup", "exact", "--out", tmp_path / "h")["duplicate"] == 1
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
    assert run("tune", gallery, "--recall-target", "0.9")["index"]["recall_target"] == 0.9
    assert invoke(cli.index_group, "tune", gallery, "--index-type", "tree").exit_code == 2
    text = invoke(cli.index_group, "tune", gallery).stdout
    assert text.startswith(f"{gallery}: built version 00000")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "nothing is selected"),
        (("--where", "label = 'violet'"), "no item of the gallery has the label violet; there are blue, "),
        (("*",), "nothing would be left"),
        (("--source", "/nowhere"), "no source of the gallery; its sources are"),
    ],
)
def test_removing_nothing_or_everything_is_refused(gallery: Path, words: tuple[str, ...], problem: str) -> None:
    refused = invoke(cli.index_group, "remove", gallery, *words)
    assert isinstance(refused.exception, InputError)
    assert re.search(problem, str(refused.exception))
    assert Gallery.open(gallery).count == 15


def test_evaluate_wants_a_gallery_or_a_model_with_data(gallery: Path, tiny_model: Path, tmp_path: Path) -> None:
    for words in (
        (),
        (gallery, "--model", tiny_model, "--data", tmp_path),
        ("--model", tiny_model),
        (gallery, "--data", tmp_path),
        (gallery, "--k", "soap"),
        (gallery, "--k", "0"),
    ):
        assert invoke(evaluate, *words).exit_code == 2, words
