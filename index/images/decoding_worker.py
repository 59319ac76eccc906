"""Worker process that decodes images within limits of memory and processor time, and ends with its parent.

It reads requests from its standard input, a socket, and answers there. An image beyond the limits ends the process, or
is answered as `too-costly`; the parent then starts another. Nothing heavier than Pillow is imported.

    request     REQUEST, then the file's bytes
    answer      ANSWER, then JSON: the facts of the file, and then the pixels, three bytes each; or reason and detail
"""

import json
import os
import select
import signal
import socket
import struct
import threading
import warnings

from PIL import AvifImagePlugin, Image

from index.errors import ImageError
from index.images.decode import decode_here, find_facts, find_original, return_memory
from index.limits import MAX_DECODE_BYTES

REQUEST = struct.Struct("<QQQd")
"""Bytes of the file, target side, pixels allowed, seconds of processor time allowed."""

ANSWER = struct.Struct("<?QQQIIB")
"""Whether there is an image; the bytes of JSON; the image's width and height, and its `Original`, or zeros."""

READY = b"ready"
TOO_COSTLY = "too-costly"
_STRIP_BYTES = 1 << 22
_MEMORY_DETAIL = f"decoding it takes more than {MAX_DECODE_BYTES >> 20} MiB of memory"


def main() -> None:
    """Answer requests until the parent is gone."""
    warnings.simplefilter("ignore")
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # each thread reserves memory
    Image.init()
    parent = socket.socket(fileno=0)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _limit_memory()
    parent.sendall(READY)
    while True:
        size_bytes, target_side, max_pixels, cpu_s = REQUEST.unpack(_receive(parent, REQUEST.size))
        data = _receive(parent, size_bytes)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # ends the process, also in C code
        _answer(parent, data, target_side=target_side, max_pixels=max_pixels)
        signal.setitimer(signal.ITIMER_PROF, 0)
        del data
        return_memory()  # so that every image has the same limit


def _answer(parent: socket.socket, data: bytes, *, target_side: int, max_pixels: int) -> None:
    try:
        image = decode_here(data, name="", target_side=target_side, max_pixels=max_pixels)
    except ImageError as error:
        reason, detail = error.reason, error.detail
    except MemoryError:
        reason, detail = TOO_COSTLY, _MEMORY_DETAIL
    else:
        width, height = image.size
        facts = json.dumps(find_facts(image)).encode()
        parent.sendall(ANSWER.pack(True, len(facts), width, height, *find_original(image)) + facts)
        rows = max(1, _STRIP_BYTES // (3 * width))
        for top in range(0, height, rows):  # in strips, so that no second whole image is held
            parent.sendall(image.crop((0, top, width, min(top + rows, height))).tobytes())
        return
    text = json.dumps({"reason": reason, "detail": detail}).encode()
    parent.sendall(ANSWER.pack(False, len(text), 0, 0, 0, 0, 0) + text)


def _receive(parent: socket.socket, size_bytes: int) -> bytes:
    data = parent.recv(size_bytes, socket.MSG_WAITALL)
    if len(data) < size_bytes:
        os._exit(0)
    return data


def _leave_with_parent() -> None:
    """End at once when the other end is closed, even during a decode."""
    poller = select.poll()
    poller.register(0, 0)  # hang-up is always reported
    poller.poll()
    os._exit(0)


def _limit_memory() -> None:
    import resource  # which Windows lacks, as it does this process

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            base = int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return  # not Linux: other systems keep no limit on the address space
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = base + MAX_DECODE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
