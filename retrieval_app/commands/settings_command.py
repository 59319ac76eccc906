"""Settings of a command: options that variables and a file can give too.

An option goes before a variable, that before the file, and that before the default. click looks them up in this order
by itself, once each option has the name of its variable and the file is its map of defaults. What is added here are
names, refusals, and where each value came from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import click
from click.core import ParameterSource

from index.commands.console import Command, GroupedCommand, emit
from index.errors import InputError
from index.text import align, printable_path
from index.toml_options import read_toml_options

_OF_A_CALL = frozenset(("help", "help_all", "as_json", "debug", "show_config"))
_FILE = "config_file"
_SECRETS = frozenset(("token",))
_HIDDEN = "(set, and not shown)"


class SettingsCommand(GroupedCommand):
    """Refuses variables of its prefix that mean nothing, and says of a wrong value where it came from.

    Attributes:
        prefix: of the variables: PREFIX_PHOTOS_WAITING is `--photos-waiting`.
        not_in_file: names of options that no file may have, with what to do.
    """

    prefix: ClassVar[str]
    not_in_file: ClassVar[dict[str, str]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for option in self.settings():
            if option.envvar is None:
                option.envvar = f"{self.prefix}_{name_setting(option).replace('-', '_').upper()}"

    def settings(self) -> Iterator[click.Option]:
        """The options that are settings: none that is about one call only."""
        for param in self.params:
            if isinstance(param, click.Option) and param.name not in _OF_A_CALL:
                yield param

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            self._refuse_unknown_variables(ctx)
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if isinstance(error.param, click.Option) and is_by_variable(ctx, error.param):
                message = f"{error.message} (from the variable {error.param.envvar})"
                raise click.BadParameter(message, ctx=ctx, param=error.param) from error
            raise

    def explain(self, ctx: click.Context, error: InputError) -> click.UsageError:
        """An error of a config, whose message begins with the option, with where the value came from."""
        flag = str(error).partition(" ")[0]
        option = next((option for option in self.settings() if flag in option.opts), None)
        source = "option" if option is None else tell_source(ctx, option)
        return click.UsageError(f"{error}{'' if source == 'option' else f' (from {source})'}", ctx=ctx)

    def _refuse_unknown_variables(self, ctx: click.Context) -> None:
        known = [str(option.envvar) for option in self.settings()]
        for name in sorted(os.environ):
            if name.startswith(f"{self.prefix}_") and name not in known:
                raise click.UsageError(
                    f"the variable {name} is none of this command; {_suggest(name, known)}", ctx=ctx
                )


def config_file_option(command: Command) -> Command:
    """Add `--config` to a `SettingsCommand`."""
    return click.option(
        "--config", _FILE, type=click.Path(path_type=Path, dir_okay=False), is_eager=True, expose_value=False,
        callback=_read_file, metavar="FILE.toml",
        help="Read options from this file, such as photos-waiting = 64; options and variables go before.",
    )(command)  # fmt: skip


def show_config_option(command: Command) -> Command:
    """Add `--show-config`, passed on as `show_config`."""
    return click.option(
        "--show-config", is_flag=True, help="Print every option's value and where it came from, and start nothing."
    )(command)


def name_setting(option: click.Option) -> str:
    """`photos-waiting` of `--photos-waiting`."""
    return max(option.opts, key=len).lstrip("-")


def is_by_variable(ctx: click.Context, option: click.Option) -> bool:
    """Whether a variable gave an option's value."""
    return ctx.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT


def tell_source(ctx: click.Context, option: click.Option) -> str:
    """Where an option's value came from: `option`, the name of a variable or of the file, or `default`."""
    source = ctx.get_parameter_source(option.name or "")
    if source is ParameterSource.ENVIRONMENT:
        return f"the variable {option.envvar}"
    if source is ParameterSource.DEFAULT_MAP:
        return printable_path(str(ctx.meta[_FILE]))
    return "option" if source is ParameterSource.COMMANDLINE else "default"


def _read_file(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and isinstance(ctx.command, SettingsCommand):
        ctx.meta[_FILE] = path
        ctx.default_map = _read_settings(ctx, path, command=ctx.command)
    return path


def _read_settings(ctx: click.Context, path: Path, *, command: SettingsCommand) -> dict[str, Any]:
    """The values in a file by the names of their parameters; files that it names lie beside it.

    Raises:
        InputError: it cannot be read, or has a name or a value that no option takes.
    """
    options = {name_setting(option): option for option in command.settings() if option.name != _FILE}
    found: dict[str, Any] = {}
    for key, value in read_toml_options(path, example="photos-waiting = 64").items():
        name, shown = key.replace("_", "-"), printable_path(str(path))
        if name in command.not_in_file:
            raise InputError(f"{shown}: {key}: {command.not_in_file[name]}")
        if name not in options:
            known = [known for known in options if known not in command.not_in_file]
            raise InputError(f"{shown}: {key}: no such option; {_suggest(name, known)}")
        option = options[name]
        expected = _say_expected(option, value)
        if expected is not None:
            raise InputError(f"{shown}: {key}: expected {expected}, got {value!r}")
        if isinstance(option.type, click.Path) and value != "-":
            value = str(path.parent / value)
        try:
            option.type_cast_value(ctx, value)
        except click.BadParameter as error:
            raise InputError(f"{shown}: {key}: {error.message}") from error
        found[option.name or ""] = value
    return found


def _say_expected(option: click.Option, value: Any) -> str | None:
    """What a value of a TOML file should have been; None where it is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if option.multiple:
        is_list = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return None if is_list else 'a list of texts, ["a", "b"]'
    if option.is_flag:
        return None if isinstance(value, bool) else "true or false"
    if isinstance(option.type, click.types.IntParamType):
        return None if is_number and isinstance(value, int) else "a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        return None if is_number else "a number"
    return None if isinstance(value, str) else "a text"


def _suggest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(known))}"


def show_settings(ctx: click.Context, *, as_json: bool) -> None:
    """Print the settings of a call on stdout."""
    assert isinstance(ctx.command, SettingsCommand)
    settings = {}
    for option in ctx.command.settings():
        value = ctx.params.get(option.name or "", ctx.meta.get(option.name or ""))
        if option.name in _SECRETS and value is not None:
            value = _HIDDEN
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Path):
            value = str(value)
        settings[name_setting(option)] = {
            "value": value, "from": tell_source(ctx, option), "variable": str(option.envvar)
        }  # fmt: skip
    rows = [(name, _show(one["value"]), str(one["from"])) for name, one in settings.items()]
    text = "\n".join(align([("option", "value", "from"), *rows], right=set()))
    emit({"settings": settings}, as_json=as_json, text=text)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return printable_path(" ".join(value)) or "-"
    return "-" if value is None else printable_path(str(value))
