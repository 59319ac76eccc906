"""The root command `retrieval`: commands load when they are called, errors become exit codes."""

import importlib
import sys
from collections.abc import Sequence

import click

from index.commands.exit_codes import RESUME, run_command
from index.faiss_library import let_threads_sleep

_GOES_ON = {"index", "restore", "demo", "compare"}  # with what was done, when they are run again
_LOOKS_ONLY = {"info", "list", "verify"}  # of the index commands
_HERE = "retrieval_app.commands"
# by the title of their group: name -> (module, which has it by this name; one line)
GROUPS = {
    "Main commands": {
        "search": ("index.commands.search_command", "Find images by a photo, or by words."),
        "serve": (f"{_HERE}.serve_command", "Serve the search page in the browser, and an HTTP API."),
        "publish": (
            f"{_HERE}.publish_command",
            "Write a gallery as a folder of static files, searched in the browser.",
        ),
        "train": ("training.commands", "Train an embedding on labelled images, wrong labels included."),
        "export": ("export.commands", "Write a trained run, or a backbone, to one ONNX file."),
        "index": (f"{_HERE}.index_commands", "Build a gallery from images, and keep it up to date."),
    },
    "Labels and quality": {
        "audit": (f"{_HERE}.report_commands", "List the training images whose label looks wrong."),
        "labels": (f"{_HERE}.labels_command", "List and export label issues, set labels, import decisions."),
        "tags": (f"{_HERE}.tags_command", "Tag images."),
        "dataset": (f"{_HERE}.dataset_command", "Write a gallery as a data set for training."),
        "evaluate": ("index.commands.evaluate_command", "Measure Recall@K and MAP@R of a gallery or a model."),
        "compare": (f"{_HERE}.report_commands", "Compare models on the same labelled images."),
        "duplicates": (f"{_HERE}.report_commands", "List the near-duplicates in a gallery."),
    },
    "Administration": {
        "info": (f"{_HERE}.doctor_command", "Describe a model."),
        "models": (f"{_HERE}.models_command", "List public models for --backbone, with their licences."),
        "doctor": (f"{_HERE}.doctor_command", "Check the installation, and how fast this machine is."),
        "tokens": (f"{_HERE}.server_commands", "Manage the access tokens of a server."),
        "log": (f"{_HERE}.server_commands", "Show who changed what in a gallery, and when."),
        "backup": (f"{_HERE}.backup_command", "Write the annotations of a gallery to one file."),
        "restore": (f"{_HERE}.backup_command", "Restore annotations from a backup."),
        "openapi": (f"{_HERE}.server_commands", "Print the OpenAPI document of the HTTP API."),
        "mcp": (f"{_HERE}.server_commands", "Serve a gallery to agents over MCP."),
        "gradio": (f"{_HERE}.server_commands", "Serve a gallery as a Gradio app on this machine."),
        "demo": (f"{_HERE}.demo_command", "Run the whole workflow on photos that come with the package."),
    },
}
COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}


class LazyGroup(click.Group):
    """A group whose commands are imported only when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in commands.items()])


@click.group(
    cls=LazyGroup,
    commands={name: click.Command(name) for name in COMMANDS},  # whose names click knows, to suggest one
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="retrieval-app")
def root() -> None:
    """Search images by similarity, and train on labels that may be wrong.

    \b
    Examples:
      retrieval search photos query.jpg
      retrieval serve photos --open
      retrieval train photos --out run
      retrieval demo
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of a command line."""
    let_threads_sleep()
    return run_command(root, arguments, prog_name="retrieval", how_to_go_on=_how_to_go_on)


def _how_to_go_on(words: Sequence[str]) -> str:
    """Advice after an interrupt of the command with these words."""
    if words[:1] == ["train"]:
        return RESUME
    if set(words[:1]) & _GOES_ON and not set(words[1:2]) & _LOOKS_ONLY:
        return "what was done is kept: run the same command again to go on"
    return "run the same command again"


def run() -> None:
    """The console script."""
    sys.exit(main())
