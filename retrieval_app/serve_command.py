"""`retrieval serve`: the search page in the browser, and the API."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

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
@click.option(
    "--token",
    envvar="RETRIEVAL_TOKEN",
    show_envvar=True,
    help="What every request has to bring; better given by the variable, which no list of processes shows.",
)
@click.option("--writable", is_flag=True, help="Let the API add and remove images, for which the token is needed.")
@click.option(
    "--audit",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of a `retrieval audit`, whose doubts the Labels view shows in the place of the gallery's own.",
)
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="Threads that decode, embed and search; 0 for all cores."
)
@output_options
def serve(
    gallery: Path,
    host: str,
    port: int,
    open_browser: bool,
    token: str | None,
    writable: bool,
    audit: Path | None,
    threads: int,
    as_json: bool,
) -> None:
    """Serve GALLERY: a page to search, judge and mend it with, and an API under /v1. Ctrl-C ends it.

    A new version of the gallery is served as soon as it is finished. Decisions on labels and duplicates are kept in
    the gallery's folder; they need a token where others can reach the address.

    \b
    Examples:
      retrieval serve gallery --open
      retrieval serve gallery --port 8080 --audit run/audit
      RETRIEVAL_TOKEN=$(openssl rand -hex 16) retrieval serve gallery --host 0.0.0.0 --writable
      curl -s localhost:7860/v1/search/image?k=5 --data-binary @query.jpg
    """
    from retrieval_app.server import ServeOptions, serve_gallery
    from retrieval_app.serving.config import ServingConfig

    options = ServeOptions(
        gallery=gallery, host=host, port=port, token=token, writable=writable, audit=audit,
        limits=ServingConfig(threads=threads),
    )  # fmt: skip

    def announce(url: str) -> None:
        shown = url if token is None else f"{url}?token={quote(token, safe='')}"
        click.echo(json.dumps({"url": url}) if as_json else shown)
        if not options.is_loopback and token is None:
            click.echo(
                "Everybody who can reach this machine can search; with a --token you can, and can decide on labels.",
                err=True,
            )
        click.echo("Ctrl-C ends it.", err=True)
        if open_browser:
            click.launch(shown)

    click.echo(f"Opening {gallery} …", err=True)
    serve_gallery(options, on_ready=announce)
