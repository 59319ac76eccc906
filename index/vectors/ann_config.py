"""Options of the store of vectors and of the ANN index, in a module that loads nothing heavy."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from index.config_fields import check_fields, option
from index.errors import InputError
from index.vectors.kinds import INDEX_TYPES, list_summaries

INDEX_SETTING = "index"  # of a catalogue
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)
STORE_SETTING = "store"  # of a catalogue
FILES, MILVUS = "files", "milvus"
STORE_TYPES = (FILES, MILVUS)
_URI = re.compile(r"https?://[^\s/@]+(:\d{1,5})?/?")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class AnnConfig:
    """ANN index; the gallery remembers it."""

    index_type: str = option(
        "auto",
        f"How vectors are searched: {list_summaries()}. auto is flat up to 100,000 images, above what fits in "
        "memory, fastest first.",
        choices=INDEX_TYPES,
    )
    recall_target: float = option(
        0.98,
        "Share of the true 10 nearest that a search must find; how hard it looks is set by measuring. All are "
        "found by --index-type flat.",
        metavar="SHARE",
        at_least=0.5,
        at_most=0.999,
    )
    memory_limit: str = option(
        "",
        "Memory that the ANN index may take with its ids, such as 500MB or 4GB; without it half of the machine's.",
        metavar="SIZE",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.memory_limit and self.memory_bytes == 0:
            raise InputError(f"--memory-limit must be a size like 500MB or 4GB, got {self.memory_limit!r}")

    @property
    def memory_bytes(self) -> int | None:
        """The limit in bytes, 1 GB being 10^9 and 1 GiB 2^30; None without one, 0 where it is not a size."""
        if not self.memory_limit:
            return None
        found = _SIZE.fullmatch(self.memory_limit.strip())
        if found is None:
            return 0
        base = 1024 if found[3] else 1000
        return int(float(found[1]) * base ** _POWERS.get((found[2] or "").upper(), 0))

    def to_text(self) -> str:
        """The JSON text in a catalogue."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | None) -> "AnnConfig":
        """The config of a catalogue's text; the defaults without one."""
        values: Mapping[str, object] = {} if text is None else json.loads(text)
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Vector store; the gallery remembers it."""

    store: str = option(
        FILES,
        "files keeps vectors and their index in the gallery's folder; milvus keeps them in collections of a "
        "Milvus server, for more than one machine holds. All else stays in the folder.",
        choices=STORE_TYPES,
    )
    uri: str = option(
        "",
        "Where the Milvus server answers. Its token, such as user:password, is taken from the environment: "
        "RETRIEVAL_MILVUS_TOKEN.",
        metavar="http://HOST:PORT",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.store == FILES and self.uri:
            raise InputError(f"--uri goes with --store {MILVUS}, got {self.uri!r}")
        if self.store == MILVUS and not _URI.fullmatch(self.uri):
            raise InputError(f"--uri must be where Milvus answers, such as http://localhost:19530, got {self.uri!r}")

    def show(self) -> str:
        return f"{self.store} {self.uri}".strip()

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    def describe(self) -> dict[str, Any] | None:
        """The manifest's entry; None for files."""
        return None if self.store == FILES else {"type": self.store, "uri": self.uri}

    @classmethod
    def from_text(cls, text: str | None) -> "StoreConfig":
        return cls() if text is None else cls(**json.loads(text))
