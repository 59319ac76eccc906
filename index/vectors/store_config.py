"""Where a gallery's vectors lie, in a module that loads nothing heavy."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from index.config_fields import check_fields, option
from index.errors import InputError

STORE_SETTING = "store"  # of a catalogue
FILES, MILVUS = "files", "milvus"
STORE_TYPES = (FILES, MILVUS)
_URI = re.compile(r"https?://[^\s/@]+(:\d{1,5})?/?")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where the vectors lie.

    A gallery remembers what was given when it was made; every later command on it goes on with that.
    """

    store: str = option(
        FILES, "files keeps vectors and their index in the gallery's folder; milvus keeps them in collections of a "
        "Milvus server, for more than one machine holds. All else stays in the folder.", choices=STORE_TYPES,
    )  # fmt: skip
    uri: str = option(
        "", "Where the Milvus server answers. Its token, such as user:password, is taken from the environment: "
        "RETRIEVAL_MILVUS_TOKEN.", metavar="http://HOST:PORT",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)
        if self.store == FILES and self.uri:
            raise InputError(f"--uri goes with --store {MILVUS}, got {self.uri!r}")
        if self.store == MILVUS and not _URI.fullmatch(self.uri):
            raise InputError(
                f"--uri must be where Milvus answers, such as http://localhost:19530, got {self.uri!r}"
            )

    def show(self) -> str:
        """For people."""
        return f"{self.store} {self.uri}".strip()

    def to_text(self) -> str:
        """The text that a catalogue keeps."""
        return json.dumps(asdict(self))

    def describe(self) -> dict[str, Any] | None:
        """What a manifest says of it; nothing of files."""
        return None if self.store == FILES else {"type": self.store, "uri": self.uri}

    @classmethod
    def from_text(cls, text: str | None) -> StoreConfig:
        """The config that a catalogue keeps; files where it has none."""
        return cls() if text is None else cls(**json.loads(text))
