"""What stands before each application of a server: proxies, other sites, the guard, and compressing what goes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware

from retrieval_app.api.answered import Observer
from retrieval_app.api.counters import Metrics
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.cors import CrossOrigin
from retrieval_app.api.security.front_door import FrontDoor
from retrieval_app.api.security.guard import Security
from retrieval_app.api.security.rate_limits import RateConfig, RateLimits
from retrieval_app.api.security.sign_in import SignIn
from retrieval_app.api.security.trusted_proxies import TrustedProxies
from retrieval_app.serving.serving_config import ServingConfig

SMALLEST_COMPRESSED_BYTES = 1000  # what fits into one packet is as fast uncompressed


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """What is the same for all applications of a server.

    Attributes:
        limits: on bodies.
        rates: how often one visitor may ask.
        observers: are told of every answer.
        proxies: that are believed.
        origins: other sites whose pages may ask.
        root_path: below which the server lives.
    """

    limits: ServingConfig = field(default_factory=ServingConfig)
    rates: RateLimits = field(default_factory=lambda: RateLimits(RateConfig()))
    observers: Sequence[Observer] = ()
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    origins: frozenset[str] = frozenset()
    root_path: str = ""

    def put_before(
        self, app: FastAPI, *, access: Access, sign_in: SignIn, metrics: Metrics, gallery: str | None = None
    ) -> None:
        """Let an application be reached through them only.

        Args:
            app: the application, which finds all but the doors in its state.
            access: who may do what in it.
            sign_in: who asks.
            metrics: counts its answers.
            gallery: the name by which it is one of several.
        """
        app.state.access, app.state.sign_in, app.state.metrics = access, sign_in, metrics
        app.add_middleware(
            Security,
            limits=self.limits,
            access=access,
            sign_in=sign_in,
            metrics=metrics,
            observers=self.observers,
            rates=self.rates,
            gallery=gallery,
        )
        app.add_middleware(CrossOrigin, origins=self.origins)
        app.add_middleware(FrontDoor, root_path=place_gallery(self.root_path, gallery), proxies=self.proxies)


def compress(app: FastAPI) -> None:
    """Let text and JSON go out compressed, pictures and archives as they are.

    The length of an answer tells nothing that is kept from its reader: tokens and cookies stand in no body, and no
    other site may ask.
    """
    app.add_middleware(GZipMiddleware, minimum_size=SMALLEST_COMPRESSED_BYTES, compresslevel=5)


def place_gallery(root_path: str, gallery: str | None) -> str:
    """The path below which a gallery of a server is, without a slash at its end: the server's own for the only one."""
    return root_path if gallery is None else f"{root_path}/g/{gallery}"
