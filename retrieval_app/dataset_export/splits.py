"""Splitting images into train, validation and test: shares of every label, groups never apart."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from index.errors import InputError

_NAMES = {2: ("train", "test"), 3: ("train", "validation", "test")}


def parse_shares(text: str) -> dict[str, float]:
    """The share of each split, of a text such as `80/20` (train/test) or `80/10/10` (train/validation/test)."""
    try:
        percents = [float(part) for part in text.split("/")]
    except ValueError:
        percents = []
    names = _NAMES.get(len(percents))
    if names is None or not all(percent > 0 for percent in percents) or abs(sum(percents) - 100) > 1e-6:
        raise InputError(
            f"split: expected percentages that add up to 100, as 80/20 (train/test) or 80/10/10 "
            f"(train/validation/test), got {text!r}"
        )
    return {name: percent / 100 for name, percent in zip(names, percents, strict=True)}


def assign_splits(
    labels: Sequence[str | None], groups: Sequence[Hashable], shares: Mapping[str, float], *, seed: int
) -> list[str]:
    """The split of each of N images.

    Groups are drawn in random order, label by label, and each goes to the split that lacks most images. So all labels
    have about the same shares.

    Args:
        labels: of the images; a group counts for its most frequent label.
        groups: the same value for images that stay together.

    Raises:
        InputError: a split would stay empty.
    """
    members: dict[Hashable, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    units = list(members.values())
    order = np.random.default_rng(seed).permutation(len(units))
    label_of = [Counter(labels[row] or "" for row in unit).most_common(1)[0][0] for unit in units]
    names, wanted = list(shares), np.array(list(shares.values()))
    counts, done, found = np.zeros(len(names)), 0, [""] * len(labels)
    for unit in sorted(order.tolist(), key=lambda number: label_of[number]):
        done += len(units[unit])
        choice = int(np.argmax(wanted * done - counts))
        counts[choice] += len(units[unit])
        for row in units[unit]:
            found[row] = names[choice]
    if empty := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise InputError(
            f"split: {', '.join(empty)} would have no image, because there are only {len(units)} groups of "
            f"{len(labels)} images; give fewer parts, or split by image"
        )
    return found
