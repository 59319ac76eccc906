"""Which images count as one group: planted bursts are found, and where there are none nothing is."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import normalise_rows
from index.evaluation.groups import (
    GroupSources,
    find_groups,
    find_known_groups,
    find_level,
    keep_alike,
    pair_by_name,
    pair_by_time,
)
from tests.deep import tries

CLASSES, BURSTS, SHOTS = 12, 10, 5
LABELS = np.repeat(np.arange(CLASSES), BURSTS * SHOTS)
BURST = np.arange(len(LABELS)) // SHOTS
NAMES = [f"{label}/IMG_{row:05}.jpg" for row, label in enumerate(LABELS)]
UNKNOWN = np.full(len(LABELS), np.nan)


def photos(*, group: float, label: float = 1.0, seed: int = 0) -> np.ndarray:
    """(N, 32) unit rows of a label, a burst weighing `group`, and noise."""
    random = np.random.default_rng(seed)
    x = label * random.normal(size=(CLASSES, 32))[LABELS] + group * random.normal(size=(CLASSES * BURSTS, 32))[BURST]
    return normalise_rows((x + random.normal(size=(len(LABELS), 32))).astype(np.float32))


def times(rows: Sequence[int], *, pause_s: float = 3600.0) -> np.ndarray:
    """Shots three seconds grouped, bursts an hour."""
    return np.array([pause_s * (row // SHOTS) + 3.0 * (row % SHOTS) for row in rows])


def purity(groups: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Of the pairs of one group the share that is of one burst, and of these the share that is in one group."""
    together, burst = (values[:, None] == values for values in (groups, truth))
    off = ~np.eye(len(groups), dtype=bool)
    both = (together & burst & off).sum()
    return both / max(1, (together & off).sum()), both / (burst & off).sum()


@pytest.mark.parametrize("clue", ["file names", "times"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_planted_bursts_are_found_by_names_or_times(clue: str, shuffled: bool) -> None:
    order = np.random.default_rng(5).permutation(len(LABELS)) if shuffled else np.arange(len(LABELS))
    group_sources = GroupSources(
        [NAMES[row] for row in order] if clue == "file names" else ["x"] * len(order),
        times(order.tolist()) if clue == "times" else UNKNOWN,
    )
    groups = find_known_groups(photos(group=3.0)[order], LABELS[order], group_sources)
    assert groups.is_certain
    assert groups.found_by == clue
    right, found = purity(groups.numbers, BURST[order])
    assert right > 0.85, "a far pair in two hundred is as alike, and bursts beside each other then join"
    assert found > 0.95


@pytest.mark.parametrize("clue", ["file names", "times"])
def test_names_and_times_in_no_order_of_groups_tell_nothing(clue: str) -> None:
    """As in a data set that was numbered at random, or copied: bursts are there, but do not stand together."""
    vectors = photos(group=3.0)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(LABELS))
        order = order[np.argsort(LABELS[order], kind="stable")]  # every folder by itself
        numbered = (
            GroupSources(NAMES, UNKNOWN)
            if clue == "file names"
            else GroupSources(["x"] * len(LABELS), UNKNOWN * 0 + 1e9)
        )
        assert find_known_groups(vectors[order], LABELS[order], numbered) is None


@pytest.mark.deep
@settings(max_examples=tries(10, deep=20), deadline=None)
@given(seed=st.integers(0, 10**6), label=st.sampled_from([0.0, 0.3, 0.6, 0.8, 1.0, 1.5]))
def test_independent_photos_are_of_no_group_however_they_are_named(seed: int, label: float) -> None:
    vectors = photos(group=0.0, label=label, seed=seed)
    assert find_groups(vectors, LABELS, GroupSources(NAMES, times(range(len(LABELS))))) is None


def test_bursts_without_any_clue_are_suspected_by_closeness_alone() -> None:
    """Nearer than photos of other labels come to be, so that nearly all that is found is found in the group."""
    vectors = photos(group=3.0)
    groups = find_groups(vectors, LABELS, GroupSources(["x"] * len(LABELS), UNKNOWN))
    assert not groups.is_certain
    assert groups.found_by == "similarity alone"
    assert purity(groups.numbers, BURST)[1] > 0.95
    assert purity(groups.shots, LABELS)[0] == 1.0
    assert purity(groups.shots, BURST)[0] > purity(groups.numbers, BURST)[0]


def test_what_the_user_says_goes_before_all_clues_and_copies_come_to_it() -> None:
    vectors = photos(group=3.0)[:6]
    given_groups, copies = ["a", None, "a", "b", "", "b"], np.array([0, 1, 2, 3, 1, 5])
    group_sources = GroupSources(NAMES[:6], times(range(6)), given=given_groups, copies=copies)
    groups = find_groups(vectors, LABELS[:6], group_sources)
    assert groups.numbers.tolist() == [0, 1, 0, 3, 1, 3]
    assert groups.to_json() == {"found_by": "the column 'group' and copies", "groups": 3, "images": 6}


def test_copies_alone_are_groups_and_lone_images_are_none() -> None:
    vectors, names = photos(group=0.0)[:4], ["a", "b", "c", "d"]
    copied = find_groups(vectors, LABELS[:4], GroupSources(names, UNKNOWN[:4], copies=np.array([7, 8, 7, 9])))
    assert (copied.numbers.tolist(), copied.found_by) == ([0, 1, 0, 3], "copies")
    assert find_groups(vectors, LABELS[:4], GroupSources(names, UNKNOWN[:4], given=["", None, "x", "y"])) is None


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["img_", "IMG ", ""]), st.integers(0, 12)), max_size=30)
)
def test_near_names_are_of_one_folder_and_series_and_few_numbers_apart(files: list[tuple[str, str, int]]) -> None:
    pairs = pair_by_name([f"{folder}/{start}{number:04}.jpg" for folder, start, number in files])
    for left, right in pairs.tolist():
        assert files[left][:2] == files[right][:2]
        assert abs(files[left][2] - files[right][2]) <= 3
    numbers = {file: row for row, file in enumerate(files)}
    paired = {frozenset(pair) for pair in pairs.tolist()}
    if len(numbers) == len(files):  # each number once: then the next one of a series is always near
        for folder, start, number in files:
            if (folder, start, number + 1) in numbers:
                assert frozenset({numbers[folder, start, number], numbers[folder, start, number + 1]}) in paired


def test_names_without_a_number_and_unknown_times_are_near_nothing() -> None:
    assert pair_by_name(["a.jpg", "b.jpg", "4f0c-11aa.jpg", "4f0d-12aa.jpg", "9" * 40 + ".jpg"]).shape == (0, 2)
    assert pair_by_time(np.array([np.nan, np.nan, 5.0])).shape == (0, 2)
    assert keep_alike(np.empty((0, 2), np.int64), photos(group=0.0), LABELS).shape == (0, 2)


def test_a_level_needs_more_near_pairs_than_chance_gives() -> None:
    random = np.random.default_rng(0)
    far = random.normal(size=5000).astype(np.float32)
    assert find_level(far[:500], far) is None
    assert find_level(far[:3] + 9, far) is None, "three pairs are no evidence"
    assert find_level(np.empty(0, np.float32), far) is None
    level = find_level(np.concatenate([far[:400], far[:100] + 9]).astype(np.float32), far)
    assert level is not None
    assert np.quantile(far, 0.7) < level < 9
