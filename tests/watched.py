"""Programs under strace: which addresses they reach out to, and which files they make, change or remove."""

import codecs
import ipaddress
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_REACHING = ("connect", "sendto", "sendmsg", "sendmmsg")
_OPENING = ("open", "openat", "openat2", "creat")
_CHANGING = (
    *("mkdir", "mkdirat", "rmdir", "rename", "renameat", "renameat2", "unlink", "unlinkat", "truncate", "mknod"),
    *("mknodat", "chmod", "fchmodat", "chown", "lchown", "fchownat", "utimensat", "setxattr", "lsetxattr"),
)
_LINKING = ("link", "linkat", "symlink", "symlinkat")  # the last path is the one that is made
_CALLS = ",".join(f"?{name}" for name in (*_REACHING, *_OPENING, *_CHANGING, *_LINKING))
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>(?:[^>\\]|\\.)*)>, )?"(?P<name>(?:[^"\\]|\\.)*)"')
_ADDRESS = re.compile(r'(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]+)"')
_UNIX_SOCKET = re.compile(r'sun_path=@?"([^"]*)"')


@dataclass(frozen=True, slots=True)
class Watched:
    addresses: frozenset[str]
    unix_sockets: frozenset[str]
    written: frozenset[Path]

    def strangers(self) -> list[str]:
        """The addresses that are not of this machine's loopback."""
        return sorted(each for each in self.addresses if not ipaddress.ip_address(each).is_loopback)

    def written_outside(self, *folders: Path) -> list[Path]:
        """What was written elsewhere than in these folders, which may be files, too."""
        return sorted(path for path in self.written if not any(path.is_relative_to(each) for each in folders))


def require_strace() -> None:
    """Skip where nothing can be traced; on CI that is a fault of the machine, which is to be mended there."""
    problem = None
    if shutil.which("strace") is None:
        problem = "no strace here: apt-get install strace"
    elif subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, check=False).returncode:
        problem = "processes may not be traced here: the container needs the capability SYS_PTRACE"
    if problem is not None:
        pytest.fail(problem) if "CI" in os.environ else pytest.skip(problem)


def strace_command(log: Path) -> list[str]:
    """What to put before a program's words, so that its calls are written to `log`."""
    no_rings = "inject=?io_uring_setup:error=ENOSYS"  # what is done through one is seen by no tracer of calls
    return [
        *("strace", "-f", "-qq", "-y", "--seccomp-bpf", "-s", "256", "-e", f"trace={_CALLS}", "-e", no_rings, "-o"),
        str(log),
    ]


def read_log(log: Path, *, folder: Path) -> Watched:
    """What the programs of a log did; `folder` is the one in which they were started, and stayed."""
    addresses, sockets, written = set[str](), set[str](), set[Path]()
    for name, text in _calls(log.read_text(errors="surrogateescape").splitlines()):
        if name in _REACHING:
            addresses.update(_ADDRESS.findall(text))
            sockets.update(_UNIX_SOCKET.findall(text))
        elif not re.search(r"\) += -1 E", text) and (name not in _OPENING or _is_for_writing(name, text)):
            paths = list(_paths(text, folder))
            written.update(paths[-1:] if name in _LINKING else paths)
    return Watched(frozenset(addresses), frozenset(sockets), frozenset(written))


def _calls(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and text of every call; those that another thread's interrupted are put together again."""
    begun: dict[str, str] = {}
    for line in lines:
        process, _, text = line.partition(" ")
        text = text.lstrip()
        if text.endswith("<unfinished ...>"):
            begun[process] = text.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>", text):
            text = begun.pop(process, "") + text[resumed.end() :]
        if called := re.match(r"(\w+)\(", text):
            yield called[1], text
    for text in begun.values():  # ended before they returned
        if called := re.match(r"(\w+)\(", text):
            yield called[1], text


def _is_for_writing(name: str, text: str) -> bool:
    return name == "creat" or re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", text) is not None


def _paths(text: str, folder: Path) -> Iterator[Path]:
    for found in _PATH.finditer(text):
        above = folder if found["folder"] is None else _unescape(found["folder"])
        yield Path(os.path.normpath(above / _unescape(found["name"])))


def _unescape(text: str) -> Path:
    return Path(os.fsdecode(codecs.escape_decode(os.fsencode(text))[0]))
