"""The photos indexed by each model, precision and runtime, beside the loop with the same network in torch, float32.

Recall@1 of the gallery, by the folders of the photos, stands beside every rate. The loop of the model in the box and of
files of one's own is that of MobileNetV2. int8 is calibrated and measured on `CALIBRATED_ON`, which are other photos.
A ResNet-50 without `--resnet50-weights` has random ones: its rate counts, its Recall@1 does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.record import run_retrieval, write_atomically
from benchmarks.common.tables import format_spread, format_table
from benchmarks.indexing.index_agreement import check_agreement, compare_vectors
from benchmarks.indexing.index_bench import Bench, check_counts, take_turns
from benchmarks.indexing.index_images import list_images, read_all, take_evenly
from benchmarks.indexing.index_peers import CLASSIFIERS, USUAL_BACKBONE, choose_inference, choose_loop, run_peer
from benchmarks.noise.splits import list_split
from index.evaluation.metrics import score_retrieval
from index.model.backends.registry import installed_backends
from index.model.embedder import Embedder
from index.model.in_the_box import find_box
from index.threads import usable_cores

BOX = "box"
MODELS = (*CLASSIFIERS, BOX)
PRECISIONS = ("fp32", "int8")
CALIBRATED_ON = "groceries-seen"
AS_IT_IS = "as it is"  # of the box and of files of one's own
INPUTS_IN_MEMORY = 128
RANDOM_WEIGHTS = "random"


@dataclass(frozen=True, slots=True)
class Row:
    """One of our contestants.

    Attributes:
        file: the model.
        backbone: of the loop that it is compared with.
    """

    model: str
    precision: str
    backend: str
    file: Path
    backbone: str

    @property
    def name(self) -> str:
        """Of its measurements."""
        return "-".join(("ours", Path(self.model).name, self.precision.replace(" ", "-"), self.backend))


def add_options(add: Any) -> None:
    """Those of this part."""
    backends = tuple(installed_backends())
    what = f"{', '.join(MODELS)} or FILE.onnx; may be repeated (default: {', '.join(MODELS)})"
    add("--model", action="append", metavar="MODEL", help=f"of the part models: {what}")
    add(
        "--precision",
        action="append",
        choices=PRECISIONS,
        help=f"may be repeated; default {', '.join(PRECISIONS)}",
    )
    add("--backend", action="append", choices=backends, help=f"may be repeated; default {', '.join(backends)}")
    add("--resnet50-weights", type=Path, help="safetensors of torchvision's resnet50 (default: random numbers)")
    calibrated = f"photos of {CALIBRATED_ON} for int8 (default: %(default)s)"
    add("--calibrated-images", type=int, default=2000, help=calibrated)


def measure_models(bench: Bench, options: argparse.Namespace, photos: Path) -> dict[str, Any]:
    """All rows, their loops, and decoding and the models alone, in turns."""
    paths = list_images(photos)
    size = read_all(paths)
    weights = {USUAL_BACKBONE: bench.weights, "resnet50": options.resnet50_weights}
    rows = list_rows(bench, options, weights)
    few = take_evenly(paths, options.warm_up)
    loops = {}
    for backbone in dict.fromkeys(row.backbone for row in rows):
        known = weights[backbone] or _random_weights(bench, backbone, options)
        own = next((row.file for row in rows if row.model == backbone), bench.model)
        loops[backbone] = _choose_loop(bench, paths, few, backbone, weights=known, model=own)
    alone = {row.name: _choose_alone(bench, row, paths, few) for row in rows}
    decoding = {row.name: _decoding(row, paths) for row in rows}
    contestants: dict[str, Any] = {}
    for row in rows:
        build = partial(bench.build, [photos], "--backend", row.backend, model=row.file, is_evaluated=True)
        contestants[row.name] = build
        contestants[f"alone-{row.name}"] = partial(run_peer, "inference", alone[row.name])
        contestants[_name_decoding(row)] = partial(run_peer, "decoding", decoding[row.name])
    for backbone, settings in loops.items():
        contestants[f"loop-{backbone}"] = partial(_run_loop, settings, photos)
    turns = take_turns(bench, "models", contestants, rounds=options.rounds)
    for name, documents in turns["rounds"].items():
        if name.startswith(("ours-", "loop-")):
            check_counts(documents, expected=len(paths))
    found = [judge(row, turns, on_gpu=bench.on_gpu) for row in rows]
    random = [backbone for backbone in loops if weights[backbone] is None]
    for row, judged in zip(rows, found, strict=True):
        judged["weights"] = RANDOM_WEIGHTS if row.model in random else "trained"
        if row.model in CLASSIFIERS:
            judged["agreement"] = _agree(bench, row, paths, index=Path(loops[row.backbone]["index"]))
    return {"images": len(paths), "mib": size / 2**20, "rows": found, "loops": loops, "alone": alone, **turns}


def _agree(bench: Bench, row: Row, paths: Sequence[Path], *, index: Path) -> dict[str, Any]:
    """How near a row's vectors are to its loop's; in float32 they must be the same."""
    opened = Embedder(row.file, backend=row.backend)
    agreement = bench.measure(f"models-agreement-{row.name}", lambda: compare_vectors(opened, paths, index=index))
    if row.precision == "fp32":
        check_agreement(agreement)
    return agreement


def list_rows(bench: Bench, options: argparse.Namespace, weights: Mapping[str, Path | None]) -> list[Row]:
    """Each model in each precision and runtime asked for; models are written once."""
    rows = []
    for model in options.model or MODELS:
        for precision in options.precision or PRECISIONS:
            if model in MODELS:
                shown = AS_IT_IS if model == BOX and precision != "int8" else precision
                file = _export(bench, options, model, precision, weights.get(model))
            else:
                shown, file = AS_IT_IS, Path(model).resolve()
            backbone = model if model in CLASSIFIERS else USUAL_BACKBONE
            rows += [
                Row(model, shown, backend, file, backbone) for backend in options.backend or installed_backends()
            ]
    return list(dict.fromkeys(rows))


def judge(row: Row, turns: Mapping[str, Any], *, on_gpu: bool) -> dict[str, Any]:
    """Rates, Recall@1 and the two ratios of a row: over its loop, and of what decoding and the model alone allow."""
    rates, rounds = turns["rates"], turns["rounds"]
    loop, ours = f"loop-{row.backbone}", rates[row.name]["median"]
    d, i = (rates[name]["median"] for name in (_name_decoding(row), f"alone-{row.name}"))
    allowed = min(d, i) if on_gpu else 1 / (1 / d + 1 / i)
    return {
        "model": row.model, "precision": row.precision, "backend": row.backend, "loop": row.backbone,
        "rate": rates[row.name], "loop_rate": rates[loop], "decoding": d, "inference": i, "allowed": allowed,
        "over_loop": ours / rates[loop]["median"], "of_bound": ours / allowed,
        "recall_at_1": rounds[row.name][0]["recall_at_1"], "loop_recall_at_1": rounds[loop][0]["recall_at_1"],
    }  # fmt: skip


def format_models(results: Mapping[str, Any]) -> str:
    """Markdown of `measure_models`."""
    head = ["model", "precision", "runtime", "images/s", "the loop", "ours / loop", "allowed", "ours / allowed",
            "Recall@1", "of the loop"]  # fmt: skip
    lines = [
        [
            row["model"] + (", random weights" if row["weights"] == RANDOM_WEIGHTS else ""), row["precision"],
            row["backend"], format_spread(row["rate"]), f"{row['loop']}: {format_spread(row['loop_rate'])}",
            f"{row['over_loop']:.2f}", f"{row['allowed']:.1f}", f"{row['of_bound']:.2f}",
            f"{100 * row['recall_at_1']:.2f}", f"{100 * row['loop_recall_at_1']:.2f}",
        ]
        for row in results["rows"]
    ]  # fmt: skip
    return f"{results['images']:,} photos, {results['mib']:.0f} MiB\n\n{format_table(head, lines)}"


def _export(bench: Bench, options: argparse.Namespace, model: str, precision: str, weights: Path | None) -> Path:
    if model == BOX and precision != "int8":
        return find_box()
    if (model, precision) == (USUAL_BACKBONE, "fp32"):
        return bench.model
    file = bench.folder / f"{model}-{precision}.onnx"
    if file.exists():
        return file
    given: list[str | int | Path] = [BOX]
    if model != BOX:
        given = ["--backbone", model, "--weights", weights or _random_weights(bench, model, options)]
    if precision == "int8":
        given += ["--precision", precision, "--images", _calibration_table(bench, options)]
        if model != BOX and weights is None:  # whom Recall@1 does not matter
            given += ["--max-recall-drop", 1]
    run_retrieval("export", *given, "--out", file)
    return file


def _random_weights(bench: Bench, backbone: str, options: argparse.Namespace) -> Path:
    """Those that torchvision starts a network with, by the seed."""
    import torch
    import torchvision
    from safetensors.torch import save

    path = bench.folder / f"{backbone}-random.safetensors"
    if not path.exists():
        torch.manual_seed(options.seed)
        state = torchvision.models.get_model(backbone, weights=None).state_dict()
        write_atomically(path, lambda file: file.write(save(state)))
    return path


def _calibration_table(bench: Bench, options: argparse.Namespace) -> Path:
    from benchmarks.network.train_cells import write_records  # it imports torch

    records = list_split(CALIBRATED_ON, work=bench.out / "images").train
    return write_records(take_evenly(records, options.calibrated_images), bench.folder / "calibration.csv")


def _choose_loop(
    bench: Bench, paths: Sequence[Path], few: Sequence[Path], backbone: str, *, weights: Path, model: Path
) -> dict[str, Any]:
    """The loop's settings, those that were fastest in a warm-up among them."""
    index = bench.folder / f"models-{backbone}.faiss"
    fixed = {
        "weights": str(weights), "preprocess": Embedder(model).contract.preprocess.to_json(), "index": str(index),
        "on_gpu": bench.on_gpu, "backbone": backbone,
    }  # fmt: skip
    some = {**fixed, "paths": list(map(str, few))}
    chosen = bench.measure(
        f"models-loop-settings-{backbone}", lambda: choose_loop(some, cores=usable_cores())
    )["chosen"]  # fmt: skip
    return {**fixed, **chosen, "paths": list(map(str, paths))}


def _choose_alone(bench: Bench, row: Row, paths: Sequence[Path], few: Sequence[Path]) -> dict[str, Any]:
    inputs = list(map(str, take_evenly(paths, INPUTS_IN_MEMORY)))
    fixed = {"paths": inputs, "model": str(row.file), "backend": row.backend}

    def choose() -> dict[str, Any]:
        few_images = {**fixed, "images": len(few)}
        return choose_inference(few_images, cores=usable_cores(), on_gpu=bench.on_gpu)

    return {**fixed, "images": len(paths), **bench.measure(f"models-settings-{row.name}", choose)["chosen"]}


def _decoding(row: Row, paths: Sequence[Path]) -> dict[str, Any]:
    preprocess = Embedder(row.file).contract.preprocess.to_json()
    return {"paths": list(map(str, paths)), "preprocess": preprocess, "pool": "threads", "workers": usable_cores()}


def _name_decoding(row: Row) -> str:
    config = Embedder(row.file).contract.preprocess
    return f"decoding-{config.resize}-{config.crop}"


def _run_loop(settings: Mapping[str, Any], photos: Path) -> dict[str, Any]:
    """The loop, and Recall@1 of its index."""
    document = run_peer("torch-loop", settings)
    paths = [Path(path) for path in settings["paths"]]
    return {**document, "recall_at_1": score_loop(Path(settings["index"]), paths, photos=photos)}


def score_loop(index: Path, paths: Sequence[Path], *, photos: Path) -> float:
    """Recall@1 of the loop's index of all paths, each asking all others, by their first folders below `photos`."""
    import faiss

    flat = faiss.read_index(str(index))
    vectors, ids = flat.reconstruct_n(0, flat.ntotal), np.arange(flat.ntotal)
    folders = [path.relative_to(photos).parts[0] for path in paths]
    labels = np.unique(folders, return_inverse=True)[1].astype(np.int64)
    scores = score_retrieval(
        vectors, labels, gallery=vectors, gallery_labels=labels, gallery_ids=ids, query_ids=ids, ks=(1,)
    )
    return scores.recall[1]
