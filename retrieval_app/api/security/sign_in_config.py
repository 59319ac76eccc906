"""How wrong tokens are held back, and how long a right one that was shown holds."""

from __future__ import annotations

from dataclasses import dataclass

from index.config_fields import check_fields, option


@dataclass(frozen=True, slots=True)
class SignInConfig:
    """Wrong tokens, first visits and sessions.

    What each field is, its help says.
    """

    failed_try_wait_s: float = option(
        0.1, "Seconds that the first wrong token of an address waits for its answer; each further one twice as long.",
        at_least=0,
    )  # fmt: skip
    failed_try_longest_wait_s: float = option(2.0, "The longest of these waits.", at_least=0)
    failed_tries_forgotten_s: float = option(
        600.0, "Seconds without a wrong token after which an address begins anew.", at_least=0
    )
    failed_tries_waiting: int = option(
        8, "Wrong tokens of one address that wait at once; one more is sent away.", at_least=0
    )
    failed_tries_waiting_in_all: int = option(128, "Those of all addresses.", at_least=0)
    failed_tries_log_s: float = option(10.0, "Seconds between two lines that tell of them.", at_least=0.1)
    first_visit_s: float = option(
        600.0, "Seconds in which the printed address opens the page, from when it is printed.", at_least=1
    )
    session_s: float = option(
        12 * 3600.0, "Seconds that a browser stays signed in, since it last asked.", at_least=1
    )
    max_sessions: int = option(1000, "Browsers that are signed in; the longest idle of more is not.", at_least=1)

    def __post_init__(self) -> None:
        check_fields(self)
