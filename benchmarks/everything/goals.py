"""The goals of speed, held against the records of a run: pure arithmetic on documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.common.tables import format_table
from benchmarks.everything.running import FINISHED, NOT_RUN

Documents = Mapping[str, Mapping[str, Any]]  # benchmark: what `run_benchmark` gave
PHOTOS, CLASSES, TRAINED = 5398, 100_000, 4000  # that the goals speak of
MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Found:
    """One figure that a goal speaks of.

    Attributes:
        detail: of whom, where a goal has several.
        size: what it was measured with, in words; `is_full` says whether that is what the goal speaks of.
        recall: Recall@1 in %, ours and the peer's, where there is one.
    """

    ratio: float
    size: str
    is_full: bool = True
    detail: str = ""
    recall: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """What is compared, its limit (`at_most`, or at least), and where the figures are."""

    name: str
    benchmark: str
    limit: float
    find: Callable[[Mapping[str, Any]], Iterator[Found]]
    at_most: bool = False


def judge(documents: Documents) -> list[dict[str, Any]]:
    """A row for each figure of each goal; a goal whose benchmark gave none has one that says so."""
    rows: list[dict[str, Any]] = []
    for goal in GOALS:
        document = documents.get(goal.benchmark, {"status": NOT_RUN})
        given = {"goal": goal.name, "limit": goal.limit, "at_most": goal.at_most}
        found = list(goal.find(document["records"])) if document["status"] == FINISHED else []
        if not found:
            status = NOT_RUN if document["status"] == FINISHED else document["status"]
            rows.append({**given, "status": status, "ratio": None})
        for one in found:
            met = one.ratio <= goal.limit if goal.at_most else one.ratio >= goal.limit
            rows.append({
                **given, "status": "met" if met else "not met", "ratio": one.ratio, "detail": one.detail,
                "size": one.size, "is_full": one.is_full, "recall": one.recall,
            })  # fmt: skip
    return rows


def format_goals(rows: list[dict[str, Any]]) -> str:
    """Markdown; a figure of other sizes than the goal's own says so."""
    lines = []
    for row in rows:
        limit = f"{'≤' if row['at_most'] else '≥'} {row['limit']:g}"
        if row["ratio"] is None:
            lines.append([row["goal"], "", limit, row["status"], "", ""])
            continue
        name = ": ".join(filter(None, (row["goal"], row["detail"])))
        recall = "" if row["recall"] is None else "{:.2f} / {:.2f}".format(*row["recall"])
        status = row["status"] + ("" if row["is_full"] else ", at another size")
        lines.append([name, f"{row['ratio']:.2f}", limit, status, recall, row["size"]])
    head = ["what", "ratio", "goal", "met?", "Recall@1, ours / peer, %", "measured with"]
    return format_table(head, lines)


def _best_model(model: str, precision: str | None = None) -> Callable[[Mapping[str, Any]], Iterator[Found]]:
    """Of a model's rows, in a precision or any, the one that is most ahead of the loop."""

    def find(records: Mapping[str, Any]) -> Iterator[Found]:
        results = records["record-models"]["results"]
        rows = [row for row in results["rows"] if row["model"] == model and precision in (None, row["precision"])]
        if rows:
            best = max(rows, key=lambda row: row["over_loop"])
            yield _model_figure(best, best["over_loop"], results["images"])

    return find


def _model_figure(row: Mapping[str, Any], ratio: float, images: int) -> Found:
    trained = row["weights"] != "random"
    recall = (100 * row["recall_at_1"], 100 * row["loop_recall_at_1"]) if trained else None
    detail = f"{row['precision']}, {row['backend']}" + ("" if trained else ", random weights")
    return Found(ratio, f"{images:,} photos", images == PHOTOS, detail, recall)


def _of_bound(records: Mapping[str, Any]) -> Iterator[Found]:
    photos = records["record-photos"]["results"]
    size = f"{photos['images']:,} photos"
    yield Found(photos["of_bound"], size, photos["images"] == PHOTOS, "MobileNetV2, as it comes")
    results = records["record-models"]["results"]
    for row in results["rows"]:
        found = _model_figure(row, row["of_bound"], results["images"])
        yield Found(found.ratio, found.size, found.is_full, f"{row['model']}, {found.detail}")


def _losses(quantity: str) -> Callable[[Mapping[str, Any]], Iterator[Found]]:
    """Of every peer of every loss, time over ours, or our memory over theirs."""

    def find(records: Mapping[str, Any]) -> Iterator[Found]:
        for document in records.values():
            results = document["results"]
            (_, own), *peers = results["rows"].items()
            size = f"{results['classes']:,} classes, batch {results['batch']}, {results['width']}-d"
            for name, row in peers:
                ratio = row["seconds"]["median"] / own["seconds"]["median"]
                if quantity == MEMORY:
                    ratio = own["peak_bytes"]["median"] / max(row["peak_bytes"]["median"], 1)
                yield Found(ratio, size, results["classes"] == CLASSES, f"{results['part']}, {name}")

    return find


def _network_epoch(records: Mapping[str, Any]) -> Iterator[Found]:
    """Images a second of ours over each loop's."""
    results = records["record-epoch"]["results"]
    (_, own), *peers = results["rows"].items()
    size = f"{results['images']:,} photos of {results['side']} pixels"
    for name, row in peers:
        ratio = own["images_per_second"]["median"] / row["images_per_second"]["median"]
        recall = (100 * own["recall_at_1"], 100 * row["recall_at_1"])
        yield Found(ratio, size, results["images"] == TRAINED, name, recall)


def _cold_search(records: Mapping[str, Any]) -> Iterator[Found]:
    results = records["cold-start"]["results"]
    search, imports = results["retrieval search"], results["import torch, faiss"]
    yield Found(search["median"] / imports["median"], f"{search['repeats']} cold starts")


def _uploads(records: Mapping[str, Any]) -> Iterator[Found]:
    """Of our server with the model in int8, beside every FastAPI peer."""
    results = records["record-photos"]["results"]
    images, recall = results["gallery"]["images"], results["recall_at_1"]
    if not recall:  # int8 was left out
        return
    both = (100 * recall["int8"], 100 * recall["float32"])
    for goal in results["goals"]:
        if goal["name"].startswith("uploads, 32 clients: ours in int8 / ") and "fastapi" in goal["name"]:
            peer = goal["name"].rpartition("/ ")[2]
            yield Found(goal["measured"], f"{images:,} photos", images == PHOTOS, peer, both)


LOOP = "a DataLoader and torch in float32"
GOALS = (
    Goal(f"indexing, ResNet-50 in int8 / {LOOP}", "indexing", 5, _best_model("resnet50", "int8")),
    Goal(f"indexing, MobileNetV2 in its fastest precision / {LOOP}", "indexing", 6, _best_model("mobilenet_v2")),
    Goal(f"indexing, model in the box / {LOOP} with MobileNetV2", "indexing", 8, _best_model("box")),
    Goal("indexing / what decoding and the model alone allow", "indexing", 0.9, _of_bound),
    Goal("loss, seconds of a peer / ours", "losses", 2, _losses("seconds")),
    Goal("loss, our memory / a peer's", "losses", 0.25, _losses(MEMORY), at_most=True),
    Goal("a whole network's epochs, images/s of ours / a peer's", "network-epoch", 2, _network_epoch),
    Goal("cold `retrieval search` / importing torch and faiss", "cold-start", 0.15, _cold_search, at_most=True),
    Goal("uploads/s at 32 clients, ours in int8 / FastAPI in float32", "serving", 2, _uploads),
)
