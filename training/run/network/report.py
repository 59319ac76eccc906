"""What a report says of the network stage, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from training.run.network.choice import START
from training.run.verdict import QUESTIONS, VAL

_FEW = 100
"""Fewer images than these, held out, let chance decide: with 100 a share of one half has an error of 5 points."""


def describe_network(network: Mapping[str, Any] | None) -> list[str]:
    """What trained, what that found on what was held out beside the frozen embedding, and which of them ships."""
    if network is None:
        return []
    held = network["held_out"]
    budget = "" if network["time_budget"] is None else f" of --time-budget {network['time_budget']}"
    lines = [
        f"network: {network['unfreeze']} ({network['blocks']} of {network['of_blocks']} blocks, "
        f"{network['parameters'] / 1e6:.1f} M weights) with {network['method']} in {network['precision']} on "
        f"{network['device']}, {len(network['epochs']) - 1} epochs on {network['trained_on']:,} images, "
        f"{network['seconds']:.0f} s{budget}"
    ]
    tried = network["tried"]
    if not tried:
        return [*lines, "nothing could be held out to judge it by: it ships, its weights averaged"]
    chosen = network["weights"] + (", head refitted" if network["head"] == "refitted" else "")
    names = [name for name in ("frozen", chosen) if name in tried]
    lines.append(
        f"MAP@R on what it held out ({held['unseen']:,} images of new classes, {held['seen']:,} others), %:"
    )
    for name in names:
        figures = ", ".join(f"{QUESTIONS[part]} {100 * found:.1f}" for part, found in tried[name].items())
        lines.append(f"  {'without it' if name == 'frozen' else f'with it ({chosen})'}: {figures}")
    exported = f"exported: {_name_exported(network)}"
    return [*lines, exported, *_doubt(sum(held[part] for part in tried[names[0]]))]


def _name_exported(network: Mapping[str, Any]) -> str:
    if not network["ships"]:
        why = "by --val" if network.get("left_by") == VAL else "which finds as much by the figures above"
        return f"the embedding on the frozen backbone, {why}; {_ask_for_time(network)}"
    if network["weights"] == START:
        return f"the backbone as it was, for no epoch of its training found more; {_ask_for_time(network)}"
    return "the trained network"


def _ask_for_time(network: Mapping[str, Any]) -> str:
    """Whether more epochs might help, by the course of what was held out."""
    course = [np.mean(list(found.values())) for one in network["epochs"] if (found := one["map_at_r"])]
    if len(course) < 2:
        return "too few epochs were judged to tell whether more would help"
    shown = f"MAP@R by judged epoch: {', '.join(f'{100 * one:.1f}' for one in course)}"
    if course[-1] <= max(course[:-1]):
        return f"more epochs would hardly help ({shown})"
    way = "a longer --time-budget" if network["time_budget"] else "more --network-epochs"
    return f"it was still rising, so that {way} may help ({shown})"


def _doubt(count: int) -> list[str]:
    if count >= _FEW:
        return []
    return [f"only {count} held-out photos decide this: take it as a hint; more photos a class would make it sure"]
