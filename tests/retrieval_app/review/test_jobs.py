"""Jobs of a server."""

import errno
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from index.errors import GalleryError, ImageError, InputError, UnknownImageError
from index.gallery.gallery import Gallery
from index.progress import Progress
from index.versions.gallery_identity import lock_gallery
from index.writing.build import build_gallery, update_gallery
from retrieval_app.review.activity_log import ActivityLog, Client, read_log
from retrieval_app.review.jobs import Job, JobOverError, Jobs, Outcome, UnknownJobError
from retrieval_app.serving.errors import BusyError
from tests.conftest import draw_folder, draw_image
from tests.retrieval_app.review.conftest import build, ids_by_path
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]
WAIT_SECONDS = 60
ADD_AND_HANG = """
import sys, threading
from pathlib import Path
from typing import Any
from index.gallery.gallery import Gallery
from retrieval_app.review.jobs import Jobs
path, busy = Path(sys.argv[1]), threading.Event()
def hang():
    busy.set()
    threading.Event().wait()
jobs = Jobs(path, on_change=hang, open_gallery=lambda: Gallery.open(path))
for number, name in enumerate(sys.argv[2:]):
    jobs.add(Path(name).read_bytes(), name="x", label=f"label {number}")
    busy.wait()
    print(number, flush=True)
"""


@dataclass
class Shop:
    """A gallery, the jobs that change it, and the versions that were announced."""

    path: Path
    announced: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    log: ActivityLog | None = None
    jobs: Jobs = field(init=False)

    def __post_init__(self) -> None:
        self.gate.set()
        self.jobs = Jobs(self.path, on_change=self.announce, open_gallery=self.open, log=self.log)

    def open(self) -> Gallery:
        return Gallery.open(self.path)

    def announce(self) -> None:
        self.announced.append(self.open().version)
        self.gate.wait(WAIT_SECONDS)

    def wait(self, *jobs: Job) -> list[Job]:
        self.jobs._writer.submit(lambda: None).result(WAIT_SECONDS)  # what was asked before is done by then
        return [self.jobs.get(job.id) for job in jobs]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    draw_folder(tmp_path / "images", per_class=2)
    return build(tmp_path, model=tiny_model)


@pytest.fixture
def shop(folder: Path) -> Iterator[Shop]:
    log = ActivityLog(folder)
    shop = Shop(folder, log=log)
    yield shop
    shop.gate.set()
    shop.jobs.close()
    log.close()


@pytest.fixture
def block(shop: Shop) -> Iterator[Callable[[], None]]:
    """Lets the writer stop after its next change, until the test is over or sets the gate."""

    def stop() -> None:
        shop.gate.clear()
        shop.jobs.add(picture(999), name="first")
        while not shop.announced:
            threading.Event().wait(0.01)

    yield stop
    shop.gate.set()


def picture(seed: int) -> bytes:
    file = io.BytesIO()
    draw_image((70, 30 + seed % 200, 150), seed=seed).save(file, format="PNG")
    return file.getvalue()


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def label_of(gallery: Gallery, job: Job) -> str | None:
    return gallery.image(job.result["image_id"]).label


def test_an_added_image_is_found_by_a_search_when_its_job_is_done(shop: Shop) -> None:
    [job] = shop.wait(shop.jobs.add(picture(1), name="one.png", label="hats"))
    assert (job.kind, job.state, job.message) == ("add", "done", "added as image 7")
    assert job.result == {"image_id": 7, "label": "hats", "duplicate_of": None, "version": "000002"}
    gallery = shop.open()
    assert shop.announced == [gallery.version] == ["000002"]
    assert gallery.search(gallery.vector(7), k=1)[0].id == 7
    assert (gallery.image(7).label, gallery.count) == ("hats", 7)


def test_a_removed_image_stays_out_until_it_is_sent_again(shop: Shop) -> None:
    [one, _] = shop.wait(shop.jobs.add(picture(1), name="x"), shop.jobs.add(picture(2), name="x"))
    [removed] = shop.wait(shop.jobs.remove([one.result["image_id"]]))
    assert removed.message == "removed 1 image; the files are untouched"
    shop.wait(shop.jobs.add(picture(3), name="x"), shop.jobs.update())
    assert shop.open().count == 6 + 2
    [again] = shop.wait(shop.jobs.add(picture(1), name="x"))
    assert again.state == "done"
    assert shop.open().count == 6 + 3


def test_what_nobody_can_do_is_refused_at_once(shop: Shop) -> None:
    with pytest.raises(ImageError):
        shop.jobs.add(picture(1)[:80], name="x")
    with pytest.raises(InputError, match="plain folder name"):
        shop.jobs.add(picture(1), name="x", label="a/b")
    with pytest.raises(UnknownImageError):
        shop.jobs.remove([1, 99])
    with pytest.raises(InputError, match="got 0"):
        shop.jobs.remove([])
    assert shop.announced == []


def test_a_job_that_fails_says_why_and_the_next_one_is_done(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index.versions.versions.set_current", full_disk)
    [failed] = shop.wait(shop.jobs.add(picture(1), name="x"))
    monkeypatch.undo()
    assert (failed.state, failed.result) == ("failed", None)
    assert "No space left on device" in failed.message
    assert "the image is kept, and is added by the next update" in failed.message
    assert shop.open().version == "000001"
    [done] = shop.wait(shop.jobs.add(picture(1), name="x"))
    assert done.state == "done"


def test_stopping_waits_for_the_running_job_and_a_start_resumes(shop: Shop, block: Callable[[], None]) -> None:
    block()
    waiting = [shop.jobs.add(picture(1), name="x", label="hats"), shop.jobs.add(picture(2), name="x")]
    change = shop.jobs.update()
    shop.jobs.stop()  # before the running job may end, or the writer takes those that wait
    shop.gate.set()
    shop.jobs.close()
    assert {shop.jobs.get(job.id).state for job in (*waiting, change)} == {"failed"}
    assert "the image is kept and is added at the next start" in shop.jobs.get(waiting[0].id).message
    assert shop.open().count == 7
    with pytest.raises(BusyError):
        shop.jobs.add(picture(3), name="x")
    started = Shop(shop.path)
    resumed = started.wait(*started.jobs.resume())
    started.jobs.close()
    assert sorted(str(label_of(started.open(), job)) for job in resumed) == ["None", "hats"]
    assert started.open().count == 9


def test_stopping_ends_a_job_that_would_take_long(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def update_without_end(*_: object, progress: Callable[[int, int], None], **__: object) -> None:
        while True:
            begun.set()
            progress(0, 0)
            time.sleep(0.001)

    monkeypatch.setattr("retrieval_app.review.jobs.update_gallery", update_without_end)
    monkeypatch.setattr("retrieval_app.review.jobs._GRACE_S", 0.05)
    job = shop.jobs.update()
    assert begun.wait(WAIT_SECONDS)
    shop.jobs.close()
    assert shop.jobs.get(job.id).state == "failed"


@pytest.mark.slow
def test_a_killed_server_loses_no_image_that_it_took(folder: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for number, file in enumerate(files):
        file.write_bytes(picture(number))
    command = [sys.executable, "-c", ADD_AND_HANG, str(folder), *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert [int(process.stdout.readline()) for _ in files] == [0, 1, 2, 3]
        process.kill()
    shop = Shop(folder)
    assert shop.open().count == 6 + 1
    shop.wait(*shop.jobs.resume())
    shop.jobs.close()
    labels = {image.label for image in shop.open().sample(100, seed=0)}
    assert labels == {"blue", "green", "red", "label 0", "label 1", "label 2", "label 3"}


def test_a_label_file_allows_no_other_labels_and_copies_are_aside(tmp_path: Path, tiny_model: Path) -> None:
    images, labels = draw_folder(tmp_path / "images", per_class=2), tmp_path / "labels.csv"
    labels.write_text("path,label\nimages/red/0.jpg,shoe\n")
    build_gallery(model_path=tiny_model, sources=[images], out=tmp_path / "shop", dedup="exact", labels_file=labels)
    shop = Shop(tmp_path / "shop")
    with pytest.raises(InputError, match=r"takes all its labels from labels\.csv"):
        shop.jobs.add(picture(1), name="x", label="hats")
    copied = ids_by_path(shop.open())["red/1.png"]
    sent = [picture(1), (images / "red" / "1.png").read_bytes()]
    job, copy = shop.wait(*(shop.jobs.add(data, name="x") for data in sent))
    shop.jobs.close()
    assert label_of(shop.open(), job) is None
    assert copy.result["duplicate_of"] == copied


def test_a_job_that_waits_for_another_process_says_so_and_can_be_cancelled(shop: Shop) -> None:
    with lock_gallery(shop.path):
        job = shop.jobs.add(picture(1), name="x")
        wait_for(lambda: "waiting for another process that writes this gallery" in shop.jobs.get(job.id).message)
        shop.jobs.cancel(job.id)
        [job] = shop.wait(job)
    assert job.state == "cancelled"
    assert Shop(shop.path).jobs.resume() == []  # nothing of it is kept
    assert (shop.open().version, shop.open().count) == ("000001", 6)


def test_a_waiting_job_is_cancelled_and_the_others_are_done(shop: Shop, block: Callable[[], None]) -> None:
    block()
    one, two, same = (shop.jobs.add(picture(number), name="x") for number in (1, 2, 2))
    removal = shop.jobs.remove([1])
    for job in (one, two, removal):
        assert shop.jobs.cancel(job.id).state == "cancelled"
    shop.gate.set()
    states = [job.state for job in shop.wait(one, two, same, removal)]
    assert states == ["cancelled", "cancelled", "done", "cancelled"]
    assert shop.open().count == 6 + 1 + 1
    assert Shop(shop.path).jobs.resume() == []
    with pytest.raises(JobOverError, match="over already"):
        shop.jobs.cancel(same.id)
    assert shop.jobs.cancel(one.id).state == "cancelled"
    with pytest.raises(UnknownJobError):
        shop.jobs.cancel("0")


def test_a_running_job_is_cancelled_between_its_steps(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop.path.parent / "images" / "red" / "new.png").write_bytes(picture(5))
    with monkeypatch.context() as patched:
        patched.setattr("index.writing.publishing._write_version", full_disk)
        with pytest.raises(GalleryError, match="No space"):
            update_gallery(shop.path)
    at_work, go_on = threading.Event(), threading.Event()
    begin_step = shop.jobs._options(lambda _: None)["begin_step"]

    def stop_at_writing(_: Jobs, tell: Callable[[str], None]) -> dict[str, object]:
        def begin(name: str) -> object:
            if name == "Writing":
                at_work.set()
                assert go_on.wait(WAIT_SECONDS)
            tell(name)
            return begin_step(name)

        return {"progress": lambda done, total: None, "begin_step": begin}

    monkeypatch.setattr(Jobs, "_options", stop_at_writing)
    removal = shop.jobs.remove([1, 2])
    assert at_work.wait(WAIT_SECONDS)
    shop.jobs.cancel(removal.id)
    go_on.set()
    [removal] = shop.wait(removal)
    assert removal.state == "cancelled"
    monkeypatch.undo()
    [added] = shop.wait(shop.jobs.add(picture(1), name="x"))
    assert added.state == "done"
    assert {1, 2} < set(shop.open().ids.tolist())
    assert shop.open().count == 6 + 1 + 1


def test_one_of_several_cancelled(shop: Shop, block: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    block()
    jobs = [shop.jobs.add(picture(number), name="x") for number in range(3)]
    real, asked = Jobs._options, []

    def cancel_one(changes: Jobs, tell: Callable[[str], None]) -> dict[str, object]:
        asked.append(tell)
        if len(asked) == 1:
            shop.jobs.cancel(jobs[1].id)
        return real(changes, tell)

    monkeypatch.setattr(Jobs, "_options", cancel_one)
    shop.gate.set()
    assert [job.state for job in shop.wait(*jobs)] == ["done", "cancelled", "done"]
    assert shop.announced == ["000002", "000003"]  # all of them in one version
    assert shop.open().count == 6 + 1 + 2


def test_a_move_runs_once_whatever_the_next_one_does(shop: Shop, block: Callable[[], None]) -> None:
    def move(progress: Progress) -> Outcome:
        moves.append(progress)
        if len(moves) == 2:
            raise InputError("the disk is full")
        return "moved", {"images": 1}

    moves: list[Progress] = []
    block()
    jobs = [shop.jobs.move(move) for _ in range(2)]
    shop.gate.set()
    assert [job.state for job in shop.wait(*jobs)] == ["done", "failed"]
    assert len(moves) == 2


def test_updates_that_wait_are_one(shop: Shop, block: Callable[[], None]) -> None:
    block()
    assert len({shop.jobs.update().id for _ in range(50)}) == 1


def test_the_end_of_every_job_is_logged_with_who_asked_for_it(shop: Shop, block: Callable[[], None]) -> None:
    block()
    anna, ben = Client("anna", "192.0.2.7", "r1"), Client("ben", "192.0.2.8")
    some, rest = shop.jobs.remove([1, 2], client=anna), shop.jobs.remove([3, 4, 5, 6, 7], client=ben)
    cancel_requested = shop.jobs.update(client=ben)
    shop.jobs.cancel(cancel_requested.id)
    shop.gate.set()
    shop.wait(some, rest)
    last = shop.jobs.update()  # which nobody asked for
    shop.wait(last)
    shop.log.close()  # type: ignore[union-attr]
    logged = read_log(shop.path)
    told = [(line["what"], line["job"], line["who"], line["from"]) for line in logged]
    assert told[0] == ("job-cancelled", cancel_requested.id, "ben", "192.0.2.8")
    assert {("job-done", some.id, "anna", "192.0.2.7"), ("job-failed", rest.id, "ben", "192.0.2.8")} < set(told)
    assert told[-1] == ("job-done", last.id, "the server", "")
    lines = {line["job"]: line for line in logged}
    assert (lines[some.id]["kind"], lines[some.id]["request"]) == ("remove", "r1")
    assert "nothing would be left" in lines[rest.id]["message"]
    assert "client" not in shop.jobs.get(some.id).to_json()


def test_few_jobs_wait_and_few_are_kept(shop: Shop, block: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval_app.review.jobs.MOST_JOBS", 2)
    block()
    first, second = shop.jobs.remove([1]), shop.jobs.update()
    with pytest.raises(BusyError, match="waiting already") as refused:
        shop.jobs.remove([2])
    assert refused.value.retry_after_s > 0
    shop.gate.set()
    assert {job.state for job in shop.wait(first, second)} == {"done"}
    for _ in range(2):
        shop.wait(shop.jobs.update())
    with pytest.raises(UnknownJobError):
        shop.jobs.get(first.id)
    assert shop.jobs.get(second.id).state == "done"


def test_a_message_that_is_no_text_can_be_sent() -> None:
    told = Job("1", "add", message="half \ud800, caf\udce9").to_json()
    assert json.dumps(told, ensure_ascii=False).encode()
