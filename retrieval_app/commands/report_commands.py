"""Commands that write reports: `retrieval audit`, `compare` and `duplicates`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from index.commands.console import (
    PATH,
    GroupedCommand,
    backend_option,
    build_config,
    config_options,
    emit,
    help_all_option,
    output_options,
    progress_bars,
    read_numbers,
    read_share,
    refuse_unused,
    where_option,
)
from index.commands.images_or_gallery import ensure_gallery
from index.commands.tidy_command import check_target, move_options, offer_moves
from index.duplicates.duplicate_config import DuplicateConfig
from index.paths import user_cache
from index.progress import Progress, StepProgress
from retrieval_app.comparing.public import compare as compare_candidates
from retrieval_app.reports.public import audit as audit_labels
from retrieval_app.reports.public import describe_audit, format_audit
from training.options.machine import Machine

if TYPE_CHECKING:
    from index.filters.condition import Condition
    from index.gallery.gallery import Gallery
    from retrieval_app.review.keep_rules import KeepRule, RuleOutcome


@contextmanager
def step_bars() -> Iterator[StepProgress]:
    """What a job calls with (step, done, total), in images."""
    with progress_bars() as begin:
        bars: dict[str, Progress] = {}

        def progress(step: str, done: int, total: int) -> None:
            if step not in bars:
                bars[step] = begin(step, unit="images")
            bars[step](done, total)

        yield progress


@click.command()
@click.argument("run", type=PATH)
@click.option("--out", type=PATH, metavar="FOLDER", show_default="RUN/audit", help="Folder to write.")
@click.option(
    "--apply",
    "apply_to",
    type=PATH,
    metavar="FILE.csv",
    help="Also write a label file with the verdicts applied, for `retrieval train FILE.csv`.",
)
@click.option(
    "--at-least-right",
    type=read_share,
    default="95%",
    show_default=True,
    metavar="SHARE",
    help="Change labels and set images aside so that this share of the labels that stay is expected to be right.",
)
@click.option(
    "--decisions",
    type=PATH,
    metavar="FILE.csv",
    show_default="decisions.csv in the folder, where there is one",
    help="What you decided on the page, in place of the verdicts.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="Images drawn on the page, the most suspicious first; the tables have all.",
)
@config_options(Machine, only=("cache", "device", "workers"))
@output_options
def audit(run: Path, as_json: bool, **options: Any) -> None:
    """List the images of RUN whose label looks wrong, the most suspicious first, with what they seem to show.

    Works on a run of any method. Every label is checked leave-one-out, from all images but itself, and gets a
    verdict: keep, change, set aside (no label is probable enough) or drop (it shows none of the classes, or a
    near-duplicate has a more probable label).
    RUN/audit/audit.html shows them; what you decide there and save as RUN/audit/decisions.csv counts when audit is
    called again. Images are never touched.

    \b
    Examples:
      retrieval audit run
      retrieval audit run --apply cleaned.csv
      retrieval audit run --apply cleaned.csv --at-least-right 98%
      retrieval audit run --decisions ~/Downloads/decisions.csv --apply cleaned.csv
      retrieval train cleaned.csv --weights imagenet --out run-cleaned
    """
    with step_bars() as progress:
        outcome = audit_labels(run, **options, progress=progress)
    emit(describe_audit(outcome), as_json=as_json, text=format_audit(outcome))


@click.command(cls=GroupedCommand, common=("out", "labels", "k", "as_json", "help_all"))
@click.argument("images", type=click.Path(readable=False))
@click.argument("candidates", nargs=-1, required=True, type=click.Path(readable=False), metavar="[NAME=]CANDIDATE...")
@click.option("--out", type=PATH, required=True, metavar="FOLDER", help="Folder to write: queries.csv.")
@click.option(
    "--labels",
    type=PATH,
    metavar="FILE",
    help="CSV or Parquet file with the columns path,label, in place of all other labels.",
)
@click.option(
    "--k",
    type=read_numbers,
    metavar="K,...",
    default="1,5,10",
    show_default=True,
    help="The K of Recall@K, 1 always included; the text shows the first and the last.",
)
@click.option(
    "--cache", type=PATH, default=user_cache, show_default="your cache folder", help="Folder of cached vectors."
)
@config_options(Machine, only=("workers",))
@backend_option
@output_options
@help_all_option
def compare(images: str, as_json: bool, **options: Any) -> None:
    """Compare models on the same labelled images.

    IMAGES are a labelled SOURCE of `index build`: a folder with a folder for each label, a table, an archive. Each of
    the two to eight CANDIDATEs is a model (.onnx), a gallery, the folder of a training run, or `builtin`, the model
    that comes with the package; NAME= names it. Every labelled image is a query for the others of its label.

    Vectors are cached by model and content, as by `index build`. A run is exported first; of a gallery only the model
    counts.

    FOLDER/queries.csv has all queries, and which candidate gets each right.

    \b
    Examples:
      retrieval compare photos builtin model.onnx --out comparison
      retrieval compare photos small=builtin large=large.onnx tuned=run --out comparison
      retrieval compare photos.csv gallery model.onnx --out comparison --k 1,10 --json
    """
    from retrieval_app.comparing.compare_report import format_report

    with step_bars() as progress:
        report = compare_candidates(images, progress=progress, **options)
    emit(report, as_json=as_json, text=format_report(report))


@click.command(cls=GroupedCommand, common=("out", "applies", "keep", "keep_where", "move_to", "as_json", "help_all"))
@click.argument("gallery", type=PATH)
@click.option("--out", type=PATH, metavar="FOLDER", help="Folder in which to write duplicates.csv.")
@config_options(DuplicateConfig)
@click.option("--apply", "applies", is_flag=True, help="Keep one image of every group; the others leave the results.")
@click.option(
    "--keep",
    type=click.Choice(["largest", "first"]),
    default="largest",
    show_default=True,
    help="With --apply or --move-to: keep the largest file, or the first image of the group.",
)
@where_option("With --apply or --move-to: keep only images that match this.", name="--keep-where")
@click.option("--bursts", is_flag=True, help="With --apply or --move-to: keep one image of every burst too.")
@move_options
@output_options
@help_all_option
def duplicates(
    gallery: Path,
    out: Path | None,
    applies: bool,
    keep: KeepRule,
    keep_where: Condition | None,
    bursts: bool,
    move_to: Path | None,
    trash: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """List the near-duplicates in a gallery, in groups around one image.

    With --out it writes FOLDER/duplicates.csv. Groups with different labels come first: one of those labels is likely
    wrong. Which image of a group to keep, --apply decides, or a person in the page's view Duplicates. GALLERY may also
    be images: their gallery is then made beside them, once.

    With --apply, one image of every group is kept, and the others are dropped from the results; their tags go to the
    kept image, and their label, if it has no label. Groups with different labels stay as they are, and so do bursts:
    different shots of one scene. The Duplicates view of the page shows these decisions and undoes them. No file is
    changed.

    With --move-to or --trash, the files of dropped near-duplicates are moved: of groups decided before, and of those
    that --apply would decide. It shows what would move, and asks; `retrieval index tidy --undo` brings them back.

    \b
    Examples:
      retrieval duplicates gallery
      retrieval duplicates photos --out duplicates
      retrieval duplicates gallery --apply --keep largest
      retrieval duplicates gallery --apply --keep-where "source LIKE '%originals%'"
      retrieval duplicates gallery --move-to moved-photos
      retrieval duplicates gallery --out duplicates --json
    """
    moves = _check_use(applies=applies, move_to=move_to, trash=trash)
    from index.gallery.gallery import Gallery
    from retrieval_app.reports.duplicates_report import check_duplicates_folder, write_duplicates

    config = build_config(DuplicateConfig, options)
    check = partial(check_duplicates_folder, out) if out is not None else lambda: None
    opened = Gallery.open(ensure_gallery(gallery, check=check))
    document: dict[str, Any] = {}
    texts: list[str] = []
    if out is not None or not (applies or moves):
        with progress_bars() as begin:
            document, text = write_duplicates(opened, out, config=config, progress=begin("comparing"))
        texts = [text]
    if applies or moves:
        chosen = _choose_kept(opened, config=config, rule=keep, where=keep_where, bursts=bursts)
    if applies:
        opened = _decide(opened, chosen, rule=keep)
        applied = chosen.to_json()
        document, texts = {**document, "applied": applied} if document else applied, [*texts, _describe_kept(chosen)]
        chosen = replace(chosen, decisions=())
    if moves:
        moved, text = _move_redundant(opened, chosen, rule=keep, move_to=move_to, yes=yes)
        document, texts = {**document, "moves": moved}, [*texts, text]
    emit(document, as_json=as_json, text="\n".join(texts))


def _check_use(*, applies: bool, move_to: Path | None, trash: bool) -> bool:
    """Refuse options of `duplicates` that do not go together; returns whether files are to be moved."""
    if trash or move_to is not None:
        check_target(move_to, trash=trash)
        return True
    refuse_unused(click.get_current_context(), "yes", needs="--move-to or --trash")
    if not applies:
        refuse_unused(click.get_current_context(), "keep", "keep_where", "bursts", needs="--apply or --move-to")
    return False


def _choose_kept(
    opened: Gallery, *, config: DuplicateConfig, rule: KeepRule, where: Condition | None, bursts: bool
) -> RuleOutcome:
    """Which image of every open group is kept, without deciding it."""
    from retrieval_app.reports.duplicates_report import find_duplicate_groups
    from retrieval_app.review.keep_rules import choose_kept
    from retrieval_app.review.review_store import ReviewStore

    with progress_bars() as begin:
        found = find_duplicate_groups(opened, begin("comparing", unit="images"), config=config)
    with closing(ReviewStore.of_gallery(opened.path)) as store:
        decided = store.duplicate_decisions()
    return choose_kept(opened, found, rule=rule, where=where, decided=decided, bursts=bursts)


def _decide(opened: Gallery, chosen: RuleOutcome, *, rule: KeepRule) -> Gallery:
    """The gallery after the decisions, which are one step."""
    from retrieval_app.review.activity_log import record_command
    from retrieval_app.review.review_store import ReviewStore

    if chosen.decisions:
        with closing(ReviewStore.of_gallery(opened.path)) as store:
            step = store.decide(chosen.decisions)
        record_command(opened.path, "decide-duplicates", step=step.number, keep=rule, count=len(chosen.decisions))
    return opened.read_decisions()


def _move_redundant(
    opened: Gallery, chosen: RuleOutcome, *, rule: KeepRule, move_to: Path | None, yes: bool
) -> tuple[dict[str, Any], str]:
    """Move the near-duplicates that are dropped, or would be; the result as JSON and text."""
    from retrieval_app.review.keep_rules import find_redundant, keep_inherited
    from retrieval_app.review.review_store import ReviewStore

    wanted = find_redundant(opened, chosen)

    def decide() -> None:
        decided = _decide(opened, chosen, rule=rule)
        with closing(ReviewStore.of_gallery(opened.path)) as store:
            keep_inherited(decided, store, wanted)

    return offer_moves(opened, wanted, move_to=move_to, yes=yes, before=decide)


def _describe_kept(chosen: RuleOutcome) -> str:
    lines = [f"{len(chosen.decisions):,} groups decided: {chosen.dropped:,} near-duplicates left the results"]
    lines += [f"{chosen.differing:,} groups stay open, because their labels differ"] if chosen.differing else []
    lines += [f"{chosen.bursts:,} bursts stay open: different shots of one scene (--bursts)"] if chosen.bursts else []
    lines += [f"{chosen.unmatched:,} groups stay open: no image matches --keep-where"] if chosen.unmatched else []
    return "\n".join(lines)
