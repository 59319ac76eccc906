"""Shared parts of commands: options from config classes, `--json`, `--debug`, and progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from inspect import get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args, get_origin, get_type_hints

import click

from index.config_fields import Config, make_config
from index.errors import InputError
from index.limits import WRITER_WAIT_S
from index.model.backends.backend import AUTO, NAMES, USUAL_BACKEND, VARIABLE
from index.progress import Progress

if TYPE_CHECKING:
    from index.filters.condition import Condition

FIRST_S, EVERY_S = 2.0, 30.0  # until the first line of progress, and between two lines

Command = Callable[..., Any]
PATH = click.Path(path_type=Path, readable=False)
"""Path option; the command reports unreadable files."""
NAMED = click.Path(readable=False)
"""Path or pattern as text; shells complete it as a path."""
_ALL = f"{__name__}.all"  # in a context's meta: its help shows everything


def output_options(command: Command) -> Command:
    """Add `--json` (passed on as `as_json`) and `--debug` (seen by the root command only)."""
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")(command)

    def note_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.find_root().ensure_object(dict)["debug"] = True

    return click.option(
        "--debug", is_flag=True, expose_value=False, callback=note_debug, help="Show the traceback of an error."
    )(command)


def _use_backend(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Set the variable, as models are opened in many places and in other processes."""
    if value is None or context.resilient_parsing:
        return
    context.meta["backend"] = value
    before = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
    os.environ[VARIABLE] = value

    @context.call_on_close
    def restore() -> None:
        os.environ.pop(VARIABLE, None)
        os.environ.update(before)


def _parse_where(context: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Condition | None:
    from index.filters.parser import parse_filter

    if len(texts) > 1:
        raise click.BadParameter("it can be given once; join conditions with AND", ctx=context, param=param)
    try:
        return parse_filter(texts[0]) if texts else None
    except InputError as error:
        raise click.BadParameter(str(error), ctx=context, param=param) from error


wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=WRITER_WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for another process that writes the gallery; 0: not at all.",
)
cache_option = click.option(
    "--no-cache",
    is_flag=True,
    help="Embed everything; neither reuse nor keep vectors in your cache folder. The gallery is the same.",
)
backend_option = click.option(
    "--backend",
    type=click.Choice((AUTO, *NAMES)),
    expose_value=False,
    callback=_use_backend,
    show_default=f"{VARIABLE}, or that of the gallery, or {USUAL_BACKEND}",
    help="Runtime of the model; auto is the fastest of those that are installed and agree.",
)
"""Overrides RETRIEVAL_BACKEND for the command and the processes that it starts."""
skip_if_option = click.option(
    "--skip-if",
    multiple=True,
    callback=_parse_where,
    metavar="FILTER",
    help='Skip images that match this, such as "sharpness < 20 OR small_side < 64", also in later updates; a build '
    "without it takes them in again.",
)
"""Passed on as a `Condition` or None."""
ocr_option = click.option(
    "--ocr/--no-ocr",
    default=None,
    help="Read the text in images (extra `ocr`) as metadata text_in_image, also in later updates; --no-ocr removes "
    "it.  [default: as the gallery has it]",
)

gps_option = click.option(
    "--gps/--no-gps",
    default=None,
    help="Keep the place where a photo was taken, from its EXIF, as metadata gps_latitude and gps_longitude, also in "
    "later updates; --no-gps removes them.  [default: as the gallery has it; a new one keeps none]",
)


def where_option(use: str, *, name: str = "--where") -> Callable[[Command], Command]:
    """Add `--where`, or an option of another name, passed on as a `Condition` or None; its help begins with `use`."""
    language = (
        "Columns: label, tag, path, source, id, measures such as sharpness, and any metadata; operators: AND, OR, NOT, "
        "IN, LIKE, BETWEEN, IS NULL. "
        "For example: \"label IN ('shoes', 'hats') AND price < 20\""
    )
    return click.option(name, multiple=True, callback=_parse_where, metavar="FILTER", help=f"{use} {language}")


def config_options(
    *classes: type, remembered: bool = False, only: Collection[str] | None = None
) -> Callable[[Command], Command]:
    """Options for every field of the config classes, named like the field.

    A field's metadata has `help`, and optionally `flag` (another name), `choices`, `metavar`, `usual` (the text of a
    default that is not a constant) or `words` (values beside a file's name). A tuple of texts is an option that can be
    repeated; a field without a default is required; one that is a config class adds its own fields; one without help,
    or inherited, makes no option.

    With `remembered`, options that are not given are None, and keep their earlier value; `only` selects fields.
    """

    def decorate(command: Command) -> Command:
        for config in reversed(classes):
            hints = get_type_hints(config)
            nested = [field for field in fields(config) if is_dataclass(hints[field.name])]
            own = [field for field in fields(config) if field not in nested and (only is None or field.name in only)]
            for field in reversed([*own, *nested]):  # help begins with what is the config's own
                hint = hints[field.name]
                if isinstance(hint, type) and is_dataclass(hint):
                    command = config_options(hint, remembered=remembered, only=only)(command)
                elif "help" in field.metadata and field.name in get_annotations(config):
                    command = _option(field, hint, group=config, remembered=remembered)(command)
        return command

    return decorate


class GroupedCommand(click.Command):
    """A command whose `--help` lists options by config class, only `common` ones where `--help-all` shows all."""

    common: Collection[str] | None = None

    def __init__(self, *args: Any, common: Collection[str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.common = common or self.common

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options group by group; those of no group come first."""
        shown, left_out = None if _ALL in ctx.meta else self.common, 0
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if not isinstance(param, click.Option) or record is None:
                continue
            if shown is None or param.name in shown or param is self.get_help_option(ctx):
                groups.setdefault(getattr(param, "group", "Options"), []).append(record)
            else:
                left_out += 1
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options are shown by {ctx.command_path} --help-all.")


def help_all_option(command: Command) -> Command:
    """Add `--help-all`, which shows the options that a `GroupedCommand` leaves out of `--help` too."""

    def show_all(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            context.meta[_ALL] = True
            click.echo(context.get_help(), color=context.color)
            context.exit()

    return click.option(
        "--help-all",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show_all,
        help="Show all options and exit.",
    )(command)


def _option(field: Any, hint: Any, *, group: type, remembered: bool) -> Callable[[Command], Command]:
    meta = field.metadata
    title = (group.__doc__ or "Options").partition("\n")[0].rstrip(".")
    kind_of_option = type("_ConfigOption", (click.Option,), {"group": title, "words": meta.get("words")})
    if get_origin(hint) in (types.UnionType,):
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    kind: Any = click.Choice(list(meta["choices"])) if "choices" in meta else PATH if hint is Path else hint
    is_list = get_origin(hint) is tuple
    default = field.default if field.default_factory is MISSING else field.default_factory
    required = default is MISSING
    flag = meta.get("flag", "--" + field.name.rstrip("_").replace("_", "-"))
    if hint is bool:
        return click.option(
            f"{flag}/--no-{flag[2:]}", field.name, default=default, help=meta["help"], cls=kind_of_option
        )
    return click.option(
        flag,
        field.name,
        cls=kind_of_option,
        type=str if is_list else kind,
        multiple=is_list,
        required=required,
        default=None if required or remembered else default,
        show_default=meta.get("usual", not required and not remembered and default not in (None, "", ())),
        metavar=meta.get("metavar"),
        help=meta["help"],
    )


def build_config(config: type[Config], values: Mapping[str, Any]) -> Config:
    """Config with the fields that are in the values; a wrong value is a usage error."""
    try:
        return make_config(config, values)
    except InputError as error:
        raise click.UsageError(str(error), ctx=click.get_current_context(silent=True)) from error


def is_given(context: click.Context, name: str) -> bool:
    """Whether an option was given."""
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def refuse_unused(context: click.Context, *names: str, needs: str) -> None:
    """Refuse given options that would have no effect."""
    for name in names:
        if is_given(context, name):
            raise click.UsageError(f"--{name.replace('_', '-')} goes with {needs}", ctx=context)


def read_numbers(text: str) -> tuple[int, ...]:
    """`4,1,2` as whole numbers of at least 1, in their order: a type of options."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers like 1,2,4,8") from error
    if min(numbers) < 1:
        raise click.BadParameter(f"{min(numbers)} is below 1")
    return numbers


def read_share(text: str) -> float:
    """`95%` or `.95` as a share of at least one half and below 1: a type of options."""
    share = _parse_share(text)
    if not 0.5 <= share < 1:
        raise click.BadParameter(f"{text!r} is not from 50% to below 100%")
    return share


def read_small_share(text: str) -> float:
    """`2%` or `.02` as a share above 0 and at most one half: a type of options."""
    share = _parse_share(text)
    if not 0 < share <= 0.5:
        raise click.BadParameter(f"{text!r} is not above 0% and at most 50%")
    return share


def _parse_share(text: str) -> float:
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a share like 95%") from error


def emit(document: Mapping[str, Any], *, as_json: bool, text: str) -> None:
    """Print a command's result on stdout: the document as JSON, or the text."""
    click.echo(json.dumps(document, indent=2) if as_json else text)


class BeginBar(Protocol):
    """Adds a bar below the others, which is hidden until its first report."""

    def __call__(self, description: str, *, unit: str = "images") -> Progress: ...


def _report_lines(description: str, *, unit: str = "images") -> Progress:
    """Lines on stderr: after two seconds of a stage, every half a minute of it, and at its end if it had one."""
    times: list[float] = []  # of the beginning, and of each line

    def report(done: int, total: int) -> None:
        now = time.monotonic()
        times[:] = times or [now]
        seconds = now - times[0]
        if total and done >= total:
            is_told = len(times) > 1
            times.clear()
            if is_told:
                click.echo(f"{description}: {total:,} {unit} in {seconds:.0f} s", err=True)
        elif now - times[-1] >= (EVERY_S if len(times) > 1 else FIRST_S):
            times.append(now)
            share = f"{done:,} of {total:,}" if total else f"{done:,}"
            left = f", some {seconds * (total - done) / done:.0f} s left" if total and done else ""
            click.echo(f"{description}: {share} {unit} after {seconds:.0f} s{left}", err=True)

    return report


@contextmanager
def progress_bars() -> Iterator[BeginBar]:
    """Progress bars for work of several steps; without a terminal, lines of the steps that take half a minute."""
    if not sys.stderr.isatty():
        yield _report_lines
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("[bold]{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[rate]}"),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def begin(description: str, *, unit: str = "images") -> Progress:
            task = bars.add_task(description, total=None, rate="", visible=False, start=False)

            def update(done: int, total: int) -> None:
                if not bars.tasks[task].started:
                    bars.start_task(task)
                speed = bars.tasks[task].speed
                rate = f"{speed:,.0f} {unit}/s" if speed else ""
                bars.update(task, completed=done, total=total or None, rate=rate, visible=True)

            return update

        yield begin
