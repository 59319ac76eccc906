"""Fetching of photos from pasted addresses, never from a private network."""

import asyncio
import threading
from concurrent.futures import Future
from urllib.parse import unquote, urlsplit

from index.errors import InputError
from index.network.public_addresses import MayConnect, is_public_web
from index.network.remote_store import FetchError
from retrieval_app.serving.errors import BusyError
from retrieval_app.serving.photos import Upload
from retrieval_app.serving.serving_config import ServingConfig

_MOST_REDIRECTS = 3
_ADVICE = "save the image and send it instead"


class PhotoFetcher:
    """Fetches photos, a few at a time, each in a thread of its own. For one event loop.

    A fetch that times out gives its place up, though its thread may still wait for the system's resolver: a host whose
    name server never answers blocks no other fetch.
    """

    def __init__(self, limits: ServingConfig, *, may_connect: MayConnect = is_public_web) -> None:
        self._limits, self._may_connect = limits, may_connect
        self._fetching = set[Future[Upload]]()

    async def fetch(self, address: str) -> Upload:
        """The photo at an http or https address, named by the last part of its path."""
        if len(self._fetching) >= self._limits.fetches_at_once:
            raise BusyError(f"{len(self._fetching)} photos are being fetched; try again in a moment")
        done: Future[Upload] = Future()
        self._fetching.add(done)
        done.add_done_callback(self._fetching.discard)  # not before its thread ends where the visitor hangs up
        threading.Thread(target=self._work, args=(address, done), name="fetcher", daemon=True).start()
        try:
            async with asyncio.timeout(self._limits.fetch_s):
                return await asyncio.wrap_future(done)
        except TimeoutError as error:
            self._fetching.discard(done)
            raise InputError(f"it did not answer within {self._limits.fetch_s:g} seconds", at=address[:200]) from error

    def _work(self, address: str, done: Future[Upload]) -> None:
        try:
            if done.set_running_or_notify_cancel():
                data = self._read(address)
                done.set_result(Upload(data, unquote(urlsplit(address).path.rpartition("/")[2])[:200] or "photo"))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            done.set_exception(error)

    def _read(self, address: str) -> bytes:
        from index.network.web_store import RequestLimits, ask

        step_s = self._limits.fetch_s + 1  # the client's timeout comes first, so that one message says why
        limits = RequestLimits(self._may_connect, _ADVICE, most_redirects=_MOST_REDIRECTS, step_s=step_s, in_all=True)
        try:
            with ask(address, asked={"Accept": "image/*"}, limits=limits) as (status, headers, parts):
                if status != 200:
                    raise InputError(f"it answers with status {status}", at=address[:200])
                kind = headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind.startswith("text/"):
                    problem = f"it is a page ({kind}) and no image: copy the address of the image itself"
                    raise InputError(problem, at=address[:200])
                if headers.get("content-encoding", "identity") != "identity":
                    raise InputError("it sends its images packed, which was not asked for", at=address[:200])
                data = bytearray()
                for part in parts:
                    data += part
                    if len(data) > self._limits.max_upload_bytes:
                        most = f"{self._limits.max_upload_bytes / 1024**2:.0f} MB"
                        raise InputError(f"more than the {most} that are taken", at=address[:200])
                return bytes(data)
        except FetchError as error:
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from None
            raise InputError(error.detail, at=address[:200]) from error
