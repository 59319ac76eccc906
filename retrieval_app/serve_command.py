"""`retrieval serve`: the search page in the browser."""

from __future__ import annotations

import json
from pathlib import Path

import click

from index.console import output_options


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7860,
    show_default=True,
    help="Port to listen on; 0 for a free one.",
)
@click.option("--open/--no-open", "open_browser", default=False, help="Open the page in the default browser.")
@output_options
def serve(gallery: Path, host: str, port: int, open_browser: bool, as_json: bool) -> None:
    """Search GALLERY in the browser: upload or pick a photo, see what is like it. Ctrl-C ends it.

    A gallery that is built anew meanwhile is seen from the next start on.

    \b
    Examples:
      retrieval serve gallery
      retrieval serve gallery --port 8080 --open
    """
    from retrieval_app.pages import serve_gallery

    def announce(url: str) -> None:
        click.echo(json.dumps({"url": url}) if as_json else url)
        if host in ("0.0.0.0", "::"):
            click.echo("Everybody who can reach this machine can search; there is no password.", err=True)
        click.echo("Ctrl-C ends it.", err=True)
        if open_browser:
            click.launch(url)

    click.echo(f"Opening {gallery} …", err=True)
    serve_gallery(gallery, host=host, port=port, on_ready=announce)
