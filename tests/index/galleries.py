"""Building small galleries, and reading what is in them."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from index.catalog.reader import read_catalog
from index.catalog.rows import CatalogRow
from index.embedding.cached import CACHE_NAME
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.images.preprocess import Pixels
from index.model.embedder import Embedder
from index.versions.manifest import describe_file
from index.versions.versions import find_version, set_current
from index.writing.build import build_gallery
from index.writing.build_config import BuildConfig
from index.writing.publishing import BuildReport
from tests.conftest import draw_folder

ROOT = Path(__file__).parents[2]
SMALL = BuildConfig(batch_size=4, workers=2, checkpoint_images=8)


def build(folder: Path, out: Path, model: Path, **options: object) -> BuildReport:
    return build_gallery(model_path=model, sources=[folder], out=out, config=SMALL, **options)


@contextmanager
def stopped_at(moment: str) -> Iterator[None]:
    """What is done in it is interrupted where it calls this function of `index`, and has to be."""

    def stop(*words: object, **options: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(f"index.{moment}", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


@contextmanager
def few_for_an_index(least: int = 20) -> Iterator[None]:
    """So few images are enough for an index that is no scan; one that is built meanwhile is never passed over."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("index.vectors.ann_building.MIN_ROWS", least)
        patched.setattr(
            "index.vectors.ann_building._compare_costs", lambda *_: {"rows_per_effort": 0.0, "rows_per_candidate": 0.0}
        )
        yield


def build_ann(
    folder: Path, out: Path, model: Path, *, index_type: str = "hnsw", recall_target: float = 0.98, **options: object
) -> BuildReport:
    """A gallery of twenty images or more with an index file."""
    wanted = {"index_type": index_type, "recall_target": recall_target}
    with few_for_an_index():
        report = build(folder, out, model, index=wanted, **options)
    assert Gallery.open(out).manifest.index["type"] == index_type
    return report


def change_manifest(gallery: Path, *, index: Mapping[str, object] | None = None, **changes: object) -> None:
    """Change a manifest, and let it and CURRENT name the files as they are: only their content can be wrong."""
    folder = find_version(gallery).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {name: describe_file(folder / name) for name in manifest["files"]}
    changed = {**manifest, "files": files, "index": {**manifest["index"], **(index or {})}, **changes}
    (folder / "manifest.json").write_text(json.dumps(changed))
    set_current(gallery, folder)


def change_catalog(gallery: Path, statement: str, *values: object) -> None:
    """Change the catalogue of a gallery, and sign it again."""
    with closing(sqlite3.connect(find_version(gallery).folder / "catalog.sqlite", isolation_level=None)) as catalog:
        catalog.execute(statement, values)
    change_manifest(gallery)


def flip(path: Path) -> None:
    """Damage one bit of a file, in all versions that share it."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def rows(gallery: Path) -> list[CatalogRow]:
    with read_catalog(find_version(gallery).folder / "catalog.sqlite") as catalog:
        return list(catalog.rows())


def vectors(gallery: Path) -> dict[int, bytes]:
    opened = Gallery.open(gallery)
    assert verify_gallery(gallery).problems == []
    return {int(key): opened.vector(int(key)).tobytes() for key in opened.ids}


def content(gallery: Path) -> dict[str, bytes]:
    """The files of the current version by name, but for those that have times and identities."""
    folder = find_version(gallery).folder
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    others = ("manifest.json", "catalog.sqlite", "part.json")
    return {name: path.read_bytes() for name, path in files.items() if name not in others}


def mixed_folder(folder: Path) -> Path:
    """Thirty good images, and a broken one among every class."""
    draw_folder(folder, per_class=10)
    for name in ("blue", "green", "red"):
        (folder / name / "5_broken.jpg").write_bytes(b"<html>not found</html>")
    return folder


def invoke(command: click.Command, *words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def run(command: click.Command, *words: object) -> list[str]:
    """The lines of its output; it has to end well, without a word on stderr."""
    result = invoke(command, *words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout.splitlines()


@contextmanager
def count_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many images the model is given from now on, a number a batch."""
    seen: list[int] = []
    embed = Embedder.embed_padded

    def note(self: Embedder, pixels: Pixels, *, batch_size: int) -> np.ndarray:
        seen.append(len(pixels))
        return embed(self, pixels, batch_size=batch_size)

    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "embed_padded", note)
        yield seen


def count_cached(folder: Path) -> int:
    if not (folder / CACHE_NAME).is_file():
        return 0
    with closing(sqlite3.connect(folder / CACHE_NAME, timeout=10)) as database:
        try:
            return int(database.execute("SELECT count(*) FROM vectors").fetchone()[0])
        except sqlite3.OperationalError:  # it is being made
            return 0
