"""`retrieval mcp`: a gallery for agents, over the Model Context Protocol."""

from __future__ import annotations

import json
from pathlib import Path

import click

from index.commands.console import output_options
from index.commands.images_or_gallery import settle_gallery
from index.errors import InputError, MissingDependencyError


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--http",
    "port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve http://127.0.0.1:PORT/mcp, to programs of this machine only; without it, standard input and output.",
)
@click.option("--writable", is_flag=True, help="Let agents keep, change and drop labels; people can take it back.")
@output_options
def mcp(gallery: Path, port: int | None, writable: bool, as_json: bool) -> None:
    """Let an agent search GALLERY, look at its images, and see which labels to doubt. It only looks, unless --writable.

    In its place, images may be named, as with `retrieval serve`. An agent is told to start the command itself: it says
    nothing on its standard output but the protocol, and ends with its input. With --http it prints its address.

    \b
    Examples:
      retrieval mcp gallery
      claude mcp add photos -- retrieval mcp /data/gallery
      retrieval mcp gallery --http 8000
    """
    if as_json and port is None:
        raise InputError("--json tells the address of --http; without that the output is the protocol's")
    try:
        from retrieval_app.agents.mcp_server import serve_agents
    except ModuleNotFoundError as error:
        extra = "agents" if (error.name or "").startswith("mcp") else "ui"
        raise MissingDependencyError(package=error.name or "mcp", extra=extra, purpose="serving agents") from error

    def announce(url: str) -> None:
        click.echo(json.dumps({"url": url}) if as_json else url)

    serve_agents(settle_gallery(gallery), port=port, writable=writable, announce=announce)
