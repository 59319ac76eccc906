"""Report of a training as text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from index.evaluation.groups import WORTHLESS
from training.options.config import TrainConfig
from training.run.copy_stage import describe_copy_head
from training.run.verdict import FROZEN_HEAD, QUESTIONS, TRAINED


def describe_finetuning(network: Mapping[str, Any] | None) -> list[str]:
    """Lines about fine-tuning: options, end, and whether more time may help. The verdict says what it found."""
    if network is None:
        return ["fine-tuning: none, the backbone is as it was"]
    epochs, text = len(network["epochs"]) - 1, network["time_budget"]
    if epochs == 0:
        why = "Ctrl-C ended it before its first step"
        if network["ended_by"] == "time":
            why = f"--time-budget {text} leaves no time for a step after preparation: train anew with more"
        return ["", f"fine-tuning: none, as {why}"]
    lines = [
        "",
        f"fine-tuning: {network['finetune']} ({network['blocks']} of {network['of_blocks']} blocks, "
        f"{network['parameters'] / 1e6:.1f} M weights) with {network['method']} in {network['precision']} on "
        f"{network['device']}, {epochs} epoch{'' if epochs == 1 else 's'} on {network['trained_on']:,} images, "
        f"{network['seconds']:.0f} s{'' if text is None else f' of --time-budget {text}'}",
    ]
    if alphas := network.get("alphas"):
        shown = ", ".join(f"{alpha} of the way {100 * value:.1f}" for alpha, value in alphas.items())
        lines.append(
            f"weights {network['wise_ft_alpha']:g} of the way from the initial to the trained ones were chosen, by "
            f"MAP@R on held-out images, %: {shown}"
        )
    if network["ended_by"] == "Ctrl-C":
        lines.append(f"stopped early by Ctrl-C in epoch {epochs}: the weights until then were compared")
    if network["ended_by"] == "time" and network["prepared_s"] > network["seconds"] / 2:
        lines.append(f"preparation took {network['prepared_s']:.0f} s of that: more time (--time-budget) trains longer")
    course = [np.mean(list(found.values())) for one in network["epochs"] if (found := one["map_at_r"])]
    if not network["selected"] and len(course) > 1:
        lines.append(
            f"MAP@R on held-out images by evaluated epoch, %: {', '.join(f'{100 * one:.1f}' for one in course)}"
        )
        if course[-1] > max(course[:-1]):
            more = "--epochs" if text is None or network["ended_by"] == "epochs" else "time (--time-budget)"
            lines.append(f"it was still rising: more {more} may help")
    return lines


_SEARCHES = {
    "ungrouped": ("ungrouped", "photos of these classes, searched among each other"),
    "grouped": ("grouped", "the same, where no photo finds one of its own group"),
    "against_training": ("training", "new photos of the same things, searched among your training photos"),
}
"""Column and meaning of each search of the validation images."""


def _table(title: str, heads: Sequence[str], rows: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Lines of a table of fractions, in percent."""
    first, width = max(len(title), *map(len, rows)) + 1, max(8, *(len(head) + 2 for head in heads))
    lines = [f"{title:<{first}}" + "".join(f"{head:>{width}}" for head in heads)]
    for name, values in rows.items():
        shown = ("-" if value is None else f"{100 * value:.2f}" for value in values)
        lines.append(f"{name:<{first}}" + "".join(f"{text:>{width}}" for text in shown))
    return lines


def describe_validation(report: Mapping[str, Any]) -> list[str]:
    """Tables of Recall@K by method, and of Recall@1 by search where there are several."""
    if report["val"] is None:
        return []
    rows = {}
    if report["method"] not in report["baselines"]:
        rows[f"{report['method']} ({report['embedding_dim']}-d)"] = report["val"]
    for name, scores in report["baselines"].items():
        untrained = "" if name in (TRAINED, FROZEN_HEAD) else ", untrained"
        rows[f"{name} ({scores['embedding_dim']}-d){untrained}"] = scores
    ks = list(report["val"]["recall"])
    of_k = {name: [scores["recall"][k] for k in ks] for name, scores in rows.items()}
    lines = ["", *_table("Recall@K in validation, %", [f"K={k}" for k in ks], of_k)]
    asked = [name for name in _SEARCHES if name == "ungrouped" or report["val"].get(name)]
    if len(asked) > 1:
        found = {title: [_recall(scores, name) for name in asked] for title, scores in rows.items()}
        lines += ["", *_table("Recall@1 by what is searched, %", [_SEARCHES[name][0] for name in asked], found)]
        for name in asked:
            scores = report["val"] if name == "ungrouped" else report["val"][name]
            found_by = ""
            if name == "grouped" and (groups := report.get("val_groups")) is not None:
                found_by = f"; {groups['images']:,} photos in {groups['groups']:,} groups, by {groups['found_by']}"
            column, meaning = _SEARCHES[name]
            lines.append(f"{column}: {meaning} ({scores['queries']:,} queries{found_by})")
    return lines + _warn(report)


def _warn(report: Mapping[str, Any]) -> list[str]:
    """Warnings where photos of a group distort the ungrouped figure."""
    ungrouped = report["val"]["recall"]["1"]
    if report.get("val_groups") is not None and report["val"]["grouped"] is None:
        return [
            "warning: all validation photos of a class are in one group, so no figure tells how new photos will "
            "fare: add photos from elsewhere"
        ]
    grouped, training = (_recall(report["val"], name) for name in ("grouped", "against_training"))
    lines = []
    if grouped is not None and ungrouped - grouped > WORTHLESS:
        lines.append(
            f"warning: 'ungrouped' is {100 * (ungrouped - grouped):.0f} points above 'grouped': photos of one group "
            "find each other, so it does not tell how new photos will fare; 'grouped' does"
        )
    if grouped is not None and training is not None and training - grouped > WORTHLESS:
        lines.append(
            f"warning: 'training' is {100 * (training - grouped):.0f} points above 'grouped': groups may be split "
            "between the photos that train and these"
        )
    if training is not None and ungrouped - training > WORTHLESS and not lines:
        lines.append(
            f"warning: 'ungrouped' is {100 * (ungrouped - training):.0f} points above 'training': labels that "
            "train may be wrong, or photos here be of one group that nothing shows"
        )
    return lines


def _recall(scores: Mapping[str, Any], name: str) -> float | None:
    found = scores if name == "ungrouped" else scores.get(name)
    return None if not found else float(found["recall"]["1"])


def format_report(report: dict[str, Any], *, config: TrainConfig) -> str:
    """Report as text: the training, and its result beside the untrained baselines."""
    times = ", ".join(f"{name} {phase['seconds']:.0f} s" for name, phase in report["phases"].items())
    lines = [
        f"{report['run']}: {report['images']} images of {report['classes']} classes, "
        f"{report['skipped']} skipped" + (f" ({report['run']}/skipped.csv says why)" if report["skipped"] else ""),
        f"{report['seconds']:.0f} s ({times})",
    ]
    if report["trained_on"] < report["images"]:
        least = config.head.min_confidence
        lines.append(
            f"trained on {report['trained_on']} of them: the label confidence of the others is below {least:g}"
        )
    if report["noise"] is not None:
        noise = report["noise"]
        lines.append(f"simulated label noise: {noise['wrong']} of {noise['samples']} ({noise['rate']:.1%})")
    if report["confidences"] is not None:
        rate = report["confidences"].get("noise_rate")
        found = "" if rate is None else f"about {100 * rate:.0f} % look wrong; "
        by_both = " by the fine-tuned features, too" if (report.get("finetuning") or {}).get("selected") else ""
        audit = f"`retrieval audit {report['run']}`"
        lines.append(f"labels: {found}{audit} lists those that are probably wrong, and estimates how many{by_both}")
        if rate is not None and (report["holdout"] is not None or report.get("finetuning") is not None):
            lines.append("held-out images are evaluated by the probable true labels, not by the given ones")
    lines += describe_holdout(report["holdout"])
    lines += describe_finetuning(report.get("finetuning"))
    lines += describe_copy_head(report.get("copy_head"))
    lines += describe_validation(report)
    verdict = report["verdict"]
    return "\n".join([*lines, *([] if verdict is None else ["", f"verdict: {verdict['text']}"])])


def describe_holdout(holdout: Mapping[str, Any] | None) -> list[str]:
    """Lines about the holdout evaluation; empty without a holdout."""
    if holdout is None:
        return []
    parts = {name: holdout[name] for name in QUESTIONS if holdout[name] is not None}
    if not parts:
        return ["no holdout evaluation: too few images to hold some out and train on the others"]
    heads = [f"{QUESTIONS[name]} ({part['queries']})" for name, part in parts.items()]
    first, rows = next(iter(parts.values()))["scores"], dict[str, Sequence[float | None]]()
    for name in sorted(first, key=lambda name: -sum(part["scores"][name] for part in parts.values())):
        shown = name if name != TRAINED or holdout["l2_sp"] is None else f"trained, L2-SP {holdout['l2_sp']:g}"
        rows[f"  {shown}"] = [part["scores"][name] for part in parts.values()]
    return ["", *_table("Holdout evaluation: Recall@1, % (queries)", heads, rows)]


def summarize_holdout(holdout: Mapping[str, Any]) -> str:
    """One line about the holdout evaluation, for the display."""
    found: list[str] = []
    for name, words in QUESTIONS.items():
        if (part := holdout[name]) is not None:
            trained, rival = (100 * part["scores"][method] for method in ("trained", part["best_rival"]))
            found.append(f"{words} {trained:.1f} ({'' if found else 'untrained '}{rival:.1f})")
    return f"holdout, Recall@1 %: {', '.join(found)}" if found else ""
