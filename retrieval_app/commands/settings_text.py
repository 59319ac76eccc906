"""What `--show-config` prints: every option, its value, and where that came from. Secrets are only said to be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from index.commands.console import emit
from index.text import printable_path
from index.text_table import align
from retrieval_app.commands.settings_command import SettingsCommand, name_setting, tell_source

_SECRETS = frozenset(("token",))
_HIDDEN = "(set, and not shown)"


def show_settings(ctx: click.Context, *, as_json: bool) -> None:
    """Print the settings of a call on stdout."""
    assert isinstance(ctx.command, SettingsCommand)
    settings = {}
    for option in ctx.command.settings():
        value = _read_value(ctx, option)
        settings[name_setting(option)] = {
            "value": value, "from": tell_source(ctx, option), "variable": str(option.envvar)
        }  # fmt: skip
    rows = [(name, _show(one["value"]), str(one["from"])) for name, one in settings.items()]
    text = "\n".join(align([("option", "value", "from"), *rows], right=set()))
    emit({"settings": settings}, as_json=as_json, text=text)


def _read_value(ctx: click.Context, option: click.Option) -> Any:
    value = ctx.params.get(option.name or "", ctx.meta.get(option.name or ""))
    if option.name in _SECRETS and value is not None:
        return _HIDDEN
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return printable_path(" ".join(value)) or "-"
    return "-" if value is None else printable_path(str(value))
