"""Galleries of other people: what their catalogue says is read no further than a source, and spoils one row alone."""

import hashlib
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from index.catalog.rows import read_metadata
from index.errors import ImageError, InputError
from index.filters.parser import find_words, parse_filter
from index.gallery.gallery import Gallery
from index.sources.reading import read_indexed
from index.versions.versions import find_version
from retrieval_app.insights.facet_filters import count_facets
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build, change_manifest

SPOILED: Sequence[object] = (
    "", "[1, 2]", "null", '{"x": NaN}', '{"x": 1', '{"a":' * 5000 + "1" + "}" * 5000, b"\xff\xfe",
    b"{}", '{"x": ' + "9" * 5000 + "}", '{"x": "' + "a" * (1 << 24) + '"}',
)  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Six images below a folder, and one beside it that is none of the gallery."""
    folder = tmp_path_factory.mktemp("foreign") / "home"
    images = draw_folder(folder / "images", per_class=2)
    draw_image((1, 2, 3), seed=9).save(folder / "secret.png")
    build(images, folder / "gallery", tiny_model)
    return folder


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Path:
    """A copy of the gallery and of its images, which a test may change."""
    home = shutil.copytree(built, tmp_path / "home")
    forge(home / "gallery", "UPDATE sources SET location = ?", str(home / "images").encode())
    return home / "gallery"


def forge(gallery: Path, statement: str, *values: object) -> None:
    """Change the catalogue of a gallery, and sign it again."""
    with closing(sqlite3.connect(find_version(gallery).folder / "catalog.sqlite", isolation_level=None)) as catalog:
        catalog.execute(statement, values)
    change_manifest(gallery)


def read(gallery: Path, image_id: int) -> bytes:
    return read_indexed(Gallery.open(gallery).place(image_id))


@pytest.mark.parametrize("way", ["up", "absolute", "up and down", "an archive", "no source"])
def test_a_row_leads_nowhere_outside_of_its_source(gallery: Path, way: str) -> None:
    secret = gallery.parent / "secret.png"
    path = {"absolute": str(secret), "up and down": "red/../../secret.png"}.get(way, "../secret.png").encode()
    forge(gallery, "UPDATE images SET path = ?, sha256 = ? WHERE id = 1", path,
          hashlib.sha256(secret.read_bytes()).hexdigest())  # fmt: skip
    if way == "an archive":
        forge(gallery, "UPDATE images SET archive = path, path = 'x/y.png', starts_at = 0 WHERE id = 1")
    if way == "no source":
        forge(gallery, "UPDATE images SET source = 99, path = 'secret.png' WHERE id = 1")
    with pytest.raises(InputError, match="names a file outside of its source"):
        read(gallery, 1)
    assert read(gallery, 2)


def test_a_source_that_was_never_the_gallery_s_shows_no_file_that_was_not_indexed(gallery: Path) -> None:
    secret = gallery.parent / "secret.png"
    forge(gallery, "UPDATE sources SET location = ?", str(gallery.parent).encode())
    forge(gallery, "UPDATE images SET path = ? WHERE id = 1", secret.name.encode())
    with pytest.raises(ImageError, match="changed since it was indexed"):
        read(gallery, 1)


def test_a_link_that_the_scan_followed_is_followed(tmp_path: Path, tiny_model: Path) -> None:
    images = draw_folder(tmp_path / "images", per_class=2)
    draw_image((1, 2, 3), seed=9).save(tmp_path / "outside.png")
    (images / "red" / "link.png").symlink_to(tmp_path / "outside.png")
    build(images, tmp_path / "gallery", tiny_model)
    opened = Gallery.open(tmp_path / "gallery")
    [linked] = [row.id for row in opened.rows(opened.ids.tolist()) if row.path == "red/link.png"]
    assert read(tmp_path / "gallery", linked) == (tmp_path / "outside.png").read_bytes()


def test_a_file_that_changed_since_is_not_given(gallery: Path) -> None:
    opened = Gallery.open(gallery)
    place = opened.place(1)
    place.file.write_bytes((gallery.parent / "secret.png").read_bytes())
    with pytest.raises(ImageError, match="retrieval index update") as changed:
        read_indexed(place)
    assert changed.value.reason == "changed"


@pytest.mark.parametrize("metadata", SPOILED, ids=range(len(SPOILED)))
def test_spoiled_metadata_spoils_one_row_and_no_list(gallery: Path, metadata: object) -> None:
    forge(gallery, "UPDATE images SET metadata = ?", '{"shop": "a", "price": 3}')
    forge(gallery, "UPDATE images SET metadata = ? WHERE id = 1", metadata)
    opened = Gallery.open(gallery)
    rows = opened.rows(opened.ids.tolist())
    assert [dict(row.metadata) for row in rows] == [{}] + [{"shop": "a", "price": 3}] * 5
    assert opened.matching_ids(parse_filter("price < 4")).tolist() == [2, 3, 4, 5, 6]
    assert opened.matching_ids(find_words("a")).tolist() != []
    facets = {facet.name: facet for facet in count_facets(opened, None).facets}
    assert "shop" in facets
    with opened.catalog(asks_metadata=True) as catalog:
        told = catalog.connection.execute("SELECT count(*) FROM images, json_each(images.metadata) WHERE images.id > 1")
        assert told.fetchone() == (2 * 5,)
    assert [hit.metadata for hit in opened.search(opened.vector(1), k=1)] == [{}]


def test_a_label_that_is_no_text_spoils_one_row(gallery: Path) -> None:
    for label in (b"\xff\xfe", b"red"):
        forge(gallery, "UPDATE images SET label = ? WHERE id = 1", label)
        opened = Gallery.open(gallery)
        labels = [row.label for row in opened.rows(opened.ids.tolist())]
        assert labels[0] is None
        assert all(labels[1:])
        assert count_facets(opened, None).total == 6
    forge(gallery, "UPDATE images SET label = CAST(? AS TEXT) WHERE id = 1", b"re\xff")
    assert Gallery.open(gallery).rows([1])[0].label == "re\ufffd"


def test_sound_metadata_is_read_as_it_is() -> None:
    assert read_metadata('{"a": [1, {"b": "\\ud800"}], "c": 1e5}') == {"a": [1, {"b": "\ud800"}], "c": 1e5}
    assert read_metadata(None) == {}
