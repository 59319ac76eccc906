"""Search by words: full text, what words look like, and both, where half of the photos have a title and half none.

A title is the name of what the photo shows; photos, titles and swaps are drawn by the seed. *Words* are all single
words of the titles, *names* whole titles, *misspelt* names that lack a letter in every word. Photos without a title are
searched by looks, and all photos by full text, by looks and by both.

    python -m benchmarks.words --out bench/words --dataset groceries tiny-imagenet clothes
    python -m benchmarks.words --out bench/words --dataset packaged --ocr
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.common.record import (
    ending_in_words,
    print_machine,
    shared_folder,
    unpack_shared,
    unpack_tiny_imagenet,
    write_record,
)
from benchmarks.common.tables import format_table
from benchmarks.noise.splits import list_clothing
from index.arrays import Ids
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.public import build, open_gallery
from index.words.words import split_words

PACKAGED = range(28, 59)  # numbers of the groceries' classes of packages


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for photos, galleries and tables")
    parser.add_argument("--dataset", nargs="+", default=["groceries"], choices=sorted(DATASETS))
    parser.add_argument("--swapped", nargs="+", type=float, default=[0.0, 0.3], help="shares of titles, swapped")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ocr", action="store_true", help="read the text in the photos, too")
    options = parser.parse_args(arguments)
    with ending_in_words("words"):
        print_machine(options.seeds)
        for dataset in options.dataset:
            titles = DATASETS[dataset](options.out)
            for swapped in options.swapped:
                found: dict[tuple[str, str, str], dict[str, list[Scores]]] = defaultdict(lambda: defaultdict(list))
                for seed in options.seeds:
                    folder = options.out / f"{dataset}-{swapped:g}-{seed}{'-ocr' * options.ocr}"
                    for key, scores in play(titles, folder, seed=seed, swapped=swapped, ocr=options.ocr).items():
                        for text, one in scores.items():
                            found[key][text].append(one)
                results = {" / ".join(key): summarise(scores) for key, scores in found.items()}
                rows = [
                    [*name.split(" / "), *(f"{value:.3f}" for value in one.values())] for name, one in results.items()
                ]
                head = ["queries", "photos", "by", "precision at 10", "average precision"]
                read = ", text read" * options.ocr
                title = f"{dataset}, {len(titles):,} photos, {swapped:.0%} of titles swapped{read}"
                said = f"{title}; means over queries and seeds {options.seeds}"
                text = f"{said}\n\n{format_table(head, rows)}"
                print(f"\n{text}", flush=True)
                name = f"{dataset}-{swapped:g}{'-ocr' * options.ocr}.json"
                write_record(options.out / "results" / name, settings=vars(options), results=results, text=text)


def _list_groceries(out: Path, *, packaged: bool = False) -> dict[Path, list[str]]:
    photos = sorted((unpack_shared("groceries.tar", out / "photos")).rglob("*.jpg"))
    return {
        path: [path.parent.name[3:].replace("-", " ")]
        for path in photos
        if not packaged or int(path.parent.name[:2]) in PACKAGED
    }


def _list_tiny_imagenet(out: Path) -> dict[Path, list[str]]:
    with (shared_folder() / "data" / "tiny-imagenet" / "classes.tsv").open(encoding="utf-8") as file:
        names = {wnid: words.split(", ") for wnid, _, words in csv.reader(file, delimiter="\t")}
    test = unpack_tiny_imagenet(out / "photos")[1]
    return {path: names[path.parent.name] for path in sorted(test.rglob("*.JPEG"))}


def _list_clothes(out: Path) -> dict[Path, list[str]]:
    photos = sorted(list_clothing(), key=lambda one: one.path)
    return {one.path: [one.label.replace("-", " ")] for one in photos}


DATASETS: dict[str, Callable[[Path], dict[Path, list[str]]]] = {
    "groceries": _list_groceries,
    "packaged": lambda out: _list_groceries(out, packaged=True),
    "tiny-imagenet": _list_tiny_imagenet,
    "clothes": _list_clothes,
}
"""Photos with the names of what they show: of several, a title is one by chance."""
Scores: TypeAlias = tuple[float, float]
SCORES = ("precision", "average")


def play(
    names: dict[Path, list[str]], folder: Path, *, seed: int, swapped: float, ocr: bool
) -> dict[tuple[str, str, str], dict[str, Scores]]:
    """Precision at 10 and average precision by query, of kinds of queries, photos and methods."""
    random, paths = np.random.default_rng(seed), list(names)
    has_title = random.random(len(paths)) < 0.5
    titles = [str(random.choice(names[path])) if one else "" for path, one in zip(paths, has_title, strict=True)]
    wrong = random.permutation(np.flatnonzero(has_title))[: round(swapped * has_title.sum())]
    given = dict(zip(wrong.tolist(), [titles[row] for row in np.roll(wrong, 1)], strict=True))
    gallery = make_gallery(folder, paths, [given.get(row, title) for row, title in enumerate(titles)], ocr=ocr)
    rows = {int(row.path[:6]): row.id for row in gallery.rows(gallery.ids.tolist())}
    lower = {rows[row]: {name.lower() for name in names[path]} for row, path in enumerate(paths) if row in rows}
    means = {image_id: {word for name in one for word in split_words(name)} | one for image_id, one in lower.items()}
    untitled = np.array(sorted(rows[row] for row in np.flatnonzero(~has_title).tolist() if row in rows))
    shown = sorted({title.lower() for title in titles if title})
    words = sorted({word for title in shown for word in split_words(title)})
    queries = [("words", word, word) for word in words] + [("names", name, name) for name in shown]
    queries += [("misspelt", name, misspell(name, random)) for name in shown]
    found: dict[tuple[str, str, str], dict[str, Scores]] = defaultdict(dict)
    for kind, meant, text in queries:
        right = np.array(sorted(image_id for image_id, one in means.items() if meant in one))
        for photos, method, rank in list_methods(gallery, untitled):
            among = right if photos == "all" else np.intersect1d(right, untitled)
            if len(among):
                try:
                    ranked = rank(text)
                except InputError:  # nothing is known about any of its words
                    ranked = np.empty(0, dtype=np.int64)
                found[kind, photos, method][meant] = score(ranked, among)
    return found


def make_gallery(folder: Path, paths: Iterable[Path], titles: Iterable[str], *, ocr: bool) -> Gallery:
    """The gallery of photos under numbers as names, so that no path tells what they show."""
    photos = folder / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    with (photos / "list.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "title"))
        for number, (path, title) in enumerate(zip(paths, titles, strict=True)):
            name = f"{number:06d}{path.suffix}"
            if not (photos / name).exists():
                shutil.copyfile(path, photos / name)
            writer.writerow((name, title))
    build(None, photos / "list.csv", out=folder / "gallery", ocr=ocr or None)
    return open_gallery(folder / "gallery")


def list_methods(gallery: Gallery, untitled: Ids) -> list[tuple[str, str, Callable[[str], Ids]]]:
    """(photos, method, query to ids, best first) of all methods."""
    written, ids = gallery.words.written, {"untitled": untitled, "all": gallery.ids}
    vectors = {photos: gallery.vectors(some) for photos, some in ids.items()}

    def by_text(text: str) -> Ids:
        return written.find([word] for word in split_words(text))

    def by_mean(text: str) -> Ids:  # of the photos whose titles have all words
        own = by_text(text)
        mean = gallery.vectors(own).mean(axis=0) if len(own) else np.zeros(gallery.width)
        return untitled[np.argsort(-(vectors["untitled"] @ mean), kind="stable")] if len(own) else own

    def by_looks(photos: str) -> Callable[[str], Ids]:
        def rank(text: str) -> Ids:
            return ids[photos][np.argsort(-(vectors[photos] @ gallery.ask_words(text).vector), kind="stable")]

        return rank

    def by_both(text: str) -> Ids:
        return np.array([hit.id for hit in gallery.search(text, k=gallery.count)])

    return [
        ("untitled", "full text", lambda text: np.intersect1d(by_text(text), untitled)),
        ("untitled", "mean of titled photos", by_mean),
        ("untitled", "looks", by_looks("untitled")),
        ("all", "full text", by_text),
        ("all", "looks", by_looks("all")),
        ("all", "both", by_both),
    ]


def misspell(name: str, random: np.random.Generator) -> str:
    """A name that lacks a letter in every word of at least three."""

    def drop(word: re.Match[str]) -> str:
        place = int(random.integers(len(word[0])))
        return word[0][:place] + word[0][place + 1 :]

    return re.sub(r"\w{3,}", drop, name)


def score(ranked: Ids, right: Ids) -> tuple[float, float]:
    """Precision among the first ten, of as many as there are, and average precision; what is not ranked is missed."""
    hits = np.isin(ranked, right)
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(hits[:10].sum() / min(10, len(right))), float((precision * hits).sum() / len(right))


def summarise(scores: dict[str, list[Scores]]) -> dict[str, float]:
    """Mean over queries of each score, of the mean over the seeds of each query."""
    every = np.array([np.mean(one, axis=0) for one in scores.values()])
    return dict(zip(SCORES, every.mean(axis=0).tolist(), strict=True))


if __name__ == "__main__":
    main()
