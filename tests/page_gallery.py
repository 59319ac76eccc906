"""A gallery of real photos for the tests in a browser, with copies, wrong labels and metadata planted in it."""

import csv
import fcntl
import pickle
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from index.gallery.gallery import Gallery
from index.model.builtin import find_builtin
from index.writing.build import build_gallery

LABELS = ("dress", "hat", "longsleeve", "outwear", "pants", "shirt", "shoes", "t-shirt")
PHOTOS_PER_LABEL = 30
WRONG_LABELS = {"shoes": "hat", "hat": "shoes", "pants": "dress"}
WRONG_PER_PAIR = 6
TWICE = "07b616c7-1ac6-48ea-8517-f0bc8d4ad4ec.jpg"  # almost a duplicate of another photo of pants
SHOPS = ("Nord", "Süd & Co", "<b>West</b>")
COPY_NAMES = ("<img src=x onerror=alert(1)>.jpg", "${alert(2)} & 'co'.jpg", "smaller.jpg")


@dataclass(frozen=True, slots=True)
class PageGallery:
    path: Path
    photos: Path  # the folder of the photos
    ids: dict[str, int]  # by path, as are the labels
    labels: dict[str, str]
    wrong: dict[str, str]  # the right labels of those that were given a wrong one, by path
    copies: tuple[tuple[str, str], ...]  # (path, path of its exact copy), twice, then (path, near-duplicate)

    def of(self, label: str) -> list[str]:
        """The paths with this label, rightly given, that were not copied; in their order."""
        copied = {path for pair in self.copies for path in pair}
        return [path for path, given in self.labels.items() if given == label and path not in copied | set(self.wrong)]


def build_page_gallery(folder: Path, *, shared: Path) -> PageGallery:
    """Plant, and build the gallery `folder/clothes` with the built-in model."""
    chosen: list[tuple[str, str]] = []
    wrong: dict[str, str] = {}
    for label in LABELS:
        files = [file for file in sorted((shared / "data/clothing" / label).iterdir()) if file.name != TWICE]
        for number, file in enumerate(files[:PHOTOS_PER_LABEL]):
            path = f"photos/{label}/{file.name}"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / path)
            is_wrong = label in WRONG_LABELS and number < WRONG_PER_PAIR
            if is_wrong:
                wrong[path] = label
            chosen.append((path, WRONG_LABELS[label] if is_wrong else label))
    copies = _plant_copies(folder, chosen)
    _write_table(folder / "clothes.csv", chosen)
    build_gallery(model_path=find_builtin(), sources=[folder / "clothes.csv"], out=folder / "clothes")
    gallery = Gallery.open(folder / "clothes")
    ids = {image.path: image.id for image in gallery.sample(gallery.count, seed=0)}
    return PageGallery(folder / "clothes", folder / "photos", ids, dict(chosen), wrong, copies)


def copy_page_gallery(folder: Path, *, run: Path, shared: Path) -> PageGallery:
    """The gallery in a folder of this process's own, over photos in `run`, where the first process builds it."""
    run.mkdir(exist_ok=True)
    built = run / "built"
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            built.write_bytes(pickle.dumps(build_page_gallery(run, shared=shared)))
    gallery: PageGallery = pickle.loads(built.read_bytes())
    return replace(gallery, path=Path(shutil.copytree(gallery.path, folder / gallery.path.name)))


def _plant_copies(folder: Path, chosen: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Two exact copies, the second of another label, and a smaller image of lower quality."""
    originals = [next(path for path, _ in chosen[::-1] if f"/{label}/" in path) for label in ("shoes", "hat", "dress")]
    (folder / "photos" / "again").mkdir()
    pairs = tuple((path, f"photos/again/{name}") for path, name in zip(originals, COPY_NAMES, strict=True))
    for path, copy in pairs[:2]:
        shutil.copyfile(folder / path, folder / copy)
    path, copy = pairs[2]
    with Image.open(folder / path) as image:
        image.resize((image.width * 9 // 10, image.height * 9 // 10)).save(folder / copy, quality=70)
    chosen += [(copy, label) for (_, copy), label in zip(pairs, ("shoes", "shirt", "dress"), strict=True)]
    return pairs


def _write_table(path: Path, chosen: list[tuple[str, str]]) -> None:
    chance = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "price", "shop"])
        for image, label in chosen:
            rows.writerow([image, label, chance.randrange(5, 100), chance.choice(SHOPS)])
