from __future__ import annotations

import pytest

from retrieval_app.api.answered import hide_typed


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (b"", ""),
        (b"k=5&offset=24&by=picture&min_score=-0.5", "k=5&offset=24&by=picture&min_score=-0.5"),
        (b"include=label,path&k=5", "include=label,path&k=5"),
        (b"where=label%20=%20'shoes'&text=red&name=me.jpg&label=a", "where=…&text=…&name=…&label=…"),
        (b"code=abc&token=secret", "code=…&token=…"),
        (b"my-secret=1&k", "…=…&k="),
        (b"k=%0Aforged&by=" + b"a" * 61, "k=…&by=…"),
        (b"k=\xff\x00", "k=…"),
    ],
)
def test_what_people_typed_is_left_out_of_an_address(given: bytes, told: str) -> None:
    assert hide_typed(given) == told
