"""Rules that decide all near-duplicates at once, and leaks between splits: API and commands."""

import csv
import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fastapi.testclient import TestClient

from index.duplicates.duplicate_config import DuplicateConfig
from index.gallery.gallery import Gallery
from index.labels.decisions import PRESENT, Mark, name_group, tag_field
from index.writing import tidy
from index.writing.build import build_gallery, update_gallery
from retrieval_app.api.security.access import Access
from retrieval_app.commands.cli import main
from retrieval_app.reports.duplicates_report import find_duplicate_groups
from retrieval_app.review.leaks import find_leaks
from retrieval_app.review.review_store import ReviewStore
from tests.conftest import CLASSES, draw_folder, draw_image
from tests.index.galleries import SMALL
from tests.retrieval_app.api.conftest import TOKEN, serve
from tests.retrieval_app.api.test_gallery_routes import wait_for

LARGE = {"pair0.png": "pair0.jpg", "pair1.png": "pair1.jpg"}  # larger file -> the smaller one of the same picture


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three labels in two splits; two pictures saved twice, one of them labelled in one file only; a copied file."""
    folder = tmp_path_factory.mktemp("copies") / "images"
    draw_folder(folder, per_class=8)
    colours = list(CLASSES.values())
    for number, (large, small) in enumerate(LARGE.items()):
        picture = draw_image(colours[number], seed=800 + number)
        picture.save(folder / "red" / large)
        picture.save(folder / "red" / small, quality=95)
    copied = next((folder / "green").iterdir())
    (folder / "blue" / f"copy{copied.suffix}").write_bytes(copied.read_bytes())
    table = folder / "images.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for number, path in enumerate(sorted(folder.glob("*/*.*"))):
            name = path.relative_to(folder).as_posix()
            label = "" if path.name == "pair1.png" else name.partition("/")[0]
            is_test = path.name in LARGE.values() or (number % 4 == 0 and path.name not in LARGE)
            writer.writerow([name, label, "test" if is_test else "train"])
    return table


@pytest.fixture
def gallery(images: Path, tmp_path: Path, tiny_model: Path) -> Path:
    build_gallery(model_path=tiny_model, sources=[images], out=tmp_path / "small")
    return tmp_path / "small"


@pytest.fixture
def client(gallery: Path) -> Iterator[TestClient]:
    with serve(gallery) as client:
        wait_for(client, "/v1/duplicates")
        yield client


def listed(gallery: Path) -> dict[str, tuple[str | None, tuple[str, ...]]]:
    """Label and tags of the images that searches find, by name."""
    opened = Gallery.open(gallery)
    with opened.catalog() as catalog:
        return {Path(row.path).name: (row.label, row.tags) for row in catalog.rows(status="indexed")}


def test_a_rule_keeps_one_image_of_every_group_and_unites_labels_and_tags(client: TestClient, gallery: Path) -> None:
    before = listed(gallery)
    opened = Gallery.open(gallery)
    with opened.catalog() as catalog:
        small = next(row for row in catalog.rows() if row.path.endswith("pair1.jpg"))
    ReviewStore.of_gallery(gallery).decide([Mark(small.sha256 or "", tag_field("best"), PRESENT)])
    counted = client.post("/v1/duplicates/apply", json={}).json()
    assert (counted["groups"], counted["dropped"], counted["differing"], counted["step"]) == (2, 2, 1, None)
    assert client.post("/v1/duplicates/apply", json={"count": 3}).status_code == 409
    done = client.post("/v1/duplicates/apply", json={"count": 2}).json()
    assert done["step"] is not None
    after = listed(gallery)
    assert before.keys() - after.keys() == set(LARGE.values())
    gone = client.get(f"/v1/images/{small.id}").json()
    assert (gone["dropped"], gone["decision"]) == (True, None)
    assert after["pair1.png"] == ("red", ("best",))  # both of the image that left
    assert before["pair1.png"] == (None, ())
    untag = {"where": "path LIKE '%pair1.png'", "tag": "best", "action": "remove"}
    assert client.post("/v1/tags", json=untag).json()["changed"] == 2  # the image that left gave it
    assert listed(gallery)["pair1.png"] == ("red", ())
    assert client.post("/v1/tags", json=untag).status_code == 422
    client.post("/v1/tags/undo")
    labels = client.get("/v1/labels/file").text
    assert "pair1.png,red" in labels
    assert "pair1.jpg" not in labels
    assert client.post("/v1/duplicates/apply", json={}).json()["groups"] == 0
    assert len(client.post("/v1/duplicates/undo", json={"step": done["step"]}).json()["undone"]) == 4
    assert listed(gallery).keys() == before.keys()
    assert listed(gallery)["pair1.png"] == (None, ())


def test_a_condition_says_which_is_kept_and_one_group_can_be_decided(client: TestClient, gallery: Path) -> None:
    body = {"keep_where": "path LIKE '%.jpg'", "count": 2}
    assert client.post("/v1/duplicates/apply", json=body).json()["dropped"] == 2
    assert not listed(gallery).keys() & LARGE.keys()
    client.post("/v1/duplicates/undo")
    unmet = client.post("/v1/duplicates/apply", json={"keep_where": "path LIKE '%nothing%'"}).json()
    assert (unmet["groups"], unmet["unmatched"]) == (0, 2)
    groups = client.get("/v1/duplicates", params={"labels_differ": False}).json()["items"]
    one = {"groups": [groups[0]["group"]], "keep": "first", "count": 1}
    assert client.post("/v1/duplicates/apply", json=one).json()["dropped"] == 1
    opened = {"group": groups[0]["group"], "decision": "open"}
    assert client.post("/v1/duplicates/decisions", json=opened).status_code == 200
    assert LARGE.keys() <= listed(gallery).keys()


def test_groups_of_which_one_image_is_left_are_not_listed(client: TestClient) -> None:
    before = client.get("/v1/duplicates").json()["open"]
    client.post("/v1/labels/drop", json={"where": "path LIKE '%pair0.png'", "count": 1})
    assert client.get("/v1/duplicates").json()["open"] == before - 1
    assert client.post("/v1/duplicates/apply", json={}).json()["groups"] == 1


def test_leaks_are_listed_moved_and_dropped(client: TestClient, gallery: Path) -> None:
    def ask(**parameters: str) -> dict[str, Any]:
        answer: dict[str, Any] = client.get("/v1/leaks", params=parameters).json()
        return answer

    leaks = ask()
    found = {tuple(sorted(Path(image["path"]).name for image in leak["images"])) for leak in leaks["items"]}
    assert found >= {(small, large) for large, small in LARGE.items()}
    assert leaks["images"] == sum(len(leak["images"]) for leak in leaks["items"])
    wrong = {"action": "drop", "value": "train", "count": leaks["leaks"] + 1}
    assert client.post("/v1/leaks", json=wrong).status_code == 409
    assert client.post("/v1/leaks", json={**wrong, "count": leaks["leaks"], "value": "no"}).status_code == 422
    dropped = client.post("/v1/leaks", json={**wrong, "count": leaks["leaks"]}).json()
    assert not LARGE.keys() & listed(gallery).keys()
    assert ask()["leaks"] == 0
    client.post("/v1/duplicates/undo", json={"step": dropped["step"]})
    moved = client.post("/v1/leaks", json={"action": "move", "value": "train", "count": leaks["leaks"]}).json()
    assert ask()["leaks"] == 0
    assert client.post("/v1/tags/undo", json={"step": moved["step"]}).status_code == 200
    assert ask()["leaks"] == leaks["leaks"]
    assert leaks["problem"] is None
    assert "leaks need 2 to 100 splits" in ask(by="nothing")["problem"]
    assert ask(by="folder")["leaks"] == 1  # the copied file


def test_the_commands_do_the_same(gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "leaks", str(gallery), "--json"]) == 0
    leaks = json.loads(capsys.readouterr().out)
    assert leaks["leaks"] == len(leaks["items"]) >= 2
    assert main(["index", "leaks", str(gallery), "--move", "train"]) == 0
    assert main(["index", "leaks", str(gallery), "--json"]) == 0
    assert json.loads("{" + capsys.readouterr().out.partition("{")[2])["leaks"] == 0
    assert main(["duplicates", str(gallery), "--keep", "first", "--out", str(gallery.with_name("report"))]) == 2
    assert main(["duplicates", str(gallery), "--apply", "--out", str(gallery.with_name("report")), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)["applied"]
    assert (done["groups"], done["dropped"], done["differing"]) == (2, 2, 1)
    assert not listed(gallery).keys() & set(LARGE.values())


def test_bursts_stay_open_unless_they_are_included(gallery: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["duplicates", str(gallery), "--apply", "--max-hash-distance", "64", "--min-similarity", "0.95", "--json"]
    assert main(words) == 0
    copies = json.loads(capsys.readouterr().out)
    assert copies["bursts"] > 0
    assert main([*words, "--bursts"]) == 0
    others = json.loads(capsys.readouterr().out)
    assert (others["groups"], others["bursts"]) == (copies["bursts"], 0)
    assert others["dropped"] > 0


@pytest.fixture
def grouped(tmp_path: Path, tiny_model: Path) -> Path:
    """Near-duplicates of two splits, and two other images of one group, of which one has a label."""
    folder = tmp_path / "images"
    folder.mkdir()
    picture = draw_image((200, 40, 40), seed=1)
    picture.save(folder / "a.png")
    picture.save(folder / "b.jpg", quality=95)
    draw_image((40, 200, 40), seed=2).save(folder / "c.png")
    draw_image((40, 40, 200), seed=3).save(folder / "d.png")
    rows = ["a.png,red,train,", "b.jpg,red,test,", "c.png,cat,train,one", "d.png,,test,one"]
    (folder / "images.csv").write_text("\n".join(["path,label,split,group", *rows]))
    build_gallery(model_path=tiny_model, sources=[folder / "images.csv"], out=tmp_path / "small")
    return tmp_path / "small"


def test_images_of_a_group_inherit_nothing_and_different_ones_are_no_leak(grouped: Path) -> None:
    with serve(grouped) as client:
        wait_for(client, "/v1/duplicates")
        assert client.get("/v1/leaks").json()["leaks"] == 2
        group = client.get("/v1/duplicates").json()["items"][0]["group"]
        client.post("/v1/duplicates/decisions", json={"group": group, "decision": "different"})
        leaks = client.get("/v1/leaks").json()
        assert [leak["near_duplicates"] for leak in leaks["items"]] == [False]
        client.post("/v1/leaks", json={"action": "drop", "value": "train", "count": 1})
        assert listed(grouped) == {"a.png": ("red", ()), "b.jpg": ("red", ()), "d.png": (None, ())}


def test_a_near_duplicate_of_a_near_duplicate_in_another_split_is_a_leak(tmp_path: Path, tiny_model: Path) -> None:
    for number, split in enumerate(("train", "train", "test")):  # each is near the next one only
        (tmp_path / "images" / split).mkdir(parents=True, exist_ok=True)
        draw_image((200, 40 + 8 * number, 40), seed=1).save(tmp_path / "images" / split / f"{number}.png")
    build_gallery(model_path=tiny_model, sources=[tmp_path / "images"], out=tmp_path / "small")
    opened = Gallery.open(tmp_path / "small")
    groups = find_duplicate_groups(opened, config=DuplicateConfig(0.998, 6))
    assert [len(group.images) for group in groups.groups] == [2]
    (leak,) = find_leaks(opened, lambda: groups, by="folder").items
    assert sorted(image.path for image in leak.images) == ["test/2.png", "train/0.png", "train/1.png"]
    name = name_group(image.sha256 for image in groups.groups[0].images)
    assert not find_leaks(opened, lambda: groups, by="folder", different={name}).items


def test_strangers_cannot_split_by_the_metadata_column_path(gallery: Path) -> None:
    with serve(gallery, access=Access(loopback=False)) as stranger:
        wait_for(stranger, "/v1/duplicates")
        assert stranger.get("/v1/leaks", params={"by": "path"}).status_code == 422
        assert stranger.get("/v1/leaks").is_success


def test_dropped_copies_are_moved_where_the_server_and_the_visitor_may(
    gallery: Path, images: Path, tmp_path: Path
) -> None:
    folder, bearer = tmp_path / "moved", {"Authorization": f"Bearer {TOKEN}"}
    for access in (
        Access(token=TOKEN, writable=True),
        Access(token=TOKEN, disk_changes=folder),
        Access(disk_changes=folder),
    ):
        with serve(gallery, access=access) as client:
            refused = client.post("/v1/duplicates/move", json={}, headers=bearer if access.token else {})
            assert (refused.status_code, client.get("/v1/gallery", headers=bearer).json()["permissions"]["move"]) == (
                403,
                False,
            )
            named = "--allow-disk-changes" if access.disk_changes is None else "--writable"
            assert named in refused.json()["error"]["message"]
    assert not folder.exists()
    before = {path: path.read_bytes() for path in images.parent.rglob("*.*")}
    with serve(gallery, access=Access(token=TOKEN, writable=True, disk_changes=folder)) as client:
        client.headers.update(bearer)
        wait_for(client, "/v1/duplicates")
        small = next(path for path in before if path.name == "pair1.jpg")
        client.post("/v1/tags", json={"where": "path LIKE '%pair1.jpg'", "tag": "best", "action": "add"})
        counted = client.post("/v1/duplicates/move", json={}).json()
        assert (counted["images"], counted["job"]) == (2, None)
        assert set(counted["examples"]) == {f"red/{name}" for name in LARGE.values()}
        assert before.keys() == set(images.parent.rglob("*.*"))
        assert client.post("/v1/duplicates/move", json={"count": 3}).status_code == 409
        job = client.post("/v1/duplicates/move", json={"count": 2}).json()["job"]
        now = finish(client, job)
        assert (now["state"], now["result"]["images"]) == ("done", 2)
    assert not small.exists()
    update_gallery(gallery, config=SMALL)
    assert listed(gallery)["pair1.png"] == ("red", ("best",))  # which came from the file that left
    assert main(shlex.split(now["result"]["undo"])[1:]) == 0
    assert before == {path: path.read_bytes() for path in images.parent.rglob("*.*")}


def finish(client: TestClient, job: str) -> dict[str, Any]:
    """A job, once it is over."""
    while (now := client.get(f"/v1/jobs/{job}").json())["state"] in ("waiting", "running"):
        time.sleep(0.05)
    return dict(now)


def test_moves_are_cancelled_between_files_and_follow_later_decisions(
    gallery: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_moved, goes_on, move_file = Event(), Event(), tidy.move_file

    def move(source: Path, target: Path) -> None:
        move_file(source, target)
        is_moved.set()
        assert goes_on.wait(30)

    monkeypatch.setattr(tidy, "move_file", move)
    before = {path: path.read_bytes() for path in images.parent.rglob("*.*")}
    with serve(gallery, access=Access(token=TOKEN, writable=True, disk_changes=tmp_path / "moved")) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        wait_for(client, "/v1/duplicates")
        first = client.post("/v1/duplicates/move", json={"count": 2}).json()["job"]
        assert is_moved.wait(30)
        second = client.post("/v1/duplicates/move", json={"count": 1}).json()["job"]
        client.delete(f"/v1/jobs/{first}")
        client.post("/v1/duplicates/undo")
        goes_on.set()
        now, later = finish(client, first), finish(client, second)
    assert (later["state"], later["result"]["images"]) == ("done", 0)
    assert later["result"]["staying"] == {"it is not there any more": 1, "it is no longer dropped": 1}
    assert (now["state"], now["result"]["images"]) == ("done", 1)
    assert now["result"]["staying"] == {"the job was cancelled": 1}
    assert "not moved: the job was cancelled" in now["message"]
    assert len(before.keys() - set(images.parent.rglob("*.*"))) == 1
    assert main(shlex.split(now["result"]["undo"])[1:]) == 0
    assert before == {path: path.read_bytes() for path in images.parent.rglob("*.*")}
