"""What a report says of validation, for people: the figures, and which question each answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from index.evaluation.look_alikes import WORTHLESS
from training.run.verdict import FROZEN_HEAD, TRAINED

_SEARCHES = {
    "among": "photos of these classes, searched among each other",
    "apart": "the same, where no photo finds one of its own scene",
    "against_training": "new photos of the same things, searched among your training photos",
}
_HEADING = "Recall@1 by what is searched, %"
_TRAINS = (TRAINED, FROZEN_HEAD)
_COLUMNS = {"among": "among", "apart": "apart", "against_training": "training"}


def describe_validation(report: Mapping[str, Any]) -> list[str]:
    """The tables of all methods and K, and of Recall@1 by what was searched where there is more than one search."""
    if report["val"] is None:
        return []
    rows = {}
    if report["method"] not in report["baselines"]:
        rows[f"{report['method']} ({report['embedding_dim']}-d)"] = report["val"]
    for name, scores in report["baselines"].items():
        rows[f"{name} ({scores['embedding_dim']}-d){'' if name in _TRAINS else ', untrained'}"] = scores
    ks = list(report["val"]["recall"])
    width = max(len(_HEADING), *map(len, rows)) + 1
    lines = ["", f"{'Recall@K in validation, %':<{width}}" + "".join(f"{'K=' + k:>8}" for k in ks)]
    for name, scores in rows.items():
        lines.append(f"{name:<{width}}" + "".join(f"{100 * scores['recall'][k]:>8.2f}" for k in ks))
    return [*lines, *_describe_searches(report, rows)]


def _describe_searches(report: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    asked = [name for name in _SEARCHES if name == "among" or report["val"].get(name)]
    if len(asked) == 1:
        return _warn(report)
    width = max(len(_HEADING), *map(len, rows)) + 1
    lines = ["", f"{_HEADING:<{width}}" + "".join(f"{_COLUMNS[name]:>10}" for name in asked)]
    for title, scores in rows.items():
        found = (_recall(scores, name) for name in asked)
        lines.append(
            f"{title:<{width}}" + "".join(f"{'-' if one is None else f'{100 * one:.2f}':>10}" for one in found)
        )
    for name in asked:
        scores = report["val"] if name == "among" else report["val"][name]
        lines.append(
            f"{_COLUMNS[name]}: {_SEARCHES[name]} ({scores['queries']:,} queries{_describe_scenes(report, name)})"
        )
    return lines + _warn(report)


def _describe_scenes(report: Mapping[str, Any], name: str) -> str:
    scenes = report.get("val_scenes")
    if name != "apart" or scenes is None:
        return ""
    return f"; {scenes['images']:,} photos in {scenes['scenes']:,} scenes, by {scenes['found_by']}"


def _warn(report: Mapping[str, Any]) -> list[str]:
    """Where shots of a scene make the figure among validation images worthless."""
    among = report["val"]["recall"]["1"]
    if report.get("val_scenes") is not None and report["val"]["apart"] is None:
        return ["warning: every validation photo has those of its class in its own scene only: no figure but that of "
                "photos from elsewhere tells how good this is"]  # fmt: skip
    apart, training = (_recall(report["val"], name) for name in ("apart", "against_training"))
    lines = []
    if apart is not None and among - apart > WORTHLESS:
        lines.append(
            f"warning: 'among' is {100 * (among - apart):.0f} points above 'apart': shots of one scene find each "
            "other, so it does not tell how new photos will fare; 'apart' does"
        )
    if apart is not None and training is not None and training - apart > WORTHLESS:
        lines.append(
            f"warning: 'training' is {100 * (training - apart):.0f} points above 'apart': scenes may be parted between "
            "the photos that train and these"
        )
    if training is not None and among - training > WORTHLESS and not lines:
        lines.append(
            f"warning: 'among' is {100 * (among - training):.0f} points above 'training': labels that train may be "
            "wrong, or photos here be of one scene that nothing tells"
        )
    return lines


def _recall(scores: Mapping[str, Any], name: str) -> float | None:
    found = scores if name == "among" else scores.get(name)
    return None if not found else float(found["recall"]["1"])
