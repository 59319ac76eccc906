"""Labels and tags of many images at once, and saved searches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from index.errors import InputError
from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from retrieval_app import set_labels
from retrieval_app.api.security.access import Access
from retrieval_app.commands.cli import root
from retrieval_app.review.activity_log import read_log
from tests.conftest import draw_folder, draw_image
from tests.retrieval_app.api.conftest import TOKEN, serve


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Twelve labelled images of three classes, and four without a label."""
    folder = tmp_path_factory.mktemp("bulk")
    images = draw_folder(folder / "images", per_class=4)
    for number in range(4):
        draw_image((200, 40, 40), seed=50 + number).save(images / f"{number}.png")
    build_gallery(model_path=tiny_model, sources=[images], out=folder / "small")
    return folder / "small"


@pytest.fixture
def bulk(client: TestClient) -> Iterator[TestClient]:
    """A client; what a test did is taken back after it."""
    yield client
    for kind in ("labels", "tags"):
        while client.post(f"/v1/{kind}/undo").json()["can_undo"]:
            pass
    for search in client.get("/v1/searches").json()["searches"]:
        client.delete("/v1/searches", params={"name": search["name"]})


def count(client: TestClient, where: str) -> int:
    answer = client.get("/v1/images", params={"where": where})
    return int(answer.json()["total"]) if answer.is_success else 0


def facet(client: TestClient, name: str) -> dict[str | None, int]:
    facets = client.get("/v1/facets", params={"facet": name}).json()["facets"]
    return {one["value"]: one["count"] for found in facets for one in found["values"]}


def test_a_filter_gets_a_label_in_one_step_also_without_one_before(bulk: TestClient, image_ids: dict[str, int]) -> None:
    before = facet(bulk, "label")
    body = {"where": "label IS NULL OR label = 'red'", "count": 8, "label": "crimson/dark"}
    answer = bulk.post("/v1/labels/set", json=body).json()
    assert (answer["changed"], answer["can_undo"]) == (8, True)
    assert count(bulk, "label = 'crimson/dark'") == 8
    details = bulk.get(f"/v1/images/{image_ids['0.png']}").json()
    assert (details["label"], details["given_label"]) == ("crimson/dark", None)
    file = bulk.get("/v1/labels/file", params={"paths": "relative"}).text.splitlines()
    assert sum(line.split(",")[1] == "crimson/dark" for line in file) == 8
    undone = bulk.post("/v1/labels/undo", json={"step": answer["step"]}).json()["undone"]
    assert (len(undone), facet(bulk, "label")) == (8, before)


def test_named_images_get_a_label_and_lose_the_decision_again(bulk: TestClient, image_ids: dict[str, int]) -> None:
    ids = [image_ids["0.png"], image_ids["red/0.jpg"]]
    bulk.post("/v1/labels/set", json={"ids": ids, "label": "mine"})
    bulk.post("/v1/labels/set", json={"ids": ids[:1], "label": None})
    assert count(bulk, "label = 'mine'") == 1
    refused = bulk.post("/v1/labels/set", json={"ids": ids[:1], "label": None})
    assert (refused.status_code, "nothing was decided" in refused.text) == (422, True)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"where": "label = 'red'", "count": 5, "label": "x"}, 409, "there are 4 images now, not the 5 that were seen"),
        ({"where": "label = 'red'", "label": "x" * 300}, 422, "at most 200 characters"),
        ({"where": "label = 'red'", "label": "a\nb"}, 422, "label: expected a text"),
        ({"where": "label = 'red'", "label": " "}, 422, "the new label is empty"),
        ({"where": "id < 0", "label": "x"}, 422, "no image meets the condition"),
        ({"where": "label = 'rde'", "label": "x"}, 422, "did you mean red"),
        ({"ids": [10**6], "label": "x"}, 404, "1000000"),
        ({"label": "x"}, 422, "give either ids, or a condition"),
        ({"ids": [1], "where": "id = 1", "label": "x"}, 422, "give either ids, or a condition"),
    ],
)
def test_a_selection_or_label_that_cannot_be_changes_nothing(
    bulk: TestClient, body: dict[str, Any], status: int, message: str
) -> None:
    answer = bulk.post("/v1/labels/set", json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert bulk.get("/v1/labels/decisions").json()["decisions"] == []


def test_tags_are_given_counted_filtered_and_taken_away(bulk: TestClient, image_ids: dict[str, int]) -> None:
    assert bulk.get("/v1/tags").json()["tags"] == []
    bulk.post("/v1/tags", json={"where": "label = 'red'", "tag": "it's best", "count": 4})
    gold = [image_ids[f"{name}/0.jpg"] for name in ("red", "green", "blue")]
    assert bulk.post("/v1/tags", json={"ids": gold, "tag": "gold"}).json()["changed"] == 3
    tags = bulk.get("/v1/tags").json()
    assert {one["tag"]: one["count"] for one in tags["tags"]} == {"it's best": 4, "gold": 3}
    assert [count(bulk, one["where"]) for one in tags["tags"]] == [4, 3]
    assert facet(bulk, "tag") == {"it's best": 4, "gold": 3, None: 10}
    listed = bulk.get("/v1/images", params={"where": "tag = 'gold'", "include": "tags"}).json()["images"]
    assert all("gold" in image["tags"] for image in listed)
    removed = bulk.post("/v1/tags", json={"ids": [image_ids["red/0.jpg"]], "tag": "it's best", "action": "remove"})
    assert bulk.get(f"/v1/images/{image_ids['red/0.jpg']}").json()["tags"] in ([], ["gold"])
    undone = bulk.post("/v1/tags/undo", json={"step": removed.json()["step"]}).json()
    assert (undone["undone"], count(bulk, "tag = 'it''s best'")) == ([image_ids["red/0.jpg"]], 4)
    refused = bulk.post("/v1/tags", json={"where": "label IS NULL", "tag": "gold", "action": "remove"})
    assert "none of these 4 images has the tag gold" in refused.json()["error"]["message"]


def test_searches_are_saved_replaced_and_deleted(bulk: TestClient, served: Path) -> None:
    bulk.post("/v1/searches", json={"name": "reds", "query": "f=label+%3D+'red'"})
    bulk.post("/v1/searches", json={"name": "here", "query": "f=source+%3D+'/x'"})
    bulk.post("/v1/searches", json={"name": "reds", "query": "text=red"})
    searches = bulk.get("/v1/searches").json()["searches"]
    assert {one["name"]: one["query"] for one in searches} == {"reds": "text=red", "here": "f=source+%3D+'/x'"}
    with serve(served, access=Access(token=TOKEN, loopback=False)) as guarded:
        assert guarded.get("/v1/searches").status_code == 401
    with serve(served, access=Access(loopback=False)) as stranger:
        assert [one["name"] for one in stranger.get("/v1/searches").json()["searches"]] == ["reds"]
        for path, body in (("labels/set", {"ids": [1], "label": "x"}), ("tags", {"ids": [1], "tag": "x"})):
            assert stranger.post(f"/v1/{path}", json=body).status_code == 403
        assert stranger.post("/v1/searches", json={"name": "x", "query": ""}).status_code == 403
        assert stranger.delete("/v1/searches", params={"name": "reds"}).status_code == 403
    assert bulk.delete("/v1/searches", params={"name": "rods"}).status_code == 404
    assert len(bulk.delete("/v1/searches", params={"name": "reds"}).json()["searches"]) == 1


def test_commands_and_python_do_the_same_and_a_server_shows_it(bulk: TestClient, served: Path) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(root, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    gallery = str(served)
    assert run("labels", "set", gallery, "--where", "label IS NULL", "--label", "new") == "4 images labelled new\n"
    assert count(bulk, "label = 'new'") == 4
    assert set_labels(served, None, where="label = 'new'") == 4
    assert count(bulk, "label IS NULL") == 4
    assert run("labels", "set", gallery, "--where", "label IS NULL", "--drop") == "4 images dropped\n"
    assert count(bulk, "label IS NULL") == 0
    assert set_labels(served, None, where="label IS NULL") == 4  # takes back what was dropped, too
    assert count(bulk, "label IS NULL") == 4
    bulk.post("/v1/labels/undo", json={})
    assert count(bulk, "label IS NULL") == 0
    bulk.post("/v1/labels/undo", json={})
    assert count(bulk, "label IS NULL") == 4
    assert run("tags", "add", gallery, "few", "--where", "id <= 5") == "5 images tagged few\n"
    assert run("tags", "list", gallery) == "few  5\n"
    assert count(bulk, "tag = 'few'") == 5
    assert run("tags", "remove", gallery, "few") == "few taken from 5 images\n"
    assert Gallery.open(served).decided.marked.tags == {}
    logged = [line["what"] for line in read_log(served) if line["who"] == "the command line"]
    assert logged == ["set-labels", "set-labels", "drop-images", "set-labels", "add-tag", "remove-tag"]
    with pytest.raises(InputError, match="name the images either by ids or by a condition"):
        set_labels(served, "x")
