"""Samples of a gallery's images: random ones, typical ones of each label, or ones that differ most."""

import re
from collections import Counter
from typing import Literal, TypeAlias, get_args

import numpy as np

from index.arrays import Floats, Ids, Vectors, number_labels
from index.errors import InputError, UnknownImageError
from index.gallery.gallery import Gallery

How: TypeAlias = Literal["diverse", "typical", "random"]
HOW: tuple[How, ...] = get_args(How)
_MOST_DIVERSE = 5_000
_MOST_COMPARED = 50_000_000  # pairs of a chosen image and another: about a minute for 512 dimensions on one core


def read_sample(text: str) -> tuple[How, int | None]:
    """The method and the number of images of a text such as `diverse:100`; without a number None.

    >>> read_sample("diverse:100"), read_sample("typical")
    (('diverse', 100), ('typical', None))
    """
    name, _, number = text.partition(":")
    for how in HOW:
        if name == how and (re.fullmatch("[1-9][0-9]{0,8}", number) or text == name):
            return how, int(number) if number else None
    raise InputError(f"expected one of {', '.join(HOW)} and a number, such as diverse:100; got {text!r}")


def sample_images(
    gallery: Gallery, ids: Ids, *, how: How, count: int | None = None, per_label: int | None = None, seed: int = 0
) -> Ids:
    """Rising ids of `count` of (N,) rising ids of members, at most `per_label` of each label.

    Rows without a label count as one label. `diverse` begins with the image nearest to the mean, and adds the one
    farthest from all before (farthest-first traversal, Gonzalez 1985), among random ones where images times `count`
    exceed `_MOST_COMPARED`. `typical` takes those nearest to the mean of their label, in turn from each label. Without
    `count`, all that `per_label` allows.
    """
    if count is None and per_label is None:
        raise InputError(f"say how many images: {how}:100, or a number for each label")
    if len(missing := np.setdiff1d(ids, gallery.ids)):
        raise UnknownImageError(int(missing[0]), gallery=gallery.name)
    with gallery.catalog() as catalog:
        by_id = {row.id: row.label for row in catalog.rows_of(ids.tolist())}
    labels, _ = number_labels([by_id[one] for one in ids.tolist()])
    most = len(ids) if per_label is None else per_label
    there = sum(min(found, most) for found in Counter(labels.tolist()).values())
    if count is not None and count > there:
        at_most = "" if per_label is None else f" with at most {per_label} of each label"
        raise InputError(f"{count:,} images were requested, there are {there:,}{at_most}; ask for fewer")
    wanted = there if count is None else count
    order = np.random.default_rng(seed).permutation(len(ids))
    if how == "diverse":
        if wanted > _MOST_DIVERSE:
            raise InputError(
                f"{wanted:,} diverse images are asked for, at most {_MOST_DIVERSE:,} can be chosen at once; ask for "
                "fewer, or for random or typical ones"
            )
        order = order[np.argsort(_rank_within(labels[order]) >= most, kind="stable")]  # so that `wanted` can be chosen
        among = np.sort(order[: _MOST_COMPARED // wanted])
        chosen = among[_choose_far(gallery.vectors(ids[among]), labels[among], count=wanted, per_label=most)]
    else:
        if how == "typical":
            best = np.argsort(-measure_typicality(gallery.vectors(ids), labels), kind="stable")
            order = best[np.argsort(_rank_within(labels[best]), kind="stable")]  # the best of each label first
        chosen = order[_rank_within(labels[order]) < most][:wanted]
    return np.sort(ids[chosen])


def measure_typicality(vectors: Vectors, labels: Ids) -> Floats:
    """(N,) float32 cosines of (N, D) float32 unit vectors to the mean of those with the same of (N,) labels."""
    names, groups = np.unique(labels, return_inverse=True)
    means = np.zeros((len(names), vectors.shape[1]), dtype=np.float32)
    np.add.at(means, groups, vectors)
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    cosines: Floats = np.einsum("nd,nd->n", vectors, means[groups])
    return cosines


def _rank_within(labels: Ids) -> Ids:
    """(N,) the number of earlier positions with the same label."""
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[order] = np.arange(len(labels)) - np.repeat(starts, sizes)
    return ranks


def _choose_far(vectors: Vectors, labels: Ids, *, count: int, per_label: int) -> Ids:
    """(count,) positions by farthest-first traversal among (N, D) float32 unit vectors; memory beside them is N."""
    left = Counter(dict.fromkeys(labels.tolist(), per_label))
    nearest = np.full(len(vectors), -np.inf, dtype=np.float32)  # cosine to the most similar chosen one
    mean = vectors.mean(axis=0)
    at, chosen = int(np.argmax(vectors @ mean)), list[int]()
    while True:
        chosen.append(at)
        if len(chosen) == count:
            return np.array(chosen, dtype=np.int64)
        np.maximum(nearest, vectors @ vectors[at], out=nearest)
        nearest[at] = np.inf
        left[int(labels[at])] -= 1
        if not left[int(labels[at])]:
            nearest[labels == labels[at]] = np.inf
        at = int(np.argmin(nearest))
