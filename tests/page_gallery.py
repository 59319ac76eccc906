"""A gallery of real photos for the tests in a browser, with copies, wrong labels and metadata planted in it."""

from __future__ import annotations

import csv
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.numpy import load_file

from index.gallery.gallery import Gallery
from index.images.preprocess import PreprocessConfig
from index.model.backends.backend import INPUT_NAME, OUTPUT_NAME
from index.model.contract import METADATA_KEY, ModelContract
from index.writing.build import build_gallery
from tests.models import write_model

LABELS = ("dress", "hat", "longsleeve", "outwear", "pants", "shirt", "shoes", "t-shirt")
PHOTOS_PER_LABEL = 30
WRONG_LABELS = {"shoes": "hat", "hat": "shoes", "pants": "dress"}
WRONG_PER_PAIR = 2
SHOPS = ("Nord", "Süd & Co", "<b>West</b>")
COPY_NAMES = ("<img src=x onerror=alert(1)>.jpg", "${alert(2)} & 'co'.jpg", "smaller.jpg")
PREPROCESS = PreprocessConfig(resize=160, crop=144)
EMBEDDING_DIM = 1280
_STRIDES = (1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1)  # of the seventeen blocks of MobileNetV2


@dataclass(frozen=True, slots=True)
class PageGallery:
    """What was planted.

    Attributes:
        path: the gallery's folder; the photos lie in `path.parent / "photos"`.
        ids: of every image, by its path.
        labels: that every image was given, by its path.
        wrong: the right labels of those that were given a wrong one, by path.
        copies: (path, path of its exact copy), twice, then (path, path of its near-duplicate).
    """

    path: Path
    ids: dict[str, int]
    labels: dict[str, str]
    wrong: dict[str, str]
    copies: tuple[tuple[str, str], ...]

    @property
    def photos(self) -> Path:
        """The folder of the photos."""
        return self.path.parent / "photos"

    def of(self, label: str) -> list[str]:
        """The paths with this label, rightly given, that were not copied; in their order."""
        copied = {path for pair in self.copies for path in pair}
        return [
            path for path, given in self.labels.items() if given == label and path not in copied | set(self.wrong)
        ]


def build_page_gallery(folder: Path, *, shared: Path) -> PageGallery:
    """Plant, and build the gallery `folder/clothes` with the backbone's own embedding."""
    chosen: list[tuple[str, str]] = []
    wrong: dict[str, str] = {}
    for label in LABELS:
        for number, file in enumerate(sorted((shared / "data" / "clothing" / label).iterdir())[:PHOTOS_PER_LABEL]):
            path = f"photos/{label}/{file.name}"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / path)
            is_wrong = label in WRONG_LABELS and number < WRONG_PER_PAIR
            if is_wrong:
                wrong[path] = label
            chosen.append((path, WRONG_LABELS[label] if is_wrong else label))
    copies = _plant_copies(folder, chosen)
    _write_table(folder / "clothes.csv", chosen)
    model = write_backbone(folder / "model.onnx", shared=shared)
    build_gallery(model_path=model, sources=[folder / "clothes.csv"], out=folder / "clothes")
    gallery = Gallery.open(folder / "clothes")
    ids = {image.path: image.id for image in gallery.sample(gallery.count, seed=0)}
    return PageGallery(folder / "clothes", ids, dict(chosen), wrong, copies)


def _plant_copies(folder: Path, chosen: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Two exact copies, the second of another label, and a smaller picture of lower quality."""
    originals = [
        next(path for path, _ in chosen[::-1] if f"/{label}/" in path) for label in ("shoes", "hat", "dress")
    ]
    (folder / "photos" / "again").mkdir()
    pairs = tuple((path, f"photos/again/{name}") for path, name in zip(originals, COPY_NAMES, strict=True))
    for path, copy in pairs[:2]:
        shutil.copyfile(folder / path, folder / copy)
    path, copy = pairs[2]
    with Image.open(folder / path) as image:
        image.resize((image.width * 9 // 10, image.height * 9 // 10)).save(folder / copy, quality=70)
    chosen += [(copy, label) for (_, copy), label in zip(pairs, ("shoes", "shirt", "dress"), strict=True)]
    return pairs


def _write_table(path: Path, chosen: list[tuple[str, str]]) -> None:
    chance = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "price", "shop"])
        for image, label in chosen:
            rows.writerow([image, label, chance.randrange(5, 100), chance.choice(SHOPS)])


def write_backbone(path: Path, *, shared: Path) -> Path:
    """Write MobileNetV2 with the ImageNet weights of the shared folder, as the exporter would but without torch."""
    weights = load_file(shared / "weights" / "mobilenet_v2_imagenet.safetensors")
    graph = _Graph()
    x = graph.add("Cast", INPUT_NAME, to=TensorProto.FLOAT)
    x = graph.add("Transpose", x, perm=[0, 3, 1, 2])
    mean, std = (
        255 * np.array(v, dtype=np.float32).reshape(1, 3, 1, 1) for v in (PREPROCESS.mean, PREPROCESS.std)
    )
    x = graph.add("Div", graph.add("Sub", x, graph.constant(mean)), graph.constant(std))
    x = graph.convolve(weights, x, "features.0.0", "features.0.1", stride=2)
    for number, stride in enumerate(_STRIDES, start=1):
        x = graph.add_block(weights, x, f"features.{number}.conv", stride=stride)
    x = graph.convolve(weights, x, "features.18.0", "features.18.1", stride=1)
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    length = graph.add("Max", graph.add("ReduceL2", x, axes=[1], keepdims=1), graph.constant(np.float32(1e-12)))
    graph.nodes.append(helper.make_node("Div", [x, length], [OUTPUT_NAME]))
    side = PREPROCESS.crop
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "mobilenet_v2",
            [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["N", side, side, 3])],
            [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, ["N", EMBEDDING_DIM])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    contract = ModelContract(
        backbone="mobilenet_v2", method="raw", embedding_dim=EMBEDDING_DIM, preprocess=PREPROCESS
    )
    helper.set_model_props(model, {METADATA_KEY: contract.to_json()})
    onnx.checker.check_model(model)
    return write_model(model, path)


class _Graph:
    """Nodes and constants under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: np.ndarray | np.generic) -> str:
        """The name of a new constant."""
        self.constants.append(numpy_helper.from_array(np.asarray(value), f"constant{len(self.constants)}"))
        return self.constants[-1].name

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        """The output of a new node."""
        self.nodes.append(helper.make_node(kind, list(inputs), [f"value{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def convolve(
        self, weights: dict[str, np.ndarray], x: str, layer: str, norm: str, *, stride: int, bend: bool = True
    ) -> str:
        """A convolution with its batch norm folded in, and ReLU6 unless it ends a block."""
        kernel = weights[f"{layer}.weight"]
        spread = np.sqrt(weights[f"{norm}.running_var"] + 1e-5)
        factor = weights[f"{norm}.weight"] / spread
        shift = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * factor
        width, group = kernel.shape[-1], len(kernel) if kernel.shape[1] == 1 else 1
        out = self.add(
            "Conv", x, self.constant(kernel * factor.reshape(-1, 1, 1, 1)), self.constant(shift),
            strides=[stride, stride], pads=[width // 2] * 4, group=group,
        )  # fmt: skip
        if not bend:
            return out
        return self.add("Clip", out, self.constant(np.float32(0)), self.constant(np.float32(6)))

    def add_block(self, weights: dict[str, np.ndarray], x: str, name: str, *, stride: int) -> str:
        """An inverted residual: widen (but in the first), filter by depth, narrow; added to its input where it can."""
        wide = f"{name}.2.weight" in weights and weights[f"{name}.2.weight"].ndim == 4
        out = x
        if wide:
            out = self.convolve(weights, out, f"{name}.0.0", f"{name}.0.1", stride=1)
        depth = 1 if wide else 0
        out = self.convolve(weights, out, f"{name}.{depth}.0", f"{name}.{depth}.1", stride=stride)
        last = f"{name}.{depth + 1}"
        out = self.convolve(weights, out, last, f"{name}.{depth + 2}", stride=1, bend=False)
        first = weights[f"{name}.0.0.weight"]
        same = stride == 1 and wide and first.shape[1] == len(weights[f"{last}.weight"])
        return self.add("Add", x, out) if same else out
