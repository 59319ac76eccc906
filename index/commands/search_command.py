"""The command `retrieval search`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from index.commands.console import (
    NAMED,
    PATH,
    GroupedCommand,
    backend_option,
    emit,
    help_all_option,
    output_options,
    progress_bars,
    read_numbers,
    where_option,
)
from index.commands.images_or_gallery import ensure_gallery
from index.errors import InputError
from index.outputs import COPY, SEMANTIC
from index.progress import no_progress
from index.public import open_gallery
from index.text import align, printable_path, valid_text

if TYPE_CHECKING:
    from index.filters.condition import Condition
    from index.gallery.gallery import Gallery
    from index.gallery.queries import Query
    from index.gallery.ranking import Hit, SearchOptions
    from index.progress import Progress

    Answer: TypeAlias = tuple[Query, list[Hit]]


_LOOKED_FOR = 100  # results of one query whose files are looked for
_DEFAULT_K = 10


@dataclass(frozen=True, slots=True)
class _Search:
    """The queries and options of the command, and the format of its results."""

    gallery: Gallery
    queries: tuple[str, ...]
    ids: tuple[int, ...]
    options: SearchOptions
    where: Condition | None
    by: str

    def answer(self, progress: Progress = no_progress) -> Iterator[Answer]:
        from index.gallery.queries import answer_queries, read_queries

        def read() -> Iterator[Query]:
            queries = read_queries(self.queries, ids=self.ids, gallery=self.gallery)
            for done, query in enumerate(queries, start=1):
                yield query
                progress(done, 0)

        answers = answer_queries(read(), self.gallery, options=self.options, where=self.where)
        return chain.from_iterable(answers)

    def tabulate(self, hits: Sequence[Hit]) -> list[str]:
        """A heading, and a line for each result: rank, score, whether it is a copy, label, and path."""
        several, rows = len(self.gallery.sources) > 1, []
        for hit in hits:
            label = "-" if hit.label is None else printable_path(hit.label)
            if hit.given_label != hit.label:
                label += " (was: " + ("none" if hit.given_label is None else printable_path(hit.given_label)) + ")"
            mark = ("copy" if is_copy else "" for is_copy in self._mark(hit).values())
            path = printable_path(hit.location if several else hit.path)
            if hit.duplicates_count:
                path += f" (+{hit.duplicates_count:,} of this {printable_path(self.options.group_by)})"
            found_by = () if hit.found_by is None else (hit.found_by,)
            rows.append((str(hit.rank), f"{hit.score:.4f}", *mark, *found_by, label, path))
        more = ["found by"] if hits and hits[0].found_by else [""] if self.by == COPY else []
        return align([("rank", "score", *more, "label", "path"), *rows], right={0, 1})

    def to_json(self, hit: Hit) -> dict[str, Any]:
        return {**hit.to_json(), **self._mark(hit)}

    def _mark(self, hit: Hit) -> dict[str, bool]:
        copies = self.gallery.manifest.copy if self.by == COPY else None
        return {} if copies is None else {"is_copy": hit.score >= copies["threshold"]}

    def explain_none(self) -> None:
        min_score = self.options.min_score
        if self.where is not None and not len(self.gallery.matching_ids(self.where)):
            click.echo("no result: no image of the gallery matches --where", err=True)
        elif min_score is not None:
            click.echo(f"no result: no image is as similar as --min-score {min_score:g}", err=True)


def _warn_of_gone(gallery: Gallery, hits: Sequence[Hit], *, folder: Path) -> None:
    """Name results whose files are gone."""
    gone = []
    for hit in hits[:_LOOKED_FOR]:
        try:
            gallery.place(hit.id)
        except InputError:
            gone.append(printable_path(hit.path))
    if gone:
        named = ", ".join(gone[:3]) + (", …" if len(gone) > 3 else "")
        shown = printable_path(folder)
        click.echo(f"missing files: {named}; update the gallery: retrieval index update {shown}", err=True)


@click.command(
    name="search",
    cls=GroupedCommand,
    common=("ids", "k", "min_score", "where", "group_by", "by", "out", "as_json", "help_all"),
)
@click.argument("gallery", type=PATH)
@click.argument("queries", nargs=-1, type=NAMED, metavar="QUERY...")
@click.option(
    "--id",
    "ids",
    type=read_numbers,
    multiple=True,
    metavar="ID,...",
    help="Images of the gallery as queries, by id; they are not among their own results.",
)
@click.option(
    "-k",
    "--count",
    "k",
    type=click.IntRange(min=1),
    help=f"Results of each query.  [default: {_DEFAULT_K}, or all with --min-score]",
)
@click.option(
    "--min-score",
    type=click.FloatRange(-1, 1),
    metavar="COSINE",
    help="Only results of at least this cosine similarity.",
)
@where_option("Only results that fulfil this.")
@click.option(
    "--group-by",
    metavar="COLUMN|folder",
    help="Only the best of the images with one value of this column (or label), or in one folder, is a result.",
)
@click.option(
    "--by",
    type=click.Choice((SEMANTIC, COPY)),
    default=SEMANTIC,
    show_default=True,
    help="Find similar content, or copies of the image: cropped, mirrored, recoloured, saved again. The second needs a "
    "model with a copy-detection output.",
)
@click.option("--out", type=PATH, metavar="FILE", help="Write the results to this .csv file, one row each.")
@click.option("--strict", is_flag=True, help="Exit with 1 if any query could not be used, not only if none could.")
@backend_option
@output_options
@help_all_option
@click.pass_context
def search(
    context: click.Context,
    /,
    *,
    gallery: Path,
    queries: tuple[str, ...],
    ids: tuple[tuple[int, ...], ...],
    where: Condition | None,
    by: str,
    out: Path | None,
    strict: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the images of GALLERY that are most similar to each QUERY.

    GALLERY may also be images: a folder, an archive or a list of them. Their gallery is then made beside them, once,
    with the model that comes with the package.

    A QUERY is words, for instance "oat milk", or an image, or holds many images: a folder, a .tar or .zip archive, a
    'pattern*', a .txt list, a .csv or .parquet table with a column path, or a .npy file of vectors of the gallery's
    model, of shape (queries, width) or (width,). Words find images whose texts have them (path, label, tags, metadata),
    and those that look so.
    Queries that cannot be used are named on stderr.

    \b
    Examples:
      retrieval search photos query.jpg
      retrieval search photos "oat milk"
      retrieval search gallery query.jpg -k 50 --where "label = 'shoes' AND price < 20"
      retrieval search gallery query.jpg --group-by product
      retrieval search gallery new_photos --out results.csv
    """
    if not queries and not ids:
        raise click.UsageError("give a QUERY or --id")
    from index.gallery.queries import is_single
    from index.gallery.ranking import SearchOptions
    from index.gallery.result_files import check_results_path

    if out is not None:
        check_results_path(out)
    _refuse_swapped(gallery, queries)
    indexed = ensure_gallery(gallery, check=lambda: _check_queries(queries))
    opened, numbers = open_gallery(indexed).view(by), tuple(chain(*ids))
    if options["k"] is None and options["min_score"] is None:
        options["k"] = _DEFAULT_K
    asked = _Search(opened, queries, numbers, SearchOptions(**options), where, by)
    if out is None and is_single(queries, ids=numbers):
        _show_one(asked, as_json=as_json, folder=indexed)
    elif _show_all(asked, out=out, as_json=as_json) and strict:
        context.exit(1)


def _show_one(search: _Search, *, as_json: bool, folder: Path) -> None:
    hits: list[Hit] = []
    for query, hits in search.answer():
        if query.problem is not None:
            raise query.problem
        if query.words is not None:
            click.echo(query.words.explain(), err=True)
        document = {"results": [search.to_json(hit) for hit in hits]}
        emit(document, as_json=as_json, text="\n".join(search.tabulate(hits)))
    if not hits:
        search.explain_none()
    _warn_of_gone(search.gallery, hits, folder=folder)


def _show_all(search: _Search, *, out: Path | None, as_json: bool) -> int:
    """Print or write the results of every query as they come; the number of skipped queries, named on stderr."""
    from index.gallery.result_files import open_results

    stream, counts = sys.stdout, {"queries": 0, "skipped": 0, "results": 0}  # a bar takes `sys.stdout` while drawn
    shows_bar = out is not None or not stream.isatty()  # on a terminal the results themselves show the progress
    with ExitStack() as stack:
        begin = stack.enter_context(progress_bars()) if shows_bar else None
        write = None if out is None else stack.enter_context(open_results(out))
        for query, hits in search.answer(no_progress if begin is None else begin("Searching", unit="queries")):
            counts["queries"] += 1
            counts["results"] += len(hits)
            if query.problem is not None:
                counts["skipped"] += 1
                click.echo(f"skipped: {' '.join(str(query.problem).split())}", err=True)
            if write is not None:
                write([(query.name, hit) for hit in hits])
            elif as_json:
                entry = {"query": valid_text(query.name), "results": list(map(search.to_json, hits))}
                entry |= {} if query.problem is None else {"problem": str(query.problem)}
                separator = '{"queries": [\n' if counts["queries"] == 1 else ",\n"
                click.echo(separator + json.dumps(entry), nl=False, file=stream)
            elif query.problem is None:
                table = search.tabulate(hits) if hits else ["no result"]
                gap = "\n" if counts["queries"] - counts["skipped"] > 1 else ""
                click.echo("\n  ".join([gap + printable_path(query.name), *table]), file=stream)
        if counts["skipped"] == counts["queries"]:  # the file of --out stays as it was
            raise InputError("no query could be used" if counts["queries"] else "the QUERY arguments hold no image")
    if as_json and out is None:
        click.echo("\n]}")
    if not counts["results"]:
        search.explain_none()
    if counts["skipped"]:
        click.echo(f"skipped queries: {counts['skipped']:,} of {counts['queries']:,}", err=True)
    if out is not None:
        shown, answered = printable_path(out), counts["queries"] - counts["skipped"]
        text = f"{shown}: {counts['results']:,} results of {answered:,} queries"
        emit({"out": shown, **counts}, as_json=as_json, text=text)
    return counts["skipped"]


def _refuse_swapped(gallery: Path, queries: Sequence[str]) -> None:
    """Refuse a query in the place of the gallery."""
    from index.sources.registry import find_source

    names_a_folder = len(queries) == 1 and Path(queries[0]).is_dir()
    if names_a_folder and gallery.is_file() and find_source(str(gallery)).is_one_item:
        first, second = printable_path(gallery), printable_path(queries[0])
        raise InputError(f"{first}: an image; GALLERY comes first: retrieval search {second} {first}")


def _check_queries(queries: Iterable[str]) -> None:
    """Refuse queries that do not exist."""
    from index.gallery.queries import is_npy
    from index.sources.registry import find_source
    from index.words.words import is_text

    for query in queries:
        if is_npy(query) or is_text(query):
            continue
        try:
            source = find_source(query)
        except InputError as error:
            raise InputError(f"{error}; for words, write spaces in place of . / * and ?") from error
        if os.sep not in query and Path(query).is_dir() and not source.is_one_item:
            click.echo(f"{printable_path(query)}: a folder here, whose images are the queries", err=True)
