"""A trial in words: what each method found among what was held out, and for which classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.run.verdict import QUESTIONS, name_sizes


def describe_trial(trial: Mapping[str, Any] | None) -> list[str]:
    """Lines for people, of what `Trial.to_json` gives; none where there was no trial."""
    if trial is None:
        return []
    parts = {name: trial[name] for name in QUESTIONS if trial[name] is not None}
    if not parts:
        return ["no trial: too few images to hold some out, search them and train on the others"]
    return [
        "",
        *_tabulate(parts, hold=trial["hold"]),
        *_describe_sizes(parts),
    ]


def tell_trial(trial: Mapping[str, Any]) -> list[str]:
    """One line while the training goes on: what was found with training and, at best of equal width, without."""
    found: list[str] = []
    for name, words in QUESTIONS.items():
        if (part := trial[name]) is not None:
            trained, rival = (100 * part["recall_at_1"][method] for method in ("trained", part["best_rival"]))
            found.append(f"{words} {trained:.1f} ({'' if found else 'untrained '}{rival:.1f})")
    return [f"trial, Recall@1 %: {', '.join(found)}"] if found else []


def _tabulate(parts: Mapping[str, Mapping[str, Any]], *, hold: float | None) -> list[str]:
    heads = [f"{QUESTIONS[name]} ({part['queries']})" for name, part in parts.items()]
    lines = ["Trial: Recall@1 by the given labels, % (queries)" + "".join(f"{head:>20}" for head in heads)]
    first = next(iter(parts.values()))["recall_at_1"]
    for name in sorted(first, key=lambda name: -sum(part["recall_at_1"][name] for part in parts.values())):
        shown = name if name != "trained" or hold is None else f"trained, hold {hold:g}"
        values = "".join(f"{100 * part['recall_at_1'][name]:>20.2f}" for part in parts.values())
        lines.append(f"  {shown:<46}{values}")
    return lines


def _describe_sizes(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Recall@1 of new photos by class size, where classes differ in it."""
    if "seen" not in parts or len(parts["seen"]["by_class_size"]) < 2:
        return []
    names = ["trained", parts["seen"]["best_rival"]]
    texts = []
    for band in parts["seen"]["by_class_size"]:
        found = ", ".join(f"{name} {100 * band['recall_at_1'][name]:.1f}" for name in names)
        texts.append(f"{name_sizes(*band['images'])} images: {found}")
    return [f"  new photos of classes of {'; '.join(texts)}"]
