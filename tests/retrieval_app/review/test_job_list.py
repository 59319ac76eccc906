"""The list of jobs that several processes share: one of them runs jobs, and another goes on where it has ended."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from index.filters.parser import parse_filter
from retrieval_app.review.added_images import AddedImage
from retrieval_app.review.job_list import Asker, Job, JobList
from retrieval_app.review.job_work import Work
from tests.forked import ForkedCommand


def share(path: Path) -> JobList[int]:
    return JobList(max_waiting=9, max_kept=9, path=path / "jobs.sqlite")


def begin_and_die() -> None:
    """Begin whatever waits, and end before it is done."""
    jobs = share(Path(sys.argv[1]))
    with jobs.alone() as called_off:
        assert called_off == []
        assert jobs.take(together=("add",), most=9)
        os.kill(os.getpid(), signal.SIGKILL)


def begin_in_a_process_that_is_killed(path: Path) -> None:
    with open(os.devnull, "w") as nothing:
        command = ForkedCommand([path], stdout=nothing.fileno(), stderr=nothing.fileno(), function=begin_and_die)
        assert command.wait(60) == -signal.SIGKILL


def test_what_one_process_appends_another_takes_and_both_tell_of(tmp_path: Path) -> None:
    one, other = share(tmp_path), share(tmp_path)
    job = one.append("add", 7, asker=Asker("anna", "10.0.0.1", "r1"))
    [(taken, work)] = other.take(together=(), most=1)
    assert (taken.id, taken.asker, work) == (job.id, Asker("anna", "10.0.0.1", "r1"), 7)
    assert one.get(job.id).state == "running"
    other.update([taken], state="done", message="done \udcff", result={"ids": [1]})
    told = one.get(job.id)
    assert (told.state, told.message, told.result) == ("done", "done \udcff", {"ids": [1]})


def test_one_process_at_a_time_runs_jobs(tmp_path: Path) -> None:
    one, other = share(tmp_path), share(tmp_path)
    with one.alone() as first, other.alone() as second:
        assert (first, second) == ([], None)
    with other.alone() as second:
        assert second == []


def test_the_job_of_a_process_that_was_killed_waits_again_in_its_place(tmp_path: Path) -> None:
    jobs = share(tmp_path)
    first, second = jobs.append("add", 1), jobs.append("update", 2)
    begin_in_a_process_that_is_killed(tmp_path)
    assert jobs.get(first.id).state == "running"
    with jobs.alone():
        assert jobs.get(first.id).state == "waiting"
        assert [work for _, work in jobs.take(together=(), most=1)] == [1]
    assert jobs.get(second.id).state == "waiting"


def test_what_a_process_may_have_ended_at_is_tried_alone(tmp_path: Path) -> None:
    jobs = share(tmp_path)
    for number in range(3):
        jobs.append("add", number)
    begin_in_a_process_that_is_killed(tmp_path)
    jobs.append("add", 3)
    jobs.append("add", 4)
    with jobs.alone():
        taken = [[work for _, work in jobs.take(together=("add",), most=9)] for _ in range(4)]
    assert taken == [[0], [1], [2], [3, 4]]


def test_a_job_that_was_called_off_is_cancelled_where_its_process_is_killed(tmp_path: Path) -> None:
    jobs = share(tmp_path)
    job = jobs.append("add", 1)
    begin_in_a_process_that_is_killed(tmp_path)
    assert jobs.cancel(job.id)[1] is None
    with jobs.alone() as called_off:
        assert called_off == [1]  # what it was to add is not kept
        assert jobs.take(together=(), most=1) == []
    assert jobs.get(job.id).state == "cancelled"


def test_what_waits_once_is_the_same_job_for_all(tmp_path: Path) -> None:
    one, other = share(tmp_path), share(tmp_path)
    first = one.append("update", 0, once=True)
    assert other.append("update", 0, once=True).id == first.id
    one.take(together=(), most=1)
    assert other.append("update", 0, once=True).id != first.id


@given(
    image=st.none() | st.builds(AddedImage, st.text(), st.none() | st.text()),
    ids=st.lists(st.integers(0, 2**62)).map(tuple), ks=st.lists(st.integers(1, 100)).map(tuple),
    where=st.sampled_from([None, "label = 'it''s'", "price > 3 AND NOT (path LIKE 'a%' OR x.y IN (1, TRUE))"]),
)  # fmt: skip
def test_work_is_the_same_after_packing(
    image: AddedImage | None, ids: tuple[int, ...], ks: tuple[int, ...], where: str | None
) -> None:
    work = Work(image, ids, ks, None if where is None else parse_filter(where))
    assert Work.unpack(work.pack()) == work


def test_a_job_that_ends_its_processes_is_not_tried_for_ever(tmp_path: Path) -> None:
    told = list[Job]()
    jobs: JobList[int] = JobList(max_waiting=9, max_kept=9, on_over=told.append, path=tmp_path / "jobs.sqlite")
    job = jobs.append("add", 1)
    for _ in range(3):
        begin_in_a_process_that_is_killed(tmp_path)
    with jobs.alone():
        assert jobs.take(together=(), most=1) == []
    assert jobs.get(job.id).state == "failed"
    assert "3 processes" in jobs.get(job.id).message
    assert [one.id for one in told] == [job.id]
