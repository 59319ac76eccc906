"""Certificate of a gallery's labels: proof by a reviewed sample that at most a share of the labels is wrong.

The sample lies in a database beside the decisions, which are its answers: a label is wrong if a person changed it,
dropped the image or set it aside. An image that was drawn stays drawn: an answer that is taken back has to be given
again. A sample that is left before it proved anything makes the next one stricter.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.certificate import Draw, LabelSample
from index.labels.decisions import LabelDecision, LabelKey
from index.labels.issues import LabelIssues
from index.labels.two_people import AnnotatorErrorRates, estimate_annotator_error_rates
from index.versions.annotations import certificate_file
from retrieval_app.review.database import Database, DecidedSinceError

AT_A_TIME = 12  # images that are drawn together
MOST_LABELS = 50  # most labels with a bound of their own, and the greatest such bound
MOST_BOUND = 0.25
_STATE = (
    *("number", "started_at", "started_by", "last_look", "at_most", "confidence", "alpha", "decided_before"),
    *("looked_at", "most_wrong", "bound", "is_proved", "looks_to_come", "people"),
)
_SCHEMA = """
CREATE TABLE samples (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    started_at TEXT NOT NULL,
    started_by TEXT,
    version TEXT NOT NULL,                     -- of the gallery
    copies TEXT NOT NULL,                      -- digest of the near-duplicates that are dropped
    at_most REAL NOT NULL,                     -- share of wrong labels that it is to prove
    confidence REAL NOT NULL,
    alpha REAL NOT NULL,                       -- chance of a false certificate that it may take
    seed INTEGER NOT NULL,
    proved_at TEXT                             -- the first time that it did
);
CREATE TABLE members (                         -- the labels of the last sample
    place INTEGER PRIMARY KEY,
    sha256 TEXT NOT NULL,
    given TEXT,
    label TEXT,                                -- by decisions of before; NULL of an image that they leave out
    p_error REAL                               -- NULL where a person had decided before
);
CREATE TABLE looks (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    place INTEGER NOT NULL UNIQUE,
    probability REAL,                          -- NULL of an image that a person chose
    bet REAL NOT NULL,
    drawn_at TEXT NOT NULL
);
CREATE TABLE second_looks (                    -- of another person, who did not see the first answer
    place INTEGER PRIMARY KEY,
    is_wrong INTEGER NOT NULL,
    by TEXT,
    at TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class SampledLabel:
    """Label that can be drawn."""

    place: int
    key: LabelKey
    label: str | None
    p_error: float | None


@dataclass(frozen=True)
class Certificate:
    """Certificate of a sample: what its answers prove now.

    Attributes:
        at_most: share of wrong labels that it is to prove.
        alpha: chance of a false certificate: below 1 - confidence, as other samples may follow.
        labels: labels that take part, those that people had decided before among them.
        decided_before: number of these.
        sample: of all others.
        sampled: (N,) its members.
        decisions: that answer them.
        changes: why it is out of date; empty where it is not.
        second: whether another person found the label of a member wrong, by its place.
    """

    number: int
    started_at: str
    started_by: str | None
    at_most: float
    confidence: float
    alpha: float
    labels: int
    decided_before: int
    sample: LabelSample
    sampled: Sequence[SampledLabel]
    decisions: Mapping[LabelKey, LabelDecision]
    changes: tuple[str, ...] = ()
    second: Mapping[int, bool] = field(default_factory=dict)
    second_by: str | None = None

    @property
    def members(self) -> list[SampledLabel]:
        """Labels that were drawn or chosen, in order."""
        return [self.sampled[draw.position] for draw in self.sample.draws]

    @cached_property
    def most_wrong(self) -> int:
        """Upper bound of the wrong labels that are left."""
        return self.sample.most_wrong()

    @property
    def bound(self) -> float:
        """Upper bound of the share of wrong labels among the labels that are left."""
        return self.most_wrong / max(self.labels_left, 1)

    @property
    def labels_left(self) -> int:
        """Number of labels, without the images that the sample's answers leave out."""
        return self.labels - sum(one.leaves_out for one in self._reviews)

    @property
    def most_allowed(self) -> int:
        """The greatest number of wrong labels that is to be proved."""
        return int(np.floor(self.at_most * self.labels_left + 1e-9))

    @property
    def is_proved(self) -> bool:
        """Whether at most the stated share of the labels is wrong, and the gallery has not changed since."""
        return not self.changes and self.most_wrong <= self.most_allowed

    @property
    def pending(self) -> list[LabelKey]:
        """Labels that wait for an answer, in the order of the draws."""
        return [self.sampled[place].key for place in self.sample.pending]

    def find(self, key: LabelKey) -> SampledLabel:
        """Drawn label, by its key."""
        return next(member for member in self.members if member.key == key)

    @property
    def looked_at(self) -> int:
        """Labels of the sample that have an answer."""
        return len(self.sample.draws) - len(self.sample.pending)

    @property
    def people(self) -> dict[str, int]:
        """Number of answers by person; the name is empty without sign-in."""
        return dict(Counter(one.decided_by or "" for one in self._reviews).most_common())

    @property
    def last_look(self) -> str | None:
        """Time of the last answer, UTC."""
        return max((one.decided_at for one in self._reviews), default=None)

    @cached_property
    def looks_to_come(self) -> int:
        """Estimated number of further reviews, if the probabilities of label errors are right."""
        if self.is_proved:
            return 0
        random = np.random.default_rng(self.number)
        return self.sample.expect_looks(most=self.most_allowed, random=random, at_a_time=AT_A_TIME)

    def list_labels(self) -> list[dict[str, Any]]:
        """Rows of the labels with a bound of their own: images that stay, reviews, wrong labels found, and the bound.

        They are the labels as the sample began; what answers changed into a label is not counted.
        """
        looked, wrong = Counter[str | None](), Counter[str | None]()
        for member, answer in zip(self.members, self.sample.answers, strict=True):
            looked[member.label] += answer is not None
            wrong[member.label] += answer is True
        labels, rows = np.array([member.label for member in self.sampled], dtype=object), []
        for label, count in looked.most_common(MOST_LABELS):
            own = labels == label
            stay = int(own.sum()) - wrong[label]
            bound = self.sample.most_wrong(own) / max(stay, 1)
            if bound <= MOST_BOUND:
                found = {"looked_at": count, "found_wrong": wrong[label], "bound": bound}
                rows.append({"label": label, "labels": stay, **found})
        return rows

    def ask_again(self) -> list[LabelKey]:
        """Labels that one person has reviewed and no second person, in random order."""
        pairs = zip(self.members, self.sample.answers, strict=True)
        left = [one.key for one, answer in pairs if answer is not None and one.place not in self.second]
        return [left[place] for place in np.random.default_rng(self.number).permutation(len(left)).tolist()]

    @cached_property
    def reviewers(self) -> AnnotatorErrorRates | None:
        """Error rates of both people; None before the second person's first answer."""
        pairs = zip(self.members, self.sample.draws, self.sample.answers, strict=True)
        both = [
            (draw.position, answer, self.second[one.place])
            for one, draw, answer in pairs
            if answer is not None and one.place in self.second
        ]
        if not both:
            return None
        places, first, second = (np.array(part) for part in zip(*both, strict=True))
        return estimate_annotator_error_rates(first, second, self.sample.strata[places])

    @property
    def _reviews(self) -> list[LabelDecision]:
        """Decisions by people about the drawn labels."""
        made = (self.decisions.get(member.key) for member in self.members)
        return [one for one in made if one is not None and one.is_look]

    def to_json(self) -> dict[str, Any]:
        """State for the API and the report."""
        return {name: getattr(self, name) for name in _STATE} | {
            "labels": self.labels_left,
            "found_wrong": self.sample.found,
            "changes": list(self.changes),
            "waiting": len(self.sample.pending),
            "second": None if self.reviewers is None else {"by": self.second_by, **asdict(self.reviewers)},
        }


class CertificateStore:
    """The samples of a gallery, for any number of threads and processes."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _SCHEMA)

    @classmethod
    def of_gallery(cls, gallery: Path) -> "CertificateStore":
        return cls(certificate_file(gallery))

    def start(
        self,
        gallery: Gallery,
        members: Sequence[SampledLabel],
        *,
        at_most: float,
        confidence: float,
        by: str | None = None,
    ) -> None:
        """Begin a sample in place of the last one."""
        if not any(one.label is not None for one in members):
            raise InputError("no label to look at; a sample needs images with a label", at=gallery.name)
        with self._database.writing() as connection:
            left = connection.execute(
                "SELECT count(*) FROM samples WHERE number > "
                "(SELECT coalesce(max(number), 0) FROM samples "
                "WHERE proved_at IS NOT NULL AND at_most <= ? AND confidence >= ?)",
                (at_most, confidence),
            ).fetchone()[0]
            goal = (at_most, confidence, spend(1 - confidence, attempt=left + 1))
            connection.execute(
                "INSERT INTO samples (started_at, started_by, version, copies, at_most, confidence, alpha, seed) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (_now(), by, gallery.version, _digest_copies(gallery), *goal, secrets.randbits(32)),
            )
            for table in ("members", "looks", "second_looks"):
                connection.execute(f"DELETE FROM {table}")
            connection.executemany(
                "INSERT INTO members (place, sha256, given, label, p_error) VALUES (?, ?, ?, ?, ?)",
                ((one.place, *one.key, one.label, one.p_error) for one in members),
            )

    def read(self, gallery: Gallery, decisions: Mapping[LabelKey, LabelDecision]) -> Certificate | None:
        """The last sample with its answers; None without one."""
        with self._database.reading() as connection:
            if connection is None:
                return None
            row = connection.execute("SELECT * FROM samples ORDER BY number DESC LIMIT 1").fetchone()
            if row is None:
                return None
            number, started_at, started_by, version, copies, at_most, confidence, alpha, *_ = row
            drawn = connection.execute("SELECT place, probability, bet FROM looks ORDER BY number").fetchall()
            rows = connection.execute("SELECT place, sha256, given, label, p_error FROM members")
            members = [SampledLabel(place, (sha256, given), label, p) for place, sha256, given, label, p in rows]
            seconds = connection.execute("SELECT place, is_wrong, by FROM second_looks ORDER BY at").fetchall()
        taking_part = [one for one in members if one.label is not None]
        open_ = [one for one in taking_part if one.p_error is not None]
        places = {one.place: place for place, one in enumerate(open_)}
        draws = [Draw(places[place], probability, bet) for place, probability, bet in drawn]
        seen = {draw.position for draw in draws}
        answers = [_find_answer(one, decisions) for one in open_]
        draws += [Draw(place) for place, answer in enumerate(answers) if place not in seen and answer is not None]
        p_error = np.array([one.p_error for one in open_], dtype=np.float64)
        return Certificate(
            number,
            started_at,
            started_by,
            at_most,
            confidence,
            alpha,
            labels=len(taking_part),
            decided_before=len(taking_part) - len(open_),
            sample=LabelSample(p_error, draws, [answers[draw.position] for draw in draws], alpha=alpha),
            sampled=open_,
            decisions=decisions,
            changes=tuple(_find_changes(gallery, members, decisions, version=version, copies=copies)),
            second={place: bool(is_wrong) for place, is_wrong, _ in seconds},
            second_by=seconds[-1][2] if seconds else None,
        )

    def draw(self, certificate: Certificate) -> None:
        """Draw the next images, unless some wait for an answer; the certificate has to be read again."""
        if certificate.changes:
            raise InputError(f"{'; '.join(certificate.changes)}: this sample says nothing any more; begin a new one")
        if certificate.sample.pending:
            return
        with self._database.writing() as connection:
            number, seed = connection.execute(
                "SELECT number, seed FROM samples ORDER BY number DESC LIMIT 1"
            ).fetchone()
            stored = {place for (place,) in connection.execute("SELECT place FROM looks")}
            draws, sampled = certificate.sample.draws, certificate.sampled
            new = [draw for draw in draws if sampled[draw.position].place not in stored]
            if number != certificate.number or len(draws) - len(new) != len(stored):
                raise DecidedSinceError
            random = np.random.default_rng([seed, len(draws)])
            drawn = certificate.sample.draw(AT_A_TIME, most=certificate.most_allowed, random=random)
            connection.executemany(
                "INSERT INTO looks (place, probability, bet, drawn_at) VALUES (?, ?, ?, ?)",
                [(sampled[draw.position].place, draw.probability, draw.bet, _now()) for draw in [*new, *drawn]],
            )

    def add_second_look(self, member: SampledLabel, *, is_wrong: bool, by: str | None = None) -> None:
        """Store a second person's answer about a label; it changes no decision."""
        with self._database.writing() as connection:
            row = (member.place, is_wrong, by, _now())
            connection.execute("INSERT OR REPLACE INTO second_looks (place, is_wrong, by, at) VALUES (?, ?, ?, ?)", row)

    def note_proved(self, number: int) -> None:
        """Keep that a sample proved something: the next one is no further attempt at it."""
        with self._database.writing() as connection:
            connection.execute(
                "UPDATE samples SET proved_at = ? WHERE proved_at IS NULL AND number = ?", (_now(), number)
            )

    def close(self) -> None:
        """Close the file; nothing is lost without it."""
        self._database.close()


def read_certificate(gallery: Gallery, decisions: Mapping[LabelKey, LabelDecision]) -> Certificate | None:
    """The last sample of a gallery with its answers; None without one."""
    with closing(CertificateStore.of_gallery(gallery.path)) as store:
        return store.read(gallery, decisions)


def spend(alpha: float, *, attempt: int) -> float:
    """Chance of a false certificate that an attempt may have, so that all attempts together have `alpha`."""
    return 0.8 * alpha if attempt == 1 else 0.2 * alpha / (attempt * (attempt - 1))


def list_members(
    gallery: Gallery, decisions: Mapping[LabelKey, LabelDecision], issues: LabelIssues | None = None
) -> list[SampledLabel]:
    """All labels of a gallery as they are now, also of images that decisions leave out.

    The probabilities of label errors are those of the issues; labels that these do not list share the rest.
    """
    copies, found = gallery.annotations.dropped_copies, dict[LabelKey, tuple[int, str | None]]()
    inherited = {image.image_id: label for label, kept in copies.values() for image in kept if label is not None}
    with gallery.without_decisions.catalog() as catalog:
        for row in catalog.rows(status="indexed"):
            key, before = (row.sha256 or "", row.label), row.label or inherited.get(row.id)
            label = before if (made := decisions.get(key)) is None else made.label_after
            label = None if row.id in copies else label
            if (label is not None or row.label is not None) and found.get(key, (0, None))[1] is None:
                found[key] = row.id, label
    chances = _read_chances(issues, len(found)) if issues is not None else {}
    rest = chances.get(-1, 0.0)
    members = []
    for place, (key, (image_id, label)) in enumerate(sorted(found.items(), key=lambda one: one[1][0])):
        made = decisions.get(key)
        p_error: float | None = chances.get(image_id, rest)
        if made is not None:
            p_error = None if made.is_look else max(1 - made.p_right, rest)
        members.append(SampledLabel(place, key, label, p_error))
    return members


def _read_chances(issues: LabelIssues, labels: int) -> dict[int, float]:
    """Probabilities of a label error by id; the mean of all others has the key -1."""
    chances = dict(issues.less_probable) | {one.id: one.p_error for one in issues.errors}
    rest = max(issues.noise_rate * issues.checked - sum(chances.values()), 0.0)
    return {**chances, -1: rest / max(labels - len(chances), 1)}


def _find_answer(member: SampledLabel, decisions: Mapping[LabelKey, LabelDecision]) -> bool | None:
    """Whether a person found the label wrong; None without a review."""
    made = decisions.get(member.key)
    return None if made is None or not made.is_look else made.label_after != member.label


def _find_changes(
    gallery: Gallery,
    members: Sequence[SampledLabel],
    decisions: Mapping[LabelKey, LabelDecision],
    *,
    version: str,
    copies: str,
) -> Iterable[str]:
    """What has changed since the sample began, other than by its answers."""
    known = {one.key: one for one in members}
    added = [key for key in decisions if key not in known and gallery.annotations.is_present(key)]
    if gallery.version != version:
        read = {one.key: one.label for one in list_members(gallery, decisions)}
        added = [key for key, label in read.items() if label is not None and key not in known]
        if gone := sum(1 for one in members if one.label is not None and one.key not in read):
            yield f"{gone:,} images with a label are gone"
    if added := [key for key in added if key not in decisions or _has_machine_label(decisions[key])]:
        yield f"{len(added):,} images with a label are new"
    undone, changed = 0, 0
    for one in members:
        made = decisions.get(one.key)
        if made is not None and made.is_look:
            continue
        inherits = one.key[1] is None and made is None  # a copy's label, for as long as the copies stay
        undone += one.p_error is None and made is None
        changed += not inherits and one.label != (one.key[1] if made is None else made.label_after)
    if undone:
        yield f"{undone:,} decisions from before the sample were taken back"
    elif changed:
        yield f"{changed:,} labels were changed without a person's look"
    if _digest_copies(gallery) != copies:
        yield "near-duplicates were decided"


def _has_machine_label(decision: LabelDecision) -> bool:
    return not decision.is_look and decision.label_after is not None


def _digest_copies(gallery: Gallery) -> str:
    ids = ",".join(map(str, sorted(gallery.annotations.dropped_copies)))
    return hashlib.sha256(ids.encode()).hexdigest()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
