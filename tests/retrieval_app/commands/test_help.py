"""Help of the commands: what a stranger sees first."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from retrieval_app.commands.cli import root

LINES, WIDTH = 40, 80


def _walk(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            yield from _walk(found, _open(found, name, context))


def _open(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH)


EVERY = [pytest.param(*one, id=one[1].command_path) for one in _walk(root, _open(root, "retrieval"))]


@pytest.mark.parametrize(("command", "context"), EVERY)
def test_help_is_a_sentence_and_three_examples_that_parse(command: click.Command, context: click.Context) -> None:
    first, *_ = (command.help or "").split("\n\n")
    assert first.endswith(".")
    examples = _read_examples(command.help or "")
    assert len(examples) >= 3
    for words in examples:
        assert words[0] == "retrieval"
        called, place, rest = root, _open(root, "retrieval"), words[1:]
        while isinstance(called, click.Group):
            found = called.get_command(place, rest[0])
            assert found is not None, rest
            called, place, rest = found, _open(found, rest[0], place), rest[1:]
        called.make_parser(place).parse_args(list(rest))  # refuses an option that there is not


def _read_examples(text: str) -> list[list[str]]:
    """Words of the calls of `retrieval`, also of those that stand behind another program or before one."""
    lines = text.partition("Examples:")[2].splitlines()
    return [
        shlex.split(call)
        for line in lines
        for call in re.split(r"&&| > | -- (?=retrieval )", line)
        if call.strip().startswith("retrieval ")
    ]
