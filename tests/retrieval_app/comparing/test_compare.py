"""`retrieval compare` as people and programs call it: what it says, what it embeds, and what it refuses."""

import csv
import shutil
import tarfile
from pathlib import Path

import pytest

import retrieval_app
from index.durable import hash_file
from index.errors import InputError, ModelFileError
from index.model.builtin import BUILTIN_MODEL
from index.public import build
from retrieval_app.commands.cli import main
from retrieval_app.comparing.public import Candidate, read_candidates
from tests.index.galleries import count_cached, count_seen
from tests.models import write_tiny_model
from tests.photos import KINDS, write_photos

COUNT = 40


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty photos of four kinds, a broken file, and three models; nothing may be written there."""
    work = tmp_path_factory.mktemp("compare")
    write_photos(work / "photos", kinds=KINDS[:4], pictures_per_kind=10, seed=0, size=48)
    (work / "photos" / KINDS[0] / "broken.jpg").write_bytes(b"<html>not found</html>")
    for seed, name in enumerate(("one", "two", "three")):
        write_tiny_model(work / f"{name}.onnx", seed=seed)
    return work


def run(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["compare", *map(str, words)]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_tables_and_files_are_written(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    text = run(capsys, work / "photos", "builtin", f"tiny={work / 'one.onnx'}", "--out", out, "--cache", tmp_path / "c")
    assert text.splitlines()[2].endswith(("] better", "] worse", "] not clear"))
    assert "skipped files: 1 not-an-image" in text
    assert sorted(path.name for path in out.iterdir()) == ["queries.csv"]
    with (out / "queries.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {"path", "label", "right builtin", "map_at_r builtin", "right tiny", "map_at_r tiny"} < rows[0].keys()
    assert len(rows) == COUNT
    assert rows[0]["sha256"] == hash_file(work / "photos" / rows[0]["path"])


def test_only_new_candidates_are_embedded(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, models = work / "photos", [work / f"{name}.onnx" for name in ("one", "two", "three")]
    with count_seen(monkeypatch) as seen:
        first = retrieval_app.compare(photos, models[:2], tmp_path / "out", cache=tmp_path / "cache")
        assert sum(seen) == 2 * COUNT
        seen.clear()
        second = retrieval_app.compare(photos, models, tmp_path / "out", cache=tmp_path / "cache")
        assert sum(seen) == COUNT
        assert [one["embedded"] for one in second["candidates"]] == [0, 0, COUNT]
        assert [one["from_cache"] for one in second["candidates"]] == [COUNT, COUNT, 0]
        seen.clear()
        report = build(models[2], photos, tmp_path / "gallery", cache=tmp_path / "cache")
        assert (seen, report.from_cache, report.indexed) == ([], COUNT, COUNT)
    assert [one["recall"] for one in second["candidates"][:2]] == [one["recall"] for one in first["candidates"]]


def test_images_may_be_an_archive_and_labels_may_come_from_a_file(work: Path, tmp_path: Path) -> None:
    photos, models = work / "photos", [work / "one.onnx", work / "two.onnx"]
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(photos, arcname=".")
    labels, flat = tmp_path / "labels.csv", tmp_path / "flat"
    flat.mkdir()
    paths = [Path(shutil.copy(path, flat)) for path in sorted(photos.glob("*/*-*.jpg"))]
    labels.write_text("path,label\n" + "".join(f"{path},{path.name.partition('-0')[0]}\n" for path in paths))
    found = [
        retrieval_app.compare(images, models, tmp_path / "out", cache=tmp_path / "cache", labels=given)
        for images, given in ((photos, None), (tmp_path / "photos.tar", None), (flat, labels))
    ]
    assert [one["candidates"][0]["from_cache"] for one in found] == [0, COUNT, COUNT]
    recall = [[one["recall"] for one in each["candidates"]] for each in found]
    assert recall[0] == recall[1] == recall[2]


def test_a_failing_model_ends_the_comparison_and_what_was_embedded_is_kept(work: Path, tmp_path: Path) -> None:
    fussy = write_tiny_model(tmp_path / "fussy.onnx", only_batches_of=3)
    with pytest.raises(ModelFileError, match=r"fussy\.onnx: the model failed"):
        retrieval_app.compare(work / "photos", [work / "one.onnx", fussy], tmp_path / "out", cache=tmp_path / "c")
    assert count_cached(tmp_path / "c") == COUNT
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["photos", "one.onnx", "two.onnx", "--out", "photos/out"], "lies inside the images in photos"),
        (["photos/lime", "one.onnx", "two.onnx", "--out", "out"], "none of 10 images has a label"),
        (["photos", "one.onnx", "two.onnx", "--out", "taken"], "exists already, and is not what this command"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(
    work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    for name in ("photos", "one.onnx", "two.onnx", "three.onnx"):
        (tmp_path / name).symlink_to(work / name)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/queries.csv").write_text("somebody's")
    monkeypatch.chdir(tmp_path)
    assert message in run(capsys, *words, code=1)
    assert (tmp_path / "taken/queries.csv").read_text() == "somebody's"
    assert not (tmp_path / "out").exists()


def test_programs_name_candidates_by_a_mapping_and_hear_of_wrong_options(work: Path, tmp_path: Path) -> None:
    named = {"small": work / "one.onnx", "a=b [/bold]": work / "three.onnx"}
    found = retrieval_app.compare(work / "photos", named, tmp_path / "out", cache=tmp_path / "cache")
    assert [one["name"] for one in found["candidates"]] == list(named)
    with pytest.raises(InputError, match="k must be whole numbers"):
        retrieval_app.compare(work / "photos", named, tmp_path / "out", k=[0])
    with pytest.raises(InputError, match="candidates: expected several"):
        retrieval_app.compare(work / "photos", "builtin", tmp_path / "out")
    with pytest.raises(InputError, match="cache: expected a path as str or Path, got False"):
        retrieval_app.compare(work / "photos", named, tmp_path / "out", cache=False)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with two models of one file name, and the folder of a run."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_tiny_model(tmp_path / folder / "model.onnx")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text('{"run_id": "1"}')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_models_runs_galleries_and_the_builtin_model_are_told_apart_and_named(place: Path, small_gallery: Path) -> None:
    shutil.copytree(small_gallery, "found")
    Path("a=b.onnx").write_bytes(Path("one/model.onnx").read_bytes())
    assert read_candidates(
        ["builtin", "one/model.onnx", "run", "found", "small=builtin", "a=b.onnx", "c=a=b.onnx"]
    ) == [
        Candidate("builtin", "model", BUILTIN_MODEL),
        Candidate("model", "model", Path("one/model.onnx")),
        Candidate("run", "run", Path("run")),
        Candidate("found", "model", Path("found/versions/000001/model.onnx")),
        Candidate("small", "model", BUILTIN_MODEL),
        Candidate("a=b", "model", Path("a=b.onnx")),
        Candidate("c", "model", Path("a=b.onnx")),
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["builtin"], "expected 2 to 8 candidates to compare, got 1"),
        (["one/model.onnx", "two/model.onnx"], "2 candidates are called 'model'; give each a name"),
        (["a=builtin", "a=run"], "2 candidates are called 'a'; give each a name of its own: NAME=PATH"),
        (["builtin", "nothing"], "nothing: no such file or folder; a candidate is an .onnx file"),
        (["builtin", "one"], "one: neither a gallery .* nor a run"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(place: Path, given: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_candidates(given)
