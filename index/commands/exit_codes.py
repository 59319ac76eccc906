"""Exit codes: an expected error is one line on stderr."""

import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence

import click

from index.errors import RetrievalError, missing_imports_as_dependency_errors
from index.telemetry import switch_off_telemetry

INTERRUPTED = 130
_TELLING = ("index.vectors.ann_building", "export", "training.backbone")  # loggers of long work without a bar
RESUME = "what was done is kept: run the same command again with --resume to go on"


def log_warnings() -> None:
    """Log warnings and errors to stderr, in the first process of a command and those it starts."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # remarks on odd files, whose outcomes are reported anyway


def run_command(
    command: click.Command,
    arguments: Sequence[str] | None = None,
    *,
    prog_name: str,
    how_to_go_on: Callable[[Sequence[str]], str],
) -> int:
    """Exit code of a command; expected errors are printed, not raised. `how_to_go_on` advises after an interrupt."""
    switch_off_telemetry()
    log_warnings()
    telling = [logging.getLogger(name) for name in _TELLING]
    levels = [one.level for one in telling]
    for one in telling:
        one.setLevel(logging.INFO)
    state = {"debug": False}
    try:
        with missing_imports_as_dependency_errors("this command"):
            result = command.main(args=arguments, prog_name=prog_name, obj=state, standalone_mode=False)
    except RetrievalError as error:
        return _report(error, str(error), debug=state["debug"])
    except OSError as error:  # a full disk, a lost mount: nothing that a traceback would explain better
        named = f"{error.filename}: " if error.filename else ""
        return _report(error, f"{named}{error.strerror or error}", debug=state["debug"])
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        words = [word for word in (sys.argv[1:] if arguments is None else arguments) if word[:1] != "-"]
        click.echo(f"Interrupted; {how_to_go_on(words)}.", err=True)
        return INTERRUPTED
    finally:
        for one, level in zip(telling, levels, strict=True):
            one.setLevel(level)
    return result if isinstance(result, int) else 0


def _report(error: BaseException, message: str, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    click.echo(f"error: {' '.join(message.split())}", err=True)
    return 1
