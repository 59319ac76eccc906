"""`retrieval labels certify`: prove by a random sample that at most a share of the labels is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from index.commands.console import emit, is_given, output_options, progress_bars, read_share, read_small_share
from index.text import printable_path

if TYPE_CHECKING:
    from index.gallery.gallery import Gallery
    from index.labels.decisions import ImageRef, LabelDecision, LabelKey
    from retrieval_app.review.certificates import Certificate, CertificateStore
    from retrieval_app.review.review_store import ReviewStore

_ANSWERS = "Enter: right, d: drop, s: set aside, =LABEL: another label, u: undo, q: stop"


@click.command(short_help="Prove that at most a share of the labels is wrong.")
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--at-most",
    type=read_small_share,
    default="2%",
    show_default=True,
    metavar="SHARE",
    help="Share of wrong labels that is to be proved.",
)
@click.option("--confidence", type=read_share, default="95%", show_default=True, metavar="SHARE")
@click.option("--new", "is_new", is_flag=True, help="Begin a new sample. Each sample left unproved makes it stricter.")
@click.option("--by", metavar="NAME", help="Who answers.")
@click.option("--second", metavar="NAME", help="Ask another person about what was looked at, without the answers.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE.html", help="Page to write, with FILE.json.")
@output_options
def certify(
    gallery: Path,
    at_most: float,
    confidence: float,
    is_new: bool,
    by: str | None,
    second: str | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Prove that at most a share of the labels of GALLERY is wrong, by looking at a random sample.

    Images with a probable label error are drawn more often, so that few looks suffice; the proof holds whatever these
    probabilities are worth, and whenever you stop. For each image you say whether its label is right. The answers are
    decisions like those of the Labels view, which has the same sample with pictures: Check a sample.

    --second asks another person the same questions; nothing changes but what the report says of both people's errors.

    The same command continues. With --json it asks nothing, and prints the state of the sample, which it begins if
    there is none. Clean first: if more labels are wrong than the share, it takes many looks.

    \b
    Examples:
      retrieval labels certify gallery --at-most 2%
      retrieval labels certify gallery --at-most 5% --by ann --report certificate.html
      retrieval labels certify gallery --second bob
      retrieval labels certify gallery --json
    """
    from index.gallery.gallery import Gallery
    from retrieval_app.reports.certificate_page import describe, format_share, write_certificate
    from retrieval_app.review.certificates import CertificateStore
    from retrieval_app.review.review_store import ReviewStore

    opened = Gallery.open(gallery)
    store, review = CertificateStore.of_gallery(opened.path), ReviewStore.of_gallery(opened.path)
    found = None if is_new else store.read(opened, review.label_decisions())
    if found is None:
        found = _begin(opened, store, review, at_most=at_most, confidence=confidence, by=by)
    elif (found.at_most, found.confidence) != (at_most, confidence):
        context = click.get_current_context()
        if is_given(context, "at_most") or is_given(context, "confidence"):
            goal = f"at most {format_share(found.at_most)} at {format_share(found.confidence)} confidence"
            raise click.UsageError(
                f"the sample was begun for {goal}; leave both options out to continue, or begin another one with --new"
            )
    if second is not None:
        if found.changes or second in found.people:
            why = "; ".join(found.changes) or f"{printable_path(second)} gave the first answers"
            raise click.UsageError(f"--second: {why}; a second person answers a sample that is up to date")
        found = _ask_again(opened, store, review, found, by=second)
    elif not as_json:
        found = _ask(opened, store, review, found, by=by)
    written = [] if report is None else write_certificate(found, report, gallery=opened.name)
    lines = [
        f"{found.labels_left:,} labels, {found.looked_at:,} looked at, {found.sample.found:,} of these wrong",
        describe(found) + (" (--new)" if found.changes else ""),
        *([f"written: {', '.join(str(path) for path in written)}"] if written else []),
    ]
    emit(found.to_json() | {"files": [str(path) for path in written]}, as_json=as_json, text="\n".join(lines))


def _begin(
    opened: Gallery, store: CertificateStore, review: ReviewStore, *, at_most: float, confidence: float, by: str | None
) -> Certificate:
    """A new sample of the labels as they are now."""
    from retrieval_app.label_tools.current_issues import find_current_issues
    from retrieval_app.review.certificates import list_members

    with progress_bars() as begin:
        issues, _, decisions = find_current_issues(opened, begin("labels", unit="images"))
    store.start(opened, list_members(opened, decisions, issues), at_most=at_most, confidence=confidence, by=by)
    return _read_again(opened, store, review)


def _read_again(opened: Gallery, store: CertificateStore, review: ReviewStore) -> Certificate:
    found = store.read(opened.read_decisions(), review.label_decisions())
    assert found is not None
    return found


def _ask(
    opened: Gallery, store: CertificateStore, review: ReviewStore, found: Certificate, *, by: str | None
) -> Certificate:
    """Ask about images until the share is proved, or the person stops; the state then."""
    from index.errors import InputError
    from index.gallery.gallery import Gallery
    from retrieval_app.reports.certificate_page import describe

    click.echo(_ANSWERS, err=True)
    steps = list[int]()  # of these answers, which may be undone
    while not (found.is_proved or found.changes):
        if not found.pending:
            opened = Gallery.open(opened.path)  # a newer version, where there is one
            store.draw(_read_again(opened, store, review))
            found = _read_again(opened, store, review)
            click.echo(describe(found), err=True)
            continue
        key = found.pending[0]
        subject, label = _find_subject(opened, key), found.find(key).label
        answer = _ask_about(subject, label, number=found.looked_at + 1)
        if answer == "q":
            break
        try:
            if answer == "u" and steps:
                review.undo(steps.pop())
            elif (made := _read_answer(answer, subject, label)) is not None:
                steps.append(review.decide([made], by=by).number)
            else:
                click.echo(f"not understood: {printable_path(answer)}; {_ANSWERS}", err=True)
        except InputError as error:
            click.echo(str(error), err=True)
        found = _read_again(opened, store, review)
    found = _read_again(Gallery.open(opened.path), store, review)
    if found.is_proved:
        store.note_proved(found.number)
    return found


def _ask_again(
    opened: Gallery, store: CertificateStore, review: ReviewStore, found: Certificate, *, by: str
) -> Certificate:
    """Ask a second person about images that were looked at, until they stop; the state then."""
    click.echo("Enter: right, w: wrong, q: stop", err=True)
    for number, key in enumerate(found.ask_again(), 1):
        member = found.find(key)
        subject, answer = _find_subject(opened, key), None
        while answer not in ("", "w", "q"):
            answer = _ask_about(subject, member.label, number=number)
        if answer == "q":
            break
        store.add_second_look(member, is_wrong=answer == "w", by=by)
    return _read_again(opened, store, review)


def _find_subject(opened: Gallery, key: LabelKey) -> ImageRef:
    from retrieval_app.review.subjects import find_by_contents

    return next(one for one in find_by_contents(opened, [key[0]]) if one.key == key)


def _ask_about(subject: ImageRef, label: str | None, *, number: int) -> str:
    """The answer to a question about an image's label; `q` at the end of the input."""
    click.echo(f"{number}. {printable_path(subject.path)}  {printable_path(label or '')} ? ", nl=False, err=True)
    return (sys.stdin.readline() or "q").strip()


def _read_answer(text: str, subject: ImageRef, label: str | None) -> LabelDecision | None:
    """The decision of an answer about the label that was asked about; None where it is none."""
    from index.labels.decisions import CHANGE, DROP, KEEP, SET_ASIDE

    if text == "":
        return subject.decide(KEEP) if label == subject.label else subject.decide(CHANGE, new_label=label)
    if text.startswith("="):
        return subject.decide(CHANGE, new_label=text[1:])
    left_out = {"d": DROP, "s": SET_ASIDE}.get(text)
    return None if left_out is None else subject.decide(left_out)
