import json
from dataclasses import asdict, dataclass, field

import numpy as np
import pytest

from index.config_fields import check_fields, make_config, option, option_names, refuse_unknown
from index.errors import InputError


@dataclass(frozen=True, slots=True)
class Inner:
    share: float = option(0.5, "A share.", above=0, at_most=1)
    name: str | None = option(None, "A name.")

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Outer:
    count: int = option(text="A number.")
    deep: bool = option(False, "How deep.")
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_config_and_those_in_it_are_filled_by_name() -> None:
    assert make_config(Outer, {"count": 3, "share": 1, "other": "x"}) == Outer(3, inner=Inner(1))
    assert list(option_names(Outer)) == ["count", "deep", "share", "name"]


def test_numbers_of_numpy_become_those_of_python() -> None:
    made = make_config(Outer, {"count": np.int64(3), "share": np.float32(0.25)})
    assert json.dumps(asdict(made)) == json.dumps(asdict(Outer(3, inner=Inner(0.25))))
    with pytest.raises(InputError, match=r"--count must be a whole number, got np.float32\(3.0\)"):
        make_config(Outer, {"count": np.float32(3)})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": "3"}, "--count must be a whole number, got '3'"),
        ({"count": True}, "--count must be a whole number, got True"),
        ({"count": 1, "deep": 1}, "--deep must be true or false, got 1"),
        ({"count": 1, "share": "half"}, "--share must be a number, got 'half'"),
        ({"count": 1, "share": 1.5}, "--share must be greater than 0 and at most 1, got 1.5"),
        ({"count": 1, "share": 0}, "--share must be greater than 0 and at most 1, got 0"),
        ({"count": 1, "share": float("nan")}, "--share must be greater than 0 and at most 1, got nan"),
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
