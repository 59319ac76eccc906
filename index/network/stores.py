"""Every kind of store, and which one an address means; nothing of any is loaded before."""

from __future__ import annotations

import os
import re
from functools import lru_cache

from index.network.public_addresses import PORTS
from index.network.remote_store import RemoteStore, is_hurried

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.DOTALL)
_OF_STORES = ("AWS_", "GOOGLE_", "AZURE_", "FSSPEC_")


def is_address(text: str) -> bool:
    """Whether a text is `scheme://place`, which no path of a file is meant by."""
    return _ADDRESS.fullmatch(text) is not None


def is_web(address: str) -> bool:
    """Whether it is one of http or https, where nothing is listed."""
    return address.partition("://")[0] in PORTS


def open_store(root: str) -> RemoteStore:
    """The store that an address lies in, opened there; "" is that of whole addresses of http and https.

    Raises:
        InputError: there is no store for such addresses.
        MissingDependencyError: a package is needed for it.
    """
    said = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_OF_STORES)))
    return _open(root, said, is_hurried())


@lru_cache(maxsize=64)
def _open(root: str, said: tuple[tuple[str, str], ...], hurried: bool) -> RemoteStore:
    """One store for as long as the environment says the same of it: its connections are used again."""
    if not root or is_web(root):
        from index.network.web_store import WebStore

        return WebStore(root)
    from index.network.file_system_store import FileSystemStore
    from index.network.object_store import SCHEMES, BucketStore

    is_bucket = root.partition("://")[0] in SCHEMES
    return BucketStore(root, is_hurried=hurried) if is_bucket else FileSystemStore(root)
