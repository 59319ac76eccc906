import json
import shlex
import shutil
from pathlib import Path

import click
import pytest

from index.commands import inspect_commands as cli
from index.errors import GalleryError, InputError
from index.gallery.info import read_info
from index.gallery.selection import Selection
from index.versions.versions import find_version
from index.writing.build import remove_from_gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import SMALL, build, invoke, mixed_folder, rows, run


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """31 images, a copy of one, three broken files, an empty one of an odd name, and one taken out."""
    folder = tmp_path_factory.mktemp("inspect") / "my gallery"
    images = mixed_folder(folder.parent / "images")
    shutil.copy(images / "red" / "1.png", images / "red" / "copy.png")
    draw_image((9, 9, 9), seed=0).save(images / "plain.png")
    (images / "red" / "new\nline.jpg").write_bytes(b"")
    build(images, folder, tiny_model, dedup="exact")
    remove_from_gallery(folder, selection=Selection(patterns=("blue/0.jpg",)), config=SMALL)
    return folder


def run_json(command: click.Command, *words: object) -> dict[str, object]:
    document: dict[str, object] = json.loads("\n".join(run(command, *words, "--json")))
    return document


def test_info_as_json_is_what_the_library_says(gallery: Path) -> None:
    assert run_json(cli.info, gallery) == read_info(gallery)
    assert isinstance(invoke(cli.info, gallery.parent).exception, GalleryError)


def test_a_list_shows_the_measures_that_its_filter_asks_of(gallery: Path) -> None:
    head, first, *_ = run(cli.list_items, gallery, "--where", "small_side < 100 AND brightness > 0 AND label = 'red'")
    assert head.split()[:5] == ["id", "width", "height", "brightness", "status"]
    assert first.split()[1:3] == ["64", "48"]


def test_a_list_holds_what_fulfils_a_filter_and_the_next_page_too(tmp_path: Path, tiny_model: Path) -> None:
    draw_folder(tmp_path / "images", per_class=2)
    (tmp_path / "images" / "red" / "broken.jpg").write_bytes(b"<html>")
    paths = sorted(path.relative_to(tmp_path) for path in (tmp_path / "images").rglob("*.*"))
    lines = [f"{path},{path.parent.name},{10 + number},it's" for number, path in enumerate(paths)]
    (tmp_path / "t.csv").write_text("path,label,price,the shop\n" + "\n".join(lines) + "\n")
    build(tmp_path / "t.csv", tmp_path / "g", tiny_model)
    where = "price  BETWEEN 11 AND 16\n AND \"the shop\" = 'it''s' AND NOT label = 'green'"
    wanted = [str(path) for path in paths[1:] if path.parent.name != "green"]
    items = run_json(cli.list_items, tmp_path / "g", "--where", where)["items"]
    assert isinstance(items, list)
    assert [item["path"] for item in items] == wanted
    assert {item["status"] for item in items} == {"indexed", "skipped"}
    _, *first, more = run(cli.list_items, tmp_path / "g", "--where", where, "--limit", 2)
    _, *second = run(cli.list_items, *shlex.split(more)[4:])
    assert [line.split()[3] for line in (*first, *second)] == wanted
    assert more.count("\n") == 0
    _, line = run(cli.list_items, tmp_path / "g", "--where", "price > 0 AND label = 'red'", "--status", "skipped")
    assert line.split()[1:4] == ["not-an-image", "red", "images/red/broken.jpg"]
    assert run(cli.list_items, tmp_path / "g", "--where", "price < 0") == [f"{tmp_path}/g: no such items"]


def test_a_filter_that_cannot_be_read_is_a_usage_error_and_a_misspelt_column_an_input_error(gallery: Path) -> None:
    unread = invoke(cli.list_items, gallery, "--where", "label = red")
    assert unread.exit_code == 2
    assert "at character 9, red: expected a number, a date, 'text', TRUE or FALSE; found red" in unread.stderr
    twice = invoke(cli.list_items, gallery, "--where", "id = 1", "--where", "id = 2")
    assert (twice.exit_code, "join conditions with AND" in twice.stderr) == (2, True)
    misspelt = invoke(cli.list_items, gallery, "--where", "lable = 'red'").exception
    assert isinstance(misspelt, InputError)
    assert "metadata lable; there are id, label, path, source, tag; did you mean label?" in str(misspelt)


def test_near_duplicates_are_listed_with_their_kept_image(gallery: Path) -> None:
    (kept_image,) = (row.id for row in rows(gallery) if row.path == "red/1.png")
    _, line = run(cli.list_items, gallery, "--status", "duplicate")
    assert line.split()[1:4] == ["duplicate", "red", "red/copy.png"]
    assert line.split()[4:] == ["near-duplicate", "of", f"{kept_image},", "red/1.png"]
    items = run_json(cli.list_items, gallery, "--status", "duplicate")["items"]
    assert isinstance(items, list)
    assert [(item["keeper"], item["keeper_path"]) for item in items] == [(kept_image, "red/1.png")]
    assert items[0]["source"] == str(gallery.parent / "images")
    assert run(cli.list_items, gallery, "--where", "id < 0") == [f"{gallery}: no such items"]


def test_verify_exits_with_1_for_damage_alone(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    build(image_folder, tmp_path / "g", tiny_model)
    assert run(cli.verify, tmp_path / "g") == [f"{tmp_path}/g: 4 files match, 15 images embed as stored"]
    (image_folder / "red" / "1.png").unlink()
    assert run(cli.verify, tmp_path / "g")[1:] == [
        f"note: {image_folder}/red/1.png: cannot be read any more: No such file or directory",
        f"the gallery is not damaged; apply these changes with: retrieval index update {tmp_path}/g",
    ]
    report = run_json(cli.verify, tmp_path / "g")
    assert (report["files"], report["compared"], report["problems"], report["spoilt"]) == (4, 14, [], [])
    for name in ("vectors/00000.npy", "model.onnx"):
        (find_version(tmp_path / "g").folder / name).write_bytes(b"")
    damaged = invoke(cli.verify, tmp_path / "g")
    assert (damaged.exit_code, len(damaged.stdout.splitlines())) == (1, 2)
    result = invoke(cli.verify, tmp_path / "g", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"] == damaged.stdout.splitlines()
    assert isinstance(invoke(cli.verify, tmp_path / "none").exception, GalleryError)
