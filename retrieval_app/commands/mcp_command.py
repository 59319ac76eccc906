"""`retrieval mcp`: a gallery for agents, over the Model Context Protocol."""

from __future__ import annotations

import json
from pathlib import Path

import click

from index.commands.console import NAMED, backend_option, output_options
from index.errors import InputError, MissingDependencyError
from retrieval_app.server.serve_token import read_or_make_token


@click.command()
@click.argument("gallery", type=NAMED, metavar="[NAME=]GALLERY")
@click.option(
    "--http",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve http://127.0.0.1:PORT/mcp (0: any free port); without it, standard input and output.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True,
    help="Address that --http listens on; any but the machine's own needs a token.",
)  # fmt: skip
@click.option(
    "--allowed-host", "allowed_hosts", multiple=True, metavar="NAME",
    help="Name to answer to besides the machine's own, such as that of a proxy; can be repeated.",
)  # fmt: skip
@click.option(
    "--token-file", type=click.Path(path_type=Path, dir_okay=False),
    help="File of the token that every request has to bring; made with a new one where there is none.",
)  # fmt: skip
@click.option(
    "--tokens", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="File of tokens with names and rights, by `retrieval tokens`, of which every request has to bring one: `read` "
    "searches, `review` decides too.",
)  # fmt: skip
@click.option("--writable", is_flag=True, help="Let agents keep, change and drop labels; people can take it back.")
@backend_option
@output_options
def mcp(
    gallery: str, port: int | None, host: str, allowed_hosts: tuple[str, ...], token_file: Path | None,
    tokens: Path | None, writable: bool, as_json: bool,
) -> None:  # fmt: skip
    """Let an agent search GALLERY, look at its images, and see which labels to doubt. It only looks, unless --writable.

    In its place, images may be named, as with `retrieval serve`. An agent is told to start the command itself: it says
    nothing on its standard output but the protocol, and ends with its input. With --http it prints its address; clients
    there send `Authorization: Bearer TOKEN`, where it has tokens; with a name before GALLERY those with rights in it
    alone are let in too.

    \b
    Examples:
      retrieval mcp gallery
      claude mcp add photos -- retrieval mcp /data/gallery
      retrieval mcp gallery --http 8000
      retrieval mcp gallery --http 8000 --host 0.0.0.0 --tokens team.tokens --allowed-host photos.example.org
      retrieval mcp shop=shop-gallery --http 8000 --tokens team.tokens
    """
    if as_json and port is None:
        raise InputError("--json tells the address of --http; without that the output is the protocol's")
    try:
        from retrieval_app.server.serve_agents import AgentOptions, serve_agents
    except ModuleNotFoundError as error:
        extra = "agents" if (error.name or "").startswith("mcp") else "ui"
        raise MissingDependencyError(package=error.name or "mcp", extra=extra, purpose="serving agents") from error

    from retrieval_app.commands.served_galleries import choose_galleries

    if port is None and (host != "127.0.0.1" or allowed_hosts or token_file is not None or tokens is not None):
        raise click.UsageError(
            "--host, --allowed-host, --token-file and --tokens are for --http PORT: give that too"
        )
    if token_file is not None and tokens is not None:
        raise click.UsageError("--tokens takes the place of --token-file")

    def announce(url: str) -> None:
        click.echo(json.dumps({"url": url}) if as_json else url)

    served = choose_galleries([gallery])
    if len(served) > 1:
        raise click.UsageError(f"{gallery} holds {len(served)} galleries; agents are served one: name that")
    options = AgentOptions(
        gallery=served[0].path, name=served[0].name, port=port, host=host, allowed_hosts=allowed_hosts, tokens=tokens,
        token=None if token_file is None else read_or_make_token(token_file), writable=writable,
    )  # fmt: skip
    serve_agents(options, announce=announce)
