"""Every fuzzer, for some cases of one seed; `make fuzz` is for more. What fails is kept, told and drawn again."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz.__main__ import FUZZERS
from tests.fuzz.campaign import FaultError, Target, run_campaign
from tests.fuzz.mutations import MUTATORS

CASES = {"images": 150, "archives": 200, "requests": 40}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUZZERS)
def test_some_cases_of_every_fuzzer_find_no_fault(name: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    report = run_campaign(
        name, FUZZERS[name], seed=1, work=tmp_path / "work", keep=tmp_path / "kept", cases=CASES[name]
    )
    assert report.faults == [], str(report)
    assert report.outcomes.total() == CASES[name]
    assert len(report.outcomes) > 1


class _Brittle:
    """Breaks on numbers that 3 divides."""

    def attack(self, chance: random.Random) -> str:
        drawn = chance.randrange(1000)
        if drawn % 3 == 0:
            raise FaultError("3 divides it", content=str(drawn).encode(), suffix=".txt")
        return "held"

    def check(self) -> None:
        pass


@contextmanager
def _break(folder: Path) -> Iterator[Target]:
    yield _Brittle()


def test_what_fails_is_kept_told_and_drawn_again_by_its_number(tmp_path: Path) -> None:
    report = run_campaign("brittle", _break, seed=4, work=tmp_path, keep=tmp_path / "kept", cases=20)
    assert report.outcomes["held"] + report.outcomes["FAULT"] == report.outcomes.total() <= 20
    number, problem, path = report.faults[0]
    assert problem == "3 divides it"
    assert int(path.read_text()) % 3 == 0
    assert f"--only brittle --seed 4 --first {number} --cases 1" in str(report)
    again = run_campaign("brittle", _break, seed=4, work=tmp_path, keep=tmp_path / "again", cases=1, first=number)
    assert [fault[:2] for fault in again.faults] == [(number, problem)]
    assert again.faults[0][2].read_bytes() == path.read_bytes()


def test_damage_is_bounded_the_same_for_a_seed_and_seldom_none() -> None:
    content = bytes(range(256)) * 4
    for damage in MUTATORS:
        results = [damage(content, random.Random(number)) for number in range(50)]
        assert results == [damage(content, random.Random(number)) for number in range(50)]
        assert sum(result != content for result in results) > 40
        assert max(map(len, results)) < 50_000
