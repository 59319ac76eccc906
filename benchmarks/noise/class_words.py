"""Language guidance without a language model: how alike classes are by the words of their names.

A class is the set of words of its folder's name, without the number before it: the fruit or packet of a grocery, the
make, model, body and year of a car. Groceries have the coarse class of their `labels.csv` as a word as well. A word
weighs log(C / number of classes that have it), and the similarity of two classes is the cosine of their words. No
network and no file of vectors is asked, and what such a model knows beyond shared words (that a kiwi is a fruit) is not
there; ProcSim's authors take the text side of CLIP.

    python -m benchmarks.noise.class_words cars --out cars.npz
    retrieval train … --method procsim --guidance cars.npz --omega 1
"""

from __future__ import annotations

import argparse
import csv
import re
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from benchmarks.common.record import shared_folder
from benchmarks.noise.splits import list_split
from index.arrays import Floats
from training.losses.guidance import Guidance

GROCERIES = "groceries"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="as benchmarks.noise takes it")
    parser.add_argument("--out", type=Path, required=True, help=".npz of similarities and classes")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as work:
        split = list_split(options.dataset, work=Path(work))
    classes = sorted({record.label for record in split.train})
    similarities = compare_names(options.dataset, classes)
    np.savez(options.out, similarities=similarities, classes=np.array(classes))
    print(f"{options.out}: {len(classes)} classes, {(similarities > 0).mean():.1%} of the pairs share a word")


def guide_by_names(dataset: str, classes: Sequence[str]) -> Guidance:
    """The guidance of a run on these classes, in the order of its labels."""
    return Guidance(torch.from_numpy(compare_names(dataset, classes)), by="classes")


def compare_names(dataset: str, classes: Sequence[str]) -> Floats:
    """(C, C) float32 cosines of the classes' words, in 0..1; a class without a word of its own is like itself alone."""
    more = _coarse_classes() if dataset.startswith(GROCERIES) else {}
    return compare_words([split_name(name) | more.get(name, frozenset()) for name in classes])


def compare_words(words: Sequence[frozenset[str]]) -> Floats:
    """(C, C) float32 cosines of sets of words, each weighed by how few classes have it."""
    counts = Counter(word for own in words for word in own)
    places = {word: place for place, word in enumerate(sorted(counts))}
    table = np.zeros((len(words), len(places) + len(words)))
    for row, own in enumerate(words):
        for word in own:
            table[row, places[word]] = np.log(len(words) / counts[word])
        if not table[row].any():
            table[row, len(places) + row] = 1
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return (table @ table.T).astype(np.float32)


def split_name(name: str) -> frozenset[str]:
    """The words of a class's name, in small letters, without the number that orders it.

    >>> sorted(split_name("003_Acura_TL_Sedan_2012"))
    ['2012', 'acura', 'sedan', 'tl']
    """
    return frozenset(re.findall(r"[^\W_]+", re.sub(r"^\d+_", "", name).lower()))


@lru_cache(maxsize=1)
def _coarse_classes() -> Mapping[str, frozenset[str]]:
    """The coarse class of every class of groceries, as a word that is in no name."""
    with tarfile.open(shared_folder() / "data" / "groceries.tar") as tar:
        file = tar.extractfile("groceries/labels.csv")
        assert file is not None
        rows = csv.DictReader(file.read().decode().splitlines())
        return {row["label"]: frozenset({f"coarse class {row['coarse']}"}) for row in rows}


if __name__ == "__main__":
    main()
