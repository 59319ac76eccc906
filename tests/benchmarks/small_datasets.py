"""Small datasets of real photos for the benchmarks' tests: some kinds train, others are searched."""

from __future__ import annotations

from pathlib import Path

from tests.photos import KINDS, write_photos


def write_dataset(folder: Path, *, train: int, test: int, pictures: int, seed: int = 0, size: int = 64) -> str:
    """The name, as of `benchmarks.noise.splits`, of a dataset with so many kinds in either part."""
    for part, kinds in (("train", KINDS[:train]), ("test", KINDS[train : train + test])):
        write_photos(folder / part, kinds=kinds, pictures_per_kind=pictures, seed=seed, size=size)
    return f"folder:{folder / 'train'}:{folder / 'test'}"
