"""A folder of some 225,000 photos in 2,385 labels, made of the photos at hand, with mistakes planted among them.

Every class of cars, groceries and Tiny-ImageNet becomes five labels, one for each part of its photos that is cut out.
`truth.csv` beside the folder says what each file shows, and `metadata.csv` in it gives each a split.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.common.record import find_photos, unpack_shared, unpack_tiny_imagenet
from benchmarks.indexing.images import list_images, take_evenly
from index.threads import usable_cores

SIDE = 128
VIEWS = {"top-left": (0, 0), "top-right": (1, 0), "bottom-left": (0, 1), "bottom-right": (1, 1), "middle": (0.5, 0.5)}
ZOOM, JITTER = 0.6, 0.05  # shares of a photo's side: what is cut out, and how far that moves
WRONG, DUPLICATES, PLACEHOLDERS, NO_CLASS = 0.1, 0.01, 0.005, 0.02  # shares of all images
_NO_CLASS = "no class"


def make_photos(folder: Path, *, images: int, sources: Path, seed: int = 0) -> Path:
    """The folder of some `images` photos, made once from those unpacked into `sources`; a folder is a label."""
    photos, truth = folder / "photos", folder / "truth.csv"
    if truth.exists():
        return photos
    classes = list(_list_classes(sources))
    right = 1 - DUPLICATES - PLACEHOLDERS - NO_CLASS
    each = images * right / sum(len(VIEWS) * len(paths) for _, paths in classes)
    labels = [f"{name}, {view}" for name, _ in classes for view in VIEWS]
    random = np.random.default_rng(seed)
    seeds = random.integers(2**63, size=len(classes) + 1).tolist()
    with ProcessPoolExecutor(usable_cores()) as pool:
        tasks = [
            pool.submit(_cut_class, photos, name, take_evenly(paths, round(len(paths) * each)), labels, number)
            for (name, paths), number in zip(classes, seeds, strict=False)
        ]
        rows = [row for task in tasks for row in task.result()]
    rows += _plant(photos, rows, labels, images=images, sources=sources, random=random)
    with (photos / "metadata.csv").open("w", newline="") as file:
        splits = (("test" if number % 5 == 0 else "train") for number in range(len(rows)))
        csv.writer(file).writerows([("file_name", "split"), *zip((path for path, _ in rows), splits, strict=True)])
    with truth.with_suffix(".tmp").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "shows"), *rows])
    truth.with_suffix(".tmp").replace(truth)
    return photos


def _list_classes(sources: Path) -> Iterator[tuple[str, list[Path]]]:
    folders = [unpack_shared("cars.tar", sources), unpack_shared("groceries.tar", sources)]
    for top in (*folders, *unpack_tiny_imagenet(sources)):
        for folder in sorted(path for path in top.rglob("*") if path.is_dir()):
            if paths := sorted([*folder.glob("*.jpg"), *folder.glob("*.JPEG")]):
                yield folder.name, paths


def _cut_class(
    photos: Path, name: str, paths: Sequence[Path], labels: Sequence[str], seed: int
) -> list[tuple[str, str]]:
    """(path, label that it shows) of the parts of a class's photos, some of them in a wrong label's folder."""
    random, rows = np.random.default_rng(seed), []
    for path in paths:
        with Image.open(path) as file:
            photo = file.convert("RGB")
        for view, place in VIEWS.items():
            shows = f"{name}, {view}"
            given = str(random.choice(labels)) if random.random() < WRONG else shows
            out = photos / given / f"{path.stem}-{view}.jpg"
            rows.append((_save(out, _cut(photo, place, random)), shows))
    return rows


def _cut(photo: Image.Image, place: tuple[float, float], random: np.random.Generator) -> Image.Image:
    width, height = photo.size[0] * ZOOM, photo.size[1] * ZOOM
    moved = np.clip(np.array(place) + random.uniform(-JITTER, JITTER, 2), 0, 1)
    left, top = moved * (photo.size[0] - width, photo.size[1] - height)
    return photo.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))


def _save(path: Path, image: Image.Image, *, quality: int = 85) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, "JPEG", quality=quality)
    return path.relative_to(path.parents[1]).as_posix()


def _plant(
    photos: Path,
    rows: Sequence[tuple[str, str]],
    labels: Sequence[str],
    *,
    images: int,
    sources: Path,
    random: np.random.Generator,
) -> list[tuple[str, str]]:
    """Copies, placeholders of shops and photos of no class, in folders at random."""
    planted = []
    for number, chosen in enumerate(random.choice(len(rows), size=int(images * DUPLICATES), replace=False).tolist()):
        path, shows = rows[chosen]
        label = path.split("/")[0] if number % 2 else str(random.choice(labels))
        out = photos / label / f"copy-{number}.jpg"
        out.parent.mkdir(exist_ok=True)  # of few images a label may have none
        out.write_bytes((photos / path).read_bytes())
        planted.append((f"{label}/{out.name}", shows))
    for number in range(int(images * PLACEHOLDERS)):
        blank = Image.new("RGB", (SIDE, SIDE), "#e8e8e8")
        ImageDraw.Draw(blank).text((24, 56), "no picture", fill="#888")
        out = photos / str(random.choice(labels)) / f"blank-{number}.jpg"
        planted.append((_save(out, blank, quality=int(random.integers(60, 96))), _NO_CLASS))
    others = [*list_images(find_photos()), *list_images(unpack_shared("cifar-n.tar", sources))]
    pictures = [path for path in others if path.suffix == ".jpg"]
    for number, path in enumerate(take_evenly(pictures, int(images * NO_CLASS))):
        with Image.open(io.BytesIO(path.read_bytes())) as file:
            part = _cut(file.convert("RGB"), VIEWS["middle"], random)
        out = photos / str(random.choice(labels)) / f"other-{number}.jpg"
        planted.append((_save(out, part), _NO_CLASS))
    return planted
