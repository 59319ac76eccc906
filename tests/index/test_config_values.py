from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from index.config_values import make_config, option_names, refuse_unknown
from index.errors import InputError


@dataclass(frozen=True, slots=True)
class Inner:
    share: float = 0.5
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Outer:
    count: int
    deep: bool = False
    inner: Inner = field(default_factory=Inner)


def test_a_config_and_those_in_it_are_filled_by_name() -> None:
    assert make_config(Outer, {"count": 3, "share": 1, "other": "x"}) == Outer(3, inner=Inner(1))
    assert list(option_names(Outer)) == ["count", "deep", "share", "name"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": "3"}, "count: expected int, got '3'"),
        ({"count": True}, "count: expected int, got True"),
        ({"count": 1, "deep": 1}, "deep: expected bool, got 1"),
        ({"count": 1, "share": "half"}, "share: expected float, got 'half'"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as refused:
        make_config(Outer, values)
    assert str(refused.value) == message


def test_a_misspelt_option_gets_a_suggestion() -> None:
    refuse_unknown({"count": 1, "share": 2}, Outer)
    with pytest.raises(InputError, match=r"cuont: no such option; did you mean count\?"):
        refuse_unknown({"cuont": 1}, Outer)
    with pytest.raises(InputError, match="zzz: no such option; expected one of count, deep, name, share"):
        refuse_unknown({"zzz": 1}, Outer)
