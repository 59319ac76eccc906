"""Error rates of two people: recovered where the truth is hidden, near zero where both always agree."""

import numpy as np

from index.labels.two_people import estimate_annotator_error_rates


def test_rates_are_found_without_the_truth() -> None:
    random = np.random.default_rng(0)
    groups = random.integers(0, 3, 6000)
    wrong = random.random(6000) < np.array([0.02, 0.3, 0.9])[groups]
    false_negative_rates, false_positive_rates = (0.1, 0.25), (0.02, 0.08)
    first, second = (
        np.where(wrong, random.random(6000) >= missed, random.random(6000) < made)
        for missed, made in zip(false_negative_rates, false_positive_rates, strict=True)
    )
    found = estimate_annotator_error_rates(first, second, groups)
    np.testing.assert_allclose(found.false_negative_rates, false_negative_rates, atol=0.03)
    np.testing.assert_allclose(found.false_positive_rates, false_positive_rates, atol=0.02)
    assert found.agreement == (first == second).mean()


def test_people_who_agree_hardly_err_and_few_answers_say_little() -> None:
    answers = np.arange(400) < 80
    found = estimate_annotator_error_rates(answers, answers, (np.arange(400) < 100).astype(np.int64))
    assert max(*found.false_negative_rates, *found.false_positive_rates) < 0.01
    nothing = estimate_annotator_error_rates(answers[:1], answers[:1], np.zeros(1, dtype=np.int64))
    np.testing.assert_allclose([*nothing.false_negative_rates, *nothing.false_positive_rates], 0.05, atol=0.02)
