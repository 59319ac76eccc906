"""A look in words: which views and poolings were tried, what each found, which one the run takes, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VIEWS = {"crop": "the crop", "whole": "the whole image", "both": "crop and whole image, averaged"}
_POOLINGS = {"own": "the network's own pooling", "gem": "generalised mean", "layers": "several layers"}


def describe_choice(choice: Mapping[str, Any] | None) -> list[str]:
    """Lines for people, of `FeatureChoice.to_json`; none where the options left nothing open."""
    if choice is None:
        return []
    chosen = _name(choice)
    if not choice["tried"]:
        why = (
            "too few images to try others on" if choice["images"] else "this network and these sizes have no other"
        )
        return [f"features: {chosen} ({why})"]
    first, *_ = choice["tried"]
    lines = [
        "",
        f"What the network sees, tried without training on {choice['images']:,} images of {choice['classes']} classes",
        *_tabulate(choice["tried"]),
    ]
    (taken,) = (one for one in choice["tried"] if _name(one) == chosen)
    if taken is first:
        return [*lines, f"so the features are the usual ones, {chosen}: no other finds more by more than chance"]
    low, high = taken["difference_interval"]
    return [
        *lines,
        f"so the features are those of {chosen}: {100 * taken['difference']:+.1f} points "
        f"[{100 * low:+.1f}, {100 * high:+.1f}] over {_name(first)}; {_describe_cost(taken, first)}",
    ]


def _tabulate(tried: list[Mapping[str, Any]]) -> list[str]:
    lines = [f"{'':<60}{'Recall@1, %':>14}{'passes':>8}{'width':>8}"]
    for one in sorted(tried, key=lambda one: -float(one["recall_at_1"])):
        found = 100 * one["recall_at_1"]
        lines.append(f"  {_name(one):<58}{found:>14.2f}{one['passes']:>8}{one['feature_dim']:>8,}")
    return lines


def _describe_cost(taken: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    passes = {1: "one pass"}.get(taken["passes"], f"{taken['passes']} passes")
    time = "" if taken["passes"] > first["passes"] else ", as before"
    width = f"{taken['feature_dim']:,} numbers"
    if taken["feature_dim"] != first["feature_dim"]:
        width += f" in place of {first['feature_dim']:,}"
    return f"an image costs {passes} of the network{time}, whose features are {width}"


def _name(one: Mapping[str, Any]) -> str:
    return f"{_VIEWS[one['view']]}, {_POOLINGS[one['pooling']]}"
