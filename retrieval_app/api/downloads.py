"""Files that are made when they are asked for, and sent as attachments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from tempfile import SpooledTemporaryFile

from fastapi import Response
from fastapi.responses import StreamingResponse

from retrieval_app.serving.search_engine import Engine

_BYTES_IN_MEMORY = 4 * 1024 * 1024  # of a table; more lies in a temporary file
_CHUNK_BYTES = 64 * 1024


async def send_table(
    engine: Engine, blocks: Iterable[bytes], *, name: str, describe: Callable[[], Mapping[str, str]] = dict
) -> Response:
    """A CSV, made whole before it is sent: by one thread, as a reader of the catalogue belongs to its own.

    `name`, and the headers that `describe` gives once it is made, must be ours: nobody's text belongs in a header.

    Raises:
        RetrievalError: whatever the blocks raise.
        BusyError: too many reads wait.
        TimedOutError: it took too long.
    """
    file, size = await engine.run(_write_all, blocks)
    headers = {**_attach(name), **describe(), "Content-Length": str(size)}
    return StreamingResponse(_read_all(file), media_type="text/csv", headers=headers)


def send_zip(engine: Engine, blocks: Iterator[bytes], *, name: str) -> Response:
    """A ZIP, of which each block is made when the one before is sent; any thread may make it.

    `name` must be ours.
    """
    return StreamingResponse(_pull(engine, blocks), media_type="application/zip", headers=_attach(name))


def _attach(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _write_all(blocks: Iterable[bytes]) -> tuple[SpooledTemporaryFile[bytes], int]:
    """A file of all blocks, at its start, and its size."""
    file: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=_BYTES_IN_MEMORY)  # noqa: SIM115 - closed when it is sent
    try:
        for block in blocks:
            file.write(block)
    except BaseException:
        file.close()
        raise
    size = file.tell()
    file.seek(0)
    return file, size


def _read_all(file: SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


async def _pull(engine: Engine, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (block := await engine.run(next, blocks, None)) is not None:
        yield block
