"""Streaming decompression of gzip, bzip2 and xz, in bounded memory."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

COMPRESSED_STARTS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_MOST_START = max(map(len, COMPRESSED_STARTS))
_PART_BYTES = 1 << 20
_MAX_LZMA_MEMORY = 1 << 28


_UNPACKERS: dict[str, tuple[Callable[[], Any], tuple[type[Exception], ...]]] = {
    "gzip": (lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), (zlib.error,)),
    "bzip2": (bz2.BZ2Decompressor, (OSError, ValueError)),
    "xz": (lambda: lzma.LZMADecompressor(memlimit=_MAX_LZMA_MEMORY), (lzma.LZMAError,)),
}
"""The decompressor of each kind, and what it raises on damage."""


class DamagedError(Exception):
    """Damaged compressed data; what came before the damage was given."""


def unpack(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress a stream by its magic bytes; an uncompressed one passes unchanged."""
    source, start = iter(parts), b""
    while len(start) < _MOST_START and (part := next(source, b"")):
        start += part
    kind = next((kind for magic, kind in COMPRESSED_STARTS.items() if start.startswith(magic)), None)
    whole = chain((start,), source)
    yield from whole if kind is None else _unpack(whole, kind)


def _unpack(parts: Iterator[bytes], kind: str) -> Iterator[bytes]:
    begin, damage = _UNPACKERS[kind]
    unpacker, is_within = begin(), False
    for part in parts:
        packed = part
        while packed or not getattr(unpacker, "needs_input", True):
            if unpacker.eof:  # several streams may follow each other, from `cat` and parallel compressors
                if not (packed := packed.lstrip(b"\0")):
                    break
                unpacker = begin()
            try:
                out = unpacker.decompress(packed, _PART_BYTES)
            except damage as error:
                raise DamagedError(f"damaged {kind}: {error}") from error
            packed = unpacker.unused_data if unpacker.eof else getattr(unpacker, "unconsumed_tail", b"")
            is_within = not unpacker.eof
            if out:
                yield out
            elif is_within and not packed:
                break
    if is_within:
        raise DamagedError(f"the {kind} stream ends too soon")
