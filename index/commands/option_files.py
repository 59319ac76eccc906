"""Option files of commands: `--config FILE.toml`, a flat list such as `batch-size = 9`; options override it."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.core import ParameterSource

from index.commands.console import PATH, Command, GroupedCommand
from index.config_fields import suggest
from index.errors import InputError, reading
from index.text import printable_path

FILE = "config_file"
_OF_A_CALL = frozenset(("help", "help_all", "as_json", "debug", "show_config"))


class OptionFileCommand(GroupedCommand):
    """Command whose options a file can give, but those `not_in_file`, by name with what to do instead."""

    not_in_file: Mapping[str, str] = MappingProxyType({})

    def settings(self) -> Iterator[click.Option]:
        """The options that are settings: none that is about one call only."""
        for param in self.params:
            if isinstance(param, click.Option) and param.name not in _OF_A_CALL:
                yield param


def config_file_option(example: str, *, before: str = "options go before") -> Callable[[Command], Command]:
    """Add `--config` to an `OptionFileCommand`; `example` is a line of a file."""

    def read(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
        if path is not None and isinstance(ctx.command, OptionFileCommand):
            ctx.meta[FILE] = path
            ctx.default_map = _read_settings(ctx, path, command=ctx.command, example=example)

    return click.option(
        "--config",
        FILE,
        type=PATH,
        is_eager=True,
        expose_value=False,
        callback=read,
        metavar="FILE.toml",
        help=f"Read options from this file, such as {example}; {before}.",
    )


def name_setting(option: click.Option) -> str:
    """`photos-waiting` of `--photos-waiting`."""
    return max(option.opts, key=len).lstrip("-")


def tell_source(ctx: click.Context, option: click.Option) -> str:
    """Origin of an option's value: `option`, a variable, the file, or `default`."""
    source = ctx.get_parameter_source(option.name or "")
    if source is ParameterSource.ENVIRONMENT:
        return f"the variable {option.envvar}"
    if source is ParameterSource.DEFAULT_MAP:
        return printable_path(str(ctx.meta[FILE]))
    return "option" if source is ParameterSource.COMMANDLINE else "default"


def _read_settings(ctx: click.Context, path: Path, *, command: OptionFileCommand, example: str) -> dict[str, Any]:
    """The values in a file by the names of their parameters; files that it names lie beside it."""
    options = {name_setting(option): option for option in command.settings() if option.name != FILE}
    not_in_file = command.not_in_file
    found: dict[str, Any] = {}
    for key, value in _read_toml(path, example=example).items():
        name = key.replace("_", "-")
        if name in not_in_file:
            raise InputError(f"{key}: {not_in_file[name]}", at=path)
        if name not in options:
            known = [known for known in options if known not in not_in_file]
            raise InputError(f"{key}: no such option; {suggest(name, known)}", at=path)
        option = options[name]
        if option.name in found:
            raise InputError(f"{key} stands there twice, once with - and once with _", at=path)
        if isinstance(value, list) is not option.multiple:
            expected = 'a list of texts, ["a", "b"]' if option.multiple else "one value"
            raise InputError(f"{key}: expected {expected}, got {value!r}", at=path)
        words = ("-",) if isinstance(option.type, click.Path) else getattr(option, "words", None)
        if words is not None and value not in words:
            value = str(path.parent / str(value))
        value = [str(one) for one in value] if option.multiple else str(value)
        try:
            option.type_cast_value(ctx, value)
        except click.BadParameter as error:
            raise InputError(f"{key}: {error.message}", at=path) from error
        found[option.name or ""] = value
    return found


def _read_toml(path: Path, *, example: str) -> dict[str, Any]:
    try:
        with reading(path):
            document = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of TOML, or of UTF-8
        raise InputError(f"expected TOML such as {example}: {error}", at=path) from error
    for key, value in document.items():
        if isinstance(value, dict):
            raise InputError(f"[{key}] is a table; write options without one, such as {example}", at=path)
    return document
