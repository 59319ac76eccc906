"""`retrieval openapi`: what the HTTP API takes and answers, for programs that make clients of it."""

from __future__ import annotations

import json

import click

from index.commands.console import output_options


@click.command()
@output_options
def openapi(as_json: bool) -> None:
    """Print the OpenAPI document of the HTTP API, of which clients are generated. No gallery or server is needed.

    It is JSON, with --json or without: what `retrieval serve` tells at /v1/openapi.json where it asks for a token.
    Where it asks for none, it tells the same without the token.

    \b
    Examples:
      retrieval openapi > openapi.json
      retrieval openapi > openapi.json && openapi-python-client generate --path openapi.json
    """
    from retrieval_app.api.document import describe_api

    click.echo(json.dumps(describe_api(), indent=2))
