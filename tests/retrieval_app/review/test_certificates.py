"""Certificate of a gallery's labels: sampled, answered by decisions, out of date after other changes, begun anew."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from index.gallery.gallery import Gallery
from index.labels.decisions import MAX_UNREVIEWED_P_RIGHT, DuplicateDecision
from index.writing.build import add_to_gallery
from retrieval_app.commands.labels_command import labels
from retrieval_app.label_tools.current_issues import find_current_issues
from retrieval_app.reports.certificate_page import describe, write_certificate
from retrieval_app.review.bulk import set_labels
from retrieval_app.review.certificates import Certificate, CertificateStore, list_members, spend
from retrieval_app.review.database import DecidedSinceError
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_by_contents, read_all_subjects
from tests.conftest import draw_image
from tests.retrieval_app.review.conftest import WRONG


class Audit:
    """A person who knows what the images show, and the sample of a gallery."""

    def __init__(self, gallery: Path) -> None:
        self.path = gallery
        self.store, self.review = CertificateStore.of_gallery(gallery), ReviewStore.of_gallery(gallery)

    def begin(self, *, at_most: float = 0.05) -> Certificate:
        opened = Gallery.open(self.path)
        issues, _, decisions = find_current_issues(opened)
        self.store.start(opened, list_members(opened, decisions, issues), at_most=at_most, confidence=0.95, by="ann")
        return self.read()

    def read(self) -> Certificate:
        found = self.store.read(Gallery.open(self.path), self.review.label_decisions())
        assert found is not None
        return found

    def answer(self, *, by: str = "ann") -> Certificate:
        """Answer what waits, by the true class."""
        self.store.draw(self.read())
        pending = self.read().pending
        subjects = {one.key: one for one in find_by_contents(Gallery.open(self.path), [sha for sha, _ in pending])}
        for key in pending:
            subject = subjects[key]
            shown = next((right for path, right in WRONG.items() if subject.path.endswith(path)), subject.label)
            kept = shown == subject.label
            self.review.decide([subject.decide("keep") if kept else subject.decide("change", new_label=shown)], by=by)
        return self.read()

    def prove(self) -> Certificate:
        found = self.read()
        while not found.is_proved:
            found = self.answer()
        self.store.note_proved(found.number)
        return found


@pytest.fixture
def audit(gallery: Path) -> Audit:
    return Audit(gallery)


def test_the_sample_finds_the_wrong_labels_and_proves_that_few_are_left(audit: Audit, tmp_path: Path) -> None:
    started = audit.begin()
    assert (started.labels, started.looked_at, started.most_wrong) == (72, 0, 72)
    found = audit.prove()
    assert found.bound <= 0.05
    assert found.sample.found >= len(WRONG) - 3  # at most 3 of 72 may be left
    assert found.people == {"ann": found.looked_at}
    page, table = write_certificate(found, tmp_path / "certificate.html", gallery="<b>shop</b>")
    document = json.loads(table.read_text(encoding="utf-8"))
    assert (document["is_proved"], document["looked_at"]) == (True, found.looked_at)
    assert "<b>shop</b>" not in page.read_text(encoding="utf-8")


def test_draws_stay_and_answers_taken_back_are_asked_for_again(audit: Audit) -> None:
    audit.begin()
    before = audit.answer()
    audit.store.draw(before)
    drawn = audit.read().pending
    audit.store.draw(audit.read())
    assert audit.read().pending == drawn  # no other images while some wait
    audit.review.undo()
    back = audit.read()
    assert len(back.pending) == len(drawn) + 1
    assert set(drawn) < set(back.pending)
    assert back.most_wrong >= before.most_wrong


def test_looks_outside_of_the_sample_count(audit: Audit) -> None:
    audit.begin()
    gallery = Gallery.open(audit.path)
    issues, _, _ = find_current_issues(gallery)
    first = {one.image_id: one for one in read_all_subjects(gallery)}[issues.errors[0].id]
    audit.review.decide([first.decide("drop")])
    found = audit.read()
    assert (found.looked_at, found.sample.found, found.labels_left) == (1, 1, 71)
    assert not found.changes
    assert audit.prove().is_proved


@pytest.mark.parametrize("change", ["bulk", "new image", "undone"])
def test_other_changes_make_it_out_of_date(audit: Audit, change: str, tmp_path: Path) -> None:
    gallery = Gallery.open(audit.path)
    subject = next(iter(read_all_subjects(gallery)))
    if change == "undone":
        audit.review.decide([subject.decide("keep")])
    assert audit.begin().decided_before == (change == "undone")
    audit.prove()
    seen = {member.key for member in audit.read().members}
    if change == "undone":
        audit.review.decide([subject.decide("open")])
    elif change == "bulk":
        other = next(one for one in read_all_subjects(gallery) if one.key not in seen)
        audit.review.decide([replace(other.decide("drop"), source="bulk", p_right=MAX_UNREVIEWED_P_RIGHT)])
    else:
        (tmp_path / "more" / "red").mkdir(parents=True)
        draw_image((9, 9, 9), seed=4321).save(tmp_path / "more" / "red" / "new.png")
        add_to_gallery(audit.path, [tmp_path / "more"])
    found = audit.read()
    assert len(found.changes) == 1
    assert not found.is_proved
    assert describe(found).startswith("Out of date")


def test_only_a_person_who_looked_answers(audit: Audit) -> None:
    """Neither a condition, nor a bulk accept, nor a file: the first two make the sample out of date."""
    audit.begin()
    assert set_labels(audit.path, "red", where="label = 'red'") > 0  # what they are already
    after = audit.read()
    assert (after.looked_at, after.changes) == (0, ())
    assert set_labels(audit.path, "green", where="label = 'red'") > 0
    after = audit.read()
    assert (after.looked_at, len(after.changes)) == (0, 1)
    audit.review.undo()
    audit.review.undo()
    subject = next(iter(read_all_subjects(Gallery.open(audit.path))))
    audit.review.decide([replace(subject.decide("set_aside"), source="bulk")])
    after = audit.read()
    assert (after.looked_at, len(after.changes)) == (0, 1)
    audit.review.undo()
    audit.review.decide([replace(subject.decide("keep"), source="import")])
    after = audit.read()
    assert (after.looked_at, after.changes) == (0, ())


def test_what_a_person_decided_before_must_not_be_overwritten_by_a_machine(audit: Audit) -> None:
    subject = next(iter(read_all_subjects(Gallery.open(audit.path))))
    audit.review.decide([subject.decide("drop")])
    assert audit.begin().labels == 71
    audit.review.decide([replace(subject.decide("keep"), source="import")])
    assert len(audit.read().changes) == 1
    audit.review.undo()
    assert audit.read().changes == ()


def test_a_file_takes_part_for_as_long_as_one_of_its_copies_stays(shop: Gallery, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(shop.path, tmp_path / "shop"))
    audit = Audit(folder)
    same = [one for one in read_all_subjects(Gallery.open(folder)) if one.path.endswith(("copy.jpg", "again.jpg"))]
    before = len({member.key for member in list_members(Gallery.open(folder), {})})
    audit.review.decide([DuplicateDecision(tuple(same), "duplicates", keep=(same[1].image_id,))])
    members = [one for one in list_members(Gallery.open(folder), {}) if one.label is not None]
    assert len(members) == before == 15


def test_samples_that_are_left_make_the_next_one_stricter_until_one_proves(audit: Audit) -> None:
    alphas = [audit.begin().alpha, audit.begin().alpha]
    assert alphas == pytest.approx([spend(0.05, attempt=1), spend(0.05, attempt=2)])
    audit.prove()
    assert audit.begin(at_most=0.01).alpha == pytest.approx(spend(0.05, attempt=3))  # more is to be proved now
    assert audit.begin(at_most=0.05).alpha == pytest.approx(spend(0.05, attempt=2))
    assert sum(spend(0.05, attempt=n) for n in range(1, 10_000)) == pytest.approx(0.05, rel=1e-3)


def test_another_process_that_draws_meanwhile_is_noticed(audit: Audit) -> None:
    stale = audit.begin()
    CertificateStore.of_gallery(audit.path).draw(stale)
    with pytest.raises(DecidedSinceError):
        audit.store.draw(replace(stale, sample=type(stale.sample)(stale.sample._p_error, alpha=stale.alpha)))
    assert len(audit.read().pending) == 12


def test_the_command_asks_until_it_is_proved_and_goes_on_later(gallery: Path, tmp_path: Path) -> None:
    def run(*more: str, text: str | None = None) -> str:
        done = CliRunner().invoke(labels, ["certify", str(gallery), *more], input=text)
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "2 looked at, 1 of these wrong" in run("--at-most", "30%", text="\nd\nwhat\nq\n")
    assert json.loads(run("--json"))["waiting"] == 10
    assert "Proved" in run("--by", "ann", "--report", str(tmp_path / "c.html"), text="\n" * 200)
    assert (tmp_path / "c.html").exists()
    run("--second", "bob", text="\n" * 10 + "w\nq\n")
    both = json.loads(run("--json"))["second"]
    assert (both["by"], both["answers"]) == ("bob", 11)
    assert both["agreement"] >= 9 / 11
    refused = CliRunner().invoke(labels, ["certify", str(gallery), "--at-most", "1%"])
    assert refused.exit_code == 2
    assert "--new" in refused.output
