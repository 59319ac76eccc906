"""Building small galleries, and reading what is in them."""

from __future__ import annotations

from pathlib import Path

from index.build import BuildConfig, BuildReport, build_gallery
from index.catalog import CatalogRow, read_catalog
from index.gallery import Gallery, find_version
from index.verify import verify_gallery
from tests.conftest import draw_folder

ROOT = Path(__file__).parents[2]


SMALL = BuildConfig(batch_size=4, workers=2, checkpoint_images=8)


def build(folder: Path, out: Path, model: Path, **options: object) -> BuildReport:
    return build_gallery(model_path=model, sources=[folder], out=out, config=SMALL, **options)


def rows(gallery: Path) -> list[CatalogRow]:
    with read_catalog(find_version(gallery).folder / "catalog.sqlite") as catalog:
        return list(catalog.rows())


def vectors(gallery: Path) -> dict[int, bytes]:
    opened = Gallery.open(gallery)
    assert verify_gallery(gallery).problems == []
    return {int(key): opened.vector(int(key)).tobytes() for key in opened.ids}


def mixed_folder(folder: Path) -> Path:
    """Thirty good images, and a broken one among every class."""
    draw_folder(folder, per_class=10)
    for name in ("blue", "green", "red"):
        (folder / name / "5_broken.jpg").write_bytes(b"<html>not found</html>")
    return folder
