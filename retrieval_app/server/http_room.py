"""The limit on open connections, and which one is closed for a newcomer: nobody keeps others out by holding many.

Up to a limit everybody gets in. Then a newcomer takes a place from the address that has the most, or from its own:
first of the connections that wait for a request, then of those whose body is still arriving, the oldest first. A
request that is being answered is given up only for an address that has fewer connections than the one that loses it.
Where nothing can be taken, one of a few places beside the others is left, on which only health is told.

A proxy in front is one address, whoever is behind it: it may have every place that nobody else wants, and has to bound
what each of its own clients may hold.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from index.network.public_addresses import group_address


class Stage(IntEnum):
    """How far a connection is with its request; the earlier ones lose their places first."""

    HEAD = 0  # none has come, or not all of its head
    BODY = 1
    ANSWER = 2


class Connection(Protocol):
    """What has a place."""

    def displace(self) -> None:
        """End it at once, as another has its place; it leaves the room by itself later."""


class Room:
    """The places of all connections.

    Args:
        places: connections that are served at once.
        beside: connections beyond these that are told of health.
    """

    def __init__(self, *, places: int, beside: int) -> None:
        self._places, self._beside = places, beside
        self._groups: dict[str, tuple[dict[Connection, None], ...]] = {}  # by stage, the oldest first
        self._where: dict[Connection, tuple[str, Stage]] = {}
        self._guests: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._where) + len(self._guests)

    def enter(self, connection: Connection, *, address: str) -> bool:
        """Give a place to a connection; whether it is more than one beside the others."""
        group = group_address(address)
        if len(self._where) >= self._places:
            displaced = self._choose_displaced(group)
            if displaced is None:
                if len(self._guests) >= self._beside:
                    self._displace(next(iter(self._guests)))
                self._guests[connection] = None
                return False
            self._displace(displaced)
        self._groups.setdefault(group, ({}, {}, {}))[Stage.HEAD][connection] = None
        self._where[connection] = group, Stage.HEAD
        return True

    def move(self, connection: Connection, stage: Stage) -> None:
        """Note how far a connection is; one that was displaced meanwhile, or is beside, stays so."""
        found = self._where.get(connection)
        if found is not None:
            group, before = found
            stages = self._groups[group]
            del stages[before][connection]
            stages[stage][connection] = None
            self._where[connection] = group, stage

    def leave(self, connection: Connection) -> None:
        """Take back the place of a connection, if it still has one."""
        self._guests.pop(connection, None)
        found = self._where.pop(connection, None)
        if found is not None:
            group, stage = found
            del self._groups[group][stage][connection]
            if not any(self._groups[group]):
                del self._groups[group]

    def _displace(self, connection: Connection) -> None:
        self.leave(connection)
        connection.displace()

    def _choose_displaced(self, group: str) -> Connection | None:
        """Whose place a newcomer of this group gets."""
        largest = max(self._groups, key=self._count)
        if self._count(largest) >= self._count(group) + 2:  # else the two would take turns
            return self._find_oldest(largest, Stage.ANSWER)
        return self._find_oldest(group, Stage.BODY) or self._find_oldest(largest, Stage.HEAD)

    def _count(self, group: str) -> int:
        return sum(map(len, self._groups.get(group, ())))

    def _find_oldest(self, group: str, last: Stage) -> Connection | None:
        """The first to lose its place among those that are no further than this."""
        for connections in self._groups.get(group, ())[: last + 1]:
            if connections:
                return next(iter(connections))
        return None
