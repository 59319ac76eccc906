"""Server options, checked: those of `retrieval serve`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from index.config_fields import check_fields, option
from index.errors import InputError
from index.writing.build_config import WatchConfig
from retrieval_app.api.security.addresses import check_host, check_proxies, check_root_path, is_loopback
from retrieval_app.api.security.rights import check_gallery_name
from retrieval_app.api.security.tokens import check_token
from retrieval_app.serving.serving_config import ServingConfig


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """Connections and sessions. A page holds up to six connections while it loads."""

    connections: int = option(
        1024,
        "Open connections, idle ones too, from which on every request is answered 503; further ones are still opened.",
        at_least=1,
    )
    keep_alive_s: int = option(30, "Seconds that a connection waits for its next request.", at_least=1)
    shutdown_s: int = option(
        15, "Seconds that requests under way have to be finished in when the server ends.", at_least=1
    )
    session_s: float = option(
        12 * 3600.0,
        "Seconds that a browser stays signed in; each request in the second half of them begins them anew.",
        at_least=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class ServedGallery:
    """A gallery of a server: its folder, and its name where it is one of several, below `/g/NAME/`."""

    path: Path
    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_gallery_name(self.name)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Address and access; galleries are one without a name, or several with different names."""

    galleries: tuple[ServedGallery, ...]
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(7860, "Port to listen on; 0 for a free one.")
    token: str | None = None
    tokens: Path | None = option(
        None,
        "File of tokens with names and rights, by `retrieval tokens`, of which every request has to bring one.",
        metavar="FILE",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "Name to answer to besides the machine's own, such as that of a proxy; can be repeated.",
        flag="--allowed-host",
        metavar="NAME",
    )
    root_path: str = option(
        "",
        "Path below which the server lives behind a proxy, as /photos; whether the proxy strips it or not.",
        metavar="PATH",
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "Proxy whose headers give the client's address and scheme; can be repeated.",
        flag="--trusted-proxy",
        metavar="ADDRESS|NETWORK",
    )
    writable: bool = option(False, "Let the API add and remove images; decisions do not need it. Requires a token.")
    disk_changes: Path | None = option(
        None,
        "Let visitors who may write move the files of dropped near-duplicates to this folder. Requires --writable.",
        flag="--allow-disk-changes",
        metavar="FOLDER",
    )
    watch: bool = option(
        False,
        "Keep the galleries up to date while their folders change, as `retrieval index watch` does, in a process "
        "of low priority for each.",
    )
    watching: WatchConfig = field(default_factory=WatchConfig)
    limits: ServingConfig = field(default_factory=ServingConfig)
    connections: ConnectionConfig = field(default_factory=ConnectionConfig)

    def __post_init__(self) -> None:
        check_names(self.galleries)
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port {self.port}: a port is a number in 0..65535 (0: any free one)")
        if self.token is not None:
            if self.tokens is not None:
                raise InputError("--tokens takes the place of --token and --token-file: give one of them")
            check_token(self.token)
        if self.writable and not self.requires_token:
            raise InputError(
                "--writable needs a token: give --token-file FILE, or set the variable RETRIEVAL_TOKEN, or "
                "give tokens with names, --tokens FILE"
            )
        if self.disk_changes is not None and not self.writable:
            raise InputError("--allow-disk-changes needs --writable, and a token")
        for name in self.allowed_hosts:
            check_host(name)
        check_proxies(self.trusted_proxies)
        object.__setattr__(self, "root_path", check_root_path(self.root_path))

    @classmethod
    def of(cls, gallery: Path, **options: Any) -> "ServeOptions":
        """The options of a server with one gallery."""
        return cls((ServedGallery(gallery),), **options)

    @property
    def requires_token(self) -> bool:
        """Whether every request has to bring a token."""
        return self.token is not None or self.tokens is not None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def check_names(galleries: tuple[ServedGallery, ...]) -> None:
    """Refuse no gallery, several without names, and names or folders that occur twice."""
    names, places = [served.name for served in galleries], [served.path.resolve() for served in galleries]
    if not galleries:
        raise InputError("there is no gallery to serve")
    if len(names) > 1 and None in names:
        raise InputError("each of several galleries needs a name, as in shop=photos/shop-gallery")
    for at, (place, name) in enumerate(zip(places, names, strict=True)):
        if place in places[:at]:
            raise InputError("named twice; a gallery is served under one name", at=place)
        if name in names[:at]:
            raise InputError(f"two galleries have the name {name}: give one another, as in other=GALLERY")
