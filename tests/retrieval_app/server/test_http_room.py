from __future__ import annotations

import random
from collections import Counter

import pytest

from retrieval_app.server.http_room import Room, Stage


class _Connection:
    def __init__(self) -> None:
        self.is_dropped = False

    def displace(self) -> None:
        self.is_dropped = True


def _enter(room: Room, address: str, *, count: int = 1, stage: Stage = Stage.HEAD) -> list[_Connection]:
    connections = [_Connection() for _ in range(count)]
    for connection in connections:
        room.enter(connection, address=address)
        room.move(connection, stage)
    return connections


def _list_dropped(connections: list[_Connection]) -> list[int]:
    return [number for number, connection in enumerate(connections) if connection.is_dropped]


@pytest.mark.parametrize("stage", Stage)
def test_a_newcomer_gets_the_oldest_place_of_the_address_that_has_the_most(stage: Stage) -> None:
    room = Room(places=10, beside=2)
    few, many = _enter(room, "few", count=3), _enter(room, "many", count=7, stage=stage)
    assert room.enter(newcomer := _Connection(), address="new")
    assert (_list_dropped(few), _list_dropped(many), newcomer.is_dropped) == ([], [0], False)
    assert len(room) == 10


def test_who_has_the_most_loses_what_waits_before_what_is_answered() -> None:
    room = Room(places=6, beside=2)
    answered, body, head = (
        _enter(room, "a", count=2, stage=stage) for stage in (Stage.ANSWER, Stage.BODY, Stage.HEAD)
    )
    _enter(room, "b", count=2)
    assert (_list_dropped(head), _list_dropped(body), _list_dropped(answered)) == ([0, 1], [], [])
    _enter(room, "c", count=1)
    assert (_list_dropped(body), _list_dropped(answered)) == ([0], [])


def test_an_address_that_has_the_most_gets_its_own_places_anew() -> None:
    room = Room(places=5, beside=2)
    other, own = _enter(room, "b"), _enter(room, "a", count=4)
    assert room.enter(_Connection(), address="a")
    assert (_list_dropped(other), _list_dropped(own)) == ([], [0])


def test_places_are_divided_evenly_among_those_who_flood() -> None:
    room, rng = Room(places=90, beside=4), random.Random(3)
    connections = [(address, _enter(room, address)[0]) for address in rng.choices("abc", k=2000)]
    left = Counter(address for address, connection in connections if not connection.is_dropped)
    assert all(20 <= left[address] <= 40 for address in "abc")


def test_beside_the_places_some_are_left_where_nothing_can_be_taken() -> None:
    room = Room(places=4, beside=2)  # all of which one address may have that nobody else wants
    answered, guests = _enter(room, "a", count=4, stage=Stage.ANSWER), [_Connection() for _ in range(3)]
    assert [room.enter(guest, address="a") for guest in guests] == [False, False, False]
    assert (_list_dropped(answered), _list_dropped(guests)) == ([], [0])  # the newest ones stay
    assert len(room) == 6
    room.leave(answered[0])
    assert room.enter(_Connection(), address="a")


def test_what_left_or_was_displaced_may_leave_again() -> None:
    room = Room(places=2, beside=1)
    first, second = _enter(room, "a", count=2)
    room.enter(_Connection(), address="b")
    for connection in (first, first, second):
        room.move(connection, Stage.ANSWER)
        room.leave(connection)
    assert len(room) == 1
