"""`retrieval labels`: list label issues, export them, set labels, import decisions."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import emit, output_options, progress_bars, read_share, where_option
from index.text import align, count_images, printable_path
from retrieval_app.commands.certify_command import certify

if TYPE_CHECKING:
    from index.filters.condition import Condition

_PLACE = click.argument("place", type=click.Path(path_type=Path))


@click.group(short_help="List, accept and export label issues, set labels, import decisions.")
def labels() -> None:
    """List the label issues of a gallery or an audit, set labels, and exchange decisions as tables.

    PLACE is a gallery, or the folder that `retrieval audit` wrote.

    \b
    Examples:
      retrieval labels issues gallery
      retrieval labels accept gallery --at-least-right 95%
      retrieval labels undo gallery
      retrieval labels certify gallery --at-most 2%
      retrieval labels set gallery --where "path LIKE 'boots/%'" --label boots
      retrieval labels export gallery labels.csv
      retrieval labels import gallery new-labels.csv
    """


labels.add_command(certify)


@labels.command(short_help="List the labels that are probably wrong.")
@_PLACE
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Issues to list at most."
)
@click.option(
    "--kind",
    show_default="all but unlabelled",
    help="Issues of this kind, such as wrong_label; `unlabelled` lists labels proposed for images without one.",
)
@output_options
def issues(place: Path, limit: int, kind: str | None, as_json: bool) -> None:
    """List the label issues of PLACE, the most probable errors first, decided ones last.

    Each has the probability that the label is wrong, the kind, the label, the suggested label, the decision, the path.
    For an image without a label it is the probability that the suggested label is right.

    \b
    Examples:
      retrieval labels issues gallery
      retrieval labels issues gallery --limit 100
      retrieval labels issues gallery --kind unlabelled
      retrieval labels issues run/audit --json
    """
    from index.labels.issue_tables import describe_row
    from index.labels.kinds import KINDS, PROPOSAL
    from retrieval_app.label_tools.current_issues import list_issues

    if kind not in (None, *KINDS):
        raise click.UsageError(f"--kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    with progress_bars() as begin:
        issues, (left, low, high) = list_issues(place, begin("Checking labels"))
    proposals = sum(one.kind == PROPOSAL for one in issues.items)
    found = [one for one in issues.items if (one.kind != PROPOSAL if kind is None else one.kind == kind)]
    found.sort(key=lambda one: one.decision is not None)  # undecided ones first
    decided = sum(one.decision is not None for one in found)
    rows = [describe_row(one) for one in found[:limit]]
    document = {
        "labels": issues.checked,
        "noise_rate": issues.noise_rate,
        "is_lower_bound": issues.is_lower_bound,
        "caution": issues.caution,
        "errors_left": left,
        "errors_left_from": low,
        "errors_left_to": high,
        "as_predicted": issues.as_predicted[0],
        "looked_at": issues.as_predicted[1],
        "total": len(found),
        "decided": decided,
        "proposals": proposals,
        "issues": rows,
    }
    shown = [row | ({"suggested": "(none of them)"} if row["kind"] == "outlier" else {}) for row in rows]
    titles = ("kind", "label", "suggested", "decision", "path")
    cells = [(f"{row['p_error']:.2f}", *(printable_path(str(row[name] or "")) for name in titles)) for row in shown]
    header = ("p_right" if kind == PROPOSAL else "p_error", *titles)
    unlisted = proposals if kind != PROPOSAL else 0
    right, looked = issues.as_predicted
    predicted = f"{right:,} of {looked:,} labels that people looked at are as predicted; " if looked else ""
    lines = [
        f"{issues.checked:,} labels, about {issues.noise_rate:.1%} are wrong as given; {len(found):,} label issues"
        f"{f', {decided:,} of them decided' if decided else ''}",
        f"{predicted}about {left:.0f} wrong labels are left [{low:.0f} to {high:.0f}]",
        *(align([header, *cells], right={0}) if cells else ()),
        *((f"the first {limit:,} are listed; --limit lists more",) if len(found) > limit else ()),
        *((f"{unlisted:,} images have no label; --kind {PROPOSAL} lists a proposal for each",) if unlisted else ()),
        *((issues.caution,) if issues.caution else ()),
    ]
    emit(document, as_json=as_json, text="\n".join(lines))


@labels.command(short_help="Write all labels with their error probabilities.")
@_PLACE
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.csv")
@output_options
def export(place: Path, file: Path, as_json: bool) -> None:
    """Write every label of PLACE with the probability that it is wrong to FILE.csv, for other programs.

    The labels are those given, with the decisions beside them; `retrieval train GALLERY` trains on labels as decided.
    `labels import` reads the table again, with what was written into its columns new_label and decision.

    \b
    Examples:
      retrieval labels export gallery labels.csv
      retrieval labels export run/audit labels.csv
      retrieval labels export gallery labels.csv --json
    """
    from index.durable import write_csv
    from index.errors import InputError
    from index.gallery.gallery import Gallery
    from index.labels.issue_tables import COLUMNS, describe_row
    from index.labels.issues import LOWER_BOUND
    from retrieval_app.label_tools.current_issues import read_audited, score_gallery

    if file.suffix.lower() != ".csv":
        raise InputError("expected a name that ends in .csv", at=file)
    if file.exists():
        raise InputError("exists already; remove it, or give another path", at=file)
    if (place / "audit.csv").exists():
        scored = read_audited(place)
    else:
        with progress_bars() as begin:
            scored = score_gallery(Gallery.open(place), begin("Checking labels"))
    write_csv(file, list(COLUMNS), (list(describe_row(issue).values()) for issue in scored.items))
    document = {"labels": len(scored.items), "is_lower_bound": scored.is_lower_bound, "files": [str(file)]}
    text = f"{len(scored.items):,} labels written: {printable_path(file)}"
    emit(document, as_json=as_json, text=f"{text}\n{LOWER_BOUND}" if scored.is_lower_bound else text)


@labels.command(short_help="Accept the verdicts on all label issues.")
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--at-least-right",
    type=read_share,
    metavar="SHARE",
    show_default="95%",
    help="Change labels and set images aside so that this share of the labels that stay is expected to be right.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0.5, 1),
    metavar="P",
    help="Instead, decide on the labels that are wrong with at least this probability.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be decided.")
@output_options
def accept(gallery: Path, as_json: bool, **options: Any) -> None:
    """Accept the verdicts on the open label issues of GALLERY in one step.

    A label changes where the suggested one is probable enough. Images without a probable label are set aside: they
    leave training and results until a person decides. Images that show none of the labels are dropped, and so are
    near-duplicates of an image with a more probable label. The Labels view shows the decisions; `retrieval labels undo`
    takes all of them back.

    \b
    Examples:
      retrieval labels accept gallery --dry-run
      retrieval labels accept gallery --at-least-right 95%
      retrieval labels accept gallery --threshold 0.8
    """
    from index.labels.verdicts import describe_expected
    from retrieval_app.label_tools.current_issues import accept_verdicts

    at_least_right, threshold = options["at_least_right"], options["threshold"]
    if at_least_right is not None and threshold is not None:
        raise click.UsageError("give one of --at-least-right and --threshold")
    with progress_bars() as begin:
        done, step = accept_verdicts(gallery, progress=begin("labels", unit="images"), **options)
    lines = [
        f"{done.changed:,} labels change (about {done.changed_right:.0f} of the new ones are right), "
        f"{count_images(done.set_aside)} set aside, {done.dropped:,} dropped, {done.stay:,} labels stay",
        describe_expected(done.kept, None if threshold else at_least_right or 0.95, done.no_promise),
    ]
    undo = f"take it back: {printable_path(shlex.join(['retrieval', 'labels', 'undo', str(gallery)]))}"
    lines.append("nothing was decided" if step is None else undo)
    emit(done.model_dump() | {"step": step}, as_json=as_json, text="\n".join(lines))


@labels.command(short_help="Take back the last decisions about labels.")
@click.argument("gallery", type=click.Path(path_type=Path))
@output_options
def undo(gallery: Path, as_json: bool) -> None:
    """Take back the last step about labels in GALLERY: a bulk accept, a `labels set`, an import, or one decision.

    Called again, it takes back the step before. `retrieval log GALLERY` lists what was done.

    \b
    Examples:
      retrieval labels undo gallery
      retrieval labels undo gallery --json
      retrieval labels undo galleries/shoes
    """
    from retrieval_app.review.bulk import undo_labels

    step = undo_labels(gallery)
    images = len(step.decided_labels)
    text = f"step {step.number} of {step.decided_at} taken back: {count_images(images)}"
    emit({"step": step.number, "images": images}, as_json=as_json, text=text)


@labels.command("import", short_help="Import label decisions.")
@_PLACE
@click.argument("file", type=click.Path(path_type=Path))
@output_options
def import_(place: Path, file: Path, as_json: bool) -> None:
    """Import label decisions from FILE: a CSV of path or sha256, label, and perhaps new_label or decision.

    They become decisions of the gallery, or decisions.csv of the audit, which the next audit reads. Images are matched
    by SHA-256, or else by path.

    \b
    Examples:
      retrieval labels import gallery new-labels.csv
      retrieval labels import run/audit new-labels.csv
      retrieval labels import gallery new-labels.csv --json
    """
    from retrieval_app.label_tools.current_issues import import_decisions

    counts = import_decisions(place, file)
    text = f"{counts['decided']:,} decisions imported; {counts['unknown']:,} about other images or labels left out"
    emit(counts, as_json=as_json, text=text)


@labels.command("set", short_help="Set the label of many images at once.")
@click.argument("gallery", type=click.Path(path_type=Path))
@where_option("The images.")
@click.option("--id", "ids", type=click.IntRange(min=0), multiple=True, metavar="ID", help="Images; repeatable.")
@click.option("--label", metavar="TEXT", help="The label that they get; it may be a new one.")
@click.option("--take-back", is_flag=True, help="Forget what was decided about their labels instead.")
@click.option("--drop", is_flag=True, help="Leave the images out of results and exports instead.")
@output_options
def set_(
    gallery: Path,
    where: Condition | None,
    ids: tuple[int, ...],
    label: str | None,
    take_back: bool,
    drop: bool,
    as_json: bool,
) -> None:
    """Set the label of images of GALLERY, also of unlabelled ones, by decisions like those of the Labels view.

    Servers show it at once. At most 100,000 images at a time.

    \b
    Examples:
      retrieval labels set gallery --where "path LIKE 'boots/%'" --label boots
      retrieval labels set gallery --where "label IS NULL AND tag = 'shoes'" --label shoes
      retrieval labels set gallery --where "label = 'shoes'" --take-back
      retrieval labels set gallery --where "sharpness < 20" --drop
    """
    from index.labels.decisions import check_label
    from retrieval_app.review.bulk import set_labels

    if (label is not None) + take_back + drop != 1:
        raise click.UsageError("say one of --label TEXT, --take-back and --drop")
    label = None if label is None else check_label(label)
    images = set_labels(gallery, label, where=where, ids=ids or None, drop=drop)
    some = count_images(images)
    text = f"{some} labelled {printable_path(label)}" if label else f"{some} dropped"
    if take_back:
        text = f"{some}: label decisions taken back"
    emit({"label": label, "images": images}, as_json=as_json, text=text)
