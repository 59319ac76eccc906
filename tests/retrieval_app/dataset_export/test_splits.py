"""Shares of splits and labels, and groups that stay together."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.errors import InputError
from retrieval_app.dataset_export.rows import assign_splits, parse_shares


def test_shares_are_named_by_their_number() -> None:
    assert parse_shares("80/20") == {"train": 0.8, "test": 0.2}
    assert list(parse_shares("80/10/10")) == ["train", "validation", "test"]


@pytest.mark.parametrize("text", ["", "100", "80/30", "80/10/5/5", "100/0", "80/x", "-20/120", "nan/50"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected percentages that add up to 100"):
        parse_shares(text)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), min_size=60, max_size=120), st.integers(0, 9))
def test_groups_stay_together_whatever_they_are(images: list[tuple[str, int]], seed: int) -> None:
    labels, groups = [label for label, _ in images], [group for _, group in images]
    try:
        found = assign_splits(labels, groups, parse_shares("50/50"), seed=seed)
    except InputError:  # one group may be nearly all
        assert len(set(groups)) < 3
        return
    assert len(set(zip(groups, found, strict=True))) == len(set(groups))
    assert found == assign_splits(labels, groups, parse_shares("50/50"), seed=seed)


def test_every_label_is_split_alike_and_seeds_differ() -> None:
    labels = ["a"] * 50 + ["b"] * 30 + [None] * 20
    found = assign_splits(labels, range(100), parse_shares("80/10/10"), seed=0)
    assert Counter(found) == {"train": 80, "validation": 10, "test": 10}
    assert Counter(found[:50]) == {"train": 40, "validation": 5, "test": 5}
    assert found != assign_splits(labels, range(100), parse_shares("80/10/10"), seed=1)


def test_too_few_groups_are_refused() -> None:
    with pytest.raises(InputError, match="test would have no image, because there are only 1 groups of 9 images"):
        assign_splits(["a"] * 9, [0] * 9, parse_shares("80/20"), seed=0)
