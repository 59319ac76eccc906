"""Report of a training as text."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from index.evaluation.groups import WORTHLESS
from training.options.config import TrainConfig
from training.run.copy_stage import describe_copy_head
from training.run.verdict import FROZEN_HEAD, QUESTIONS, TRAINED

_FEW_PHOTOS = 100
"""Fewer images than these, held out, let chance decide: with 100 a share of one half has an error of 5 points."""


def describe_finetuning(network: Mapping[str, Any] | None) -> list[str]:
    """Lines about fine-tuning: options, MAP@R on held-out images, and the selected embedding."""
    if network is None:
        return ["fine-tuning: none, the backbone is as it was"]
    held, epochs = network["held_out"], len(network["epochs"]) - 1
    budget = "" if network["time_budget"] is None else f" of --time-budget {network['time_budget']}"
    if epochs == 0:
        why = "Ctrl-C ended it before its first step"
        if network["ended_by"] == "time":
            budget = f"--time-budget {network['time_budget']}"
            why = f"{budget} leaves no time for a step after preparation: train anew with more"
        return ["", f"fine-tuning: none, as {why}", "exported: the embedding on the frozen backbone"]
    lines = [
        "",
        f"fine-tuning: {network['finetune']} ({network['blocks']} of {network['of_blocks']} blocks, "
        f"{network['parameters'] / 1e6:.1f} M weights) with {network['method']} in {network['precision']} on "
        f"{network['device']}, {epochs} epoch{'' if epochs == 1 else 's'} on {network['trained_on']:,} images, "
        f"{network['seconds']:.0f} s{budget}",
    ]
    if network["ended_by"] == "Ctrl-C":
        lines.append(f"stopped early by Ctrl-C in epoch {epochs}: the weights until then were compared")
    if network["ended_by"] == "time" and network["prepared_s"] > network["seconds"] / 2:
        lines.append(f"preparation took {network['prepared_s']:.0f} s of that: more time (--time-budget) trains longer")
    tried = network["tried"]
    if not tried:
        return [*lines, "exported: the fine-tuned network; too few images to hold some out and compare"]
    lines.append(f"MAP@R on held-out images ({held['unseen']:,} of new classes, {held['seen']:,} others), %:")
    for name, scores in tried.items():
        figures = ", ".join(f"{QUESTIONS[part]} {100 * found:.1f}" for part, found in scores.items())
        lines.append(f"  {name}: {figures}")
    lines.append(f"exported: {_name_exported(network)}")
    if (count := sum(held[part] for part in tried["frozen"])) < _FEW_PHOTOS:
        lines.append(f"only {count} held-out photos decide this: more photos per class would make it certain")
    return lines


def _name_exported(network: Mapping[str, Any]) -> str:
    if not network["selected"]:
        why = "by the verdict" if "left_by" in network else "which is at least as good above"
        return f"the embedding on the frozen backbone, {why}; {_ask_for_time(network)}"
    if network["map_at_r"]["fine-tuned"] > network["map_at_r"]["frozen"]:
        return "the fine-tuned network, which finds more of these"
    return "the fine-tuned network: it finds fewer of these by less than a standard error, which may be chance"


def _ask_for_time(network: Mapping[str, Any]) -> str:
    """Whether more epochs might help, by the course of the held-out MAP@R."""
    course = [np.mean(list(found.values())) for one in network["epochs"] if (found := one["map_at_r"])]
    if len(course) < 2:
        return "too few evaluations to tell whether more epochs would help"
    shown = f"MAP@R by evaluated epoch: {', '.join(f'{100 * one:.1f}' for one in course)}"
    if course[-1] <= max(course[:-1]):
        if network["ended_by"] != "epochs":
            return f"it ended too early to tell whether more epochs would help ({shown})"
        return f"more epochs would hardly help ({shown})"
    way = "more time (--time-budget)" if network["time_budget"] and network["ended_by"] != "epochs" else "more --epochs"
    return f"MAP@R was still rising: {way} may help ({shown})"


_SEARCHES = {
    "ungrouped": "photos of these classes, searched among each other",
    "grouped": "the same, where no photo finds one of its own group",
    "against_training": "new photos of the same things, searched among your training photos",
}
_HEADING = "Recall@1 by what is searched, %"
_TRAINS = (TRAINED, FROZEN_HEAD)
_COLUMNS = {"ungrouped": "ungrouped", "grouped": "grouped", "against_training": "training"}


def describe_validation(report: Mapping[str, Any]) -> list[str]:
    """Tables of Recall@K by method, and of Recall@1 by search where there are several."""
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
    asked = [name for name in _SEARCHES if name == "ungrouped" or report["val"].get(name)]
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
        scores = report["val"] if name == "ungrouped" else report["val"][name]
        found_by = ""
        if name == "grouped" and (groups := report.get("val_groups")) is not None:
            found_by = f"; {groups['images']:,} photos in {groups['groups']:,} groups, by {groups['found_by']}"
        lines.append(f"{_COLUMNS[name]}: {_SEARCHES[name]} ({scores['queries']:,} queries{found_by})")
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
        found, differs = "", ""
        if rate is not None:
            found = f"about {100 * rate:.0f} % look wrong to one classifier; "
            differs = " with two classifiers, so that its figure may differ"
        audit = f"`retrieval audit {report['run']}`"
        lines.append(f"labels: {found}{audit} lists those that are probably wrong, and estimates how many{differs}")
        if rate is not None and (report["holdout"] is not None or report.get("finetuning") is not None):
            lines.append("held-out images are evaluated by the probable true labels, not by the given ones")
    lines += describe_holdout(report["holdout"])
    lines += describe_finetuning(report.get("finetuning"))
    lines += describe_copy_head(report.get("copy_head"))
    lines += describe_validation(report)
    verdict = report["verdict"]
    return "\n".join([*lines, *([] if verdict is None else ["", f"verdict: {verdict['text']}"])])


def describe_holdout(holdout: Mapping[str, Any] | None) -> list[str]:
    """Lines about the holdout evaluation; none without one."""
    if holdout is None:
        return []
    parts = {name: holdout[name] for name in QUESTIONS if holdout[name] is not None}
    if not parts:
        return ["no holdout evaluation: too few images to hold some out and train on the others"]
    return ["", *_tabulate(parts, l2_sp=holdout["l2_sp"]), *_describe_sizes(parts)]


def summarize_holdout(holdout: Mapping[str, Any]) -> str:
    """One line about the holdout evaluation, for the display."""
    found: list[str] = []
    for name, words in QUESTIONS.items():
        if (part := holdout[name]) is not None:
            trained, rival = (100 * part["scores"][method] for method in ("trained", part["best_rival"]))
            found.append(f"{words} {trained:.1f} ({'' if found else 'untrained '}{rival:.1f})")
    return f"holdout, Recall@1 %: {', '.join(found)}" if found else ""


def _tabulate(parts: Mapping[str, Mapping[str, Any]], *, l2_sp: float | None) -> list[str]:
    heads = [f"{QUESTIONS[name]} ({part['queries']})" for name, part in parts.items()]
    lines = [f"{'Holdout evaluation: Recall@1, % (queries)':<48}" + "".join(f"{head:>20}" for head in heads)]
    first = next(iter(parts.values()))["scores"]
    for name in sorted(first, key=lambda name: -sum(part["scores"][name] for part in parts.values())):
        shown = name if name != "trained" or l2_sp is None else f"trained, L2-SP {l2_sp:g}"
        values = "".join(f"{100 * part['scores'][name]:>20.2f}" for part in parts.values())
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
        least, most = band["images"]
        texts.append(f"{least}{'' if most == least else f'-{most}'} images: {found}")
    return [f"  new photos of classes of {'; '.join(texts)}"]
