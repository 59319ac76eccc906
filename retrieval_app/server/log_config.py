"""What a server writes down of what it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from index.config_fields import check_fields, option

STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Logs.

    Attributes:
        access_log: file to which a line of JSON is added for every request, `-` for standard output; None for none.
    """

    access_log: Path | None = None
    slow_query_ms: float | None = option(
        None, "Log searches that take longer, with where the time went: in the access log, else on standard error.",
        at_least=0, metavar="MS",
    )  # fmt: skip
    log_lines_waiting: int = option(
        10_000, "Lines of logs that wait to be written; one more is dropped, which the log says.", at_least=1
    )

    def __post_init__(self) -> None:
        check_fields(self)
