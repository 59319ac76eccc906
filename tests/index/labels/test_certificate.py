"""The certificate's bound: its martingale, how often it is false, and what it needs no look for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.arrays import Doubles, Mask
from index.labels.certificate import Draw, LabelSample

ALPHA = 0.05


def audit(p_error: Doubles, wrong: Mask, *, most: int, seed: int, at_a_time: int = 4) -> LabelSample:
    """A sample that goes on until it is proved that at most `most` wrong labels are left."""
    sample, random = LabelSample(p_error, alpha=ALPHA), np.random.default_rng(seed)
    while not sample.proves(most):
        sample.draw(at_a_time, most=most, random=random)
        sample.answer(wrong)
    return sample


@pytest.mark.parametrize("kind", ["useless", "misleading", "good"])
def test_a_certificate_is_false_no_more_often_than_stated(kind: str) -> None:
    """Audits that stop at the worst moment: as soon as they may."""
    false, audits, labels, most = 0, 150, 200, 10
    for seed in range(audits):
        random = np.random.default_rng(1000 + seed)
        wrong = np.zeros(labels, dtype=bool)
        wrong[random.permutation(labels)[: 3 * most]] = True
        p_error = {
            "useless": random.random(labels),
            "misleading": np.where(wrong, 0.001, random.choice([0.2, 0.95], labels)),
            "good": np.where(wrong, 0.9, 0.02),
        }[kind]
        sample = audit(p_error, wrong, most=most, seed=seed)
        false += int(wrong.sum()) - sample.found > most
    assert false <= audits * ALPHA + 2.5 * np.sqrt(audits * ALPHA * (1 - ALPHA))
    assert false > 0 or kind != "misleading"  # it takes the chance that it states


def test_draws_estimate_the_number_of_wrong_labels_without_bias() -> None:
    """What the martingale rests on: the mean of 1 / probability over wrong labels is their number, at each draw."""
    random = np.random.default_rng(0)
    p_error, wrong = random.random(40), random.random(40) < 0.4
    estimates: list[list[float]] = [[], []]
    for _ in range(4000):
        sample, left = LabelSample(p_error, alpha=ALPHA), wrong.sum()
        for estimate, draw in zip(estimates, sample.draw(2, most=2, random=random), strict=True):
            estimate.append(wrong[draw.position] / draw.probability - left)
            left -= wrong[draw.position]
    for estimate in estimates:
        assert abs(np.mean(estimate)) < 4 * np.std(estimate) / np.sqrt(len(estimate))


@given(st.data())
def test_the_bound_is_the_least_number_that_is_refuted(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    p_error = np.array(data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)))
    wrong = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    sample, random = LabelSample(p_error, alpha=ALPHA), np.random.default_rng(0)
    for _ in range(data.draw(st.integers(0, 6))):
        sample.draw(data.draw(st.integers(1, 5)), most=data.draw(st.integers(0, 3)), random=random)
        sample.answer(wrong)
    unseen, bound = count - len(sample.draws), sample.most_wrong()
    assert 0 <= bound <= unseen
    assert [sample.proves(most) for most in range(unseen + 1)] == [most >= bound for most in range(unseen + 1)]


def test_every_label_is_drawn_once_and_all_looks_prove_everything() -> None:
    sample, random = LabelSample(np.linspace(0, 1, 50), alpha=ALPHA), np.random.default_rng(0)
    bounds = [sample.most_wrong()]
    while sample.draw(7, most=2, random=random):
        sample.answer(np.zeros(50, dtype=bool))
        bounds.append(sample.most_wrong())
    assert sorted(draw.position for draw in sample.draws) == list(range(50))
    assert (bounds[0], bounds[-1]) == (50, 0)
    assert all(later <= before for before, later in pairwise(bounds))


def test_an_answer_taken_back_undoes_what_followed_from_it() -> None:
    sample = audit(np.full(200, 0.01), np.zeros(200, dtype=bool), most=20, seed=0)
    back = LabelSample(np.full(200, 0.01), sample.draws, [None, *sample.answers[1:]], alpha=ALPHA)
    assert back.pending == [sample.draws[0].position]
    assert back.most_wrong() == 200 - len(sample.draws) + 1


def test_looks_of_ones_own_count_as_looks_but_prove_nothing_about_others() -> None:
    chosen = [Draw(position) for position in range(30)]
    sample = LabelSample(np.full(100, 0.5), chosen, [True] * 10 + [False] * 20, alpha=ALPHA)
    assert (sample.found, sample.most_wrong()) == (10, 70)


def test_the_bound_of_a_label_is_of_its_images_alone() -> None:
    wrong, of = np.arange(400) < 10, np.arange(400) >= 200
    sample, random = LabelSample(np.full(400, 0.02), alpha=ALPHA), np.random.default_rng(0)
    sample.draw(250, most=8, random=random)
    sample.answer(wrong)
    assert sample.most_wrong(of) <= min(19, sample.most_wrong())


def test_fewer_looks_are_needed_where_probabilities_are_good() -> None:
    random = np.random.default_rng(0)
    wrong = random.random(2000) < 0.06
    good, useless = np.where(wrong, 0.9, 0.005), np.full(2000, 0.06)
    looks = [len(audit(p, wrong, most=40, seed=0, at_a_time=12).draws) for p in (good, useless)]
    assert looks[0] < looks[1] / 2
    expected = LabelSample(good, alpha=ALPHA).expect_looks(most=40, random=random, at_a_time=12)
    assert looks[0] / 2 < expected < looks[0] * 2
