"""The root command: quick to help, honest about errors, one exit code for each kind of end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from index.commands.exit_codes import INTERRUPTED
from retrieval_app.commands.cli import LazyGroup, main
from tests.architecture.test_imports import HEAVY as IMPORTED_LATE

HEAVY = {*IMPORTED_LATE, "numpy", "PIL"}


def test_help_of_every_command_loads_nothing_heavy() -> None:
    code = (
        "import json, sys; from retrieval_app.commands.cli import COMMANDS, main\n"
        "for call in ([], *([name] for name in COMMANDS), ['index', 'build']): assert main([*call, '--help']) == 0\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(json.loads(done.stdout.splitlines()[-1])) == set()


def test_an_expected_error_is_one_line_and_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(tmp_path / "nothing"), "query.jpg"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


def test_wrong_usage_is_exit_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["nonsense"], ["search", "g", "i", "-k", "0"]):
        assert main(arguments) == 2
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "photos", "--weights", "none", "--out", "run"], "is kept: run the same command again with --resume"),
        (["index", "build", "m.onnx", "photos", "--out", "g"], "is kept: run the same command again to go on."),
    ],
)
def test_an_interrupt_says_how_to_go_on(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LazyGroup, "resolve_command", interrupt)
    assert main(arguments) == INTERRUPTED
    assert told in capsys.readouterr().err


def test_a_missing_extra_is_named_to_programs_and_on_the_command_line(small_gallery: Path) -> None:
    program = """
import sys
for name in ("torch", "fastapi", "mcp"):
    sys.modules[name] = None  # as if it were not installed
import retrieval_app
from index.errors import MissingDependencyError
for call in (lambda: retrieval_app.train("photos", "run"), lambda: retrieval_app.export("run")):
    try:
        call()
    except MissingDependencyError as error:
        print(error.extra)
from retrieval_app.commands.cli import main
print([main([*words.split(), sys.argv[1]]) for words in ("audit", "serve --port 0", "mcp")])
"""
    command = [sys.executable, "-c", program, str(small_gallery)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "train\ntrain\n[1, 1, 1]\n"
    assert all(f"retrieval-app[{extra}]" in done.stderr for extra in ("train", "serve", "agents")), done.stderr
