"""Server options, checked: those of `retrieval serve` and `retrieval mcp`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from index.config_fields import check_fields, option
from index.errors import InputError
from index.text import printable_path
from retrieval_app.api.security.addresses import (
    check_host,
    check_origins,
    check_proxies,
    check_root_path,
    is_loopback,
)
from retrieval_app.api.security.rate_limits import RateConfig, SignInConfig
from retrieval_app.api.security.rights import check_gallery_name
from retrieval_app.api.security.tokens import check_token
from retrieval_app.serving.serving_config import ServingConfig

MOST_WORKERS = 64


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """Connections and heads of requests; a page holds up to six connections while it loads."""

    connections: int = option(
        1024,
        "Open connections, idle ones too, from which on every request is answered 503; further ones are still opened.",
        at_least=1,
    )
    keep_alive_s: int = option(30, "Seconds that a connection waits for its next request.", at_least=1)
    shutdown_s: int = option(
        15, "Seconds that requests under way have to be finished in when the server ends.", at_least=1
    )
    max_head_bytes: int = option(64 * 1024, "Bytes of the head of a request.", at_least=1024)

    def __post_init__(self) -> None:
        check_fields(self)


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


@dataclass(frozen=True, slots=True)
class ServedGallery:
    """A gallery of a server.

    Attributes:
        path: its folder.
        name: by which it is one of several, below `/g/NAME/`; None for the only one.
    """

    path: Path
    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_gallery_name(self.name)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How galleries are served; the help of `retrieval serve` says what each option does.

    Attributes:
        galleries: one without a name, or any number of them with different ones.
        token: that every request has to bring; None lets everybody search who can reach the address.
        tokens: file of tokens with names and rights, in the place of `token`.
        limits: of each gallery's engine.
        workers: processes that answer, each with its own model and index; with 1, that is this one.
    """

    galleries: tuple[ServedGallery, ...]
    host: str = "127.0.0.1"
    port: int = 7860
    token: str | None = None
    tokens: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    root_path: str = ""
    trusted_proxies: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    writable: bool = False
    fetches: bool = False
    audit: Path | None = None
    limits: ServingConfig = field(default_factory=ServingConfig)
    connections: ConnectionConfig = field(default_factory=ConnectionConfig)
    sign_in: SignInConfig = field(default_factory=SignInConfig)
    rates: RateConfig = field(default_factory=RateConfig)
    logs: LogConfig = field(default_factory=LogConfig)
    workers: int = 1

    def __post_init__(self) -> None:
        check_names(self.galleries)
        if self.audit is not None and len(self.galleries) > 1:
            raise InputError("--audit is about the labels of one gallery: serve that one alone")
        if not 1 <= self.workers <= MOST_WORKERS:
            raise InputError(f"--workers {self.workers}: expected a number in 1..{MOST_WORKERS}")
        if self.workers > 1 and len(self.galleries) > 1:
            raise InputError(
                f"--workers {self.workers}: the processes serve one gallery, and {len(self.galleries)} are named; "
                "start a server for each, behind one proxy"
            )
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port {self.port}: a port is a number in 0..65535 (0: any free one)")
        if self.token is not None and self.tokens is not None:
            raise InputError("--tokens takes the place of --token and --token-file: give one of them")
        if self.writable and not self.asks_token:
            raise InputError(
                "--writable needs a token: give --token-file FILE, or set the variable RETRIEVAL_TOKEN, or "
                "give tokens with names, --tokens FILE"
            )
        if self.token is not None:
            check_token(self.token)
        for name in self.allowed_hosts:
            check_host(name)
        check_root_path(self.root_path)
        check_proxies(self.trusted_proxies)
        check_origins(self.cors_origins)

    @classmethod
    def of(cls, gallery: Path, **options: Any) -> ServeOptions:
        """Those of a server with one gallery."""
        return cls((ServedGallery(gallery),), **options)

    @property
    def asks_token(self) -> bool:
        """Whether every request has to bring a token."""
        return self.token is not None or self.tokens is not None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def check_names(galleries: tuple[ServedGallery, ...]) -> None:
    """See that galleries can be told apart; InputError where there is none, or several have no name or the same."""
    names = [served.name for served in galleries]
    if not galleries:
        raise InputError("there is no gallery to serve")
    if len(names) > 1 and None in names:
        raise InputError("each of several galleries needs a name, as in shop=photos/shop-gallery")
    places = [served.path.resolve() for served in galleries]
    for at, (place, name) in enumerate(zip(places, names, strict=True)):
        if place in places[:at]:
            raise InputError(f"{printable_path(str(place))}: named twice; a gallery is served under one name")
        if name in names[:at]:
            raise InputError(f"two galleries have the name {name}: give one another, as in other=GALLERY")
