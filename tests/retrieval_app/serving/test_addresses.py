from __future__ import annotations

import pytest

from retrieval_app.serving.addresses import group_address


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "a name", False),
    ],
)
def test_an_address_is_what_one_subscriber_has(one: str, other: str, are_same: bool) -> None:
    assert (group_address(one) == group_address(other)) == are_same
