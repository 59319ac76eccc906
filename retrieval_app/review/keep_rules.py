"""Rules that decide which image of every group of near-duplicates is kept."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from index.filters.condition import Condition
from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DUPLICATES, PRESENT, DuplicateDecision, Mark, tag_field
from retrieval_app.reports.duplicates_report import DuplicateGroup, DuplicateReport, GroupedImage, find_undropped
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_subjects

KeepRule: TypeAlias = Literal["largest", "first"]


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """Decisions of a rule, and numbers of groups that stay open: `unmatched` have no searchable image to keep."""

    decisions: tuple[DuplicateDecision, ...]
    dropped: int
    differing: int
    bursts: int
    unmatched: int

    def to_json(self) -> dict[str, int]:
        """Counts of the groups that are decided and that stay open, and of the dropped images."""
        counts = ("dropped", "differing", "bursts", "unmatched")
        return {"groups": len(self.decisions), **{name: getattr(self, name) for name in counts}}


def choose_kept(
    gallery: Gallery,
    found: DuplicateReport,
    *,
    rule: KeepRule,
    where: Condition | None = None,
    decided: Container[str] = (),
    only: Container[str] | None = None,
    bursts: bool = False,
) -> RuleOutcome:
    """Decide which image of every open group is kept; bursts and groups whose labels differ are left to a person.

    Dropped images count as gone. Only images that are searched, and that meet `where`, are kept. Groups whose names are
    `decided` stay as they are; `only` names the groups to decide.
    """
    matching: set[int] | None = None
    if where is not None:
        with gallery.catalog() as catalog:
            matching = set(catalog.matching_ids(where).tolist())
    chosen: list[tuple[DuplicateGroup, GroupedImage]] = []
    dropped = 0
    differing = left_bursts = unmatched = 0
    for name, group in found.by_name.items():
        if name in decided or (only is not None and name not in only):
            continue
        here = find_undropped(gallery, group)
        if len(here) < 2:
            continue
        able = [image for image in here if image.indexed and (matching is None or image.id in matching)]
        if len({image.label for image in here} - {None}) > 1:
            differing += 1
        elif not bursts and group.is_burst(here):
            left_bursts += 1
        elif not able:
            unmatched += 1
        else:
            chosen.append((group, able[0] if rule == "first" else max(able, key=lambda image: image.preference)))
            dropped += len(here) - 1
    subjects = find_subjects(gallery, (image.id for group, _ in chosen for image in group.images))
    decisions = tuple(
        DuplicateDecision(tuple(subjects[image.id] for image in group.images), DUPLICATES, (kept.id,))
        for group, kept in chosen
    )
    return RuleOutcome(decisions, dropped, differing, left_bursts, unmatched)


def find_redundant(gallery: Gallery, chosen: RuleOutcome | None = None) -> dict[int, tuple[int, ...]]:
    """Ids of near-duplicates that decisions drop, or that a rule would, with those of the kept images of each."""
    copies = gallery.annotations.dropped_copies.items()
    found = {number: tuple(one.image_id for one in kept) for number, (_, kept) in copies if kept}
    for decision in () if chosen is None else chosen.decisions:
        for image in decision.images:
            found.pop(image.image_id, None)
            if image.image_id not in decision.keep:
                found[image.image_id] = decision.keep
    return found


def keep_inherited(gallery: Gallery, store: ReviewStore, copies: Iterable[int], *, by: str | None = None) -> None:
    """Decide the labels and tags that kept images inherit from copies, which are about to leave the gallery."""
    dropped = gallery.annotations.dropped_copies
    kept = {one.image_id: one for number in copies if number in dropped for one in dropped[number][1]}
    decided, tags, held = gallery.decided.by_id, gallery.decided.marked.tags, store.label_decisions()
    labels = [
        replace(one.decide(CHANGE, new_label=decided[one.image_id].label), source="rule")
        for one in kept.values()
        if one.label is None and one.key not in held and one.image_id in decided and decided[one.image_id].label
    ]
    marks = [Mark(one.sha256, tag_field(tag), PRESENT) for one in kept.values() for tag in tags.get(one.image_id, ())]
    for decisions in (labels, marks):
        if decisions:
            store.decide(decisions, by=by)
