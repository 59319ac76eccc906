"""Settings of a command: options that variables and a file can give too, and where each value came from."""

import os
from pathlib import Path
from typing import Any, ClassVar

import click
from click.core import ParameterSource

from index.commands.console import Command, emit
from index.commands.option_files import OptionFileCommand, name_setting, suggest, tell_source
from index.errors import InputError
from index.text import align, printable_path

_SECRETS = frozenset(("token",))
_HIDDEN = "(set, and not shown)"


class SettingsCommand(OptionFileCommand):
    """Command that refuses variables of its prefix that mean nothing, and says of a wrong value where it came from.

    Attributes:
        prefix: of the variables: PREFIX_PHOTOS_WAITING is `--photos-waiting`.
    """

    prefix: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for option in self.settings():
            if option.envvar is None:
                option.envvar = f"{self.prefix}_{name_setting(option).replace('-', '_').upper()}"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            self._refuse_unknown_variables(ctx)
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if isinstance(error.param, click.Option) and _is_by_variable(ctx, error.param):
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
                raise click.UsageError(f"the variable {name} is none of this command; {suggest(name, known)}", ctx=ctx)


def _is_by_variable(ctx: click.Context, option: click.Option) -> bool:
    return ctx.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT


def show_config_option(command: Command) -> Command:
    """Add `--show-config`, passed on as `show_config`."""
    return click.option(
        "--show-config", is_flag=True, help="Print every option's value and where it came from, and start nothing."
    )(command)


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
