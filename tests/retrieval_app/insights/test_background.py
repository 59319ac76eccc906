"""Work beside the server: begun when asked for, one after the other, kept on disk, and stopped."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.arrays import UNLABELLED
from index.errors import InputError
from index.gallery.gallery import Gallery
from index.labels.decisions import LabelDecision
from index.progress import Progress
from retrieval_app.insights import background as background_module
from retrieval_app.insights import label_issues as issues_module
from retrieval_app.insights import map_layout as map_module
from retrieval_app.insights import quality as quality_module
from retrieval_app.insights.background import RETRY_S, Computed, Insights, Name
from retrieval_app.reports import duplicates_report as groups_module
from retrieval_app.reports.duplicates_report import DuplicateReport, find_duplicate_groups

_PATIENCE = 60.0  # seconds
NAMES: tuple[Name, ...] = ("calibration", "duplicates", "label_issues", "quality", "map")


@pytest.fixture
def insights(labelled: Gallery, tmp_path: Path) -> Iterator[Insights]:
    made = Insights(labelled, cache=tmp_path)
    yield made
    made.close()


class Held:
    """Stands in for a computation: reports its progress and waits until it is let go."""

    def __init__(self, result: Any) -> None:
        self.begun, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.runs = 0
        self._result = result

    def __call__(self, gallery: Gallery, progress: Progress, **_: Any) -> Any:
        self.runs += 1
        progress(1, 4)
        self.begun.set()
        try:
            assert self.go_on.wait(_PATIENCE)
            progress(2, 4)
        finally:
            self.ended.set()
        return self._result


def test_results_stay(labelled: Gallery, insights: Insights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: insights.wait(name, timeout=_PATIENCE) for name in NAMES}
    assert {name: computed.state for name, computed in found.items()} == dict.fromkeys(NAMES, "ready")
    assert found["duplicates"].value == find_duplicate_groups(labelled)
    kept = {path.name for path in (tmp_path / labelled.version).iterdir()}
    assert kept == {"duplicates.json", "label_issues.json", "map.json", "quality.json"}
    again = Insights(labelled, cache=tmp_path)
    for module, name in (
        (groups_module, "find_duplicate_groups"),
        (issues_module, "find_label_issues"),
        (quality_module, "assess_quality"),
        (map_module, "lay_out"),
    ):
        monkeypatch.setattr(module, name, fail_expectedly)
    assert again.wait("label_issues", timeout=_PATIENCE).value == found["label_issues"].value
    assert again.duplicates.value is not None  # at once: accepting verdicts needs them
    for name in ("duplicates", "quality"):
        assert again.wait(name, timeout=_PATIENCE).value == found[name].value
    first, second = found["map"].value, again.wait("map", timeout=_PATIENCE).value
    assert first == second
    again.close()


def test_damaged_results_made_again(labelled: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def count(gallery: Gallery, progress: Progress) -> DuplicateReport:
        runs.append(gallery)
        return find_duplicate_groups(gallery, progress)

    monkeypatch.setattr(groups_module, "find_duplicate_groups", count)

    def ask() -> None:
        asked = Insights(labelled, cache=tmp_path)
        assert asked.wait("duplicates", timeout=_PATIENCE).state == "ready"
        asked.close()

    path = tmp_path / labelled.version / "duplicates.json"
    ask()
    ask()
    assert len(runs) == 1
    sound = path.read_bytes()
    for damaged in (sound[:-5], b"", b"{}\n{}", b"\xff\n" + sound, sound.replace(b'"of": "', b'"of": "0', 1)):
        path.write_bytes(damaged)
        ask()
        assert path.read_bytes() == sound
    assert len(runs) == 6


def test_the_first_call_begins(labelled: Gallery, insights: Insights, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(find_duplicate_groups(labelled))
    monkeypatch.setattr(groups_module, "find_duplicate_groups", held)
    assert insights.duplicates.state == "computing"
    assert held.begun.wait(_PATIENCE)
    assert insights.duplicates == Computed("computing", done=1, total=4)
    assert insights.quality == Computed("computing", done=1, total=4, behind="duplicates")
    held.go_on.set()
    assert insights.wait("quality", timeout=_PATIENCE).state == "ready"
    assert insights.duplicates.state == "ready"
    assert insights.duplicates.value is not None
    assert held.runs == 1


def fail_expectedly(*_: Any, **__: Any) -> None:
    raise InputError("there is nothing to see; look elsewhere")


def test_failures_are_retried_later(labelled: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(background_module, "monotonic", lambda: now[0])
    with monkeypatch.context() as broken:
        broken.setattr(groups_module, "find_duplicate_groups", fail_expectedly)
        asked = Insights(labelled, cache=None)
        assert asked.wait("duplicates", timeout=_PATIENCE).state == "failed"
    now[0] += RETRY_S - 1
    assert asked.duplicates.state == "failed"  # what cannot succeed is not tried at every call
    now[0] += 1
    assert asked.duplicates.state == "computing"
    assert asked.wait("duplicates", timeout=_PATIENCE).state == "ready"
    asked.close()


def test_a_program_error_leaves_nobody_waiting(
    insights: Insights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quality_module, "assess_quality", lambda *_, **__: 1 // 0)
    insights.get("quality")
    insights.get("duplicates")
    failed = insights.wait("quality", timeout=_PATIENCE)
    assert (failed.state, failed.message is not None and "mistake" in failed.message) == ("failed", True)
    assert "ZeroDivisionError" in caplog.text  # with where it happened
    assert insights.wait("duplicates", timeout=_PATIENCE).state == "ready"


def test_closing_stops_the_work(labelled: Gallery, insights: Insights, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(find_duplicate_groups(labelled))
    monkeypatch.setattr(groups_module, "find_duplicate_groups", held)
    insights.get("duplicates")
    insights.get("quality")
    assert held.begun.wait(_PATIENCE)
    insights.close()
    held.go_on.set()
    assert held.ended.wait(_PATIENCE)
    for name in ("duplicates", "quality", "map"):
        assert insights.wait(name, timeout=_PATIENCE).state == "failed"


def test_a_decision_undone_before_the_update_stops_nothing(labelled: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    insights, held = Insights(labelled, cache=None), Held("a map")
    assert insights.wait("label_issues", timeout=_PATIENCE).state == "ready"
    monkeypatch.setattr(map_module, "lay_out", held)
    insights.get("map")
    assert held.begun.wait(_PATIENCE)
    decision = LabelDecision("a" * 64, "red", "drop")
    insights.update_issues({decision.key: decision})
    assert insights.is_updating({decision.key: decision})
    insights.update_issues({})
    assert not insights.is_updating({})
    held.go_on.set()
    found = insights.wait("map", timeout=_PATIENCE)
    insights.close()
    assert (found.state, found.value) == ("ready", "a map")


def test_a_cache_is_optional(labelled: Gallery, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    for cache in (None, tmp_path / "file"):
        asked = Insights(labelled, cache=cache)
        assert asked.wait("duplicates", timeout=_PATIENCE).state == "ready"
        asked.close()
    assert "not kept" in caplog.text


def test_folders_of_old_versions_are_removed(build: Callable[[dict[str, str]], Gallery], tmp_path: Path) -> None:
    gallery, cache = build({"a/1.png": "red"}), tmp_path / "cache"
    gallery.version = "000007"
    for name in ("000004", "000006", "000009", "mine"):
        (cache / name).mkdir(parents=True)
    asked = Insights(gallery, cache=cache)
    asked.wait("quality", timeout=_PATIENCE)
    asked.close()
    assert sorted(path.name for path in cache.glob("[!.]*")) == ["000006", "000007", "000009", "mine"]


def test_a_gallery_with_next_to_nothing_has_it_all(unusual: Gallery) -> None:
    asked = Insights(unusual, cache=None)
    found = {name: asked.wait(name, timeout=_PATIENCE) for name in NAMES}
    asked.close()
    assert {one.state for one in found.values()} == {"ready"}
    assert found["calibration"].value is None
    assert found["duplicates"].value.groups == ()
    issues, quality = found["label_issues"].value, found["quality"].value
    assert 0 <= issues.noise_rate <= 1
    assert len(issues.items) <= issues.checked <= 2
    assert (quality.problem is None) == (quality.map_at_r is not None)
    json.dumps(quality.model_dump(), allow_nan=False)
    if quality.map_at_r is not None:
        assert quality.queries + quality.lone == (unusual.labelled_vectors()[1] != UNLABELLED).sum()


def test_members_of_a_colour_lie_together_and_the_map_is_the_same_again(labelled: Gallery) -> None:
    progress: list[tuple[int, int]] = []
    layout = map_module.lay_out(labelled, lambda done, total: progress.append((done, total)))
    assert (layout.method, layout.total, layout.sampled) == ("t-sne", labelled.count, False)
    assert progress[-1] == (750, 750)
    places = np.stack([layout.x, layout.y], axis=1)
    assert ((places >= 0) & (places <= 1)).all()
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(distances, np.inf)
    names = np.array(layout.labels)[layout.label]
    assert (names[distances.argmin(axis=1)] == names).mean() > 0.85
    again = map_module.lay_out(labelled)
    np.testing.assert_array_equal(np.stack([again.x, again.y], axis=1), places)


def test_of_many_members_a_sample_is_shown(labelled: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_module, "MOST_SHOWN", 20)
    layout = map_module.lay_out(labelled)
    assert (layout.sampled, layout.total, len(layout.ids)) == (True, labelled.count, 20)
    assert set(layout.ids) <= set(labelled.ids.tolist())
    assert (np.diff(layout.ids) > 0).all()
