import os
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.catalog.decided_rows import DROPPED
from index.catalog.reader import count_values
from index.errors import GalleryError, InputError
from index.filters.parser import parse_filter
from index.gallery.gallery import Gallery
from index.gallery.verify import verify_gallery
from index.labels.decisions import PRESENT, LabelDecision, Mark
from index.labels.steps import read_label_effects
from index.public import evaluate
from index.versions.annotations import decisions_file
from index.writing.build import update_gallery
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import draw_folder, draw_image
from tests.index.galleries import build


@pytest.fixture
def built(tmp_path: Path, tiny_model: Path) -> Path:
    """Fifteen images of three classes, with prices."""
    draw_folder(tmp_path / "images")
    build(tmp_path / "images", tmp_path / "gallery", tiny_model)
    return tmp_path / "gallery"


@pytest.fixture
def store(built: Path) -> Iterator[ReviewStore]:
    store = ReviewStore.of_gallery(built)
    yield store
    store.close()


def decide(store: ReviewStore, gallery: Gallery, image_id: int, decision: str, label: str | None = None) -> int:
    (row,) = gallery.without_decisions.rows([image_id])
    return store.decide([LabelDecision(row.sha256 or "", row.label, decision, label)]).number


def test_a_changed_label_counts_everywhere_until_it_is_undone(built: Path, store: ReviewStore) -> None:
    before = Gallery.open(built)
    first = before.image(1)
    assert before.read_decisions() is before
    (row,) = before.rows([1])
    store.decide([LabelDecision(row.sha256 or "", "another", "drop")])  # of a copy in another class
    assert not before.read_decisions().decided
    decide(store, before, 1, "change", "heron")
    gallery = before.read_decisions()

    assert before.image(1).label == first.label  # an opened gallery stays as it is
    (hit,) = gallery.search(gallery.vector(1), k=1)
    assert (hit.id, hit.label, hit.given_label) == (1, "heron", first.label)
    assert hit.to_json()["given_label"] == first.label
    assert (gallery.image(1).label, gallery.image(2).given_label) == ("heron", gallery.image(2).label)
    assert gallery.matching_ids(parse_filter("label = 'heron'")).tolist() == [1]
    assert gallery.matching_ids(parse_filter(f"label = '{first.label}'")).tolist() == [2, 3, 4, 5]
    assert gallery.matching_ids(parse_filter("label LIKE 'her%' OR id = 7")).tolist() == [1, 7]
    with gallery.catalog() as catalog:
        assert count_values(catalog, None, columns=[]).labels["heron"] == 1
        assert count_values(catalog, parse_filter("label = 'heron'"), columns=[]).total == 1
    assert evaluate(gallery, k=(1,)).scores.queries == 14  # the heron is alone
    assert [gallery.image(number).former_label for number in (1, 2)] == [first.label, None]

    store.undo()
    undone = gallery.read_decisions()
    assert (undone.image(1), undone.decided.digest) == (first, "")
    with pytest.raises(InputError, match="no item of the gallery has the label heron"):
        undone.matching_ids(parse_filter("label = 'heron'"))


def test_a_dropped_image_leaves_results_and_comes_back(built: Path, store: ReviewStore) -> None:
    whole = Gallery.open(built)
    nearest = [hit.id for hit in whole.search(whole.vector(1), k=15)]
    for image_id in nearest[:6]:
        decide(store, whole, image_id, "drop")
    gallery = Gallery.open(built)
    found = [hit.id for hit in gallery.search(whole.vector(1), k=5)]
    assert found == nearest[6:11]  # k, though the first six left
    assert [hit.id for hit in gallery.search(gallery.vector(1), k=None, min_score=-1)] == nearest[6:]
    assert gallery.search(gallery.vector(1), k=5, where="id > 0") == gallery.search(whole.vector(1), k=5)
    assert gallery.ids.tolist() == sorted(nearest[6:])
    assert gallery.image(1).label == whole.image(1).label
    assert gallery.place(1) == whole.place(1)
    vectors, labels, ids, _ = gallery.labelled_vectors()
    assert len(vectors) == len(labels) == len(ids) == 9
    with gallery.catalog() as catalog:
        assert [row.id for row in catalog.rows(status="dropped")] == sorted(nearest[:6])
    assert verify_gallery(built, sample=0).problems == []
    decide(store, gallery, nearest[0], "open")
    assert gallery.read_decisions().search(whole.vector(1), k=1)[0].id == nearest[0]


def test_tags_and_splits_count_in_filters_and_rows_and_leave_labels_alone(built: Path, store: ReviewStore) -> None:
    before = Gallery.open(built)
    rows = before.rows([1, 2, 3])
    decide(store, before, 3, "drop")
    sha256s = [row.sha256 or "" for row in rows]
    store.decide([Mark(one, "tag:keep", PRESENT) for one in sha256s] + [Mark(sha256s[0], "tag:a", PRESENT)])
    store.decide([Mark(sha256s[1], "split", "test")])
    gallery = before.read_decisions()

    assert [row.tags for row in gallery.rows([1, 2, 4])] == [("a", "keep"), ("keep",), ()]
    assert gallery.image(2).metadata == {**rows[1].metadata, "split": "test"}
    for text, ids in [
        ("tag = 'keep'", [1, 2]),  # the third is dropped
        ("tag = 'keep' AND split = 'test'", [2]),
        ("tag IS NOT NULL AND split IS NULL", [1]),
        ("tag != 'keep' AND id < 6", [4, 5]),
        ("split LIKE 't%' OR label = 'x' OR id = 7".replace("x", before.image(1).label or ""), [1, 2, 4, 5, 7]),
    ]:
        assert gallery.matching_ids(parse_filter(text)).tolist() == ids, text
    with gallery.catalog() as catalog:
        counts = count_values(catalog, parse_filter("id < 5"), columns=["split"])
        assert [row.tags for row in catalog.rows(where=parse_filter("tag = 'a'"))] == [("a", "keep")]
    assert (counts.tags, counts.metadata["split"]) == ({"a": 1, "keep": 2, None: 1}, {("text", "test"): 1})
    with pytest.raises(InputError, match="no item of the gallery has the tag kepe; there are a, keep; did you mean ke"):
        gallery.matching_ids(parse_filter("tag = 'kepe'"))
    assert gallery.decided.digest == before.read_decisions().decided.digest

    decide(store, gallery, 5, "drop")  # marks are not read again
    assert gallery.read_decisions().decided.marked is gallery.decided.marked
    store.undo(about="marks")
    store.undo(about="marks")
    undone = gallery.read_decisions()
    assert (undone.image(1), undone.image(2)) == (rows[0], rows[1])
    with pytest.raises(InputError, match="no item of the gallery has the tag keep; there are no tags"):
        undone.matching_ids(parse_filter("tag = 'keep'"))


def test_an_update_keeps_decisions_on_the_same_image(built: Path, store: ReviewStore, tmp_path: Path) -> None:
    gallery = Gallery.open(built)
    decide(store, gallery, 1, "change", "heron")
    decide(store, gallery, 2, "drop")
    place = gallery.place(1).file
    draw_image((9, 9, 9), seed=99).save(place.parent / "new.png")
    place.rename(place.parent / "moved.png")
    update_gallery(built)
    updated = Gallery.open(built)
    assert updated.version != gallery.version
    assert updated.count == 15
    with updated.without_decisions.catalog() as catalog:
        assert next(catalog.rows_of([1])).label == gallery.image(2).label
    assert updated.image(1).label == "heron"
    assert 2 not in updated.ids


def test_every_decision_is_read_once_whatever_the_time_of_its_file(built: Path, store: ReviewStore) -> None:
    gallery = Gallery.open(built)
    for label, day in [("heron", 4e9), ("egret", 4e9), ("crane", 1e9), ("stork", 1e9)]:  # the year 2096; 2001
        decide(store, gallery, 1, "change", label)
        os.utime(decisions_file(built), (day, day))
        assert not gallery.has_newest_decisions()
        gallery = gallery.read_decisions()
        assert gallery.image(1).label == label
        assert gallery.has_newest_decisions()


def test_annotations_read_step_by_step_are_those_that_are_read_at_once(built: Path, store: ReviewStore) -> None:
    gallery = Gallery.open(built)
    rows = gallery.rows([1, 2, 3])
    label = partial(decide, store, gallery)
    steps: list[Callable[[], object]] = [
        partial(label, 1, "change", "heron"),
        partial(label, 2, "drop"),
        partial(store.decide, [Mark(rows[2].sha256 or "", "split", "test")]),
        partial(label, 1, "keep"),
        store.undo,
        partial(label, 2, "open"),
        partial(label, 1, "drop"),
        store.undo,
        store.undo,
        partial(label, 3, "change", "stork"),
        partial(store.undo, about="marks"),
    ]
    for step in steps:
        step()
        gallery, anew = gallery.read_decisions(), Gallery.open(built)
        assert (gallery.decided.by_id, gallery.decided.marked) == (anew.decided.by_id, anew.decided.marked)
        assert gallery.has_newest_decisions()
    assert {number: one.left_out for number, one in gallery.decided.by_id.items()} == {1: None, 2: DROPPED, 3: None}


def test_a_decision_reads_no_earlier_ones(built: Path, store: ReviewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = Gallery.open(built)
    decide(store, gallery, 1, "drop")
    gallery, read = gallery.read_decisions(), list[int]()

    def count(connection: sqlite3.Connection, since: int) -> list[Any]:
        found = list(read_label_effects(connection, since))
        read.append(len(found))
        return found

    monkeypatch.setattr("index.labels.decided_labels.read_label_effects", count)
    decide(store, gallery, 2, "drop")
    gallery = gallery.read_decisions()
    store.decide([Mark(gallery.image(3).sha256 or "", "split", "test")])
    gallery = gallery.read_decisions()
    assert (read, gallery.decided.left_out.tolist()) == ([1], [1, 2])
    store.undo()
    assert (gallery.read_decisions().decided.left_out.tolist(), read) == ([1], [1])


@pytest.mark.parametrize("damage", ["noise", "foreign", "newer"])
def test_damaged_decisions_are_one_clear_error(built: Path, damage: str) -> None:
    path = decisions_file(built)
    path.parent.mkdir(exist_ok=True)
    if damage == "noise":
        path.write_bytes(np.random.default_rng(0).bytes(9000))
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE steps (n)")
            connection.execute(f"PRAGMA user_version = {1 if damage == 'foreign' else 9}")
        connection.close()
    advice = {
        "noise": "put an intact copy",
        "foreign": "made by a pre-release; keep the file",
        "newer": "keep it, and use",
    }
    with pytest.raises(GalleryError, match=r"review\.sqlite: the label decisions cannot be read: .*; ") as caught:
        Gallery.open(built)
    assert advice[damage] in str(caught.value)
    assert ("move it away" in str(caught.value)) == (damage == "noise")


@pytest.mark.parametrize(
    ("details", "advice"),
    [
        ('{"sha256": "', "put an intact copy"),
        ('{"label": "red", "decision": "drop"}', "a decision has no image"),
        ('{"sha256": "00", "label": "red", "decision": "maybe"}', "the decision must be one of"),
        ('{"sha256": "00", "label": "red", "decision": "change"}', "has no new one"),
    ],
)
def test_a_damaged_decision_is_one_clear_error(built: Path, store: ReviewStore, details: str, advice: str) -> None:
    decide(store, Gallery.open(built), 1, "drop")
    store.close()
    with sqlite3.connect(decisions_file(built)) as connection:
        connection.execute("UPDATE decisions SET details = ?", (details,))
    connection.close()
    with pytest.raises(GalleryError, match=f"the label decisions cannot be read: .*{advice}"):
        Gallery.open(built)


def test_what_is_read_incrementally_is_what_is_read_at_once(built: Path, store: ReviewStore) -> None:
    random = np.random.default_rng(0)
    gallery = snapshot = Gallery.open(built)
    for number in range(60):
        if number % 3 == 2:
            store.undo()
        else:
            some = random.choice(np.arange(1, 16), size=random.integers(1, 4), replace=False).tolist()
            kind = ("change", "drop", "set_aside", "open", "keep")[random.integers(5)]
            rows = gallery.without_decisions.rows(some)
            store.decide(
                [
                    LabelDecision(row.sha256 or "", row.label, kind, "heron" if kind == "change" else None)
                    for row in rows
                ]
            )
        gallery = (snapshot if number % 7 == 6 else gallery).read_decisions()
        assert gallery.decided == Gallery.open(built).decided
        snapshot = gallery if number % 10 == 0 else snapshot
