"""`retrieval serve`: the search page in the browser, and the API."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from index.commands.console import NAMED, backend_option, config_options, emit, help_all_option, output_options
from index.commands.option_files import OptionFileCommand, config_file_option, name_setting, tell_source
from index.config_fields import make_config, suggest
from index.errors import InputError
from index.text import align, printable_path
from retrieval_app.commands.server_commands import token_file_option
from retrieval_app.server.options import ServedGallery, ServeOptions

_PREFIX = "RETRIEVAL_SERVE_"
_SECRETS = frozenset(("token",))
_HIDDEN = "(set, and not shown)"


class ServeCommand(OptionFileCommand):
    """Every option is also a variable: RETRIEVAL_SERVE_PHOTOS_WAITING of `--photos-waiting`; others are refused."""

    not_in_file = MappingProxyType(
        {"token": "a secret lies in a file of its own: give token-file, or set RETRIEVAL_TOKEN"}
    )
    common = frozenset(field.name for field in fields(ServeOptions)) | {
        "open_browser",
        "show_gps",
        "token_file",
        "no_token",
        "threads",
        "config_file",
        "show_config",
        "as_json",
        "help_all",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for option in self.settings():
            if option.envvar is None:
                option.envvar = f"{_PREFIX}{name_setting(option).replace('-', '_').upper()}"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = [str(option.envvar) for option in self.settings()]
        for name in [] if ctx.resilient_parsing else sorted(os.environ):
            if name.startswith(_PREFIX) and name not in known:
                raise click.UsageError(f"unknown variable {name}; {suggest(name, known)}", ctx=ctx)
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            option = error.param
            if not isinstance(option, click.Option) or tell_source(ctx, option) != f"the variable {option.envvar}":
                raise
            message = f"{error.message} (from the variable {option.envvar})"
            raise click.BadParameter(message, ctx=ctx, param=option) from error

    def explain(self, ctx: click.Context, error: InputError) -> click.UsageError:
        """An error of a config, whose message begins with the option, with where the value came from."""
        flag = str(error).partition(" ")[0]
        option = next((option for option in self.settings() if flag in option.opts), None)
        source = "option" if option is None else tell_source(ctx, option)
        return click.UsageError(f"{error}{'' if source == 'option' else f' (from {source})'}", ctx=ctx)


def show_settings(ctx: click.Context, *, as_json: bool) -> None:
    """Print the settings of a call on stdout."""
    assert isinstance(ctx.command, ServeCommand)
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
            "value": value,
            "from": tell_source(ctx, option),
            "variable": str(option.envvar),
        }
    rows = [(name, _show(one["value"]), str(one["from"])) for name, one in settings.items()]
    text = "\n".join(align([("option", "value", "from"), *rows], right=set()))
    emit({"settings": settings}, as_json=as_json, text=text)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return printable_path(" ".join(value)) or "-"
    return "-" if value is None else printable_path(value)


@click.command(cls=ServeCommand)
@click.argument("galleries", nargs=-1, required=True, type=NAMED, metavar="[NAME=]GALLERY...")
@click.option("--open/--no-open", "open_browser", default=False, help="Open the page in the default browser.")
@token_file_option
@click.option(
    "--token",
    envvar="RETRIEVAL_TOKEN",
    show_envvar=True,
    help="The token itself; lists of processes show it here, so better give it by the variable or a file.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Serve others without a token: everyone who reaches the address may search, no one may decide.",
)
@config_options(ServeOptions)
@config_file_option("photos-waiting = 64", before="options and variables go before")
@click.option(
    "--show-config", is_flag=True, help="Print every option's value and where it came from, and start nothing."
)
@backend_option
@output_options
@help_all_option
def serve(
    galleries: tuple[str, ...],
    open_browser: bool,
    token_file: Path | None,
    no_token: bool,
    show_config: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Serve the search page of a gallery in the browser, and an HTTP API under /v1.

    GALLERY may also be images (a folder, an archive or a list): their gallery is then made beside them, once. Several
    galleries, or a folder of galleries, are served together, each below /g/NAME/.

    New versions of a gallery are served as soon as they are finished. Decisions on labels and near-duplicates are kept
    in the gallery's folder. With --writable, or if --host lets other machines in, a token is required: yours, or a new
    one that is printed once on the terminal. Ctrl-C stops the server.

    Every option is also a variable (RETRIEVAL_SERVE_PORT) or, but for --token, a line in the file of --config. An
    option overrides a variable, which overrides the file.

    \b
    Examples:
      retrieval serve photos --open
      retrieval serve shop=photos/shop fashion=fashion-gallery --tokens team.tokens
      retrieval serve gallery --host 0.0.0.0 --writable --token-file token
    """
    from retrieval_app.commands.serve_arguments import choose_galleries, choose_token
    from retrieval_app.server.serve import find_address, serve_gallery

    context = click.get_current_context()
    writable, tokens, disk_changes = values.pop("writable"), values["tokens"], values.pop("disk_changes")
    try:
        options = make_config(ServeOptions, {**values, "galleries": (ServedGallery(Path()),), "token": None})
    except InputError as error:
        assert isinstance(context.command, ServeCommand)
        raise context.command.explain(context, error) from error
    if show_config:
        show_settings(context, as_json=as_json)
        return
    find_address(options.host, options.port)  # before a token is made
    needed = writable or not options.is_loopback
    token = choose_token(context, file=token_file, no_token=no_token, needed=needed, writable=writable, tokens=tokens)
    # Checked before a gallery is made.
    options = replace(options, token=token, writable=writable, disk_changes=disk_changes)
    options = replace(options, galleries=choose_galleries(galleries))

    for gallery in options.galleries:
        click.echo(f"Opening {gallery.path} …", err=True)
    serve_gallery(options, on_ready=partial(announce, options, as_json=as_json, open_browser=open_browser))


def announce(options: ServeOptions, url: str, first_visit: str, *, as_json: bool, open_browser: bool) -> None:
    """Print the addresses of a server that answers."""
    pages = {served.name: f"{url}g/{served.name}/" for served in options.galleries if served.name is not None}
    click.echo(json.dumps({"url": url, **({"galleries": pages} if pages else {})}) if as_json else first_visit)
    if not as_json and options.token is not None:
        click.echo("This address opens the page once, within ten minutes; then it asks for the token.", err=True)
    if options.tokens is not None:
        click.echo(f"It asks for one of the tokens in {printable_path(options.tokens)}.", err=True)
    if not options.is_loopback and not options.requires_token:
        click.echo("Everyone who reaches this machine can search; with a token you can decide on labels too.", err=True)
    for name, page in pages.items():
        click.echo(f"{name}: {page}", err=True)
    click.echo("Ctrl-C ends it.", err=True)
    if open_browser:
        click.launch(first_visit)
