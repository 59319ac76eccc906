"""The command `retrieval search`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import click

from index.commands.console import (
    NAMED,
    PATH,
    backend_option,
    by_option,
    emit,
    output_options,
    progress_bar,
    where_option,
)
from index.commands.images_or_gallery import settle_gallery
from index.outputs import PICTURE
from index.progress import no_progress
from index.public import open_gallery
from index.text import align

if TYPE_CHECKING:
    from pathlib import Path

    from index.filters.condition import Condition
    from index.gallery.gallery import Gallery
    from index.gallery.hits import Hit
    from index.gallery.queries import Query
    from index.progress import Progress

    Answer: TypeAlias = tuple[Query, list[Hit]]


_LOOKED_FOR = 100  # results of one query whose files are looked for

_DEFAULT_K = 10
_REPORT_QUERIES = 16


@dataclass(frozen=True, slots=True)
class HitLines:
    """How a result is shown.

    Attributes:
        several: whether the gallery has several sources, so that paths are shown in full.
        copy_from: the score from which on a result is a copy of the query; None where kinds are asked for.
    """

    several: bool
    copy_from: float | None

    @classmethod
    def of(cls, gallery: Gallery, *, by: str) -> HitLines:
        """For the answers of a gallery that is asked by an output."""
        picture = gallery.manifest.picture if by == PICTURE else None
        return cls(len(gallery.sources) > 1, None if picture is None else picture["threshold"])

    def heading(self) -> tuple[str, ...]:
        """What the columns of `row` are called."""
        return ("rank", "score", *(() if self.copy_from is None else ("",)), "label", "path")

    def row(self, hit: Hit) -> tuple[str, ...]:
        """Rank, score, whether it is a copy, label, and the path, in full where the gallery has several sources."""
        from index.text import printable_path

        label = "-" if hit.label is None else printable_path(hit.label)
        if hit.given_label != hit.label:
            label += " (was: " + ("none" if hit.given_label is None else printable_path(hit.given_label)) + ")"
        path = printable_path(hit.location if self.several else hit.path)
        told = () if self.copy_from is None else ("copy" if hit.score >= self.copy_from else "",)
        return (str(hit.rank), f"{hit.score:.4f}", *told, label, path)

    def to_json(self, hit: Hit) -> dict[str, Any]:
        """The result as `--json` prints it."""
        told = {} if self.copy_from is None else {"is_copy": hit.score >= self.copy_from}
        return {**hit.to_json(), **told}


def print_json(blocks: Iterable[list[Answer]], stream: TextIO, *, lines: HitLines) -> None:
    """Write the results of every query as they come, as one JSON document."""
    from index.text import valid_text

    separator = '{"queries": [\n'
    for block in blocks:
        for query, hits in block:
            entry: dict[str, Any] = {"query": valid_text(query.name), "results": list(map(lines.to_json, hits))}
            if query.problem is not None:
                entry["problem"] = str(query.problem)
            click.echo(separator + json.dumps(entry), nl=False, file=stream)
            separator = ",\n"
    click.echo("\n]}" if separator.startswith(",") else separator + "]}", file=stream)


def print_groups(blocks: Iterable[list[Answer]], stream: TextIO, *, lines: HitLines) -> None:
    """Write the results of every query that could be used, under its name."""
    from index.text import printable_path

    gap = ""
    for block in blocks:
        for query, hits in block:
            if query.problem is None:
                rows = [lines.row(hit) for hit in hits]
                table = align(rows, right={0, 1}) if rows else ["no result"]
                click.echo("\n  ".join([gap + printable_path(query.name), *table]), file=stream)
                gap = "\n"


def warn_of_gone(gallery: Gallery, hits: Sequence[Hit], *, folder: Path) -> None:
    """Say which results are not where they were when they were indexed."""
    from index.errors import InputError
    from index.text import printable_path

    gone = []
    for hit in hits[:_LOOKED_FOR]:
        try:
            gallery.place(hit.id)
        except InputError:
            gone.append(printable_path(hit.path))
    if gone:
        named = ", ".join(gone[:3]) + (", …" if len(gone) > 3 else "")
        shown = printable_path(str(folder))
        click.echo(
            f"not there any more: {named}; bring the gallery up to date: retrieval index update {shown}", err=True
        )


class _IdList(click.ParamType[tuple[int, ...]]):
    """`12,34` as a tuple of whole numbers, in the order given."""

    name = "ids"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of ids like 12,34", param, ctx)


@dataclass(frozen=True, slots=True)
class _Request:
    """What a run is asked; `k` is None where all results of at least `min_score` are wanted.

    `where` is what the results are to fulfil; `rerank` ranks them again by the neighbours that they share.
    """

    gallery: Gallery
    queries: tuple[str, ...]
    ids: tuple[int, ...]
    k: int | None
    min_score: float | None
    where: Condition | None
    rerank: bool

    def answers(self, progress: Progress | None = None) -> Iterator[list[Answer]]:
        """Every query with its results, in blocks."""
        from index.gallery.queries import answer_queries, read_queries

        queries = read_queries(self.queries, ids=self.ids, gallery=self.gallery)
        if progress is not None:
            queries = _count_queries(queries, progress)
        return answer_queries(
            queries, self.gallery, k=self.k, min_score=self.min_score, where=self.where, rerank=self.rerank
        )


def _count_queries(queries: Iterator[Query], progress: Progress) -> Iterator[Query]:
    done = 0
    for query in queries:
        yield query
        done += 1
        if done % _REPORT_QUERIES == 0:
            progress(done, done)
    progress(done, done)


@dataclass(slots=True)
class _Tally:
    queries: int = 0
    skipped: int = 0
    results: int = 0

    def count(self, blocks: Iterable[list[Answer]]) -> Iterator[list[Answer]]:
        """The same blocks, counted; skipped queries are named on stderr."""
        for block in blocks:
            for query, hits in block:
                self.queries += 1
                self.results += len(hits)
                if query.problem is not None:
                    self.skipped += 1
                    click.echo(f"skipped: {' '.join(str(query.problem).split())}", err=True)
            yield block

    def check(self) -> None:
        """See that there was a query that could be used."""
        from index.errors import InputError

        if not self.queries:
            raise InputError("there is no query: what was given holds no image")
        if self.skipped == self.queries:
            raise InputError("no query could be used")

    def describe(self, out: Path) -> str:
        from index.text import printable_path

        answered = self.queries - self.skipped
        return f"{printable_path(str(out))}: {self.results:,} results of {answered:,} queries"


@click.command(name="search")
@click.argument("gallery", type=PATH)
@click.argument("queries", nargs=-1, type=NAMED, metavar="QUERY...")
@click.option(
    "--id",
    "ids",
    type=_IdList(),
    multiple=True,
    metavar="ID,...",
    help="Members of the gallery that ask too, by id; they are not among their own results.",
)
@click.option(
    "-k",
    "--count",
    "k",
    type=click.IntRange(min=1),
    help=f"Results wanted of each query.  [default: {_DEFAULT_K}, or all with --min-score]",
)
@click.option(
    "--min-score",
    type=click.FloatRange(-1, 1),
    metavar="COSINE",
    help="Only results that are at least so similar.",
)
@where_option("Only results that fulfil this.")
@click.option(
    "--rerank",
    is_flag=True,
    help="Rank the first 100 results again by the neighbours that they share with the query: more of the same kind in "
    "a long list. The first one stays; it takes 100 searches more.",
)
@by_option("Find things of the same kind, or copies of the very picture: cut, turned, recoloured, saved again.")
@click.option(
    "--out",
    type=PATH,
    metavar="FILE",
    help="Write the results to this .csv, .parquet or .jsonl file, one row each.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 where any query could not be used, not only where all.")
@backend_option
@output_options
@click.pass_context
def search(
    context: click.Context,
    /,
    *,
    gallery: Path,
    queries: tuple[str, ...],
    ids: tuple[tuple[int, ...], ...],
    k: int | None,
    min_score: float | None,
    where: Condition | None,
    rerank: bool,
    by: str,
    out: Path | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Find the images of GALLERY that are most similar to each QUERY.

    In the place of a GALLERY, images may be named: a folder, an archive or a list of them. Theirs is then made beside
    them, once, with the model that comes with the package.

    A QUERY is an image, or what holds many: a folder, a .tar or .zip archive, a 'pattern*', a .txt list, a .csv or
    .parquet table with a column path, or a .npy file of vectors, of shape (queries, width) or (width,), that the
    gallery's model made. Queries that cannot be used are named on stderr, and the others are answered.

    \b
    Examples:
      retrieval search photos query.jpg
      retrieval search gallery query.jpg
      retrieval search gallery query.jpg -k 50 --rerank --json
      retrieval search gallery query.jpg --by picture
      retrieval search gallery new_photos more.tar vectors.npy --out results.csv
      retrieval search gallery --id 12,34 --min-score 0.9
      retrieval search gallery query.jpg --where "label = 'shoes' AND price < 20"
    """
    if not queries and not ids:
        raise click.UsageError("give a QUERY or --id")
    from index.gallery.queries import is_single
    from index.gallery.result_files import check_results_path
    from index.text import printable_path

    if out is not None:
        check_results_path(out)
    wanted = _DEFAULT_K if k is None and min_score is None else k
    _refuse_swapped(gallery, queries)
    settled = settle_gallery(gallery, check=lambda: _check_queries(queries))
    opened = open_gallery(settled).by(by)
    request = _Request(
        opened, queries, tuple(chain(*ids)), k=wanted, min_score=min_score, where=where, rerank=rerank,
    )  # fmt: skip
    lines = HitLines.of(opened, by=by)
    if out is None and is_single(queries, ids=request.ids):
        warn_of_gone(opened, _answer_one(request, lines, as_json=as_json), folder=settled)
        return
    tally = _answer_many(request, lines, out=out, as_json=as_json)
    if out is not None:
        emit({"out": printable_path(str(out)), **asdict(tally)}, as_json=as_json, text=tally.describe(out))
    if strict and tally.skipped:
        context.exit(1)


def _refuse_swapped(gallery: Path, queries: Sequence[str]) -> None:
    """See that the gallery is named first, and the query after it."""
    from index.errors import InputError
    from index.sources.registry import find_source
    from index.text import printable_path

    names_a_folder = len(queries) == 1 and Path(queries[0]).is_dir()
    if names_a_folder and gallery.is_file() and find_source(str(gallery)).is_one_item:
        first, second = printable_path(str(gallery)), printable_path(queries[0])
        raise InputError(f"{first}: a photo, and no gallery; that comes first: retrieval search {second} {first}")


def _check_queries(queries: Iterable[str]) -> None:
    """See that every query is there."""
    from index.gallery.queries import is_npy
    from index.sources.registry import find_source

    for query in queries:
        if not is_npy(query):
            find_source(query)


def _answer_one(request: _Request, lines: HitLines, *, as_json: bool) -> list[Hit]:
    found: list[Hit] = []
    for block in request.answers():
        for query, hits in block:
            if query.problem is not None:
                raise query.problem
            rows = [lines.heading(), *map(lines.row, hits)]
            text = "\n".join(align(rows, right={0, 1}))
            emit({"results": [lines.to_json(hit) for hit in hits]}, as_json=as_json, text=text)
            found += hits
    if not found:
        _explain_none(request)
    return found


def _explain_none(request: _Request) -> None:
    """Say on stderr why there is no result."""
    if request.where is not None and not len(request.gallery.matching_ids(request.where)):
        click.echo("no result: no image of the gallery fulfils --where", err=True)
    elif request.min_score is not None:
        click.echo(f"no result: no image is as similar as --min-score {request.min_score:g}", err=True)


def _answer_many(request: _Request, lines: HitLines, *, out: Path | None, as_json: bool) -> _Tally:
    """Print or write the results of every query, while skipped ones are named on stderr."""
    stream, tally = sys.stdout, _Tally()  # a bar takes the name `sys.stdout` while it is drawn
    with _progress(request, visible=out is not None or not stream.isatty()) as progress:
        blocks = tally.count(request.answers(progress))
        if out is not None:
            _write_file(blocks, out, tally=tally)
        elif as_json:
            print_json(blocks, stream, lines=lines)
        else:
            print_groups(blocks, stream, lines=lines)
    tally.check()
    if not tally.results:
        _explain_none(request)
    if tally.skipped:
        click.echo(f"skipped queries: {tally.skipped:,} of {tally.queries:,}", err=True)
    return tally


@contextmanager
def _progress(request: _Request, *, visible: bool) -> Iterator[Progress]:
    """A bar on stderr; where results are printed on a terminal, they show the progress themselves."""
    from index.gallery.queries import count_queries

    if not visible or not sys.stderr.isatty():
        yield no_progress
        return
    with progress_bar("Searching", unit="queries") as report:
        expected = count_queries(request.queries, ids=request.ids)
        yield lambda done, total: report(done, max(expected, total))


def _write_file(blocks: Iterable[list[Answer]], out: Path, *, tally: _Tally) -> None:
    from index.gallery.result_files import ResultRow, open_results

    with open_results(out) as write:
        for block in blocks:
            write([ResultRow(query.name, hit) for query, hits in block for hit in hits])
        tally.check()
