"""Where a training is watched from outside: `--log KIND[:PLACE]`, and which module tells each kind of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from index.errors import InputError, MissingDependencyError

_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class LogKind:
    """A program that people watch trainings with.

    Attributes:
        module: ours, which has `open_tracker` for it.
        package: theirs, which the extra `loggers` installs.
        place: what may follow the colon, in a word.
        needs_place: whether it has to.
    """

    module: str
    package: str
    place: str
    needs_place: bool = False


KINDS = {
    "tensorboard": LogKind("training.run.log.tensorboard_log", "tensorboard", "DIR", needs_place=True),
    "mlflow": LogKind("training.run.log.mlflow_log", "mlflow", "URI"),
    "wandb": LogKind("training.run.log.wandb_log", "wandb", "PROJECT"),
}
FORMS = ", ".join(f"{name}:{kind.place}" if kind.needs_place else f"{name}[:{kind.place}]"
                  for name, kind in KINDS.items())  # fmt: skip
"""How targets are written, for messages and help."""


@dataclass(frozen=True, slots=True)
class LogTarget:
    """One `--log`: its kind, and the folder, URI or project; None leaves that to the program."""

    kind: str
    place: str | None = None

    def __str__(self) -> str:
        return f"--log {self.kind}" + (f":{hide_password(self.place)}" if self.place else "")


def hide_password(text: str) -> str:
    """A text in which no address has a password: logs are read by many."""
    return _PASSWORD.sub(r"\1***@", text)


def parse_log_targets(texts: str | Iterable[str]) -> tuple[LogTarget, ...]:
    """The targets that `--log` names, in order."""
    targets = tuple(_parse(text) for text in ([texts] if isinstance(texts, str) else texts))
    for number, target in enumerate(targets):
        if target in targets[:number]:
            raise InputError(f"{target}: given twice")
        package = KINDS[target.kind].package
        if find_spec(package) is None:
            raise MissingDependencyError(package=package, extra="loggers", purpose=str(target))
    return targets


def _parse(text: str) -> LogTarget:
    name, _, place = text.partition(":")
    if name not in KINDS:
        raise InputError(f"--log {text}: expected one of {FORMS}")
    if KINDS[name].needs_place and not place:
        raise InputError(f"--log {text}: expected {name}:{KINDS[name].place}")
    return LogTarget(name, place or None)
