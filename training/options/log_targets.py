"""Targets of `--log KIND[:PLACE]`: TensorBoard, MLflow, Weights & Biases."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

from index.errors import InputError, MissingDependencyError

_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


KINDS = {"tensorboard": ":DIR", "mlflow": "[:URI]", "wandb": "[:PROJECT]"}
"""Packages of the extra `loggers`, and what may follow their names; without brackets it is required."""
FORMS = ", ".join(f"{name}{place}" for name, place in KINDS.items())


@dataclass(frozen=True, slots=True)
class LogTarget:
    """One `--log`: its kind, and the folder, URI or project; None: the program's default."""

    kind: str
    place: str | None = None

    def __str__(self) -> str:
        return f"--log {self.kind}" + (f":{hide_password(self.place)}" if self.place else "")


def hide_password(text: str) -> str:
    """The text without passwords in addresses."""
    return _PASSWORD.sub(r"\1***@", text)


def parse_log_targets(texts: str | Iterable[str]) -> tuple[LogTarget, ...]:
    """Targets of all `--log` options, in order."""
    targets = tuple(_parse(text) for text in ([texts] if isinstance(texts, str) else texts))
    for number, target in enumerate(targets):
        if target in targets[:number]:
            raise InputError(f"{target}: given twice")
        if find_spec(target.kind) is None:
            raise MissingDependencyError(package=target.kind, extra="loggers", purpose=str(target))
    return targets


def _parse(text: str) -> LogTarget:
    name, _, place = text.partition(":")
    if name not in KINDS:
        raise InputError(f"--log {text}: expected one of {FORMS}")
    if not place and not KINDS[name].startswith("["):
        raise InputError(f"--log {text}: expected {name}{KINDS[name]}")
    return LogTarget(name, place or None)
