"""`retrieval serve`: the search page in the browser, and the API."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import NAMED, backend_option, config_options, help_all_option, output_options
from index.commands.option_files import config_file_option
from index.config_fields import make_config
from index.errors import InputError
from index.text import printable_path
from retrieval_app.commands.server_commands import token_file_option
from retrieval_app.commands.settings_command import SettingsCommand, show_config_option, show_settings
from retrieval_app.server.options import ServedGallery, ServeOptions

if TYPE_CHECKING:
    from retrieval_app.server.serve import Served


class ServeCommand(SettingsCommand):
    """`--help` shows what most servers need, `--help-all` every limit."""

    prefix = "RETRIEVAL_SERVE"
    not_in_file = MappingProxyType({
        "token": "a secret lies in a file of its own: give token-file, or set RETRIEVAL_TOKEN"
    })  # fmt: skip
    common = frozenset({
        "host", "port", "allowed_hosts", "open_browser", "root_path",
        "trusted_proxies", "cors_origins", "token_file", "tokens", "token", "no_token", "writable",
        "fetches", "audit", "workers", "threads", "access_log", "slow_query_ms", "config_file", "show_config",
        "as_json", "help_all",
    })  # fmt: skip


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
    help="Ask for none where --host lets others in: whoever reaches the address may search, and nobody decide.",
)
@click.option(
    "--audit", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of a `retrieval audit`: the Labels view shows its label issues instead of the gallery's own.",
)  # fmt: skip
@config_options(ServeOptions)
@config_file_option("photos-waiting = 64", before="options and variables go before")
@show_config_option
@backend_option
@output_options
@help_all_option
def serve(
    galleries: tuple[str, ...], open_browser: bool, token_file: Path | None, no_token: bool, show_config: bool,
    as_json: bool, **values: Any,
) -> None:  # fmt: skip
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
    writable, tokens = values.pop("writable"), values["tokens"]
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
    options = replace(options, token=token, writable=writable)  # checked before a gallery is made
    options = replace(options, galleries=choose_galleries(galleries))

    def announce(served: Served) -> None:
        addresses = {"url": served.url, **({"galleries": dict(served.pages)} if served.pages else {})}
        click.echo(json.dumps(addresses) if as_json else served.first_visit)
        if not as_json and options.token is not None:
            click.echo("This address opens the page once, within ten minutes; then it asks for the token.", err=True)
        if tokens is not None:
            click.echo(f"It asks for one of the tokens in {printable_path(str(tokens))}.", err=True)
        if not options.is_loopback and not options.requires_token:
            click.echo(
                "Everybody who can reach this machine can search; with a token you can, and can decide on labels.",
                err=True,
            )
        if served.by_name is not None:
            click.echo(f"Where the network knows this machine's name: {served.by_name}", err=True)
        for name, page in served.pages.items():
            click.echo(f"{name}: {page}", err=True)
        if not served.pages and options.workers == 1:
            click.echo(f"As a Gradio app: {served.url}gradio/", err=True)
        click.echo("Ctrl-C ends it.", err=True)
        if open_browser:
            click.launch(served.first_visit)

    for gallery in options.galleries:
        click.echo(f"Opening {gallery.path} …", err=True)
    serve_gallery(options, on_ready=announce)
