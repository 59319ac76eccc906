import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from index.commands.search_command import search
from index.errors import InputError
from index.gallery.gallery import Gallery
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build
from tests.models import write_two_output_model


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Fifteen images of a table that gives them labels and prices."""
    folder = tmp_path_factory.mktemp("search")
    images = draw_folder(folder / "images")
    paths = sorted(path.relative_to(folder) for path in images.glob("*/*"))
    rows = [f"{path},{path.parent.name},{number}" for number, path in enumerate(paths)]
    (folder / "table.csv").write_text("path,label,price\n" + "\n".join(rows) + "\n")
    build(folder / "table.csv", folder / "gallery", tiny_model)
    return folder / "gallery"


@pytest.fixture
def photos(tmp_path: Path, gallery: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `photos` in the working directory: a red image, one that is broken, and a blue one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes((gallery.parent / "images" / "red" / "3.png").read_bytes())
    (tmp_path / "photos" / "b.png").write_text("<html>")
    draw_image((40, 60, 220), seed=77).save(tmp_path / "photos" / "c.png")
    return tmp_path / "photos"


def invoke(*words: object) -> Result:
    return CliRunner().invoke(search, [str(word) for word in words])


def results(*words: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(invoke(*words, "--json").stdout)["results"]
    return found


@pytest.mark.slow
def test_a_first_search_loads_nothing_that_it_has_no_use_for(gallery: Path, photos: Path) -> None:
    code = (
        "import sys; from retrieval_app.commands.cli import main; "
        f"assert main(['search', {str(gallery)!r}, 'photos/a.png']) == 0; "
        "heavy = ('torch', 'faiss', 'ssl', 'importlib.metadata', 'PIL.PdfImagePlugin', 'training.public'); "
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert results(gallery, photos / "a.png")[0]["path"] in done.stdout


def test_one_image_prints_a_table_or_json(gallery: Path, photos: Path) -> None:
    lines = invoke(gallery, "photos/a.png", "-k", 3).stdout.splitlines()
    assert lines[0].split() == ["rank", "score", "label", "path"]
    assert lines[1].split() == ["1", "1.0000", "red", "images/red/3.png"]
    assert len(lines) == 4
    found = results(gallery, "photos/a.png", "-k", 3)
    assert (found[0]["rank"], found[0]["path"], found[0]["label"]) == (1, "images/red/3.png", "red")
    assert (found[0]["source"], found[0]["metadata"]) == (str(gallery.parent), {"price": 13})
    assert len(results(gallery, "photos/a.png")) == 10
    assert len(results(gallery, "photos/a.png", "-k", 99)) == 15


def test_many_queries_are_one_json_document(gallery: Path, photos: Path) -> None:
    done = invoke(gallery, "photos", "-k", 2)
    assert [done.stdout.splitlines()[line] for line in (0, 4, 5)] == ["photos/a.png", "", "photos/c.png"]
    assert done.stderr.splitlines()[0].startswith("skipped: photos/b.png: not-an-image: ")
    assert done.stderr.splitlines()[1:] == ["skipped queries: 1 of 3"]
    found = json.loads(invoke(gallery, "photos", "photos/a.png", "-k", 3, "--json").stdout)["queries"]
    assert [entry["query"] for entry in found] == ["photos/a.png", "photos/b.png", "photos/c.png", "photos/a.png"]
    assert [set(entry) - {"query", "results"} for entry in found] == [set(), {"problem"}, set(), set()]
    assert found[0]["results"] == found[3]["results"] == results(gallery, "photos/a.png", "-k", 3)
    assert found[1]["results"] == []
    assert "not-an-image" in found[1]["problem"]


def test_results_are_written_to_a_file(gallery: Path, photos: Path) -> None:
    done = invoke(gallery, "photos", "--id", 5, "-k", 2, "--out", "r.csv")
    assert (done.exit_code, done.stdout) == (0, "r.csv: 6 results of 3 queries\n")
    assert "skipped queries: 1 of 4" in done.stderr
    with open("r.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    queries = ["photos/a.png"] * 2 + ["photos/c.png"] * 2 + ["id:5"] * 2
    assert [(row["query"], row["rank"]) for row in rows] == list(zip(queries, ["1", "2"] * 3, strict=True))
    assert (rows[0]["path"], rows[0]["label"], rows[0]["metadata"]) == ("images/red/3.png", "red", '{"price": 13}')
    assert sorted(path.name for path in Path().iterdir()) == ["photos", "r.csv"]


def test_nothing_is_written_where_no_query_could_be_used(gallery: Path, photos: Path) -> None:
    Path("r.csv").write_text("earlier")
    done = invoke(gallery, "photos/b.png", "none.jpg", "--out", "r.csv")
    assert isinstance(done.exception, InputError)
    assert "no query could be used" in str(done.exception)
    assert len(done.stderr.splitlines()) == 2
    assert Path("r.csv").read_text() == "earlier"
    Path("hollow").mkdir()
    assert "hold no image" in str(invoke(gallery, "hollow").exception)


def test_what_makes_no_sense_is_a_usage_error(gallery: Path, photos: Path) -> None:
    for words in ((), ("photos/a.png", "-k", 0), ("photos/a.png", "--min-score", 2), ("--id", "1,x"), ("--id", "")):
        assert invoke(gallery, *words).exit_code == 2, words
    assert isinstance(invoke(gallery, "photos/a.png", "--min-score", "nan").exception, InputError)


def test_a_bad_results_path_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gallery, "open", lambda *_, **__: pytest.fail("opened"))
    for out in (tmp_path, tmp_path / "r.txt", tmp_path / "none" / "r.csv"):
        assert isinstance(invoke("gallery", "q.jpg", "--out", out).exception, InputError)


def test_names_that_terminals_would_obey_are_escaped(gallery: Path, photos: Path) -> None:
    odd = os.fsdecode(b"photos/\x1b[2J\xff.png")
    (photos / "a.png").rename(odd)
    (photos / "b.png").unlink()
    assert invoke(gallery, "photos", "-k", 1).stdout.startswith("photos/\\x1b[2J\\udcff.png\n")
    asked, _ = json.loads(invoke(gallery, "photos", "--json").stdout)["queries"]
    assert asked["query"] == "photos/\x1b[2J\\xff.png"
    Path(odd).write_bytes(b"")
    skipped = invoke(gallery, "photos").stderr
    assert skipped.startswith("skipped: photos/\\x1b[2J\\udcff.png: empty-file")


def test_by_picture_copies_are_told_from_what_is_only_alike(tmp_path: Path, image_folder: Path) -> None:
    model = write_two_output_model(tmp_path / "two.onnx")
    build(image_folder, tmp_path / "g", model)
    words = (tmp_path / "g", image_folder / "red" / "0.jpg", "--by", "copy", "-k", 15)
    heading, first, *others = invoke(*words).stdout.splitlines()
    assert heading.split() == ["rank", "score", "label", "path"]
    assert first.split() == ["1", "1.0000", "copy", "red", "red/0.jpg"]
    found = results(*words)
    assert [hit["is_copy"] for hit in found] == [" copy " in line for line in (first, *others)]
    assert {hit["is_copy"] for hit in found} == {True, False}
    assert "is_copy" not in results(*words[:2])[0]
