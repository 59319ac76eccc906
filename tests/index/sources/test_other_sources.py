"""A source whose items are no files of this machine: one class and one line of the registry are all that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import pytest

from index.errors import ImageError
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.images.image_files import CheckContent, check_content
from index.sources import registry
from index.sources.items import FoundItem, ItemFields, Place
from index.sources.known import NOTHING_KNOWN, Known
from index.sources.reading import read_indexed
from index.sources.source import Reach
from index.writing.build import build_gallery, update_gallery
from tests.conftest import draw_image
from tests.index.galleries import SMALL, build
from tests.index.hostile import encode

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220)}
PICTURES = {f"{name}/{n}.png": encode(draw_image(colour, seed=n), "PNG") for name, colour in COLOURS.items()
            for n in range(4)}  # fmt: skip


@dataclass(frozen=True)
class DrawnSource:
    """Pictures of this module, under `drawn://`."""

    location: str

    kind: ClassVar[str] = "drawn"
    reach: ClassVar[Reach] = Reach.WHOLE
    is_one_item: ClassVar[bool] = False

    @property
    def root(self) -> str:
        return self.location

    @classmethod
    def find(cls, text: str) -> Self | None:
        return cls(text) if text.startswith("drawn://") else None

    def at(self, location: str, resolve: Callable[[str], str] = str) -> Self:
        return type(self)(location)

    def is_there(self) -> bool:
        return True

    def scan(self, *, known: Known = NOTHING_KNOWN) -> Iterator[FoundItem]:
        for path, data in sorted(PICTURES.items()):
            yield FoundItem(path, len(data), 1, label=path.split("/")[0])

    def locate(self, item: ItemFields) -> Place:
        return Place(Path(item.path), f"{self.location}/{item.path}", reader=self.read)

    def read(self, place: Place, *, check: CheckContent = check_content) -> bytes:
        data = PICTURES.get(str(place.file))
        if data is None:
            raise ImageError(path=place.name, reason="unreadable", detail="not there any more")
        check(data, name=place.name)
        return data


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SOURCES", (DrawnSource, *registry.SOURCES))


def test_a_gallery_of_no_files_is_built_moved_searched_updated_and_verified(
    tmp_path: Path, tiny_model: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build("drawn://here", tmp_path / "made", tiny_model).indexed == len(PICTURES)
    (tmp_path / "made").rename(tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    image_id = int(gallery.ids[5])
    [image] = gallery.search(gallery.vector(image_id), k=1)
    assert (image.id, image.label, image.location) == (
        image_id, image.path.split("/")[0], f"drawn://here/{image.path}")  # fmt: skip
    assert read_indexed(gallery.place(image_id)) == PICTURES[image.path]
    report = verify_gallery(tmp_path / "g", read_images=True)
    assert (report.problems, report.spoilt, report.notes) == ([], [], [])
    assert not update_gallery(tmp_path / "g", config=SMALL).changed
    monkeypatch.delitem(PICTURES, "blue/3.png")
    assert update_gallery(tmp_path / "g", config=SMALL).indexed == len(PICTURES)


def test_it_lies_beside_folders(tmp_path: Path, tiny_model: Path, image_folder: Path) -> None:
    sources = ["drawn://here", image_folder]
    build_gallery(model_path=tiny_model, sources=sources, out=tmp_path / "g", config=SMALL)
    assert Gallery.open(tmp_path / "g").count == len(PICTURES) + 15
