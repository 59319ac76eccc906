"""The doubts of a finished audit."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from index.errors import InputError
from index.gallery.gallery import Gallery
from retrieval_app.insights.background import Insights
from retrieval_app.insights.gallery_doubts import read_audit
from training.audit.audit_files import write_audit_tables
from training.audit.report import AuditedImage, AuditReport, Neighbour


def write_audit(gallery: Gallery, out: Path) -> Path:
    """An audit of five members, of an image that is none, and of one whose label has changed since."""
    source = Path(gallery.sources[1].root)
    names = ["red/wrong_0.png", "blue/3.png", "blue/5.png", "red/1.png", "green/3.png"]
    contents = [(source / name, (source / name).read_bytes(), name.partition("/")[0]) for name in names]
    contents += [
        (Path("/gone.png"), b"gone", "red"),
        (source / "red/3.png", (source / "red/3.png").read_bytes(), "x"),
    ]
    images = [
        AuditedImage(
            path=path,
            sha256=hashlib.sha256(data).hexdigest(),
            label=label,
            wrong=0.9 if number == 0 else 0.2 if number == 1 else 0.01,
            confidence=0.1,
            suggestions=(("blue", 0.8), ("red", 0.1), ("green", 0.1)),
            verdict="change",
            new_label="blue",
            agreeing=(Neighbour(5, 0.95), Neighbour(3, 0.5)),
            disagreeing=(Neighbour(1, 0.99), Neighbour(2, 0.98)),
            duplicate_of=None,
        )
        for number, (path, data, label) in enumerate(contents)
    ]
    write_audit_tables(AuditReport(Path("run"), tuple(images), (), (), noise_rate=0.1), out)
    return out


def test_an_audit_is_read_as_label_issues(labelled: Gallery, ids: dict[str, int], tmp_path: Path) -> None:
    doubts = read_audit(write_audit(labelled, tmp_path / "audit"), labelled)
    assert [doubt.id for doubt in doubts.items] == [ids["red/wrong_0.png"], ids["blue/3.png"]]
    first = doubts.items[0]
    assert (first.label, first.wrong, first.suggested) == ("red", 0.9, "blue")
    assert first.suggestions == (("blue", 0.8), ("green", 0.1))
    assert first.agreeing == ((ids["red/1.png"], 0.5),)  # the nearest is no member
    assert first.disagreeing == ((ids["blue/3.png"], 0.99, "blue"), (ids["blue/5.png"], 0.98, "blue"))
    assert doubts.judged == 5
    assert doubts.wrong_share == pytest.approx((0.9 + 0.2 + 3 * 0.01) / 5)
    assert doubts.pairs == (("red", "blue", 1),)
    assert doubts == read_audit(tmp_path / "audit" / "audit.csv", labelled)


def test_the_audit_takes_the_place_of_the_gallerys_own_doubts(labelled: Gallery, tmp_path: Path) -> None:
    asked = Insights(labelled, cache=tmp_path / "cache", audit=write_audit(labelled, tmp_path / "audit"))
    assert asked.wait("doubts", timeout=60).value == read_audit(tmp_path / "audit", labelled)
    assert not list((tmp_path / "cache").rglob("doubts.json"))
    asked.close()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("path,label\na,b\n", "lacks the columns sha256, wrong, verdict"),
        ("path,sha256,label,wrong,verdict\n{path},{sha256},red,much,keep\n", "'much', no number"),
    ],
)
def test_what_is_no_audit_is_told(labelled: Gallery, tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        data = (Path(labelled.sources[1].root) / "red/1.png").read_bytes()
        filled = content.format(path="a.png", sha256=hashlib.sha256(data).hexdigest())
        (tmp_path / "audit.csv").write_text(filled)
    with pytest.raises(InputError, match=problem):
        read_audit(tmp_path / "audit.csv", labelled)
