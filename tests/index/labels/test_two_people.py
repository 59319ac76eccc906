"""Error rates of two people: recovered where the truth is hidden, near zero where both always agree."""

import numpy as np

from index.labels.two_people import compare_people


def test_rates_are_found_without_the_truth() -> None:
    random = np.random.default_rng(0)
    groups = random.integers(0, 3, 6000)
    wrong = random.random(6000) < np.array([0.02, 0.3, 0.9])[groups]
    overlooked, invented = (0.1, 0.25), (0.02, 0.08)
    first, second = (
        np.where(wrong, random.random(6000) >= missed, random.random(6000) < made)
        for missed, made in zip(overlooked, invented, strict=True)
    )
    found = compare_people(first, second, groups)
    np.testing.assert_allclose(found.overlooked, overlooked, atol=0.03)
    np.testing.assert_allclose(found.invented, invented, atol=0.02)
    assert found.agreement == (first == second).mean()


def test_people_who_agree_hardly_err_and_few_answers_say_little() -> None:
    answers = np.arange(400) < 80
    found = compare_people(answers, answers, (np.arange(400) < 100).astype(np.int64))
    assert max(*found.overlooked, *found.invented) < 0.01
    nothing = compare_people(answers[:1], answers[:1], np.zeros(1, dtype=np.int64))
    np.testing.assert_allclose([*nothing.overlooked, *nothing.invented], 0.05, atol=0.02)
