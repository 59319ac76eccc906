"""The built-in model, made from the public weights of EfficientNet-Lite2, without labels.

Its images are the training halves of the clothes and groceries of RETRIEVAL_SHARED. The output `semantic` is PCA of
the network's features, each direction divided by its variance^0.25; `copy` is the copy head of `retrieval train
--copy-head`. The network stays as it is, in int8.

    python -m benchmarks.builtin.make --out bench/builtin
"""

from __future__ import annotations

import argparse
import csv
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.common.graph_features import GraphExtractor
from benchmarks.common.record import ending_in_words, find_photos, find_weights, print_machine, write_record
from benchmarks.noise.splits import list_split
from export.exports import export_again, read_check_images
from export.public import ExportConfig
from export.to_onnx import export_model
from index.arrays import Floats
from index.images.preprocess import PreprocessConfig
from index.model.contract import ModelContract
from index.threads import usable_cores
from training.backbone.backbones import Backbone, load_backbone, with_features
from training.backbone.builtin_models import FEATURES, EfficientNetLite2
from training.backbone.convolutions import fold_norm
from training.backbone.extract import Extractor, extract_features, open_store
from training.backbone.graphs import PixelModel
from training.data.datasets import Record
from training.head.copy_head import CopyHead, fit_copy_head
from training.head.untrained import fit_untrained
from training.options.backbone_libraries import BUILTIN_NETWORK
from training.run.copy_stage import choose_threshold

NAME, _SOURCE = BUILTIN_NETWORK, "timm:tf_efficientnet_lite2"
SIDE = 225  # pixels; 32 n + 1, as training padded
DIM, COPY_DIM = 256, 128  # of `semantic` and `copy`
VIEWS = 8  # of an image: itself and edited copies
TAUGHT_BY = ("clothing-disjoint", "groceries-disjoint")


@ending_in_words("builtin.make")
def main(arguments: list[str] | None = None) -> None:
    """Extract features, fit both heads, write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of builtin.onnx and the record")
    add("--cache", type=Path, help="folder of features and unpacked images (default OUT/cache)")
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print_machine([options.seed])
    cache = options.cache or options.out / "cache"
    extractor = make_extractor(cache=cache)
    records = list_images(cache)
    rows, views = extract_views([record.path for record in records], extractor, cache=cache)
    semantic = fit_untrained("pca-half-whitened", views[:, 0], embedding_dim=DIM)
    clothes = np.array([records[row].path.is_relative_to(find_photos()) for row in rows])
    copy, threshold = teach_copies(views, clothes, seed=options.seed)
    contract = ModelContract(
        backbone=NAME,
        method="pca-half-whitened",
        embedding_dim=DIM,
        preprocess=extractor.preprocess,
        view="whole",
        pooling="layers",
        copy_dim=COPY_DIM,
        copy_threshold=threshold,
    )
    model = PixelModel(extractor.backbone.module, semantic, copy, preprocess=extractor.preprocess)
    export_model(
        model,
        contract=contract,
        out=options.out / "float32.onnx",
        check_images=read_check_images([record.path for record in records], extractor.preprocess),
    )
    table = options.out / "images.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *((record.path, record.label) for record in records)])
    report = export_again(
        options.out / "float32.onnx",
        options.out / "builtin.onnx",
        ExportConfig(precision="int8", images=table),
        progress=partial(_tell, "measured"),
    )
    write_record(options.out / "builtin.json", settings=vars(options), results=report.to_json())


def make_extractor(*, cache: Path) -> Extractor:
    """Features of the whole image, pooled from several layers, by ONNX Runtime."""
    preprocess = PreprocessConfig(resize=SIDE, crop=SIDE, mean=(0.5,) * 3, std=(0.5,) * 3)
    network = Backbone(NAME, fold_network(), FEATURES)
    backbone = with_features(network, view="whole", pooling="layers", side=SIDE)
    extractor = Extractor(backbone, preprocess, device=torch.device("cpu"), precision="float32")
    return GraphExtractor(extractor, "onnxruntime", cache=cache)


def extract_views(paths: list[Path], extractor: Extractor, *, cache: Path) -> tuple[list[int], Floats]:
    """(N,) rows of the different images, and (N, V, F) features of them and of their edited copies."""
    store = open_store(cache, extractor, views=VIEWS)
    extracted = extract_features(
        paths, store=store, extractor=extractor, views=VIEWS, workers=usable_cores(), progress=partial(_tell, "images")
    )
    first = dict(zip(reversed(extracted.hashes), reversed(extracted.rows.tolist()), strict=True))
    return list(first.values()), store.load(list(first))


def teach_copies(views: Floats, clothes: np.ndarray, *, seed: int) -> tuple[CopyHead, float]:
    """Copy head, and its threshold: from it on, at most one in a hundred pairs of clothes is wrong.

    The pairs are those of a gallery of these clothes with an edited copy of each: right ones are a photo and its copy.
    Every tenth image is held out of the training and stands for all. The most alike pair of different photos is left
    out, as a single one would decide.
    """
    held = np.arange(len(views)) % 10 == 0
    head = fit_copy_head(
        views[~held], np.arange(len(views))[~held], copy_dim=COPY_DIM, seed=seed, progress=partial(_tell, "steps")
    )
    with torch.inference_mode():
        every = head(torch.from_numpy(views[clothes, 0])).numpy()  # (N, D)
        asked = [head(torch.from_numpy(views[held & clothes, view])).numpy() for view in range(views.shape[1])]
    right = np.concatenate([(asked[0] * copies).sum(axis=1) for copies in asked[1:]])
    wrong = asked[0] @ every.T
    wrong[np.arange(len(wrong)), np.flatnonzero(held[clothes])] = -1
    # Here are V - 1 copies of an image, in the gallery one; and each pair of photos twice, in the gallery once.
    threshold = choose_threshold(np.repeat(right, 2), np.repeat(np.sort(wrong, axis=None)[:-1], views.shape[1] - 1))
    return head, threshold


@torch.no_grad()
def fold_network() -> EfficientNetLite2:
    """The network with the weights of RETRIEVAL_SHARED, batch norm folded into the convolutions."""
    source = load_backbone(_SOURCE, str(find_weights(backbone=_SOURCE))).module
    network = EfficientNetLite2().eval().requires_grad_(False)
    convolutions, norms, own = (
        [layer for layer in module.modules() if isinstance(layer, kind)]
        for module, kind in ((source, torch.nn.Conv2d), (source, torch.nn.BatchNorm2d), (network, torch.nn.Conv2d))
    )
    for convolution, norm, folded in zip(convolutions, norms, own, strict=True):
        weight, bias = fold_norm(convolution.weight, convolution.bias, norm)
        folded.weight.copy_(weight)
        folded.bias.copy_(bias)
    return network


def list_images(cache: Path) -> list[Record]:
    """Photos that take part, with their labels: the training halves."""
    return [record for name in TAUGHT_BY for record in list_split(name, work=cache)[0].records]


def _tell(what: str, done: int, total: int) -> None:
    end = "\n" if done == total else "\r"
    print(f"{what} {done:,} of {total:,}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
