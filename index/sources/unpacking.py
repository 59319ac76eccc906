"""Streaming decompression of gzip, bzip2, xz and zstd, in bounded memory."""

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from index.errors import ImageError

COMPRESSED_STARTS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MOST_START = max(map(len, COMPRESSED_STARTS))
_PART_BYTES = 1 << 20
_MAX_LZMA_MEMORY = 1 << 28


class DamagedError(Exception):
    """Damaged compressed data; what came before the damage was given."""


def unpack(parts: Iterable[bytes], *, name: str) -> Iterator[bytes]:
    """Decompress a stream by its magic bytes; an uncompressed one passes unchanged."""
    source, start = iter(parts), b""
    while len(start) < _MOST_START and (part := next(source, b"")):
        start += part
    kind = next((kind for magic, kind in COMPRESSED_STARTS.items() if start.startswith(magic)), None)
    whole = chain((start,), source)
    yield from whole if kind is None else _unpack(whole, kind, name=name)


def _unpack(parts: Iterator[bytes], kind: str, *, name: str) -> Iterator[bytes]:
    begin, damage = _find_unpacker(kind, name)
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


def _find_unpacker(kind: str, name: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """The decompressor of a kind, and what it raises on damage."""
    if kind == "gzip":
        return lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), (zlib.error,)
    if kind == "bzip2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    if kind == "xz":
        return lambda: lzma.LZMADecompressor(memlimit=_MAX_LZMA_MEMORY), (lzma.LZMAError,)
    try:
        try:
            from compression import zstd  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            from backports import zstd
    except ImportError as error:
        detail = "zstd is read with the extra `remote`: pip install 'retrieval-app[remote]'"
        raise ImageError(path=name, reason="needs-package", detail=detail) from error
    return zstd.ZstdDecompressor, (zstd.ZstdError,)
