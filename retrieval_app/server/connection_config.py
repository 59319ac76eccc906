"""How many connections a server has, and what it waits for on each."""

from __future__ import annotations

from dataclasses import dataclass

from index.config_fields import check_fields, option


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """Connections and heads of requests.

    What each field is, its help says. A page holds up to six connections while it loads.
    """

    connections: int = option(1024, "Connections at once; a newcomer then takes the place of another.", at_least=1)
    health_connections: int = option(32, "Connections beside these, which are told of health only.", at_least=1)
    head_s: float = option(30.0, "Seconds that the head of a request may take to arrive.", at_least=1)
    answer_s: float = option(60.0, "Seconds in which a client has to take some more of an answer.", at_least=1)
    shutdown_s: int = option(
        15, "Seconds that requests under way have to be finished in when the server ends.", at_least=10
    )
    max_head_bytes: int = option(64 * 1024, "Bytes of the head of a request.", at_least=1024)
    max_headers: int = option(100, "Headers of a request.", at_least=10)
    max_pipelined: int = option(
        8, "Requests that wait on a connection for the answers to those before them.", at_least=1
    )

    def __post_init__(self) -> None:
        check_fields(self)
