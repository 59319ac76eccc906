"""Does re-ranking at search time earn its cost? Recall@1 and MAP@R of a test part, ranked plainly and in four ways.

neighbours     what `retrieval search --rerank` does: `index.gallery.reranking`
k-reciprocal   Jaccard distance of k-reciprocal neighbourhoods, mixed with the plain one (Zhong et al., "Re-ranking
               Person Re-identification with k-reciprocal Encoding", 2017), with the paper's k1 20, k2 6, lambda 0.3
alpha-qe       the query becomes the mean of itself and its 5 nearest, weighed by cosine^3 (Radenovic et al. 2018)
dba            so does every item of the gallery too

    python -m benchmarks.noise.reranking --out bench/grid --dataset cars --dataset clothing-disjoint
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.common.record import ending_in_words, print_machine, write_record
from benchmarks.common.tables import format_table
from benchmarks.noise.cells import GridFolder
from benchmarks.noise.feature_sets import load_features, prepare_usual_features
from index.arrays import Floats, Labels, normalise_rows
from index.errors import InputError
from index.gallery.reranking import NEIGHBOURS, rank_by_neighbours
from index.threads import usable_cores
from training.head.untrained import LabelledFeatures, fit_rival
from training.label_noise.noise import add_uniform_noise
from training.run.validate import embed_features

K1, K2, LAMBDA = 20, 6, 0.3
EXPANDED, POWER = 5, 3
METHODS = ("raw", "class-whitened")
MOST = 4000  # images that are searched: all pairs are held
WRONG, SEED = 0.3, 0


def rerank_by_neighbours(embeddings: Floats, *, k1: int = K1, k2: int = K2, share: float = LAMBDA) -> Floats:
    """(N, N) float32 distances after k-reciprocal encoding of (N, D) unit rows."""
    count = len(embeddings)
    distances = 2 - 2 * embeddings @ embeddings.T
    distances /= np.maximum(distances.max(axis=1, keepdims=True), 1e-9)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, : k1 + 1]
    encoded = np.zeros((count, count), dtype=np.float32)
    for row in range(count):
        members = _expand(row, nearest, k1=k1)
        weights = np.exp(-distances[row, members])
        encoded[row, members] = weights / weights.sum()
    if k2 > 1:
        encoded = np.stack([encoded[rows[:k2]].mean(axis=0) for rows in nearest])
    having = [np.flatnonzero(encoded[:, column]) for column in range(count)]
    jaccard = np.empty_like(distances)
    for row in range(count):
        shared = np.zeros(count, dtype=np.float32)
        for column in np.flatnonzero(encoded[row]):
            rows = having[column]
            shared[rows] += np.minimum(encoded[row, column], encoded[rows, column])
        jaccard[row] = 1 - shared / (2 - shared)
    return (1 - share) * jaccard + share * distances


def _expand(row: int, nearest: np.ndarray, *, k1: int) -> np.ndarray:
    """The k-reciprocal neighbours of a row, and those of them whose own ones are mostly among these."""
    members = _reciprocal(row, nearest, k=k1)
    found = set(members.tolist())
    for member in members:
        own = _reciprocal(int(member), nearest, k=k1 // 2)
        if len(np.intersect1d(own, members)) > 2 / 3 * len(own):
            found.update(own.tolist())
    return np.array(sorted(found))


def _reciprocal(row: int, nearest: np.ndarray, *, k: int) -> np.ndarray:
    near = nearest[row, : k + 1]
    return near[(nearest[near, : k + 1] == row).any(axis=1)]


def expand_queries(embeddings: Floats) -> Floats:
    """(N, D) unit rows: each the mean of itself and its nearest, weighed by cosine^`POWER`."""
    cosines = embeddings @ embeddings.T
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, : EXPANDED + 1]
    weights = np.take_along_axis(cosines, nearest, axis=1).clip(min=0) ** POWER
    return normalise_rows(np.einsum("nk,nkd->nd", weights, embeddings[nearest]))


def rerank_as_search_does(embeddings: Floats) -> Floats:
    """(N, N) places in the ranking of each row by `rank_by_neighbours`; its own is the last."""
    cosines = embeddings @ embeddings.T
    nearest = np.argsort(-cosines, axis=1, kind="stable")
    near = nearest[:, :NEIGHBOURS]
    near_cosines = np.take_along_axis(cosines, near, axis=1)
    places = np.full(cosines.shape, len(cosines), dtype=np.float32)
    for row, ids in enumerate(nearest):
        found = ids[ids != row]
        order = rank_by_neighbours(
            cosines[row, found], found, search_near=lambda asked: (near_cosines[asked], near[asked])
        )
        places[row, found[order]] = np.arange(len(found))
    return places


RANKINGS: Mapping[str, Callable[[Floats], Floats]] = {
    "plain": lambda rows: 1 - rows @ rows.T,
    "neighbours": rerank_as_search_does,
    "k-reciprocal": rerank_by_neighbours,
    "alpha-qe": lambda rows: 1 - expand_queries(rows) @ rows.T,
    "dba": lambda rows: 1 - (expanded := expand_queries(rows)) @ expanded.T,
}


def score_distances(distances: Floats, labels: Labels) -> tuple[float, float]:
    """Recall@1 and MAP@R of (N, N) distances, each row asked among all others but those alone in their label."""
    distances = distances.copy()
    np.fill_diagonal(distances, np.inf)
    relevant = labels[np.argsort(distances, axis=1, kind="stable")] == labels[:, None]
    sizes = np.bincount(labels)[labels] - 1
    asked = np.flatnonzero(sizes)
    precisions = []
    for row in asked:
        hits = relevant[row, : sizes[row]]
        precisions.append((hits * hits.cumsum() / np.arange(1, sizes[row] + 1)).sum() / sizes[row])
    return float(relevant[asked, 0].mean()), float(np.mean(precisions))


def measure(folder: GridFolder, dataset: str, *, width: int) -> list[list[str]]:
    """Rows of the table: a method's plain ranking, and the others.

    Raises:
        InputError: the dataset has a gallery of its own.
    """
    features = load_features(folder.features(dataset))
    if features.is_gallery is not None:
        raise InputError(f"{dataset}: images are asked among each other here, and it has queries and a gallery")
    count = len(features.classes)
    labels = add_uniform_noise(features.train_labels, class_count=count, rate=WRONG, seed=SEED)
    rows = np.sort(np.random.default_rng(SEED).permutation(len(features.test))[:MOST])
    table = []
    for method in METHODS:
        head = fit_rival(method, LabelledFeatures(features.train, labels), embedding_dim=width)
        embeddings = embed_features(head, features.test[rows])
        for name, rank in RANKINGS.items():
            begun = time.perf_counter()
            recall, precision = score_distances(rank(embeddings), features.test_labels[rows])
            seconds = time.perf_counter() - begun
            shown = method if method == "raw" else f"{method}, {width}-d"
            table.append([dataset, shown, name, f"{100 * recall:.2f}", f"{100 * precision:.2f}", f"{seconds:.1f}"])
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of features, as of benchmarks.noise")
    parser.add_argument("--dataset", action="append", metavar="NAME", help="default: cars, clothing-disjoint")
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args(arguments)
    datasets = options.dataset or ["cars", "clothing-disjoint"]
    folder = GridFolder(options.out)
    with ending_in_words("reranking"):
        prepare_usual_features(folder, datasets, workers=usable_cores())
        rows = [row for dataset in datasets for row in measure(folder, dataset, width=options.width)]
        print_machine([SEED])
        text = format_table(["dataset", "embedding", "ranking", "Recall@1", "MAP@R", "s"], rows)
        print(f"\n{text}")
        name = "_".join(["reranking", *datasets, f"{options.width}d"])
        write_record(folder.results / f"{name}.json", settings=vars(options), results={"rows": rows}, text=text)


if __name__ == "__main__":
    main()
