"""Verdicts accepted in bulk: what is decided and expected, and what galleries, label files and training know of it."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decided_labels import LabelProbabilities, read_label_probabilities
from index.labels.decisions import MAX_UNREVIEWED_P_RIGHT, LabelDecision
from index.labels.issues import LabelIssue, LabelIssues
from index.labels.kinds import PROPOSAL, IssueKind
from index.writing.build import build_gallery
from retrieval_app.commands.cli import main
from retrieval_app.dataset_export.public import export_dataset
from retrieval_app.insights.label_issues import find_label_issues
from retrieval_app.label_tools.current_issues import accept_verdicts, find_current_issues
from retrieval_app.reports.duplicates_report import DuplicateReport
from retrieval_app.review.acceptance import Acceptance, plan_acceptance
from retrieval_app.review.exports import stream_label_file
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import find_subjects
from tests.retrieval_app.api.conftest import serve
from tests.retrieval_app.api.test_gallery_routes import wait_for
from tests.retrieval_app.review.conftest import WRONG, ids_by_path
from training.data.datasets import Record, list_dataset

STRICT = {"at_least_right": 0.99}  # of which all wrong labels here are set aside
BULK = {"at_least_right": 0.95}  # of which they change


@pytest.fixture
def client(gallery: Path) -> Iterator[TestClient]:
    with serve(gallery) as client:
        wait_for(client, "/v1/duplicates")
        wait_for(client, "/v1/labels/issues")
        yield client


def accept(client: TestClient, body: dict[str, float]) -> dict[str, Any]:
    """What is counted, decided."""
    counted = client.post("/v1/labels/accept", json=body).json()
    done: dict[str, Any] = client.post("/v1/labels/accept", json={**body, "digest": counted["digest"]}).json()
    same = counted.keys() - {"step", "can_undo"}
    assert {name: done[name] for name in same} == {name: counted[name] for name in same}
    assert done["step"] is not None
    return done


def find_paths(client: TestClient, image_id: int) -> set[int]:
    hits = client.post("/v1/search", json={"queries": [{"image_id": image_id}], "k": 100}).json()["hits"]
    return {hit["id"] for hit in hits}


def test_labels_change_to_what_the_images_show_and_the_doubt_about_them_stays(client: TestClient) -> None:
    before = client.get("/v1/labels/issues").json()
    done = accept(client, BULK)
    decided = client.get("/v1/labels/decisions").json()["decisions"]
    assert len(decided) == done["changed"] > 8
    shown = {Path(path).name: label for path, label in WRONG.items()}
    assert {one["path"].rpartition("/")[2]: one["decision"]["label"] for one in decided}.items() <= shown.items()
    assert {one["decision"]["source"] for one in decided} == {"bulk"}
    doubt = sum(1 - one["decision"]["p_right"] for one in decided)
    assert done["changed_right"] == pytest.approx(len(decided) - doubt)
    assert doubt > 0.5
    kept = done["kept"]
    assert (kept["images"], done["stay"]) == (72, 72 - done["changed"])
    assert 0.95 <= kept["share"] <= 1
    assert kept["low"] <= kept["share"] <= kept["high"]
    after = client.get("/v1/labels/issues").json()
    assert doubt - 1e-9 <= after["left"]["errors"] < before["left"]["errors"]
    assert (after["open"], after["decided"]) == (before["open"] - len(decided), len(decided))
    client.post("/v1/labels/undo", json={"step": done["step"]})
    undone = client.get("/v1/labels/issues").json()
    assert (undone["open"], undone["left"]["errors"]) == (before["open"], pytest.approx(before["left"]["errors"]))


def test_a_digest_of_other_decisions_decides_nothing(client: TestClient) -> None:
    counted = client.post("/v1/labels/accept", json=BULK).json()
    assert counted["digest"] == client.post("/v1/labels/accept", json=BULK).json()["digest"]
    strict = client.post("/v1/labels/accept", json=STRICT).json()
    assert counted["digest"] != strict["digest"]
    for body in ({**STRICT, "digest": counted["digest"]}, {**BULK, "digest": 64 * "0"}):
        assert client.post("/v1/labels/accept", json=body).status_code == 409
    for share in (0.4, 1, "much"):
        assert client.post("/v1/labels/accept", json={"at_least_right": share}).status_code == 422
    assert client.get("/v1/labels/decisions").json()["decisions"] == []


def test_images_set_aside_leave_results_until_their_decision_is_open_again(client: TestClient, gallery: Path) -> None:
    ids = ids_by_path(Gallery.open(gallery))
    asking = ids["red/1.png"]
    found = find_paths(client, asking)
    done = accept(client, STRICT)
    assert done["set_aside"] > 8
    assert done["changed"] == 0
    decided = client.get("/v1/labels/decisions").json()["decisions"]
    aside = {one["image_id"] for one in decided}
    assert {one["decision"]["decision"] for one in decided} == {"set_aside"}
    assert len(aside) == done["set_aside"]
    assert find_paths(client, asking) == found - aside
    one = min(aside)
    assert client.get(f"/v1/images/{one}").json()["decision"]["decision"] == "set_aside"
    assert client.post("/v1/search", json={"queries": [{"image_id": one}]}).status_code == 200  # it can still ask
    headers = client.get("/v1/labels/file").headers
    assert headers["x-labels-set-aside"] == str(len(aside))
    assert headers["x-labels-kept"] == str(72 - len(aside))
    body = {"decisions": [{"image_id": one, "decision": "open"}]}
    assert client.post("/v1/labels/decisions", json=body).status_code == 200
    assert find_paths(client, asking) == found - aside | {one}
    by_person = {"decisions": [{"image_id": one, "decision": "set_aside"}]}
    assert client.post("/v1/labels/decisions", json=by_person).status_code == 200
    assert find_paths(client, asking) == found - aside


def test_the_command_counts_and_then_decides_what_it_counted(gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*options: str) -> dict[str, Any]:
        assert main(["labels", "accept", str(gallery), "--json", *options]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    counted = call("--dry-run")
    assert counted["changed"] > 8
    assert counted["step"] is None
    assert not ReviewStore.of_gallery(gallery).steps()
    strict = call("--dry-run", "--at-least-right", "99%")
    assert (strict["changed"], strict["set_aside"]) == (0, counted["changed"])
    done = call()
    assert {**done, "step": None} == counted
    [step] = ReviewStore.of_gallery(gallery).steps()
    made = [one for one in step.labels if one.decision != "open"]
    assert (len(made), {one.source for one in step.labels}) == (done["changed"], {"bulk"})
    trust = ReviewStore.of_gallery(gallery).label_probabilities()
    rows = Gallery.open(gallery).without_decisions.rows(Gallery.open(gallery).without_decisions.ids.tolist())
    taken = {one.key for one in made}
    doubt = sum(1 - (trust.of(row)[0] or 0) for row in rows if (row.sha256 or "", row.label) not in taken)
    assert doubt == pytest.approx(_left(gallery, made), abs=0.1)
    again = call()  # a machine learns nothing from its own decisions
    assert (again["step"], again["changed"], again["set_aside"], again["dropped"]) == (None, 0, 0, 0)
    assert again["kept"]["share"] == pytest.approx(done["kept"]["share"])
    assert main(["labels", "accept", str(gallery), "--at-least-right", ".9", "--threshold", ".8"]) != 0
    assert main(["labels", "undo", str(gallery)]) == 0
    assert taken.isdisjoint(ReviewStore.of_gallery(gallery).label_decisions())
    ReviewStore.of_gallery(gallery).decide((made[0], replace(made[1], decision="open", new_label=None)))
    capsys.readouterr()
    assert main(["labels", "undo", str(gallery), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 1, "the other one was left open"
    while main(["labels", "undo", str(gallery)]) == 0:
        pass
    assert not ReviewStore.of_gallery(gallery).label_decisions()


def _left(gallery: Path, decided: Iterable[LabelDecision]) -> float:
    """Estimated wrong labels that nobody decided, before the decisions."""
    issues, _ = find_label_issues(Gallery.open(gallery).without_decisions)
    taken = {one.image_id for one in decided}
    return issues.noise_rate * issues.checked - sum(one.p_error for one in issues.items if one.id in taken)


def test_a_label_file_carries_the_doubt_along(gallery: Path, built: Path, tmp_path: Path, tiny_model: Path) -> None:
    accept_verdicts(gallery, **BULK)
    store = ReviewStore.of_gallery(gallery)
    looked = next(
        row
        for row in Gallery.open(gallery).rows(ids_by_path(Gallery.open(gallery)).values())
        if row.path == "red/1.png"
    )
    store.decide([LabelDecision(looked.sha256 or "", "red", "keep")])
    opened, trust = Gallery.open(gallery), store.label_probabilities()
    file = tmp_path / "labels.csv"
    file.write_bytes(b"".join(stream_label_file(opened, trust, counts=Counter())))
    rows = {f"{Path(row['path']).parent.name}/{Path(row['path']).name}": row for row in _read(file)}
    changed = {path: row for path, row in rows.items() if row["label"] != row["given"]}
    assert changed.keys() <= WRONG.keys()
    assert len(changed) > 8
    assert {path: row["label"] for path, row in changed.items()} == {path: WRONG[path] for path in changed}
    assert all(0.5 <= float(row["p_right"]) < 1 for row in changed.values())
    left_open = {Path(one.path).name for one in trust.decisions.values() if one.decision == "open"}
    others = [
        float(row["p_right"])
        for path, row in rows.items()
        if path not in changed and path != "red/1.png" and Path(path).name not in left_open
    ]
    assert others == pytest.approx([trust.others[0]] * len(others), abs=1e-4)
    assert float(rows["red/1.png"]["p_right"]) == 1

    build_gallery(model_path=tiny_model, sources=[built.parent / "images"], out=tmp_path / "fresh", labels_file=file)
    fresh = Gallery.open(tmp_path / "fresh")
    issues, _, _ = find_current_issues(fresh)
    doubt = sum(1 - float(row["p_right"]) for row in rows.values())
    assert doubt > 1
    assert issues.noise_rate * issues.checked >= doubt - 0.01
    listed = {fresh.image(issue.id).path for issue in issues.items}
    assert listed >= {path for path, row in changed.items() if float(row["p_right"]) < 0.9}  # doubted enough to list
    assert "red/1.png" not in listed

    second = accept_verdicts(tmp_path / "fresh", at_least_right=0.95, dry_run=True)[0]
    assert second.kept.images > 0.9 * len(rows)  # what was accepted once is not set aside for that
    exported = tmp_path / "exported"
    export_dataset(gallery, exported)
    trained = [one.p_right for one in list_dataset(exported).records]
    assert sorted(trained) == pytest.approx(sorted(float(row["p_right"]) for row in rows.values()), abs=1e-4)

    for data in (gallery, tmp_path / "fresh", file):
        records = {f"{one.path.parent.name}/{one.path.name}": one for one in list_dataset(data).records}
        assert records.keys() == rows.keys()
        for path, row in rows.items():
            one = records[path]
            assert (one.label, one.p_right) == (row["label"], pytest.approx(float(row["p_right"]), abs=1e-4))
            assert one.before == (row["given"] if path in changed else None)
        again = tmp_path / "again.csv"
        if data != file:
            opened = Gallery.open(data)
            again.write_bytes(b"".join(stream_label_file(opened, read_label_probabilities(data), counts=Counter())))
            assert _read_values(again) == _read_values(file)


def _read(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def _read_values(file: Path) -> set[tuple[str, ...]]:
    return {(Path(row["path"]).name, row["label"], row["given"], row["p_right"]) for row in _read(file)}


def test_a_label_file_with_a_probability_that_is_none_is_refused(built: Path, tmp_path: Path, tiny_model: Path) -> None:
    file = tmp_path / "labels.csv"
    for text in ("1.5", "much", "-1", "nan"):
        file.write_text(f"path,label,p_right\n{built.parent}/images/red/1.png,red,{text}\n")
        with pytest.raises(InputError, match="p_right must be a probability"):
            build_gallery(
                model_path=tiny_model, sources=[built.parent / "images"], out=tmp_path / "fresh", labels_file=file
            )
        with pytest.raises(InputError, match="p_right must be a probability"):
            list_dataset(file)
    file.write_text(f"path,label,given,p_right\n{built.parent}/images/red/1.png,red,blue,\n")  # nobody decided
    assert list_dataset(file).records == (Record(built.parent / "images/red/1.png", "red"),)


def test_trust_is_of_the_decision_else_of_the_column_else_of_the_last_bulk_accept(built: Path) -> None:
    opened = Gallery.open(built)
    row, *_ = opened.rows([ids_by_path(opened)["red/1.png"]])
    with_columns = replace(row, metadata_json=json.dumps({"p_right": 0.6, "given": "blue"}))
    sha256 = row.sha256 or ""

    def decide(decision: str, new_label: str | None = None, **more: Any) -> LabelProbabilities:
        one = LabelDecision(sha256, "red", decision, new_label, **more)
        return LabelProbabilities({one.key: one})

    bulk = LabelDecision("a" * 64, "red", "set_aside", source="bulk", others_right=0.9, others_to=row.id)
    after_bulk = LabelProbabilities({bulk.key: bulk})
    assert LabelProbabilities({}).of(row) == (None, None)
    assert after_bulk.of(row) == (0.9, None)
    assert after_bulk.of(replace(row, id=row.id + 1)) == (None, None)  # it came later
    assert after_bulk.of(with_columns) == (0.6, "blue")
    assert decide("keep").of(with_columns) == (1, None)
    assert decide("change", "green").of(row) == (1, None)  # by a person
    assert decide("change", "green", source="bulk", p_right=0.8).of(row) == (0.8, "red")
    same = replace(row, metadata_json=json.dumps({"p_right": 0.6, "given": "red"}))
    assert LabelProbabilities({}).of(same) == (0.6, None)


def issue(number: int, **more: Any) -> LabelIssue:
    """An issue of a label `red`, probably blue."""
    values: dict[str, Any] = {
        "label": "red",
        "p_error": 0.9,
        "suggestions": (("blue", 0.8),),
        "p_none": 0.05,
        "kind": "wrong_label",
        "verdict": "change",
        "agreeing": (),
        "disagreeing": (),
    }
    return LabelIssue(id=number, **(values | more))


def plan(gallery: Path, *items: LabelIssue, decided: tuple[LabelDecision, ...] = (), **more: Any) -> Acceptance:
    """Of a hundred labels, the others of which are certainly right."""
    opened = Gallery.open(gallery)
    errors = sum(one.p_error for one in items if one.kind != PROPOSAL)
    subjects = find_subjects(opened, [one.id for one in items])
    known = tuple(replace(one, sha256=subjects[one.id].sha256, label=subjects[one.id].label) for one in items)
    issues = LabelIssues(known, 100, noise_rate=errors / 100, classes=(("red", 9, 0.1),) * 3, look_alikes=0.9)
    duplicates = DuplicateReport("gallery", opened.count, None, ())
    decisions = {one.key: one for one in decided}
    return plan_acceptance(opened, issues, duplicates=duplicates, decisions=decisions, **more)


def decisions_of(acceptance: Acceptance) -> dict[int | None, str]:
    return {one.image_id: one.decision for one in acceptance.decisions}


def test_every_issue_is_decided_by_its_probabilities_and_rare_labels_stay(built: Path) -> None:
    items = [
        issue(1),
        issue(2, suggestions=(("blue", 0.3),), p_none=0.5),
        issue(3, suggestions=(("blue", 0.3),), p_none=0.2),
        issue(4, kind="rare_class"),
        issue(5, p_error=0.2, suggestions=(("blue", 0.1),)),
        issue(6, suggestions=(("a\nb", 0.8),)),
        issue(7, p_error=0.6, suggestions=(("blue", 0.55),), p_none=0.0),
    ]
    done = plan(built, *items, at_least_right=0.985)
    assert decisions_of(done) == {1: "change", 2: "drop", 3: "set_aside", 6: "set_aside", 7: "set_aside"}
    assert done.figures.stay == 100 - 5
    assert done.figures.kept.images == 100 - 4
    right = 93 + 0.8 + 0.8 + 0.1  # of the others, of 1, of 5, and of the rare label that stays
    assert done.figures.kept.share == pytest.approx(right / 96)
    assert [one.others_right for one in done.decisions] == [MAX_UNREVIEWED_P_RIGHT] * 5  # none of the others is doubted
    assert {one.image_id: one.p_right for one in done.left_open} == {4: pytest.approx(0.1), 5: pytest.approx(0.8)}
    assert done.figures.no_promise is not None  # these are 100 labels
    by_threshold = plan(built, *items, threshold=0.8)
    assert decisions_of(by_threshold) == {1: "change", 2: "drop", 3: "set_aside", 6: "set_aside"}


@pytest.mark.parametrize(("kind", "decides"), [("wrong_label", True), ("rare_class", False), ("outlier", True)])
def test_a_lower_share_decides_fewer_labels_and_none_that_is_rare(built: Path, kind: IssueKind, decides: bool) -> None:
    items = [issue(number, kind=kind, suggestions=(("blue", 0.3),), p_none=0.2) for number in range(1, 4)]
    counts = [len(plan(built, *items, at_least_right=share).decisions) for share in (0.5, 0.9, 0.99)]
    assert counts == ([3, 3, 3] if decides else [0, 0, 0])


def test_what_a_person_or_an_earlier_accept_decided_counts_and_is_not_decided_again(built: Path) -> None:
    [subject] = find_subjects(Gallery.open(built), [1]).values()
    by_bulk = LabelDecision(subject.sha256, subject.label, "change", "blue", 1, source="bulk", p_right=0.6)
    done = plan(built, issue(1), issue(2), decided=(by_bulk,))
    assert decisions_of(done) == {2: "change"}
    assert done.figures.kept.images == 100
    assert done.figures.kept.share == pytest.approx((98 + 0.6 + 0.8) / 100)


def test_decided_images_without_an_issue_and_images_that_are_gone_do_not_count_twice(built: Path) -> None:
    one, other = find_subjects(Gallery.open(built), [3, 4]).values()
    aside, kept = (subject.decide(decision) for subject, decision in ((one, "set_aside"), (other, "keep")))
    gone = LabelDecision("f" * 64, "red", "change", "blue", source="bulk", p_right=0.1)
    done = plan(built, issue(1), decided=(aside, kept, gone))
    assert done.figures.kept.images == 100 - 1  # of 100 that were checked one is set aside
    assert done.figures.stay == 100 - 3
    assert done.figures.kept.share == pytest.approx((97 + 0.8 + 1) / 99)


def test_an_outlier_with_a_rare_label_stays(built: Path) -> None:
    rare = issue(1, kind="outlier", verdict="keep", suggestions=(("blue", 0.1),), p_none=0.8)
    other = issue(2, kind="outlier", verdict="drop", suggestions=(("blue", 0.1),), p_none=0.8)
    assert decisions_of(plan(built, rare, other)) == {2: "drop"}


def test_a_certain_suggestion_of_a_machine_is_no_look_of_a_person(built: Path) -> None:
    done = plan(built, issue(1, p_error=1.0, suggestions=(("blue", 1.0),), p_none=0.0))
    [decision] = done.decisions
    assert (decision.source, decision.decision) == ("bulk", "change")
    assert decision.p_right < 1
    assert decision.others_right < 1
