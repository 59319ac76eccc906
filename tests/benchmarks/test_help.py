"""Every command that docs/results/index.md lists explains itself."""

import importlib
import re
from pathlib import Path

import pytest

_TABLE = (Path(__file__).parents[2] / "docs/results/index.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"`benchmarks\.([\w.]+)`", _TABLE)))


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"benchmarks.{command}"
    folder = Path(__file__).parents[2].joinpath(*name.split("."))
    module = importlib.import_module(f"{name}.__main__" if folder.is_dir() else name)
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    assert ended.value.code == 0
    assert "--out" in capsys.readouterr().out
