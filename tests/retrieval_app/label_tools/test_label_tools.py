"""`retrieval labels`: issues are listed and exported, decisions of other programs are imported."""

import csv
import hashlib
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.durable import write_csv
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decision_files import match_decisions
from index.labels.decisions import DuplicateDecision, ImageRef
from index.labels.issue_tables import COLUMNS, describe_row, read_issues
from index.labels.issues import LabelIssue, LabelIssues
from index.writing.build import build_gallery
from retrieval_app.commands.cli import main
from retrieval_app.insights.background import Insights
from retrieval_app.label_tools.current_issues import list_issues
from retrieval_app.review.review_store import ReviewStore
from retrieval_app.review.subjects import read_all_subjects
from tests.conftest import CLASSES, draw_image
from tests.retrieval_app.insights.conftest import draw_labelled
from training.audit.run_audit import write_audit_tables

LABELS = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Co", "Cn", "Zl", "Zp")), min_size=1, max_size=20
).filter(lambda text: text == text.strip())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    build_gallery(model_path=tiny_model, sources=[draw_labelled(folder / "images")], out=folder / "gallery")
    return folder / "gallery"


@pytest.fixture
def gallery(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "gallery"))


def test_proposals_go_out_and_come_back(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = draw_labelled(tmp_path / "images")
    draw_image(CLASSES["red"], seed=990).save(images / "loose.png")
    build_gallery(model_path=tiny_model, sources=[images], out=tmp_path / "gallery")
    gallery, files = tmp_path / "gallery", tmp_path / "files"
    assert main(["labels", "issues", str(gallery), "--json", "--kind", "unlabelled"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["label"], row["suggested"], row["kind"]) for row in document["issues"]] == [("", "red", "unlabelled")]
    assert main(["labels", "issues", str(gallery)]) == 0
    assert "1 images have no label" in capsys.readouterr().out
    assert main(["labels", "export", str(gallery), f"{files}.csv"]) == 0
    assert main(["labels", "export", str(gallery), f"{files}.csv"]) == 1  # it exists
    assert main(["labels", "import", str(gallery), f"{files}.csv"]) == 0
    assert not ReviewStore.of_gallery(gallery).label_decisions()
    rows = list(csv.DictReader(files.with_suffix(".csv").read_text().splitlines()))
    with (tmp_path / "new.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, ["sha256", "label", "new_label"], extrasaction="ignore")
        writer.writeheader()
        writer.writerow({**rows[-1], "new_label": rows[-1]["suggested"]})
    assert main(["labels", "import", str(gallery), str(tmp_path / "new.csv")]) == 0
    assert [(one.label, one.new_label) for one in ReviewStore.of_gallery(gallery).label_decisions().values()] == [
        (None, "red")
    ]


def test_issues_of_a_gallery_are_those_of_the_api(tmp_path: Path, tiny_model: Path) -> None:
    images, gallery = draw_labelled(tmp_path / "images"), tmp_path / "gallery"
    shutil.copyfile(images / "green/3.png", images / "blue/green.png")  # near-duplicates of two labels
    build_gallery(model_path=tiny_model, sources=[images], out=gallery)
    opened, review = Gallery.open(gallery), ReviewStore.of_gallery(gallery)
    insights = Insights(opened, cache=None)
    base = insights.wait("label_issues", timeout=60).value
    assert without_paths(list_issues(gallery)[0]) == base
    assert "conflicting_duplicates" in {one.kind for one in base.items}
    wrong = next(subject for subject in read_all_subjects(opened) if subject.path.endswith("wrong_0.png"))
    decisions = {wrong.key: wrong.decide("change", new_label="blue")}
    review.decide(list(decisions.values()))
    insights.update_issues(decisions)
    updated = insights.wait("updated_issues", timeout=60).value
    insights.close()
    found, _ = list_issues(gallery)
    assert without_paths(found) == updated
    assert {one.new_label for one in found.items if one.path == wrong.path} == {"blue"}
    one, other = (s for s in read_all_subjects(opened) if s.path.endswith(("blue/green.png", "green/3.png")))
    review.decide([DuplicateDecision((one, other), "duplicates", (other.image_id,))])
    now, _ = list_issues(gallery)
    assert now.checked == found.checked - 1
    dropped = next(issue.p_error for issue in found.items if issue.id == one.image_id)
    assert now.noise_rate * now.checked == pytest.approx(found.noise_rate * found.checked - dropped)
    assert one.path not in {issue.path for issue in now.items}


def without_paths(issues: LabelIssues) -> LabelIssues:
    return replace(issues, items=tuple(replace(one, path="", decision=None) for one in issues.items))


def write_audit(gallery: Gallery, out: Path) -> Path:
    """An audit of two members of a gallery."""
    source = Path(gallery.sources[1].root)
    images = [
        LabelIssue(
            id=number,
            path=str(source / name),
            sha256=hashlib.sha256((source / name).read_bytes()).hexdigest(),
            label=name.partition("/")[0],
            p_error=p_error,
            suggestions=(("blue", 0.8), ("green", 0.1)),
            p_none=0.05,
            verdict="change",
        )
        for number, (name, p_error) in enumerate({"red/wrong_0.png": 0.9, "blue/5.png": 0.01}.items())
    ]
    write_audit_tables(LabelIssues(tuple(images), checked=2, noise_rate=0.1), out, run=Path("run"))
    return out


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("path,label\na,b\n", "lacks the columns sha256, p_error, p_none, verdict"),
        ("path,sha256,label,p_error,p_none,verdict\na.png,x,red,much,0,keep\n", "'much', no number"),
    ],
)
def test_what_is_no_audit_is_told(tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "audit.csv").write_text(content)
    with pytest.raises(InputError, match=problem):
        read_issues(tmp_path / "audit.csv")


def test_labels_changed_in_a_table_become_decisions_of_an_audit(gallery: Path, tmp_path: Path) -> None:
    audit, table = write_audit(Gallery.open(gallery), tmp_path / "audit"), tmp_path / "labels.csv"
    assert main(["labels", "export", str(audit), str(table)]) == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert (rows[0]["label"], rows[0]["suggested"]) == ("red", "blue")
    with table.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows([{**rows[0], "new_label": "blue"}, *rows[1:]])
    assert main(["labels", "import", str(audit), str(table)]) == 0
    rows = list(csv.DictReader((audit / "decisions.csv").read_text().splitlines()))
    assert (rows[0]["decision"], rows[0]["new_label"]) == ("change", "blue")
    assert len(rows) == 1  # what stayed as it was nobody decided


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "file\nx\n", "expected the columns path or sha256, label"),
        ("a.csv", "path,label,decision\n/a,b,maybe\n", "line 2: the decision must be one of"),
    ],
)
def test_what_is_no_export_is_told(tmp_path: Path, name: str, content: str, problem: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=problem):
        match_decisions(tmp_path / name, [])


def test_a_csv_of_new_labels_is_matched_by_path(tmp_path: Path) -> None:
    subject, file = ImageRef(1, "0" * 64, "red", "/photos/1.png"), tmp_path / "new.csv"
    file.write_text("path,label\n/photos/1.png,blue\n/photos/2.png,blue\n")
    decisions, unknown = match_decisions(file, [subject])
    assert [(d.decision, d.new_label) for d in decisions] == [("change", "blue")]
    assert unknown == 1


@given(label=LABELS, other=LABELS)
def test_odd_names_of_labels_come_back_as_they_went(label: str, other: str) -> None:
    subject = ImageRef(1, "0" * 64, label, "/photos/a b.png")
    wrong = LabelIssue(1, label, 0.9, ((other, 0.9),), sha256=subject.sha256, path=subject.path)
    with tempfile.TemporaryDirectory() as name:
        table = Path(name) / "labels.csv"
        write_csv(table, list(COLUMNS), [list(describe_row(wrong).values())])
        assert match_decisions(table, [subject]) == ([], 0)
        write_csv(table, list(COLUMNS), [list((describe_row(wrong) | {"new_label": other}).values())])
        (found,) = match_decisions(table, [subject])[0]
    assert (found.decision, found.new_label) == (("keep", None) if label == other else ("change", other))


def test_decisions_that_hold_come_back_as_they_were(gallery: Path, tmp_path: Path) -> None:
    first, second, *_ = read_all_subjects(Gallery.open(gallery))
    store = ReviewStore.of_gallery(gallery)
    store.decide([first.decide("change", new_label="heron"), second.decide("drop", new_label=None)], by="anna")
    before = store.label_decisions()
    table = tmp_path / "labels.csv"
    assert main(["labels", "export", str(gallery), str(table)]) == 0
    assert main(["labels", "import", str(gallery), str(table)]) == 0
    assert store.label_decisions() == before
    assert all(one.is_look for one in before.values())
    store.close()
    changed = table.read_text().replace(",heron,", ",stork,")
    table.write_text(changed)
    assert main(["labels", "import", str(gallery), str(table)]) == 0
    again = ReviewStore.of_gallery(gallery).label_decisions()
    assert {one.new_label: one.source for one in again.values()} == {"stork": "import", None: "person"}
