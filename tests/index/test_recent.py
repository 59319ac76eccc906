from index.recent import RecentlyUsed


def test_the_values_used_least_recently_go_first() -> None:
    kept: RecentlyUsed[str, int] = RecentlyUsed(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert [name in kept for name in "abc"] == [True, False, True]
    assert kept.get("b") is None
    assert len(kept) == 2


def test_sizes_are_counted_and_replaced_values_count_once() -> None:
    kept: RecentlyUsed[str, bytes] = RecentlyUsed(10, size=len)
    for _ in range(5):
        kept.put("a", b"1234")
    kept.put("b", b"123456")
    assert (kept.get("a"), kept.get("b")) == (b"1234", b"123456")
    kept.put("c", b"1")
    assert ("a" in kept, "b" in kept, "c" in kept) == (False, True, True)
