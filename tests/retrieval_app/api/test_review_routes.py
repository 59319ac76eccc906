import csv
import io
import json
import tracemalloc
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response
from PIL import Image

from index.labels.decisions import LabelDecision
from index.writing.build import build_gallery
from retrieval_app.api import review_routes
from retrieval_app.insights.background import Insights
from retrieval_app.reports.duplicates_report import DuplicateGroup, GroupedImage
from retrieval_app.review.acceptance import is_spared
from tests.conftest import CLASSES, draw_folder, draw_image
from tests.retrieval_app.api.conftest import serve
from tests.retrieval_app.api.test_gallery_routes import wait_for

DROPPED = {"decision": "drop", "label": None, "source": "person", "by": "this machine", "p_right": 1}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery with wrong labels, equal files of different labels, and a label like a formula."""
    folder = tmp_path_factory.mktemp("review")
    images = draw_folder(folder / "images", per_class=12)
    for number in range(2):
        draw_image((40, 60, 220), seed=700 + number).save(images / "red" / f"wrong{number}.png")
    (images / "green" / "copy.jpg").write_bytes((images / "red" / "0.jpg").read_bytes())
    (images / "=cmd()").mkdir()
    draw_image((250, 250, 0), seed=5).save(images / "=cmd()" / "1.png")
    build_gallery(model_path=tiny_model, sources=[images], out=folder / "small")
    return folder / "small"


@pytest.fixture
def review(client: TestClient) -> Iterator[TestClient]:
    """A client; what a test decided is taken back after it."""
    yield client
    for kind in ("labels", "duplicates"):
        while client.post(f"/v1/{kind}/undo").json()["can_undo"]:
            pass


def test_a_large_file_is_not_held_in_memory() -> None:
    tracemalloc.start()
    file, size = review_routes._write_all(bytes(1 << 20) for _ in range(40))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with file:
        assert (size, len(file.read())) == (40 << 20, 40 << 20)
    assert peak < 16 << 20


def test_label_issues_are_listed_with_kinds_and_can_be_filtered(review: TestClient) -> None:
    issues = wait_for(review, "/v1/labels/issues")
    assert issues["total"] == issues["open"] == len(issues["items"]) > 0
    first = next(item for item in issues["items"] if item["path"].startswith("red/wrong"))
    assert (first["label"], first["suggested"], first["decision"]) == ("red", "blue", None)
    assert first["disagreeing"]
    narrowed = review.get("/v1/labels/issues", params={"label": "red", "suggested": "blue", "limit": 1}).json()
    assert len(narrowed["items"]) == 1
    assert review.get("/v1/labels/issues", params={"label": "no such"}).json()["total"] == 0


def test_a_class_is_listed_with_the_least_typical_images_first_and_those_left_out(review: TestClient) -> None:
    issues = wait_for(review, "/v1/labels/issues")["items"]
    classes = review.get("/v1/labels/classes").json()["classes"]
    assert [one["errors"] for one in classes] == sorted((one["errors"] for one in classes), reverse=True)
    red = next(one for one in classes if one["label"] == "red")
    assert red["errors"] == pytest.approx(sum(item["p_error"] for item in issues if item["label"] == "red"))
    listed = review.get("/v1/labels/class", params={"label": "red"}).json()
    assert (red["images"], listed["left_out"]) == (len(listed["images"]), [])
    typicality = [image["typicality"] for image in listed["images"]]
    assert typicality == sorted(typicality)
    worst = listed["images"][:2]
    assert {Path(image["path"]).stem for image in worst} == {"wrong0", "wrong1"}
    probabilities = {item["id"]: item["p_error"] for item in issues}
    assert [image["p_error"] for image in listed["images"]] == [
        probabilities.get(one["id"]) for one in listed["images"]
    ]

    drop = [{"image_id": image["id"], "decision": "drop", "label_seen": "red"} for image in worst]
    assert review.post("/v1/labels/decisions", json={"decisions": drop}).json()["changed"] == 2
    now = review.get("/v1/labels/class", params={"label": "red", "limit": 3}).json()
    assert (now["total"], len(now["images"]), now["can_undo"]) == (listed["total"] - 2, 3, True)
    assert [image["id"] for image in now["left_out"]] == [image["id"] for image in reversed(worst)]
    assert now["left_out"][0]["decision"] == {name: value for name, value in DROPPED.items() if name != "by"}
    back = [{"image_id": worst[0]["id"], "decision": "open"}]
    review.post("/v1/labels/decisions", json={"decisions": back})
    again = review.get("/v1/labels/class", params={"label": "red"}).json()
    assert (again["total"], len(again["left_out"])) == (listed["total"] - 1, 1)
    assert review.get("/v1/labels/class", params={"label": "no such"}).json()["images"] == []


def test_decisions_move_labels_from_open_to_decided_and_back(review: TestClient) -> None:
    issues = wait_for(review, "/v1/labels/issues")
    chosen, changed = issues["items"][0]["id"], {"decision": "change", "label": "blue"}

    def decide(**choice: str) -> dict[str, Any]:
        body = {"decisions": [{"image_id": chosen, **choice}]}
        answer: dict[str, Any] = review.post("/v1/labels/decisions", json=body).json()
        return answer

    assert (answer := decide(**changed))["changed"] == 1
    assert answer["can_undo"]
    now = review.get("/v1/labels/issues").json()
    assert (now["open"], now["decided"]) == (issues["open"] - 1, 1)
    [decided] = review.get("/v1/labels/issues", params={"state": "decided"}).json()["items"]
    by_person = changed | {"source": "person", "by": "this machine", "p_right": 1}
    assert (decided["id"], decided["decision"]) == (chosen, by_person)
    assert review.get(f"/v1/images/{chosen}").json()["decision"] == by_person
    [listed] = review.get("/v1/labels/decisions").json()["decisions"]
    assert (listed["image_id"], listed["decision"]["label"]) == (chosen, "blue")
    decide(decision="open")  # which forgets it
    assert review.get("/v1/labels/decisions").json()["decisions"] == []
    assert review.post("/v1/labels/undo").json() == {"undone": [chosen], "can_undo": True}
    assert review.post("/v1/labels/undo").json() == {"undone": [chosen], "can_undo": False}
    assert review.get("/v1/labels/issues").json()["open"] == issues["open"]
    assert review.post("/v1/labels/undo").json() == {"undone": [], "can_undo": False}


def test_everything_shows_a_decided_label(review: TestClient, image_ids: dict[str, int], served: Path) -> None:
    changed, dropped = image_ids["red/wrong0.png"], image_ids["red/wrong1.png"]

    def search(image_id: int, **more: object) -> dict[int, dict[str, object]]:
        body = {"queries": [{"image_id": image_id}], "k": 50, "include": ["label"], **more}
        return {hit["id"]: hit for hit in review.post("/v1/search", json=body).json()["hits"]}

    before = {
        "quality": wait_for(review, "/v1/quality")["queries"],
        "map": len(wait_for(review, "/v1/map")["ids"]),
        "label_issues": wait_for(review, "/v1/labels/issues")["total"],
    }
    choices = [
        {"image_id": changed, "decision": "change", "label": "blue", "label_seen": "red"},
        {"image_id": dropped, "decision": "drop"},
    ]
    review.post("/v1/labels/decisions", json={"decisions": choices})

    hits = search(image_ids["red/1.png"])
    assert (hits[changed]["label"], hits[changed]["given_label"], dropped in hits) == ("blue", "red", False)
    assert changed in search(dropped, where="label = 'blue'")  # it can still ask
    shown = review.get(f"/v1/images/{changed}").json()
    assert (shown["label"], shown["given_label"], shown["indexed"]) == ("blue", "red", True)
    assert review.get(f"/v1/images/{dropped}").json()["decision"] == DROPPED
    assert review.get(f"/v1/images/{dropped}/thumbnail").status_code == 200
    assert "given_label" not in review.get(f"/v1/images/{dropped}").json()
    assert wait_for(review, "/v1/quality")["queries"] == before["quality"] - 1
    shown_map = wait_for(review, "/v1/map")
    assert len(shown_map["ids"]) == before["map"] - 1
    assert shown_map["labels"][shown_map["label"][shown_map["ids"].index(changed)]] == "blue"
    issues = review.get("/v1/labels/issues").json()["total"]
    assert issues == before["label_issues"]  # of the given labels, as they were
    listed = review.get("/v1/labels/decisions").json()["decisions"]
    assert [entry["image_id"] for entry in listed] == [changed, dropped]
    again = {"image_id": changed, "decision": "change", "label": "green", "label_seen": "blue"}
    assert review.post("/v1/labels/decisions", json={"decisions": [again]}).status_code == 200
    assert review.get(f"/v1/images/{changed}").json()["given_label"] == "red"

    for _ in range(2):
        review.post("/v1/labels/undo")
    assert dropped in search(image_ids["red/1.png"])
    assert review.get(f"/v1/images/{changed}").json()["label"] == "red"


@pytest.fixture(scope="module")
def partly_labelled(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A gallery of three labels, and of six images without a label, `0.png` to `5.png`, two of each colour."""
    folder = tmp_path_factory.mktemp("partly")
    images = draw_folder(folder / "images", per_class=12)
    for number, colour in enumerate([*CLASSES.values()][:3] * 2):
        draw_image(colour, seed=900 + number).save(images / f"{number}.png")
    build_gallery(model_path=tiny_model, sources=[images], out=folder / "small")
    return folder / "small"


def test_proposals_are_listed_by_their_kind_and_accepted_in_one_step(partly_labelled: Path) -> None:
    shown = {f"{number}.png": [*CLASSES][number % 3] for number in range(6)}
    with serve(partly_labelled) as client:
        issues = wait_for(client, "/v1/labels/issues")
        assert issues["kinds"]["unlabelled"] == 6
        assert all(item["label"] is not None for item in issues["items"])
        proposed = client.get("/v1/labels/issues", params={"kind": "unlabelled"}).json()
        assert {item["path"]: item["suggested"] for item in proposed["items"]} == shown
        assert all(item["label"] is None for item in proposed["items"])
        wait_for(client, "/v1/duplicates")
        body = {"threshold": 0.5, "kind": "unlabelled"}
        counted = client.post("/v1/labels/accept", json=body).json()
        assert (counted["changed"], counted["dropped"]) == (6, 0)
        assert client.post("/v1/labels/accept", json={**body, "digest": "0" * 64}).status_code == 409
        assert client.post("/v1/labels/accept", json={**body, "digest": counted["digest"]}).json()["step"] is not None
        found = client.get("/v1/images", params={"limit": 100, "include": "path,label"}).json()["images"]
        assert {image["path"]: image["label"] for image in found if "/" not in image["path"]} == shown
        assert client.get("/v1/labels/issues", params={"kind": "unlabelled", "state": "open"}).json()["total"] == 0
        assert len(client.post("/v1/labels/undo").json()["undone"]) == 6
        assert client.get("/v1/labels/issues", params={"kind": "unlabelled", "state": "open"}).json()["total"] == 6


@pytest.mark.parametrize(
    ("labels", "dropping", "decided", "spared"),
    [
        (["cat", "dog"], [0], {}, False),
        (["cat", "cat"], [0], {}, True),
        (["cat", None], [0], {}, True),
        (["cat", "cat"], [0, 1], {}, True),  # all would be dropped
        (["cat", "dog"], [0], {1: "drop"}, True),
        (["cat", "dog"], [0, 1], {1: "keep"}, False),
        (["cat", "dog"], [0], {1: "change"}, True),  # to cat
        (["cat", "dog", "cat"], [0, 2], {}, False),
    ],
)
def test_of_near_duplicates_one_is_dropped_only_for_another_label_that_stays(
    labels: list[str | None], dropping: list[int], decided: dict[int, str], spared: bool
) -> None:
    images = [GroupedImage(n, str(n), "", label, f"{n:064x}", 1) for n, label in enumerate(labels)]
    made = {n: (word, "cat" if word == "change" else None) for n, word in decided.items()}
    decisions = [LabelDecision(images[n].sha256, images[n].label, *what) for n, what in made.items()]
    group = DuplicateGroup(images[0], tuple(images[1:]))
    held = {one.key: one for one in decisions}
    assert is_spared("cat", group, dropping=dropping, decisions=held) is spared


def test_undo_without_a_step_takes_back_the_last_one(review: TestClient, image_ids: dict[str, int]) -> None:
    chosen, headers = image_ids["red/1.png"], {"Content-Type": "application/json"}
    for body in (b"", b"{}", b'{"step": null}'):
        review.post("/v1/labels/decisions", json={"decisions": [{"image_id": chosen, "decision": "keep"}]})
        answer = review.post("/v1/labels/undo", content=body, headers=headers)
        assert (answer.status_code, answer.json()["undone"]) == (200, [chosen])
    for wrong in ({"step": 0}, {"step": "1"}, {"step": True}, {"steps": 1}, [1], None):
        for kind in ("labels", "duplicates"):
            content = json.dumps(wrong)
            assert review.post(f"/v1/{kind}/undo", content=content, headers=headers).status_code == 422


def test_a_label_that_was_seen_must_be_the_label_still(review: TestClient, image_ids: dict[str, int]) -> None:
    def decide(*seen: dict[str, object]) -> Response:
        paths = ("red/1.png", "red/3.png")
        choices = [
            {"image_id": image_ids[path], "decision": "drop", **entry} for path, entry in zip(paths, seen, strict=False)
        ]
        return review.post("/v1/labels/decisions", json={"decisions": choices})

    for other in ("blue", None, "red "):
        refused = decide({"label_seen": "red"}, {"label_seen": other})
        assert (refused.status_code, refused.json()["error"]["field"]) == (409, "decisions.1.label_seen")
        assert "red now" in refused.json()["error"]["message"]
    assert review.get("/v1/labels/decisions").json()["decisions"] == []
    assert decide({"label_seen": "red"}, {}).json()["changed"] == 2
    body = {"image_id": image_ids["red/1.png"], "decision": "change", "label": "blue", "label_seen": "green"}
    assert review.post("/v1/labels/decisions", json={"decisions": [body]}).status_code == 409


def test_decisions_that_say_nothing_clear_are_refused(review: TestClient, image_ids: dict[str, int]) -> None:
    labels = ("", " ", "a\nb", "a\0", "\ue000", "x" * 201)
    wrong: list[dict[str, object]] = [{"decision": "change", "label": label} for label in labels]
    wrong += [{"decision": "change"}, {"decision": "keep", "label": "blue"}, {"decision": "burn"}]
    wrong += [{"decision": "keep", "image_id": image_id} for image_id in (2**63, True)]
    for choice in wrong:
        body = {"decisions": [{"image_id": image_ids["red/1.png"], **choice}]}
        assert review.post("/v1/labels/decisions", json=body).status_code == 422, choice
    unknown = {"decisions": [{"image_id": 99999, "decision": "keep"}]}
    assert review.post("/v1/labels/decisions", json=unknown).status_code == 404
    assert review.get("/v1/labels/decisions").json()["decisions"] == []


def test_the_label_file_has_the_decisions(review: TestClient, image_ids: dict[str, int], served: Path) -> None:
    changes = [
        {"image_id": image_ids["red/wrong0.png"], "decision": "change", "label": "blue"},
        {"image_id": image_ids["red/wrong1.png"], "decision": "drop"},
    ]
    review.post("/v1/labels/decisions", json={"decisions": changes})
    response = review.get("/v1/labels/file")
    assert response.headers["content-disposition"] == 'attachment; filename="labels.csv"'
    counts = {name[9:]: int(text) for name, text in response.headers.items() if name.startswith("x-labels-")}
    rows = len(image_ids) - 1
    left_out = ("set-aside", "unlabelled", "in-archives", "unnamable")
    assert counts == {"kept": rows - 1, "changed": 1, "dropped": 1, **dict.fromkeys(left_out, 0)}

    def read(query: str) -> dict[str, str]:
        text = review.get(f"/v1/labels/file{query}").text
        return {row["path"]: row["label"] for row in csv.DictReader(io.StringIO(text))}

    images, relative = served.parent / "images", read("?paths=relative")
    assert (relative["red/wrong0.png"], relative["red/1.png"]) == ("blue", "red")
    assert "red/wrong1.png" not in relative
    assert {str(images / path): label for path, label in relative.items()} == read("?paths=absolute") == read("")
    for query in ("?paths=elsewhere", "?folder=relative"):
        assert review.get(f"/v1/labels/file{query}").status_code == 422


def test_big_files_arrive(review: TestClient, image_ids: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = review.get("/v1/labels/file")
    monkeypatch.setattr(review_routes, "_BYTES_IN_MEMORY", 100)
    monkeypatch.setattr(review_routes, "_CHUNK_BYTES", 64)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(review.get, ["/v1/labels/file"] * 6))
        body = {"ids": list(image_ids.values()), "format": "csv"}
        tables = list(pool.map(lambda _: review.post("/v1/export", json=body), range(4)))
    assert {answer.content for answer in answers} == {whole.content}
    assert {int(answer.headers["content-length"]) for answer in answers} == {len(whole.content)}
    assert {len(list(csv.DictReader(io.StringIO(table.text)))) for table in tables} == {len(image_ids)}


def test_duplicates_are_decided_and_undone(review: TestClient) -> None:
    groups = wait_for(review, "/v1/duplicates")
    group = next(group for group in groups["items"] if group["labels_differ"])
    paths = {image["path"] for image in group["images"]}
    assert {"red/0.jpg", "green/copy.jpg"} <= paths
    wait_for(review, "/v1/labels/issues")
    differing = review.get("/v1/duplicates", params={"labels_differ": True}).json()["items"]
    assert [one["labels_differ"] for one in differing] == [True]
    assert {image["id"]: image["label"] for image in group["images"]}[differing[0]["best"]] == "red"
    for image in group["images"]:
        copies = {copy["id"] for copy in review.get(f"/v1/images/{image['id']}").json()["duplicates"]}
        assert copies == {other["id"] for other in group["images"]} - {image["id"]}
    keep = [group["images"][0]["id"]]
    for change, status in (
        *(({"group": "0" * 32}, 404), ({"group": "../../x"}, 422), ({"keep": []}, 422), ({"keep": [2**62]}, 422)),
        *(({"decision": "different"}, 422), ({"decision": "maybe"}, 422)),
    ):
        wrong = {"group": group["group"], "decision": "duplicates", "keep": keep, **change}
        assert review.post("/v1/duplicates/decisions", json=wrong).status_code == status, change
    body = {"group": group["group"], "decision": "duplicates", "keep": keep}
    answer = review.post("/v1/duplicates/decisions", json=body).json()
    assert (answer["changed"], answer["can_undo"]) == (1, True)
    decided = review.get("/v1/duplicates", params={"state": "decided"}).json()
    assert decided["items"][0]["decision"] == {"decision": "duplicates", "keep": keep}
    undone = review.post("/v1/duplicates/undo").json()
    assert (undone["undone"], undone["can_undo"]) == (sorted(image["id"] for image in group["images"]), False)
    assert review.get("/v1/duplicates", params={"state": "open"}).json()["total"] == groups["total"]


def test_of_different_labels_none_is_proposed_too_early(review: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for(review, "/v1/labels/issues")
    with monkeypatch.context() as patch:
        patch.setattr(Insights, "update_issues", lambda *_, **__: None)
        unknown = wait_for(review, "/v1/duplicates")["items"]
    known = wait_for(review, "/v1/duplicates")["items"]
    assert {group["best"] is None for group in unknown if group["labels_differ"]} == {True}
    assert not any(group["best"] is None for group in known)


def test_exports_start_no_formula_and_hold_new_pictures(review: TestClient, image_ids: dict[str, int]) -> None:
    ids = [image_ids["=cmd()/1.png"], image_ids["red/1.png"]]
    table = review.post("/v1/export", json={"ids": ids, "format": "csv"})
    assert table.headers["content-disposition"] == 'attachment; filename="small-selection.csv"'
    assert [row["label"] for row in csv.DictReader(io.StringIO(table.text))] == ["'=cmd()", "red"]
    packed = review.post("/v1/export", json={"ids": ids, "format": "zip"})
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        assert Image.open(archive.open(archive.namelist()[0])).format == "JPEG"
    assert review.post("/v1/export", json={"ids": [99999], "format": "zip"}).status_code in (404, 422)
    limits = review.get("/v1/gallery").json()["limits"]
    for kind in ("csv", "zip"):
        for count in (0, limits[f"max_export_{kind}"] + 1):
            too = {"ids": list(range(1, count + 1)), "format": kind}
            assert review.post("/v1/export", json=too).status_code == 422
