"""Galleries made with vectors that were embedded before: the same to the byte, and the model sees nothing twice."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from index.catalog.reader import read_catalog
from index.commands.index_group import index_group
from index.versions.versions import find_version
from index.writing.build import build_gallery
from tests.index.batches_seen import count_seen
from tests.index.galleries import SMALL, mixed_folder
from tests.index.invoking import invoke
from tests.models import write_two_output_model

NO_VECTORS = ("manifest.json", "catalog.sqlite", "part.json")  # these have times and identities


def content(gallery: Path) -> dict[str, bytes]:
    """The files of a version that hold vectors, ids and the model, by name."""
    folder = find_version(gallery).folder
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name not in NO_VECTORS}


def catalog(gallery: Path) -> list[tuple[object, ...]]:
    with read_catalog(find_version(gallery).folder / "catalog.sqlite") as opened:
        return [(r.id, r.path, r.status, r.sha256, r.phash, r.measures, r.label) for r in opened.rows()]


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_gallery_is_the_same_to_the_byte_with_and_without_a_cache(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, outputs: int
) -> None:
    folder = mixed_folder(tmp_path / "images")
    model = tiny_model if outputs == 1 else write_two_output_model(tmp_path / "two.onnx")
    cached = replace(SMALL, cache=tmp_path / "cache")
    plain = build_gallery(model_path=model, sources=[folder], out=tmp_path / "plain", config=SMALL)
    build_gallery(model_path=model, sources=[folder / "red"], out=tmp_path / "part", config=cached)
    with count_seen(monkeypatch) as seen:
        mixed = build_gallery(model_path=model, sources=[folder], out=tmp_path / "mixed", config=cached)
        assert (sum(seen), mixed.from_cache, mixed.new_images) == (20, 10, 30)
        seen.clear()
        known = build_gallery(model_path=model, sources=[folder], out=tmp_path / "known", config=cached)
        assert (seen, known.from_cache, known.skipped) == ([], 30, plain.skipped)
    assert content(tmp_path / "plain") == content(tmp_path / "mixed") == content(tmp_path / "known")
    assert catalog(tmp_path / "plain") == catalog(tmp_path / "mixed") == catalog(tmp_path / "known")


def test_the_command_uses_the_users_cache_folder_unless_told_not_to(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))

    def run(out: str, *words: str) -> dict[str, object]:
        result = invoke(index_group, "build", tiny_model, image_folder, "--out", tmp_path / out, "--json", *words)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    assert run("none", "--no-cache")["from_cache"] == 0
    assert not (tmp_path / "home").exists()
    assert run("first")["from_cache"] == 0
    assert (tmp_path / "home/retrieval-app/vectors.sqlite").exists()
    assert run("second")["from_cache"] == 15
    assert run("third", "--no-cache")["from_cache"] == 0
    text = invoke(index_group, "build", tiny_model, image_folder, "--out", tmp_path / "fourth").stdout
    assert "15 of these came from the cache" in text
