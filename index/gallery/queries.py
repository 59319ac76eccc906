"""Queries of the command line: words, images of any source, vectors of `.npy` files, members by id; and results."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tokenize import TokenError

import numpy as np
import numpy.typing as npt

from index.arrays import NO_ID, Vectors
from index.embedding.engine import ThreadedEngine, in_order
from index.errors import ImageError, InputError, RetrievalError
from index.filters.condition import Condition
from index.gallery.any_query import normalise
from index.gallery.gallery import Gallery
from index.gallery.ranking import Hit, SearchOptions, answer
from index.items import EmbeddedItem, Place
from index.sources.registry import find_source
from index.text import printable_path
from index.threads import usable_cores
from index.words.taught import WordQuery
from index.words.words import is_text

_ITEMS_AT_ONCE = 1024  # few enough to be held; decoding pauses between groups of them
_BLOCK_QUERIES = 256  # searched at once
_BLOCK_HITS = 1 << 16  # held at once, unless a single query has more
# Errors of NumPy on damaged headers.
_NPY_DAMAGE = (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, TokenError)


@dataclass(frozen=True, slots=True)
class Query:
    """One query: its (D,) float32 unit `vector`, or the `problem`; `place` is that of an image still to be embedded.

    `name` is the argument's file (undecodable bytes as surrogates), `vectors.npy[3]`, `id:12` or the `words`' text;
    `exclude_id` is no hit.
    """

    name: str
    vector: Vectors | None = None
    problem: RetrievalError | None = None
    exclude_id: int = NO_ID
    place: Place | None = None
    words: WordQuery | None = None


def read_queries(arguments: Sequence[str], *, ids: Sequence[int] = (), gallery: Gallery) -> Iterator[Query]:
    """Every query, in the order of the arguments and then of the ids, in bounded memory."""
    asked = (one for argument in arguments for one in _read_argument(argument, gallery))
    while group := list(islice(asked, _ITEMS_AT_ONCE)):
        yield from _embed(group, gallery)
    for image_id in ids:
        name = f"id:{image_id}"
        try:
            yield Query(name, gallery.vector(image_id), exclude_id=image_id)
        except InputError as error:
            yield Query(name, problem=error)


def answer_queries(
    queries: Iterable[Query], gallery: Gallery, *, options: SearchOptions, where: Condition | None = None
) -> Iterator[list[tuple[Query, list[Hit]]]]:
    """Search the queries in blocks; a query with a problem has no results."""
    left, most, bound = iter(queries), 0, options.k or gallery.count
    while block := list(islice(left, max(1, min(_BLOCK_QUERIES, _BLOCK_HITS // bound)))):
        sound = [(query, query.vector) for query in block if query.vector is not None]
        found: Iterator[list[Hit]] = iter(())
        if sound:
            searches = [
                replace(options, exclude_ids=frozenset((query.exclude_id,)), words=query.words) for query, _ in sound
            ]
            found = iter(answer(gallery, np.stack([vector for _, vector in sound]), searches, where=where))
        answers = [(query, [] if query.vector is None else next(found)) for query in block]
        most = max(most, *(len(hits) for _, hits in answers))
        if options.k is None and sound:  # an estimate for the next blocks
            bound = max(1, most)
        yield answers


def is_single(arguments: Sequence[str], *, ids: Sequence[int] = ()) -> bool:
    """Whether the query is one file, one (D,) vector or one member; a folder never is."""
    if len(arguments) + len(ids) != 1:
        return False
    try:
        return (
            not arguments
            or is_text(arguments[0])
            or (
                _open_vectors(arguments[0]).ndim == 1 if is_npy(arguments[0]) else find_source(arguments[0]).is_one_item
            )
        )
    except InputError:
        return True  # one problem


def is_npy(argument: str) -> bool:
    return argument.lower().endswith(".npy") and not os.path.isdir(argument)


def _read_argument(argument: str, gallery: Gallery) -> Iterator[Query]:
    try:
        if is_text(argument):
            words = gallery.ask_words(argument)
            yield Query(argument, normalise(words.vector, name=argument), words=words)
        else:
            yield from _read_vectors(argument, dim=gallery.width) if is_npy(argument) else _list_images(argument)
    except InputError as error:
        yield Query(argument, problem=error)


def _list_images(argument: str) -> Iterator[Query]:
    source = find_source(argument)
    folder = source.root
    if folder.startswith("/"):  # as the argument spells it; an address is the same from everywhere
        folder = os.path.normpath(argument) if ".." in argument else argument.rstrip("/") or argument
        for _ in Path(source.location).relative_to(source.root).parts:
            folder = os.path.dirname(folder)
    for item in source.scan():
        name = argument if source.is_one_item else os.path.join(folder, item.path)
        if item.problem is None:
            yield Query(name, place=source.locate(item))
        else:
            yield Query(name, problem=_under_name(item.problem, name))


def _read_vectors(argument: str, *, dim: int) -> Iterator[Query]:
    vectors = _open_vectors(argument)
    if vectors.shape[-1] != dim:
        raise InputError(
            f"{printable_path(argument)}: the vectors have {vectors.shape[-1]} numbers, this gallery's have {dim}; "
            "make them with the model that the gallery was built with"
        )
    for number, row in enumerate(vectors.reshape(-1, dim)):
        name = argument if vectors.ndim == 1 else f"{argument}[{number}]"
        try:
            yield Query(name, vector=normalise(row, name=name))
        except InputError as error:
            yield Query(name, problem=error)


def _open_vectors(argument: str) -> npt.NDArray[np.floating]:
    """Map a file of (Q, D) or (D,) float32 or float64 numbers, never unpickling."""
    expected = "expected a .npy file of float32 or float64 numbers, of shape (queries, width) or (width,)"
    try:
        array = np.lib.format.open_memmap(Path(argument), mode="r")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", at=argument) from error
    except _NPY_DAMAGE as error:
        raise InputError(f"{expected}: {error}", at=argument) from error
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8) or array.ndim not in (1, 2) or not array.size:
        raise InputError(f"{expected}; found {array.dtype} of shape {array.shape}", at=argument)
    return array


def _embed(group: Sequence[Query], gallery: Gallery) -> Iterator[Query]:
    """Embed the queries of a group; they come in order, each as soon as possible."""
    places = {number: query.place for number, query in enumerate(group) if query.place is not None}
    embedded: Iterator[EmbeddedItem] = iter(())
    if places:
        embedder, workers = gallery.embedder, min(usable_cores(), len(places))
        size = min(embedder.usual_batch, -(-len(places) // workers))  # a batch is padded: a single query is one of one
        engine = ThreadedEngine(embedder, workers=workers, batch_size=size)
        embedded = in_order(engine.embed(places.items()), places)
    for query in group:
        if query.place is None:
            yield query
        else:
            item = next(embedded)
            yield Query(query.name, item.vector, item.problem and _under_name(item.problem, query.name))


def _under_name(problem: ImageError, name: str) -> ImageError:
    return ImageError(path=printable_path(name), reason=problem.reason, detail=problem.detail)
