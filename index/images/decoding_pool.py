"""Pool of worker processes that decode possibly costly images, and are killed beyond their limits."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import PIL
from PIL import Image

from index.errors import ImageError, InputError
from index.images.decode import keep_original
from index.images.decoding_worker import ANSWER, READY, REQUEST, TOO_COSTLY
from index.limits import DECODED_BYTES_A_S, MAX_DECODE_CPU_S, MAX_DECODE_WALL_S
from index.threads import raise_if_abandoned, usable_cores

_LOOK_MS = 100  # between two checks whether the work was abandoned
_PART_BYTES = 1 << 20
_MAX_TEXT_BYTES = 1 << 16
_START = "import sys; sys.path[:] = sys.argv[1:]; from index.images.decoding_worker import main; main()"
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class _WorkerDiedError(Exception):
    """The other end of a worker's socket is closed."""


class DecodingPool:
    """Up to `size` workers for any number of threads, with a limit of processor time and more for large files."""

    def __init__(self, size: int, *, cpu_s: float = MAX_DECODE_CPU_S) -> None:
        self._cpu_s = cpu_s
        self._room = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []

    def decode(self, data: bytes, *, name: str, target_side: int, max_pixels: int) -> Image.Image:
        """Decode an image in a worker process; `too-costly` where it takes too much memory or time."""
        cpu_s = self._cpu_s + len(data) // DECODED_BYTES_A_S
        while not self._room.acquire(timeout=_LOOK_MS / 1000):
            raise_if_abandoned()
        try:
            worker = self._take()
            try:
                image = worker.decode(data, name=name, target_side=target_side, max_pixels=max_pixels, cpu_s=cpu_s)
            except BaseException as error:
                if not isinstance(error, ImageError) or error.reason == TOO_COSTLY:
                    worker.kill()
                else:
                    self._put(worker)
                raise
            self._put(worker)
            return image
        finally:
            self._room.release()

    def close(self) -> None:
        """End idle workers."""
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.kill()

    def forget(self) -> None:
        """Drop the parent's workers, after a fork."""
        for worker in self._idle:
            worker.disown()
        self._idle = []

    def _take(self) -> "_Worker":
        while True:
            with self._lock:
                if not self._idle:
                    break
                worker = self._idle.pop()
            if worker.is_alive():
                return worker
            worker.kill()
        return _Worker()

    def _put(self, worker: "_Worker") -> None:
        with self._lock:
            self._idle.append(worker)


class _Worker:
    def __init__(self) -> None:
        self._socket, other_end = socket.socketpair()
        self._socket.setblocking(False)
        # Its modules come from this process's paths, never from the working folder.
        places = [place for place in sys.path if os.path.isabs(place)]
        places += [str(Path(__file__).resolve().parents[2]), str(Path(PIL.__file__).resolve().parents[1])]
        try:
            self._process = subprocess.Popen(  # in a session of its own, without the terminal's signals
                [sys.executable, "-I", "-S", "-c", _START, *dict.fromkeys(places)],
                stdin=other_end.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            raise InputError(f"no process can be started to decode images in: {error.strerror}") from error
        finally:
            other_end.close()
        try:
            if self._receive(len(READY), until=time.monotonic() + MAX_DECODE_WALL_S) == READY:
                return
            problem = "it answers nonsense"
        except _WorkerDiedError:
            problem = f"it ends with status {self._process.wait()}"
        except BaseException:
            self.kill()
            raise
        self.kill()
        raise InputError(f"the process that images are decoded in does not start ({sys.executable}): {problem}")

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def disown(self) -> None:
        """Close the socket without waiting for the process, which is another's child."""
        self._socket.close()
        self._process.returncode = 0

    def decode(self, data: bytes, *, name: str, target_side: int, max_pixels: int, cpu_s: float) -> Image.Image:
        """Decode an image in this worker, which is unusable after any error other than an ImageError."""
        until = time.monotonic() + MAX_DECODE_WALL_S
        try:
            self._send(REQUEST.pack(len(data), target_side, max_pixels, cpu_s), until=until)
            self._send(data, until=until)
            is_image, text_bytes, width, height, *seen = ANSWER.unpack(self._receive(ANSWER.size, until=until))
            original = seen[0], seen[1], seen[2]
            if text_bytes > _MAX_TEXT_BYTES:  # defends against a compromised worker, as what follows
                raise _WorkerDiedError
            answer = json.loads(self._receive(text_bytes, until=until))
            if not is_image:
                raise ImageError(path=name, reason=str(answer["reason"]), detail=str(answer["detail"]))
            if not 0 < width * height <= max_pixels:
                raise _WorkerDiedError
            pixels = self._receive(3 * width * height, until=until)
            return keep_original(Image.frombytes("RGB", (width, height), pixels), original, dict(answer))
        except (_WorkerDiedError, ValueError, KeyError, TypeError, AttributeError):  # or an invalid answer
            detail = _why_it_died(self._process, cpu_s=cpu_s)
        except TimeoutError:
            detail = f"no answer within {MAX_DECODE_WALL_S} s"
        raise ImageError(path=name, reason=TOO_COSTLY, detail=detail)

    def _send(self, data: bytes, *, until: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(select.POLLOUT, until=until)
            try:
                view = view[self._socket.send(view[:_PART_BYTES]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise _WorkerDiedError from error

    def _receive(self, size_bytes: int, *, until: float) -> bytes | bytearray:
        data, at = bytearray(size_bytes), 0
        view = memoryview(data)
        while at < size_bytes:
            self._wait(select.POLLIN, until=until)
            try:
                got = self._socket.recv_into(view[at:])
            except BlockingIOError:
                continue
            except OSError as error:
                raise _WorkerDiedError from error
            if not got:
                raise _WorkerDiedError
            at += got
        return data

    def _wait(self, event: int, *, until: float) -> None:
        poller = select.poll()
        poller.register(self._socket, event)
        while not poller.poll(_LOOK_MS):
            raise_if_abandoned()
            if time.monotonic() > until:
                raise TimeoutError


def _why_it_died(process: subprocess.Popen[bytes], *, cpu_s: float) -> str:
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    if process.returncode == -signal.SIGPROF:
        return f"decoding it takes more than {cpu_s:g} s of processor time"
    seen = "still running" if process.returncode is None else f"status {process.returncode}"
    return f"the process that decoded it ended before it was done ({seen})"


_shared: DecodingPool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> DecodingPool:
    """The process's pool, which starts workers on demand and ends with the process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = DecodingPool(usable_cores())
            atexit.register(_shared.close)
            os.register_at_fork(after_in_child=_forget_shared)
        return _shared


def _forget_shared() -> None:
    global _shared, _shared_lock
    _shared_lock = threading.Lock()
    if _shared is not None:
        _shared.forget()
        _shared = None
