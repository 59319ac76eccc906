"""What people decide teaches the judge of labels, in a thread beside the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from index.errors import GalleryError
from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DROP, KEEP, LabelDecision, LabelKey
from index.labels.doubts import Doubts
from retrieval_app.insights.background import Insights
from retrieval_app.insights.duplicate_groups import find_duplicate_groups
from retrieval_app.insights.gallery_doubts import find_doubts
from retrieval_app.insights.learning import Learning
from tests.retrieval_app.insights.conftest import MISLABELLED

WRONG, SHOWN = next(iter(MISLABELLED.items()))


@pytest.fixture(scope="module")
def base(labelled: Gallery) -> Doubts:
    """The doubts before anybody has decided."""
    return find_doubts(labelled)


@pytest.fixture
def learning(labelled: Gallery) -> Iterator[Learning]:
    """That of the labelled gallery, which never rests."""
    made = Learning(labelled, rest=0)
    yield made
    made.close()
    made.wait()


@pytest.fixture
def learn(
    learning: Learning, base: Doubts, labelled: Gallery, ids: dict[str, int]
) -> Callable[..., tuple[Doubts, int]]:
    """Learns from decisions, and gives the list then, and the number of decisions that it has learnt from."""

    def learn_from(*decisions: LabelDecision) -> tuple[Doubts, int]:
        holding = {decision.key: decision for decision in decisions}
        groups = partial(find_duplicate_groups, labelled)

        def find() -> Mapping[int, LabelKey]:
            keys = {row.id: (row.sha256 or "", row.label) for row in labelled.rows(ids.values())}
            return {number: key for number, key in keys.items() if key in holding}

        learning.after(base, holding, find_ids=find, duplicates=groups)
        learning.wait(timeout=60)
        learnt = learning.after(base, holding, find_ids=find, duplicates=groups)
        return learnt.doubts, learnt.decisions

    return learn_from


@pytest.fixture
def decide(labelled: Gallery, ids: dict[str, int]) -> Callable[..., LabelDecision]:
    """A decision about the image of a path."""

    def make(path: str, decision: str, new_label: str | None = None) -> LabelDecision:
        row = labelled.rows([ids[path]])[0]
        return LabelDecision(row.sha256 or "", row.label, decision, new_label, image_id=row.id)

    return make


Learn = Callable[..., tuple[Doubts, int]]
Decide = Callable[..., LabelDecision]


def test_the_rest_is_ranked_anew(learn: Learn, decide: Decide, base: Doubts, ids: dict[str, int]) -> None:
    doubts, decisions = learn(decide(WRONG, CHANGE, SHOWN))
    assert decisions == 1
    assert doubts.find(ids[WRONG]) == base.find(ids[WRONG])
    assert (doubts.judged, doubts.wrong_share) == (base.judged, pytest.approx(base.wrong_share))
    other = next(path for path in MISLABELLED if path != WRONG)
    found = doubts.find(ids[other])
    assert found is not None
    assert found.suggested == MISLABELLED[other]


def test_a_new_label_is_suggested(learn: Learn, decide: Decide, base: Doubts, ids: dict[str, int]) -> None:
    """Of twelve green pictures in their folder eleven are called `leaf`: the twelfth is one too."""
    green = sorted(path for path in ids if path.startswith("green/") and path not in MISLABELLED)
    assert all(base.find(ids[path]) is None for path in green)
    doubts, _ = learn(*(decide(path, CHANGE, "leaf") for path in green[1:]))
    found = doubts.find(ids[green[0]])
    assert found is not None
    assert found.suggested == "leaf"


def test_what_was_dropped_says_nothing_more(learn: Learn, decide: Decide, ids: dict[str, int]) -> None:
    blue = [path for path in ids if path.startswith("blue/")]
    doubts, decisions = learn(*(decide(path, DROP) for path in blue))
    assert decisions == len(blue) - 1  # of which two are one file
    named = {
        other for doubt in doubts.items for other, _ in doubt.suggestions if doubt.id not in map(ids.get, blue)
    }
    assert "blue" not in named


def test_it_rests_longer_than_it_took(labelled: Gallery, base: Doubts, decide: Decide) -> None:
    learning = Learning(labelled, rest=1e9)
    first = {(decision := decide(WRONG, KEEP)).key: decision}
    learning.after(base, first, find_ids=dict, duplicates=partial(find_duplicate_groups, labelled))
    learning.wait(timeout=60)
    second = {key: replace(decision, decision=DROP) for key, decision in first.items()} | {
        ("0" * 64, "red"): decision
    }
    learning.after(base, second, find_ids=dict, duplicates=partial(find_duplicate_groups, labelled))
    learning.wait(timeout=60)
    assert learning.latest(base).decisions == 1


def test_failures_are_logged(
    labelled: Gallery, base: Doubts, decide: Decide, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise GalleryError("gallery", "the catalogue is damaged")

    learning = Learning(labelled)
    decision = decide(WRONG, KEEP)
    learning.after(base, {decision.key: decision}, find_ids=dict, duplicates=fail)
    learning.wait(timeout=60)
    assert learning.latest(base).doubts is base
    assert "not ranked anew: gallery: the catalogue is damaged" in caplog.text


def test_an_audit_judges_by_what_the_gallery_does_not_have_and_learns_nothing(
    labelled: Gallery, ids: dict[str, int], decide: Decide, tmp_path: Path
) -> None:
    (tmp_path / "audit.csv").write_text("path,sha256,label,wrong,verdict\n", encoding="utf-8")
    insights = Insights(labelled, cache=None, audit=tmp_path)
    base = insights.wait("doubts").value
    decision = decide(WRONG, KEEP)
    learnt = insights.learn({decision.key: decision}, find_ids=dict)
    insights.close()
    assert learnt is not None
    assert (learnt.doubts, learnt.decisions) == (base, 0)
