"""Accepting the verdicts on a gallery's label issues without a server."""

from pathlib import Path
from typing import Any

from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DROP, SET_ASIDE
from index.labels.verdicts import describe_expected
from index.progress import Progress, no_progress
from index.text import count_images
from retrieval_app.label_tools.current_issues import find_current_issues
from retrieval_app.review.acceptance import Acceptance, plan_acceptance
from retrieval_app.review.activity_log import record_command
from retrieval_app.review.review_store import ReviewStore


def accept_verdicts(
    gallery: Path,
    *,
    at_least_right: float | None = None,
    threshold: float | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> tuple[Acceptance, int | None]:
    """Decide on the open label issues of a gallery in one step; the plan, and the number of the step.

    Arguments as those of `plan_acceptance`. Without a decision, or with `dry_run`, there is no step.
    """
    opened = Gallery.open(gallery)
    issues, duplicates, decisions = find_current_issues(opened, progress)
    plan = plan_acceptance(
        opened, issues, duplicates=duplicates, decisions=decisions, at_least_right=at_least_right, threshold=threshold
    )
    if dry_run or not plan.decisions:
        return plan, None
    step = ReviewStore.of_gallery(opened.path).decide((*plan.decisions, *plan.left_open), seen=decisions)
    counts = {"changed": plan.count(CHANGE), "set_aside": plan.count(SET_ASIDE), "dropped": plan.count(DROP)}
    record_command(opened.path, "accept-verdicts", step=step.number, threshold=plan.threshold, **counts)
    return plan, step.number


def describe_acceptance(
    plan: Acceptance, *, step: int | None, at_least_right: float | None
) -> tuple[dict[str, Any], str]:
    """The plan as one JSON document, and for people."""
    changed, aside, dropped = (plan.count(decision) for decision in (CHANGE, SET_ASIDE, DROP))
    lines = [
        f"{changed:,} labels change (about {plan.changed_right:.0f} of the new ones are right), "
        f"{count_images(aside)} set aside, {dropped:,} dropped, {plan.stay:,} labels stay",
        describe_expected(plan.kept, at_least_right, plan.no_promise),
    ]
    if step is None:
        lines.append("nothing was decided")
    return plan.to_json() | {"step": step}, "\n".join(lines)
