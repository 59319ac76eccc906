"""Labels that may be wrong."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from index.gallery.gallery import Gallery
from index.labels.decisions import CHANGE, DROP, KEEP, LabelDecision
from index.labels.issues import LabelIssues
from index.writing.build import build_gallery, update_gallery
from retrieval_app.insights import background as background_module
from retrieval_app.insights.background import Insights
from retrieval_app.insights.label_issues import apply_decisions, find_label_issues
from retrieval_app.reports.duplicates_report import find_duplicate_groups
from tests.models import tiny_contract, write_three_output_model, write_tiny_model
from tests.retrieval_app.insights.conftest import MISLABELLED, draw_labelled


@pytest.fixture(scope="module")
def base(labelled: Gallery) -> LabelIssues:
    return find_label_issues(labelled)[0]


def test_planted_errors_rank_first(labelled: Gallery, base: LabelIssues, ids: dict[str, int]) -> None:
    first = {issue.id: issue for issue in base.items[: len(MISLABELLED)]}
    assert first.keys() == {ids[path] for path in MISLABELLED}
    for path, shown in MISLABELLED.items():
        issue = first[ids[path]]
        assert (issue.label, issue.suggested) == (path.partition("/")[0], shown)
        assert issue.p_error > 0.5
        assert {label for _, _, label in issue.disagreeing} == {shown}
        for other, score in issue.agreeing:
            assert labelled.image(other).label == issue.label
            assert score == pytest.approx(float(labelled.vector(other) @ labelled.vector(issue.id)), abs=1e-5)
        assert base.find(ids[path]) is issue
    assert base.find(ids["blue/3.png"]) is None
    assert base.checked == labelled.count
    assert set(base.pairs) == {("red", "blue", 1), ("green", "red", 1)}


def test_a_copy_does_not_vouch_for_its_like(build: Callable[[dict[str, str]], Gallery]) -> None:
    images = {f"red/{i}.png": "red" for i in range(8)} | {f"blue/{i}.png": "blue" for i in range(8)}
    gallery = build(images | {"blue/wrong.png": "red"})
    source = Path(gallery.sources[1].root)
    for number in range(3):
        (source / f"blue/copy_{number}.png").write_bytes((source / "blue/wrong.png").read_bytes())
    update_gallery(gallery.path)
    changed = Gallery.open(gallery.path)
    found, _ = find_label_issues(changed, duplicates=find_duplicate_groups(changed))
    assert {changed.image(issue.id).path for issue in found.items[:4]} == {
        "blue/wrong.png",
        "blue/copy_0.png",
        "blue/copy_1.png",
        "blue/copy_2.png",
    }
    assert all(issue.suggested == "red" and issue.p_error > 0.5 for issue in found.items[:4])
    group = {issue.id for issue in found.items[:4]}
    assert all(other not in group for issue in found.items[:4] for other, _ in issue.agreeing)


def test_images_without_a_label_get_proposals_until_somebody_decides(
    build: Callable[[dict[str, str]], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {"0.png": "red", "1.png": "blue", "2.png": "green"}
    labelled = {f"{name}/{i}.png": name for name in ("red", "blue", "green") for i in range(8)}
    gallery = build(labelled | shown)
    found, _ = find_label_issues(gallery)
    proposals = {gallery.image(issue.id).path: issue for issue in found.items if issue.kind == "unlabelled"}
    assert {path: issue.suggested for path, issue in proposals.items()} == shown
    assert found.errors == tuple(issue for issue in found.items if issue.label is not None)
    assert found.checked == len(labelled)
    for issue in proposals.values():
        assert (issue.verdict, issue.label) == ("change", None)
        assert issue.p_error == issue.suggestions[0][1] > 0.5
        assert {gallery.image(near).label for near, _ in issue.agreeing} == {issue.suggested}
    choices = (("0.png", CHANGE, "red"), ("1.png", DROP, None))
    keys = {path: proposals[path].key for path, *_ in choices}
    decided = {keys[path]: LabelDecision(*keys[path], decision, label) for path, decision, label in choices}
    duplicates = find_duplicate_groups(gallery)
    now, _ = apply_decisions(gallery, decided, base=found, before=None, duplicates=duplicates)
    assert {issue.id for issue in now.items if issue.kind == "unlabelled"} == {one.id for one in proposals.values()}
    assert now.noise_rate <= found.noise_rate
    monkeypatch.setattr("index.labels.list_issues._MOST_PROPOSALS", 1)
    [best] = [
        issue for issue in find_label_issues(gallery, duplicates=duplicates)[0].items if issue.kind == "unlabelled"
    ]
    assert best.p_error == max(one.p_error for one in proposals.values())


@pytest.mark.parametrize("is_free", [True, False])
def test_labels_are_judged_by_untrained_vectors_or_as_a_lower_bound(tmp_path: Path, *, is_free: bool) -> None:
    model = tmp_path / "model.onnx"
    if is_free:
        write_three_output_model(model)
    else:
        write_tiny_model(model, contract=replace(tiny_contract(), method="spa").to_json())
    build_gallery(model_path=model, sources=[draw_labelled(tmp_path / "images")], out=tmp_path / "gallery")
    gallery = Gallery.open(tmp_path / "gallery")
    found, _ = find_label_issues(gallery)
    assert found.is_lower_bound is not is_free
    judging = gallery.view("untrained" if is_free else "semantic")
    for issue in found.items:
        for other, score in issue.agreeing:
            assert score == pytest.approx(float(judging.vector(other) @ judging.vector(issue.id)), abs=1e-5)
    assert found.items[0].agreeing


Update = Callable[..., tuple[LabelIssues, int]]
Decide = Callable[..., LabelDecision]
WRONG, SHOWN = next(iter(MISLABELLED.items()))


@pytest.fixture
def update(labelled: Gallery) -> Iterator[Update]:
    """Updates the list with decisions; gives it and the number of decisions in it."""
    insights = Insights(labelled, cache=None)
    insights.wait("label_issues", timeout=60)

    def apply(*decisions: LabelDecision) -> tuple[LabelIssues, int]:
        holding = {decision.key: decision for decision in decisions}

        insights.update_issues(holding)
        assert insights.wait("updated_issues", timeout=60).state == "ready"
        updated = insights.update_issues(holding)
        assert insights.label_issues.value == updated
        return updated, updated.decisions

    yield apply
    insights.close()


@pytest.fixture
def decide(labelled: Gallery, ids: dict[str, int]) -> Decide:
    def make(path: str, decision: str, new_label: str | None = None) -> LabelDecision:
        row = labelled.rows([ids[path]])[0]
        return LabelDecision(row.sha256 or "", row.label, decision, new_label, image_id=row.id)

    return make


def test_the_rest_is_ranked_anew(update: Update, decide: Decide, base: LabelIssues, ids: dict[str, int]) -> None:
    issues, decisions = update(decide(WRONG, CHANGE, SHOWN))
    assert decisions == 1
    assert issues.find(ids[WRONG]) == base.find(ids[WRONG])
    assert issues.checked == base.checked
    assert issues.as_predicted == (1, 1)
    other = next(path for path in MISLABELLED if path != WRONG)
    found = issues.find(ids[other])
    assert found.suggested == MISLABELLED[other]


def test_what_people_find_recalibrates_the_others(labelled: Gallery, decide: Decide) -> None:
    duplicates, (first, *_) = find_duplicate_groups(labelled), MISLABELLED
    base, before = find_label_issues(labelled, duplicates=duplicates)

    def learn(decision: LabelDecision) -> LabelIssues:
        known = {decision.key: decision}
        return apply_decisions(labelled, known, base=base, before=before, duplicates=duplicates)[0]

    refuted, confirmed = learn(decide(first, KEEP)), learn(decide(first, CHANGE, MISLABELLED[first]))
    assert (refuted.as_predicted, confirmed.as_predicted) == ((0, 1), (1, 1))
    assert refuted.open_share[0] < confirmed.open_share[0]


def test_a_new_label_is_suggested(update: Update, decide: Decide, base: LabelIssues, ids: dict[str, int]) -> None:
    """Of twelve green images in their folder eleven are called `leaf`: the twelfth is one too."""
    green = sorted(path for path in ids if path.startswith("green/") and path not in MISLABELLED)
    assert all(base.find(ids[path]) is None for path in green)
    issues, _ = update(*(decide(path, CHANGE, "leaf") for path in green[1:]))
    found = issues.find(ids[green[0]])
    assert found.suggested == "leaf"


def _updated_once(labelled: Gallery, decide: Decide) -> tuple[Insights, dict[Any, LabelDecision]]:
    """Results that have taken one decision up, and two decisions, of which this is the first."""
    insights = Insights(labelled, cache=None)
    insights.wait("label_issues", timeout=60)
    first = {(decision := decide(WRONG, KEEP)).key: decision}
    insights.update_issues(first)
    assert insights.wait("updated_issues", timeout=60).state == "ready"
    return insights, {**first, ("0" * 64, "red"): decision}


def test_it_rests_longer_than_it_took(labelled: Gallery, decide: Decide, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    def apply_slowly(*args: Any, **options: Any) -> Any:
        now[0] += 10
        return apply_decisions(*args, **options)

    monkeypatch.setattr(background_module.label_issues, "apply_decisions", apply_slowly)
    monkeypatch.setattr(background_module, "monotonic", lambda: now[0])
    insights, second = _updated_once(labelled, decide)
    for later, decisions_used in ((39, 1), (1, 2)):
        now[0] += later
        insights.update_issues(second)
        assert insights.wait("updated_issues", timeout=60).state == "ready"
        updated = insights.update_issues(second)
        assert updated.decisions == decisions_used
    insights.close()


def test_a_failed_update_is_tried_again(labelled: Gallery, decide: Decide, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(background_module, "monotonic", lambda: now[0])
    insights, second = _updated_once(labelled, decide)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("a disk that fails")

    with monkeypatch.context() as broken:
        broken.setattr(background_module.label_issues, "apply_decisions", fail)
        now[0] += 1
        insights.update_issues(second)
        assert insights.wait("updated_issues", timeout=60).state == "failed"
    kept = insights.update_issues(second)
    assert (kept is not None and kept.decisions, insights.is_updating(second)) == (1, True)
    now[0] += background_module.RETRY_S
    insights.update_issues(second)
    assert insights.wait("updated_issues", timeout=60).state == "ready"
    updated = insights.update_issues(second)
    assert (updated is not None and updated.decisions, insights.is_updating(second)) == (2, False)
    insights.close()
