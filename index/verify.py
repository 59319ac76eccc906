"""Every byte of a gallery against its manifest, and every part against the others."""

from __future__ import annotations

from pathlib import Path

from index.catalog import read_catalog
from index.embedder import unit_rows
from index.errors import GalleryError
from index.flat_index import read_index
from index.gallery import Gallery, find_version
from index.versions import CATALOG_NAME, INDEX_NAME, MODEL_NAME, Manifest, check_file


def verify_gallery(path: Path) -> tuple[int, list[str]]:
    """Check the current version: the number of its files, and the problems found, none where all is well.

    Raises:
        GalleryError: there is no finished gallery to check.
    """
    root = find_version(path)
    try:
        manifest = Manifest.read(root)
    except GalleryError as error:
        return 0, [str(error)]
    problems = []
    for name in manifest.files:
        try:
            check_file(root, name, manifest, contents=True)
        except GalleryError as error:
            problems.append(str(error))
    if not problems:
        try:
            problems = _compare_parts(path, root)
        except GalleryError as error:
            problems = [str(error)]
    return len(manifest.files), problems


def _compare_parts(path: Path, root: Path) -> list[str]:
    gallery, problems = Gallery.open(path), []
    manifest = gallery.manifest
    with read_catalog(root / CATALOG_NAME) as catalog:
        if catalog.indexed_ids() != gallery.ids.tolist():
            problems.append("the catalogue's indexed images are not those that have vectors")
    if not all(unit_rows(rows.vectors).all() for rows in gallery.shards):
        problems.append("some vectors are not finite unit vectors")
    read_index(root / INDEX_NAME, embedding_dim=manifest.embedding_dim, count=gallery.count)
    if manifest.model_sha256 != manifest.files[MODEL_NAME]["sha256"]:
        problems.append("the model file is not the one that the manifest names")
    return problems
