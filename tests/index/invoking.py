"""Calling the commands of `retrieval index` in this process."""

import click
from click.testing import CliRunner, Result


def invoke(command: click.Command, *words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


def run(command: click.Command, *words: object) -> list[str]:
    """The lines of its output; it has to end well, without a word on stderr."""
    result = invoke(command, *words)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout.splitlines()
