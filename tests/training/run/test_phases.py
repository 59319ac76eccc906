"""Batches: every image once an epoch, in an order that seed, phase and epoch alone draw, alone or beside its class."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from training.run.phases import NETWORK, PHASES, count_batches, draw_batches, phase_generator

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=90).map(torch.tensor)


def _draw(labels: Tensor, *, size: int, images_per_class: int, epoch: int = 1) -> list[Tensor]:
    rows = 10 * torch.arange(len(labels))  # numbers of images, of which some take no part
    together = {"labels": labels, "images_per_class": images_per_class}
    return list(draw_batches(rows, size, phase_generator(0, "embedding", epoch), **together))


@given(labels=LABELS, images_per_class=st.integers(0, 5), groups=st.integers(1, 6))
def test_an_epoch_has_every_image_once_in_as_many_batches_as_are_counted(
    labels: Tensor, images_per_class: int, groups: int
) -> None:
    size = max(2, groups * images_per_class)
    batches = _draw(labels, size=size, images_per_class=images_per_class)
    assert sorted(torch.cat(batches).tolist()) == [10 * row for row in range(len(labels))]
    assert len(batches) == count_batches(labels, size, images_per_class=images_per_class)
    assert max(map(len, batches)) <= size


@given(labels=LABELS, images_per_class=st.integers(2, 5))
def test_an_image_has_another_of_its_class_beside_it_where_there_is_one(
    labels: Tensor, images_per_class: int
) -> None:
    for batch in _draw(labels, size=4 * images_per_class, images_per_class=images_per_class):
        drawn = labels[batch // 10]
        for label in drawn.unique():
            if (labels == label).sum() > 1 and images_per_class > 2:
                assert (drawn == label).sum() > 1


def test_classes_that_divide_come_in_whole_groups_and_batches_have_many_classes() -> None:
    labels = torch.arange(40).repeat(8)
    batches = _draw(labels, size=60, images_per_class=4)
    assert [len(batch) for batch in batches] == [60, 60, 60, 60, 60, 20]
    counts = [torch.bincount(labels[batch // 10]).unique().tolist() for batch in batches]
    assert all(set(found) <= {0, 4, 8} for found in counts)
    assert all(len(labels[batch // 10].unique()) > 10 for batch in batches[:5])


def test_the_images_of_rare_classes_come_as_often_as_others() -> None:
    labels = torch.tensor([0] * 50 + [1] * 3 + [2])
    drawn = torch.cat(_draw(labels, size=8, images_per_class=4)) // 10
    assert torch.bincount(labels[drawn]).tolist() == [50, 3, 1]


def test_another_epoch_has_other_batches_and_the_same_one_the_same() -> None:
    labels = torch.arange(12).repeat(5)
    first, again, next_one = (
        torch.cat(_draw(labels, size=16, images_per_class=4, epoch=epoch)).tolist() for epoch in (1, 1, 2)
    )
    assert first == again != next_one


def test_no_two_phases_epochs_or_seeds_draw_alike_and_the_first_phases_draw_as_they_always_did() -> None:
    phases = [
        (seed, phase, epoch) for seed in (0, 1, 2**32 - 1) for phase in (*PHASES, NETWORK) for epoch in (0, 1, 8)
    ]
    seeds = [phase_generator(*phase).initial_seed() for phase in phases]
    assert len(set(seeds)) == len(seeds)
    assert phase_generator(7, "embedding", 3).initial_seed() == 15 * 1_000_003 + 3, (
        "or begun runs would go on otherwise"
    )
