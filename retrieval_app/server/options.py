"""How a gallery is served: the options of `retrieval serve`, checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from index.errors import InputError
from retrieval_app.api.security.hosts import check_host, is_loopback
from retrieval_app.api.security.rate_limits import RateConfig
from retrieval_app.api.security.sign_in_config import SignInConfig
from retrieval_app.api.security.tokens import check_token
from retrieval_app.server.connection_config import ConnectionConfig
from retrieval_app.server.log_config import LogConfig
from retrieval_app.serving.serving_config import ServingConfig


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a gallery is served.

    Attributes:
        gallery: its folder.
        host: address to listen on.
        port: to listen on, 0 for a free one.
        token: that every request has to bring; None lets everybody search who can reach the address.
        allowed_hosts: names that it answers to besides those of the machine and of the address.
        writable: whether images may be added and removed, which needs a token.
        fetches: whether photos are fetched from addresses that visitors name.
        audit: folder of a finished audit, whose doubts take the place of the gallery's own.
        limits: of the engine.
        connections: limits on them.
        sign_in: limits on wrong tokens and on sessions.
        rates: how often one visitor may ask.
        logs: what is written down of requests.
    """

    gallery: Path
    host: str = "127.0.0.1"
    port: int = 7860
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    writable: bool = False
    fetches: bool = False
    audit: Path | None = None
    limits: ServingConfig = field(default_factory=ServingConfig)
    connections: ConnectionConfig = field(default_factory=ConnectionConfig)
    sign_in: SignInConfig = field(default_factory=SignInConfig)
    rates: RateConfig = field(default_factory=RateConfig)
    logs: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port {self.port}: a port is a number in 0..65535 (0: any free one)")
        if self.writable and self.token is None:
            raise InputError(
                "--writable needs a token: give --token-file FILE, or set the variable RETRIEVAL_TOKEN"
            )
        if self.token is not None:
            check_token(self.token)
        for name in self.allowed_hosts:
            check_host(name)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)
