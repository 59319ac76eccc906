"""A Milvus server: connected, checked, asked again where it does not answer, and its errors in a line."""

from __future__ import annotations

import logging
import os
import re
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from index.errors import GalleryDamagedError, GalleryError, naming_extras

TOKEN = "RETRIEVAL_MILVUS_TOKEN"  # of the environment
OLDEST, NEXT = (2, 3), (3, 0)
_CONNECT_S, _CALL_S = 10.0, 120.0
_WAITS_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0)  # a server that was started again loads what it has first
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_NOT_LOADED, _NO_COLLECTION = 101, 100
_NO_RIGHTS = re.compile(
    r"auth check failure|unauthenticated|permission deny|privilege|permissiondenied", re.IGNORECASE
)
_FOR_GOOD = re.compile(r"not found|can't find|cannot parse|invalid|out of range|assert|should be", re.IGNORECASE)
_LONGEST = 200
_CAUSES = 4
Answer = TypeVar("Answer")


def import_pymilvus() -> Any:
    """The client's library, which is not to log every error that it raises, with frames."""
    with naming_extras("a gallery whose vectors are in Milvus"):
        import pymilvus
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return pymilvus


class CollectionMissingError(GalleryDamagedError):
    """There is no collection of this name."""


class Server:
    """A server that answers and is of a version that is known; safe among threads.

    Attributes:
        version: of the server.
        exception: the class of what the client raises.
    """

    def __init__(self, uri: str) -> None:
        """Connect.

        Raises:
            GalleryError: nobody answers, there are no rights, or it is of another version.
            MissingDependencyError: pymilvus is not installed.
        """
        pymilvus = import_pymilvus()
        self.uri, self.exception = uri, pymilvus.MilvusException
        try:
            self._client: Any = pymilvus.MilvusClient(
                uri, token=os.environ.get(TOKEN, ""), timeout=_CONNECT_S, dedicated=True
            )
            self.version = str(self._client.get_server_version(timeout=_CONNECT_S))
        except Exception as error:
            raise self._explain(error, doing="connecting") from error
        weakref.finalize(self, self._client.close)
        found = _VERSION.match(self.version)
        if found is None or not OLDEST <= (int(found[1]), int(found[2])) < NEXT:
            raise GalleryError(uri, f"Milvus {self.version}, expected 2.3 or a later 2; use such a server")

    def ask(self, ask: Callable[[Any], Answer], *, doing: str, collection: str | None = None) -> Answer:
        """What the client answers; a server that does not is asked again, longer and longer, for some 45 seconds.

        Args:
            ask: called with the client, and maybe again: it must not matter how often.
            doing: what for, in an error.
            collection: loaded where the server says that it is not.

        Raises:
            GalleryError: it does not answer, refuses, or has no such collection.
        """
        for wait_s in (*_WAITS_S, None):
            try:
                return ask(self._client)
            except self.exception as error:
                if wait_s is None or self._is_for_good(error):
                    raise self._explain(error, doing=doing) from error
                if error.code == _NOT_LOADED and collection is not None:
                    self._load(collection)
                time.sleep(wait_s)
        raise AssertionError

    def _load(self, collection: str) -> None:
        try:
            self._client.load_collection(collection, timeout=_CALL_S)
        except self.exception:
            logging.getLogger(__name__).debug("%s: %s is not loaded yet", self.uri, collection)

    def _is_for_good(self, error: Any) -> bool:
        if error.code == _NOT_LOADED:
            return False
        return error.code == _NO_COLLECTION or bool(_NO_RIGHTS.search(str(error)) or _FOR_GOOD.search(str(error)))

    def _explain(self, error: Any, *, doing: str) -> GalleryError:
        code, text = getattr(error, "code", None), getattr(error, "message", None) or str(error)
        if _NO_RIGHTS.search(text) or _NO_RIGHTS.search(_tell_causes(error)):
            return GalleryError(self.uri, f"no rights for {doing}; give a token that has them as {TOKEN}")
        if code == _NO_COLLECTION or "can't find collection" in text:
            return CollectionMissingError(self.uri, f"there is no such collection; {doing} failed")
        if "index not found" in text:
            return GalleryDamagedError(self.uri, f"{doing} failed: a collection has lost its index")
        line = " ".join(text.split())[:_LONGEST]
        if doing == "connecting" or code == 2:
            return GalleryError(
                self.uri,
                f"no Milvus server answers there ({line}); start it, or mend the address, and run this again",
            )
        return GalleryError(self.uri, f"{doing} failed: {line}; what is done is kept: run the same command again")


def _tell_causes(error: BaseException) -> str:
    """What led to an error: pymilvus says of every connection that fails that nobody answers."""
    texts: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(texts) < _CAUSES:
        texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    return " ".join(texts)
