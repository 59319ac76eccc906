"""The manifest of a version: its counts, its settings, and the checksum of every file."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from index.durable import hash_file
from index.errors import GalleryDamagedError, GalleryError, InputError
from index.images.preprocess import PreprocessConfig
from index.markers import check_object
from index.outputs import COPY, OUTPUTS, SEMANTIC, UNTRAINED

FORMAT_VERSION = 1
METRIC = "inner-product"
MANIFEST_NAME = "manifest.json"
MODEL_NAME = "model.onnx"
CATALOG_NAME = "catalog.sqlite"
INDEX_NAME = "index.faiss"
DELETED_NAME = "deleted.npy"
_INDEX_TYPES = ("flat", "ivf", "hnsw")  # those of `vectors.kinds`
_PART = {"embedding_dim": int, "index": dict, "deleted": int}
_SCHEMA: dict[str, Any] = {  # nested objects may be null
    "model_sha256": str,
    "preprocessing": dict,
    "embedding_dim": int,
    "counts": dict,
    "next_id": int,
    "index": dict,
    "files": dict,
    "metric": str,
    COPY: {**_PART, "threshold": float},
    UNTRAINED: _PART,
    "store": {"type": str, "uri": str},
    "runtime": {"backend": str, "precision": str, "agreement": float},
}


@dataclass(frozen=True, slots=True)
class Version:
    """A version folder and the SHA-256 of its manifest, which has the checksums of all other files."""

    folder: Path
    manifest_sha256: str

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of `manifest.json`.

    `counts` has `found`, `indexed`, `duplicate`, `skipped`, `skipped_by_reason`, and `deleted`, the stored vectors that
    are not members any more; `index` is of `vectors.ann_building.build_ann_index`; `files` has the size and SHA-256 of
    every other file, by relative path. `copy` describes the vectors for copy detection, in a folder of that name:
    `embedding_dim`, `index`, `deleted`, and the cosine (`threshold`) from which on two images are copies. `untrained`
    describes those of the untrained output likewise, without a threshold. `store` is the `type` and the server's `uri`
    of a store other than the folder. `runtime` is the `backend` that computed the vectors, its `precision`, and its
    `agreement` with the usual one (a cosine less the mean), where it is another.
    """

    model_sha256: str
    preprocessing: PreprocessConfig
    embedding_dim: int
    counts: dict[str, Any]
    next_id: int
    index: dict[str, Any]
    files: dict[str, dict[str, Any]]
    metric: str = METRIC
    copy: dict[str, Any] | None = None
    store: dict[str, Any] | None = None
    runtime: dict[str, Any] | None = None
    untrained: dict[str, Any] | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs of the model whose vectors the gallery has."""
        return tuple(name for name in OUTPUTS if name == SEMANTIC or getattr(self, name) is not None)

    @property
    def similarity(self) -> tuple[str, ...]:
        """Kinds of similarity that searches can use."""
        return tuple(name for name in self.outputs if name != UNTRAINED)

    def part(self, output: str) -> "Manifest":
        """What it says of the vectors of one output, as if they alone were in their folder (`part_folder`)."""
        described = None if output == SEMANTIC else getattr(self, output)
        if described is None:
            return self
        start = part_start(output)
        files = {name.removeprefix(start): file for name, file in self.files.items() if name.startswith(start)}
        counts = {**self.counts, "deleted": described["deleted"]}
        width, index = described["embedding_dim"], described["index"]
        return replace(self, embedding_dim=width, index=index, counts=counts, files=files, copy=None, untrained=None)

    def to_json(self) -> str:
        values = {**asdict(self), "preprocessing": self.preprocessing.to_json(), "format_version": FORMAT_VERSION}
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def read(cls, version: Version) -> "Manifest":
        path = version.folder / MANIFEST_NAME
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != version.manifest_sha256:
                raise ValueError("its SHA-256 is not the one recorded")
            return cls.parse(content)
        except OSError as error:
            raise GalleryDamagedError(path, f"cannot be read: {error.strerror}") from error
        except OtherFormatError as error:
            raise GalleryError(path, str(error)) from error
        except (ValueError, InputError) as error:
            raise GalleryDamagedError(path, f"damaged: {error}") from error

    @classmethod
    def parse(cls, content: bytes) -> "Manifest":
        """A manifest from the bytes of its file; ValueError, InputError where it is damaged, or OtherFormatError."""
        values = json.loads(content)
        found = values.pop("format_version", None) if isinstance(values, dict) else None
        if found != FORMAT_VERSION or values.keys() != _SCHEMA.keys():
            raise OtherFormatError(
                f"format version {found!r}, expected {FORMAT_VERSION}" if found != FORMAT_VERSION else "other keys"
            )
        check_object(values, _SCHEMA, name="the manifest")
        for index in (part["index"] for part in (values, values[COPY], values[UNTRAINED]) if part is not None):
            kind = index.get("type")
            if kind not in _INDEX_TYPES or (kind != "flat" and values["store"] is None and "held_out" not in index):
                raise OtherFormatError(f"other keys or another type of its index {kind!r}")
        if values["metric"] != METRIC:
            raise ValueError(f"metric must be {METRIC!r}, got {values['metric']!r}")
        return cls(**{**values, "preprocessing": PreprocessConfig.from_json(values["preprocessing"])})


def part_start(output: str) -> str:
    return "" if output == SEMANTIC else f"{output}/"


def part_folder(version: Path, output: str) -> Path:
    return version / part_start(output)


def find_manifest(content: bytes) -> Manifest | None:
    """The manifest in some bytes; None where this program cannot read it."""
    try:
        return Manifest.parse(content)
    except (ValueError, InputError, OtherFormatError):
        return None


class OtherFormatError(Exception):
    """A manifest of another version of this program."""

    def __init__(self, seen: str) -> None:
        super().__init__(
            f"{seen}: a pre-release or a newer program made it; build the gallery again into another folder"
        )


def describe_file(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": hash_file(path)}


def check_file(version: Path, name: str, manifest: Manifest, *, contents: bool) -> None:
    """Check a file's size, and with `contents` its SHA-256, against the manifest."""
    path, expected = version / name, manifest.files.get(name)
    if expected is None:
        raise GalleryDamagedError(path, "the manifest does not list this file")
    try:
        size = path.stat().st_size
        digest = hash_file(path) if contents and size == expected.get("bytes") else None
    except OSError as error:
        raise GalleryDamagedError(path, f"cannot be read: {error.strerror}") from error
    if size != expected.get("bytes"):
        raise GalleryDamagedError(path, f"damaged: {size} bytes, expected {expected.get('bytes')}")
    if contents and digest != expected.get("sha256"):
        raise GalleryDamagedError(path, "damaged: its SHA-256 is not the one in the manifest")
