"""Which figures of a run are told to who watches it from outside, and by which names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from training.run.verdict import QUESTIONS

MAIN = ("val/recall_at_1", "trial/new_classes/trained", "trial/new_photos/trained")
"""By which runs are compared."""

_NO_FIGURES = ("phase", "epoch", "epochs")


def epoch_figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a line of metrics.jsonl: of an epoch, or Recall@K of a validation (fractions)."""
    figures = {name: value for name, value in line.items() if name not in (*_NO_FIGURES, "recall")}
    return figures | {f"recall_at_{k}": value for k, value in line.get("recall", {}).items()}


def trial_figures(trial: Mapping[str, Any]) -> dict[str, float]:
    """Recall@1 (fractions) by method, of every question that could be asked, and the hold that was chosen."""
    hold = {} if trial["hold"] is None else {"trial/hold": trial["hold"]}
    return hold | {
        f"trial/{words.replace(' ', '_')}/{method}": recall
        for part, words in QUESTIONS.items()
        if trial[part] is not None
        for method, recall in trial[part]["recall_at_1"].items()
    }


def belief_figures(beliefs: Mapping[str, Any]) -> dict[str, float]:
    """How far labels are believed, on average over all images (0..1)."""
    return {"beliefs/mean_weight": beliefs["mean_weight"]}


def report_figures(report: Mapping[str, Any]) -> dict[str, float]:
    """The main figures of a report: counts, seconds by phase, Recall@K, the trial, and the network stage."""
    figures = {f"data/{name}": report[name] for name in ("images", "trained_on", "classes", "skipped")}
    figures |= {f"seconds/{name}": phase["seconds"] for name, phase in report["phases"].items()}
    figures["seconds/total"] = report["seconds"]
    for name, tell in (("trial", trial_figures), ("beliefs", belief_figures), ("network", _network_figures)):
        if report.get(name) is not None:
            figures |= tell(report[name])
    if report["val"] is not None:
        figures |= dict(_recalls("val", report["val"]))
        for name, scores in report["baselines"].items():
            figures |= dict(_recalls(f"val/untrained/{name}", scores))
    return figures


def report_words(report: Mapping[str, Any]) -> dict[str, str]:
    """What a report says that is no number: the method that ships, and what of an image its network sees."""
    choice = report.get("feature_choice") or {}
    return {"ships": report["method"]} | {
        name: str(choice[name]) for name in ("view", "pooling") if name in choice
    }


def _recalls(prefix: str, scores: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for k, recall in scores["recall"].items():
        yield f"{prefix}/recall_at_{k}", recall
    for search in ("apart", "against_training"):
        if scores.get(search):
            yield f"{prefix}/{search}/recall_at_1", scores[search]["recall"]["1"]


def _network_figures(network: Mapping[str, Any]) -> dict[str, float]:
    """MAP@R (fractions) on what the network stage held out, of all that it chose among, and whether it ships."""
    return {"held_out/ships": float(network["ships"])} | {
        f"held_out/{name.replace(', ', '_').replace(' ', '_')}/{part}": found
        for name, parts in network["tried"].items()
        for part, found in parts.items()
    }
