"""`retrieval index`: the commands of the base, and the one that asks the application for its map."""

from __future__ import annotations

import click

from index.commands.index_group import index_group as base
from retrieval_app.commands.export_vectors_command import export_vectors

index = click.Group(name=base.name, help=base.help, commands={**base.commands, "export-vectors": export_vectors})
