from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from retrieval_app.server.refusals import MoreRefusals, Refusal, Refusals, shorten_path


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/", "/"),
        ("/v1/search", "/v1/search"),
        ("/v1/search/image?k=3&name=my-holiday.jpg", "/v1/search/image"),
        ("/v1/photos/3K8v0cYpL2Jt/picture", "/v1/photos/…"),
        ("/v1/images/17/thumbnail", "/v1/images/…"),
        ("/photos/v1/gallery", "/photos/v1/gallery"),
        ("/hunter2/v1", "/…"),
        ("/g/shoes/v1/search", "/g/…"),
        ("/3621c45759c538ba3621c45759c538ba", "/…"),
        ("/abcdefabcdefabcd/v1", "/…"),
        ("/v1/" + "a" * 100_000, "/v1/…"),
        ("http://evil.example/x", "//…"),
        ("", ""),
    ],
)
def test_of_an_address_only_what_may_be_ours_is_told(path: str, shown: str) -> None:
    assert shorten_path(path) == shown


def _flood(
    addresses: list[str], *, lines: int, lines_in_all: int
) -> tuple[list[Refusal | MoreRefusals], Counter[str]]:
    """What is written of refusals from these addresses, and what was counted."""
    written: list[Refusal | MoreRefusals] = []
    counted = Counter[str]()

    async def tell() -> None:
        refusals = Refusals(
            count=lambda reason: counted.update([reason]), write=written.append, lines=lines, lines_in_all=lines_in_all,
            seconds=0.05,
        )  # fmt: skip
        for address in addresses:
            refusals.tell(Refusal("displaced", address=address))
        await asyncio.sleep(0.1)
        refusals.tell(Refusal("displaced", address="198.51.100.9"))  # which has room again
        refusals.tell(Refusal("silent", address="198.51.100.9"))
        refusals.close()

    asyncio.run(tell())
    return written, counted


def test_of_a_flood_few_lines_are_written_and_all_is_counted() -> None:
    written, counted = _flood(["192.0.2.1"] * 1000 + ["192.0.2.2"], lines=3, lines_in_all=10)
    assert [one.address for one in written if isinstance(one, Refusal)] == [
        "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "198.51.100.9",
    ]  # fmt: skip
    assert [one.counts for one in written if isinstance(one, MoreRefusals)] == [{"displaced": 997}]
    assert counted == {"displaced": 1002, "silent": 1}


def test_many_addresses_together_write_no_more_and_a_network_counts_as_one() -> None:
    written, _ = _flood([f"192.0.2.{number}" for number in range(100)], lines=3, lines_in_all=10)
    assert [one.counts for one in written if isinstance(one, MoreRefusals)] == [{"displaced": 90}]
    written, _ = _flood([f"2001:db8::{number}" for number in range(100)], lines=3, lines_in_all=1000)
    assert [one.counts for one in written if isinstance(one, MoreRefusals)] == [{"displaced": 97}]
