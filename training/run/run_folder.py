"""Run folder: inputs, options and results of one training, and its checkpoints."""

import csv
import json
import os
import platform
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from torch import nn

from index.config_fields import option_names
from index.durable import write_csv, write_durably
from index.errors import ImageError, RunError
from index.images.preprocess import PreprocessConfig
from index.labels.decisions import P_RIGHT
from training.backbone.backbones import Backbone, rebuild_backbone, with_features
from training.head.copy_head import CopyHead
from training.head.embedding_heads import EmbeddingHead, Head, ProjectionHead, RawHead
from training.options.config import TrainConfig
from training.options.finetuning import FinetuneConfig
from training.run.checkpoint import load_checkpoint, pack_modules, save_checkpoint, unpack_module

PARITY_IMAGES = 16
FORMAT_VERSION = 1  # version of the run folder
_FILES = (
    "config.json",
    "features.json",
    "labels.csv",
    "skipped.csv",
    "environment.json",
    "metrics.jsonl",
    "backbone.safetensors",
    "finetuned.safetensors",
    "untrained.safetensors",
    "head.safetensors",
    "copy_head.safetensors",
    "confidences.csv",
    "holdout.json",
    "finetuning.json",
    "speeds.json",
    "report.json",
)
_LABELS_HEADER = ("path", "sha256", "given", "label", P_RIGHT, "before")
FINETUNED = "finetuned.safetensors"
_FINETUNE_OPTIONS = set(option_names(FinetuneConfig)) - {"frozen"}  # nothing to a run that trains none


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """An image of the run with its given and its used label, which differ under label noise.

    `p_right` and `before` as in `Record`.
    """

    path: Path
    sha256: str
    given: str
    used: str
    p_right: float | None = None
    before: str | None = None


class RunFolder:
    """Files of a run: those of `_FILES`, checkpoints/*.safetensors and parity/*.png, each replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"

    @classmethod
    def create(cls, path: Path, *, config: TrainConfig, data: Path, val: Path | None = None) -> "RunFolder":
        """Create a run folder."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if (path / "config.json").exists():
                raise RunError("exists already; continue this run with --resume, or choose another --out", at=path)
            raise RunError("exists already and is not a training run; choose another --out", at=path)
        run = cls(path)
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            inputs = _describe_inputs(data=data, val=val)
            about = {"format_version": FORMAT_VERSION, "run_id": secrets.token_hex(8), **inputs}
            run.write_json("config.json", {**about, "asked": config.given, "config": config.options()})
            libraries = [name for name in ("timm", "open_clip_torch") if find_spec(name.removesuffix("_torch"))]
            environment = {
                "python": platform.python_version(),
                "platform": platform.platform(),
                "torch": torch.__version__,
                "torchvision": version("torchvision"),
                **{name: version(name) for name in libraries},
                "numpy": np.__version__,
                "pillow": PIL.__version__,
                "threads": torch.get_num_threads(),
                "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            }
            run.write_json("environment.json", environment)
        except OSError as error:
            raise RunError(f"the run folder cannot be written: {error}", at=path) from error
        return run

    @classmethod
    def open(cls, path: Path, *, resuming: bool = False) -> "RunFolder":
        """Open an existing run folder; `resuming` only changes the error message."""
        if not (path / "config.json").is_file():
            how = "`retrieval train` without --resume makes one" if resuming else "`retrieval train` makes one"
            raise RunError(f"no training run here (config.json is missing); {how}", at=path)
        run = cls(path)
        document = run.read_json("config.json")
        if (found := document.get("format_version")) != FORMAT_VERSION:
            raise RunError(f"format version {found!r}, expected {FORMAT_VERSION}; train anew with a new --out", at=path)
        return run

    @property
    def options(self) -> dict[str, Any]:
        """Values of the training's options by name."""
        options: dict[str, Any] = self.read_json("config.json")["config"]
        return options

    def check_same(self, *, config: TrainConfig, data: Path, val: Path | None = None) -> None:
        """Refuse to resume with other options or data."""
        stored = {**self.read_json("config.json"), **self.options}
        seen = {**_describe_inputs(data=data, val=val), **json.loads(json.dumps(config.options()))}
        if not config.finetuning.trains:
            seen = {name: value for name, value in seen.items() if name not in _FINETUNE_OPTIONS}
        self._refuse_changes(stored, seen)

    def fix_features(self, description: Mapping[str, Any]) -> None:
        """Write features.json, which describes the features, or compare it on a resume."""
        if (self.path / "features.json").exists():
            self._refuse_changes(self.read_json("features.json"), description)
        else:
            self.write_json("features.json", description)

    def _refuse_changes(self, stored: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
        changed = [  # a key that `stored` lacks is newer than the run
            f"{name} was {stored[name]!r}, is {value!r}"
            for name, value in seen.items()
            if name in stored and stored[name] != value
        ]
        if changed:
            raise RunError(
                f"{self.path}: cannot resume with other options: {'; '.join(changed)}; "
                "repeat those the run began with, or start another with a new --out"
            )

    def discard(self) -> None:
        """Remove the files of a failed run; other files in its folder stay."""
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        for folder, pattern in (("checkpoints", "*.safetensors"), ("parity", "*.png")):
            for file in (self.path / folder).glob(pattern):
                file.unlink()
        for folder in ("checkpoints", "parity", "."):
            with suppress(OSError):  # it is not empty, or was never made
                (self.path / folder).resolve().rmdir()

    def checkpoint(self, phase: str) -> Path:
        """Checkpoint file of a phase."""
        return self.path / "checkpoints" / f"{phase}.safetensors"

    @property
    def run_id(self) -> str:
        """Random hexadecimal name of the run, also in the contract of its exported models."""
        return str(self.read_json("config.json")["run_id"])

    @property
    def data(self) -> Path:
        """Training data, as an absolute path."""
        return Path(self.read_json("config.json")["data"])

    def read_json(self, name: str) -> dict[str, Any]:
        """One of the run's JSON files."""
        try:
            document = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path / name}: cannot be read ({error})") from error
        if not isinstance(document, dict):
            raise RunError(f"{self.path / name}: expected a JSON object")
        return document

    def find_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file; None if it does not exist."""
        return self.read_json(name) if (self.path / name).exists() else None

    def keep_json(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Read a JSON file; write it first if it does not exist."""
        if not (self.path / name).exists():
            self.write_json(name, make())
        return self.read_json(name)

    def preprocess(self) -> PreprocessConfig:
        """Preprocessing of the run's images, whatever the backbone's library says today."""
        if not (self.path / "features.json").exists():
            raise RunError(
                f"{self.path}: no image has gone through yet; continue the training with `retrieval train … --resume`"
            )
        return PreprocessConfig.from_json(self.read_json("features.json")["preprocess"])

    def write_labels(self, images: Iterable[LabelledImage]) -> None:
        """labels.csv: path, sha256, labels and p_right of every image that takes part."""
        rows = (
            [os.fsencode(i.path).decode("utf-8", "surrogateescape"), i.sha256, i.given, i.used, i.p_right, i.before]
            for i in images
        )
        write_csv(self.path / "labels.csv", _LABELS_HEADER, rows)

    def read_labels(self) -> list[LabelledImage] | None:
        """Images from labels.csv; None if it does not exist."""
        path = self.path / "labels.csv"
        if not path.exists():
            return None
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            return [
                LabelledImage(
                    Path(r["path"]),
                    r["sha256"],
                    r["given"],
                    r["label"],
                    float(r[P_RIGHT]) if r[P_RIGHT] else None,
                    r["before"] or None,
                )
                for r in csv.DictReader(file)
            ]

    def write_skipped(self, skipped: Sequence[tuple[Path, ImageError]]) -> None:
        """skipped.csv: every image that could not be used."""
        rows = ([path, problem.reason, problem.detail] for path, problem in skipped)
        write_csv(self.path / "skipped.csv", ["path", "reason", "detail"], rows)

    def count_skipped(self) -> int:
        """Images in skipped.csv."""
        with (self.path / "skipped.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            return sum(1 for _ in csv.DictReader(file))

    def write_confidences(self, rows: Iterable[Sequence[object]]) -> None:
        """confidences.csv: per image the confidence in its used label, and the three most likely labels."""
        header = ["path", "given", "label", "confidence"]
        header += [f"{name}_{rank}" for rank in (1, 2, 3) for name in ("suggestion", "suggestion_confidence")]
        write_csv(self.path / "confidences.csv", header, rows)

    def begin_metrics(self) -> None:
        """Remove metric lines after each phase's checkpoint, whose epochs are trained again."""
        lines, epochs = self.read_metrics(), dict[str, int]()
        for phase in {line["phase"] for line in lines}:
            path = self.checkpoint(phase)
            epochs[phase] = load_checkpoint(path)[1]["epoch"] if path.exists() else 0
        if lines:
            kept = [json.dumps(line) + "\n" for line in lines if line["epoch"] <= epochs[line["phase"]]]
            write_durably(self.metrics, "".join(kept).encode())

    def read_metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl."""
        if not self.metrics.exists():
            return []
        text = self.metrics.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # a killed writer may leave half a line
        return [json.loads(line) for line in whole.splitlines()]

    def append_metrics(self, line: Mapping[str, object]) -> None:
        """Add a line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def save_module(self, name: str, module: nn.Module, /, **state: Any) -> None:
        """NAME.safetensors: weights of a module, and a JSON state."""
        save_checkpoint(self.path / f"{name}.safetensors", pack_modules(**{name: module}), state=state)

    def save_backbone(self, backbone: Backbone, *, is_finetuned: bool = False) -> None:
        """Weights of the backbone: before fine-tuning, or the exported ones after it."""
        name = FINETUNED if is_finetuned else "backbone.safetensors"
        save_checkpoint(self.path / name, pack_modules(backbone=backbone.network), state={"name": backbone.name})

    @property
    def has_finetuned(self) -> bool:
        """Whether the exported backbone was fine-tuned."""
        return (self.path / FINETUNED).exists()

    @property
    def exported_backbone(self) -> Path:
        """File of the exported backbone's weights."""
        return self.path / (FINETUNED if self.has_finetuned else "backbone.safetensors")

    def load_backbone(self, file: Path | None = None) -> Backbone:
        """Backbone of the run before fine-tuning, or of another file of weights, with its view and pooling."""
        tensors, state = load_checkpoint(file or self.path / "backbone.safetensors")
        how = self.options
        weights = {name.removeprefix("backbone."): tensor for name, tensor in tensors.items()}
        backbone = rebuild_backbone(state["name"], weights, side=how["crop"])
        return with_features(backbone, view=how["view"], pooling=how["pooling"], side=how["crop"])

    def load_untrained_head(self) -> ProjectionHead | None:
        """Untrained projection for label confidences; None where the backbone was trained, or the embedding was not."""
        if not (self.path / "untrained.safetensors").exists():
            return None
        tensors, _ = load_checkpoint(self.path / "untrained.safetensors")
        return ProjectionHead(tensors["untrained.weight"], tensors["untrained.bias"])

    def load_copy_head(self) -> tuple[CopyHead, float] | None:
        """Copy head and its threshold; None if the run has no copy head, or its head missed the threshold."""
        if not (self.path / "copy_head.safetensors").exists():
            if self.options["copy_head"]:
                raise RunError(
                    f"{self.path}: the output of --copy-head is not trained; `retrieval train … --resume` goes on"
                )
            return None
        tensors, state = load_checkpoint(self.path / "copy_head.safetensors")
        if not state["is_kept"]:
            return None
        hidden, feature_dim = tensors["copy_head.hidden.weight"].shape
        head = CopyHead(feature_dim, copy_dim=state["copy_dim"], hidden=hidden)
        unpack_module(head, tensors, name="copy_head")
        return head.eval().requires_grad_(False), state["threshold"]

    def load_trained(self) -> tuple[Backbone, Head, dict[str, Any]]:
        """Exported backbone, head, and the head's state (method, class count)."""
        if not (self.path / "head.safetensors").exists():
            raise RunError(f"{self.path}: training is not finished; continue it with `retrieval train … --resume`")
        tensors, state = load_checkpoint(self.path / "head.safetensors")
        if state["method"] == "raw":
            head: Head = RawHead(state["embedding_dim"])
        elif "head.weight" in tensors:
            head = ProjectionHead(tensors["head.weight"], tensors["head.bias"])
        else:
            embedding_dim, feature_dim = tensors["head.linear.weight"].shape
            head = EmbeddingHead(feature_dim, embedding_dim=embedding_dim)
            unpack_module(head, tensors, name="head")
        return self.load_backbone(self.exported_backbone), head.eval().requires_grad_(False), state

    def save_parity_images(self, images: Sequence[np.ndarray]) -> None:
        """parity/NN.png: lossless images for the parity check of an export."""
        folder = self.path / "parity"
        folder.mkdir(exist_ok=True)
        for number, pixels in enumerate(images):
            Image.fromarray(pixels).save(folder / f"{number:02}.png")

    def parity_paths(self) -> list[Path]:
        """Parity images in a fixed order."""
        return sorted((self.path / "parity").glob("*.png"))

    def write_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Write one of the run's JSON files."""
        write_durably(self.path / name, (json.dumps(document, indent=2) + "\n").encode())


def _describe_inputs(*, data: Path, val: Path | None) -> dict[str, str | None]:
    return {"data": str(data.resolve()), "val": None if val is None else str(val.resolve())}
