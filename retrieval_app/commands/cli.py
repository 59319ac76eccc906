"""The root command `retrieval`: commands load when they are called, errors become exit codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from index.commands.exit_codes import RESUME, run_command
from index.faiss_library import let_threads_sleep

_GOES_ON = {"index", "restore", "demo", "compare"}  # with what was done, when they are run again
_LOOKS_ONLY = {"info", "list", "verify", "export-vectors"}  # of the index commands
_HERE = "retrieval_app.commands"
# name -> (module, which has it by this name unless a colon says another; one line for the overview)
COMMANDS = {
    "train": ("training.commands", "Train an embedding on a folder of labelled images, wrong labels and all."),
    "audit": (f"{_HERE}.report_commands", "Find the labels of a run that look wrong, and clean them."),
    "doubts": (f"{_HERE}.report_commands", "Export label issues to other programs, import decisions."),
    "export": ("export.commands", "Write a trained run, or a backbone as it is, to one ONNX file."),
    "index": (
        f"{_HERE}.export_vectors_command",
        "Build a searchable gallery from images, and keep it up to date.",
    ),
    "search": ("index.commands.search_command", "Find the images of a gallery that are most like others."),
    "evaluate": ("index.commands.evaluate_command", "Recall@K, MAP@R and R-precision of a gallery or a model."),
    "compare": (f"{_HERE}.report_commands", "Say which of several embeddings finds most, and where they differ."),
    "duplicates": (f"{_HERE}.report_commands", "Find the images of a gallery that repeat others."),
    "serve": (f"{_HERE}.serve_command", "Browse and search a gallery in the browser."),
    "tokens": (f"{_HERE}.server_commands", "Give people and programs tokens of their own for a server."),
    "openapi": (f"{_HERE}.server_commands", "What the HTTP API takes and answers, to generate clients from."),
    "mcp": (f"{_HERE}.server_commands", "Let agents search a gallery, over the Model Context Protocol."),
    "info": (f"{_HERE}.doctor_command", "Say what a model or a gallery is, and what runs it here."),
    "log": (f"{_HERE}.server_commands", "Who decided, added, removed or exported what in a gallery, and when."),
    "backup": (f"{_HERE}.backup_command", "Write the annotations of a gallery to one file."),
    "restore": (f"{_HERE}.backup_command", "Restore a backup of annotations into a gallery."),
    "doctor": (f"{_HERE}.doctor_command", "What is installed, what works of it, and how fast this machine is."),
    "demo": (f"{_HERE}.demo_command", "The whole story offline, on photos that come with the package."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported only when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    commands={name: click.Command(name) for name in COMMANDS},  # whose names click knows, to suggest one
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="retrieval-app")
def root() -> None:
    """Train an image embedding that survives wrong labels, and search image folders with it.

    \b
    At once:          retrieval search photos/ query.jpg
                      retrieval serve photos/
    With labels:      retrieval train photos/ --weights imagenet --out run
                      retrieval export run --out model.onnx
    Without labels:   retrieval export --backbone resnet50 --weights imagenet --out model.onnx
    Then:             retrieval index build model.onnx photos/ --out gallery
                      retrieval search gallery query.jpg
                      retrieval evaluate gallery
                      retrieval serve gallery
    No data at hand:  retrieval demo

    Exit codes: 0 done, 1 an error named in one line, 2 wrong usage.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code, never an exception that a user can mend."""
    let_threads_sleep()
    return run_command(root, arguments, prog_name="retrieval", how_to_go_on=_how_to_go_on)


def _how_to_go_on(words: Sequence[str]) -> str:
    """What to do after an interrupt of the command that begins with these words."""
    if words[:1] == ["train"]:
        return RESUME
    if set(words[:1]) & _GOES_ON and not set(words[1:2]) & _LOOKS_ONLY:
        return "what was done is kept: run the same command again to go on"
    return "run the same command again"


def run() -> None:
    """The console script."""
    sys.exit(main())
