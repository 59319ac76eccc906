"""Lists of addresses: every form of img2dataset's tables, what is fetched from where, and what never is."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from index.errors import ImageError, InputError
from index.items import FoundItem
from index.network import remote_store, web_store
from index.network.web_store import VARIABLE
from index.sources import reading
from index.sources.reading import read_place
from index.sources.registry import find_source
from tests.index.sources.test_shards import PICTURES
from tests.remote_servers import Fault, FileServer

ROWS = [{"url": "", "caption": f"image {n}", "width": n, "label": f"{n % 2}"} for n in range(3)]


def write_list(folder: Path, server: FileServer, kind: str) -> Path:
    """Three addresses, with label and caption where the form has columns."""
    file, rows = folder / f"urls.{kind}", []
    for number, row in enumerate(ROWS):
        server.files[f"/{number}.png"] = PICTURES[number]
        rows.append({**row, "url": f"{server.address}/{number}.png"})
    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    elif kind == "jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "txt":
        file.write_text("\n".join(["# a list", *(str(row["url"]) for row in rows), ""]))
    else:
        lines = [list(ROWS[0]), *([str(value) for value in row.values()] for row in rows)]
        file.write_text("\n".join({"csv": ",", "tsv": "\t"}[kind].join(line) for line in lines))
    return file


def read(address: str) -> bytes:
    """What an address gives, as an item of a list."""
    source = find_source("https://host/list.txt")
    return read_place(source.locate(FoundItem(address, 0, 0)))


@pytest.mark.parametrize("kind", ["parquet", "csv", "tsv", "jsonl", "txt"])
def test_every_form_of_list_is_read_without_asking_a_network(tmp_path: Path, web: FileServer, kind: str) -> None:
    source = find_source(str(write_list(tmp_path, web, kind)))
    assert source.kind == "urls"
    items = [*source.scan()]
    assert [item.path for item in items] == [f"{web.address}/{number}.png" for number in range(3)]
    told = [(item.label, item.metadata) for item in items]
    if kind == "txt":
        assert told == [(None, None)] * 3
    else:
        assert told == [(row["label"], {"caption": row["caption"], "width": row["width"]}) for row in ROWS]
    assert web.count("GET") + web.count("HEAD") == 0
    assert [read_place(source.locate(item)) for item in items] == PICTURES[:3]


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_list_may_lie_on_a_network(tmp_path: Path, web: FileServer, buckets: FileServer, kind: str) -> None:
    content = write_list(tmp_path, web, kind).read_bytes()
    web.files[f"/urls.{kind}"] = buckets.files[f"/bucket/urls.{kind}"] = content
    for address in (f"{web.address}/urls.{kind}", f"s3://bucket/urls.{kind}"):
        assert len([*find_source(address).scan()]) == 3
    web.files[f"/urls.{kind}"] = b"\xff\xfe"
    with pytest.raises(InputError, match=rf"^{web.address}/urls\.{kind}: .*read"):
        list(find_source(f"{web.address}/urls.{kind}").scan())
    with pytest.raises(InputError, match=r"none.csv: it answers with status 404"):
        list(find_source(f"{web.address}/none.csv").scan())


def test_columns_are_named_in_the_address(tmp_path: Path, web: FileServer) -> None:
    web.files["/1.png"] = PICTURES[1]
    (tmp_path / "t.csv").write_text(f"path,link,kind\nx,{web.address}/1.png,shoe\n")
    source = find_source(f"{tmp_path}/t.csv#url=link,label=kind")
    [item] = source.scan()
    assert (item.path, item.label, item.metadata) == (f"{web.address}/1.png", "shoe", {"path": "x"})
    assert find_source(source.location) == source


def test_rows_that_are_no_address_are_skipped_with_a_reason(tmp_path: Path, web: FileServer) -> None:
    good = f"{web.address}/ü b.png"
    lines = [
        *("url", good, "", "file:///etc/passwd", "s3://bucket/1.png", "http://", "http://me:secret@host/1.png"),
        *(f"http://{'x' * 3000}/", good, "photo.jpg"),
    ]
    (tmp_path / "t.csv").write_text("\n".join(f'"{line}"' for line in lines))
    items = [*find_source(f"{tmp_path}/t.csv").scan()]
    assert items[0].path == f"{web.address}/%C3%BC%20b.png"
    assert items[0].problem is None
    assert [item.problem and item.problem.reason for item in items[1:]] == ["refused-address"] * (len(items) - 1)
    assert len(items) >= 6
    assert len({item.path for item in items}) == len(items)
    (tmp_path / "t.csv").write_text("url,label\nhttp://x/1.png,a\nhttp://x/1.png,b\n")
    with pytest.raises(InputError, match="labelled 'b' here and 'a' above"):
        list(find_source(f"{tmp_path}/t.csv").scan())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "[::1]", "2130706433"])
def test_private_addresses_are_refused(host: str, web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["/1.png"] = PICTURES[0]
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ImageError, match=r"refused-address: .*public addresses only.*RETRIEVAL_FETCH_FROM"):
        read(f"http://{host}:{web.address.rpartition(':')[2]}/1.png")
    assert not web.asked
    monkeypatch.setenv(VARIABLE, "192.168.0.0/16, 127.0.0.1")
    assert read(f"{web.address}/1.png") == PICTURES[0]
    monkeypatch.setenv(VARIABLE, "localhost")
    with pytest.raises(ImageError, match=r"RETRIEVAL_FETCH_FROM: 'localhost' does not appear .*expected networks"):
        read(f"{web.address}/1.png")


def test_where_an_address_leads_is_checked_like_itself(web: FileServer) -> None:
    port = web.address.rpartition(":")[2]
    web.faults["/1.png"] = [Fault(302, {"Location": f"http://127.0.0.2:{port}/2.png"})]
    with pytest.raises(ImageError, match=r"refused-address: .*127\.0\.0\.2: this host"):
        read(f"{web.address}/1.png")
    web.files["/2.png"] = PICTURES[2]
    web.faults["/1.png"] = [Fault(302, {"Location": "/2.png"})]
    assert read(f"{web.address}/1.png") == PICTURES[2]
    web.faults["/1.png"] = [Fault(301, {"Location": "/1.png"})] * 9
    with pytest.raises(ImageError, match="redirects more than 5 times"):
        read(f"{web.address}/1.png")
    web.faults["/1.png"] = [Fault(302, {"Location": "file:///etc/passwd"})]
    with pytest.raises(ImageError, match="refused-address"):
        read(f"{web.address}/1.png")


def test_a_name_of_a_private_address_is_refused(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"public.example": ["8.8.8.8", "10.0.0.1"]}
    monkeypatch.setattr(web_store, "_find_addresses", lambda host, port: found[host])
    with pytest.raises(ImageError, match=r"refused-address: .*public\.example: this host"):
        read("http://public.example/1.png")


def test_transient_faults_are_tried_again_in_time(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["/1.png"] = PICTURES[0]
    waited: list[float] = []
    monkeypatch.setattr(remote_store, "pause", waited.append)
    web.faults["/1.png"] = [Fault(500), Fault(429, {"Retry-After": "7"}), Fault(is_cut=True)]
    assert read(f"{web.address}/1.png") == PICTURES[0]
    assert web.asked["GET", "/1.png"] == 4
    assert len(waited) == 3
    assert waited[1] == 7
    assert all(wait <= 0.04 for wait in (waited[0], waited[2]))


def test_who_wants_to_be_left_alone_for_long_is_not_asked_again(web: FileServer) -> None:
    web.faults["/1.png"] = [Fault(503, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"})]
    with pytest.raises(ImageError, match=r"unreachable: it answers with status 503; it asks for a wait"):
        read(f"{web.address}/1.png")
    assert web.count("GET") == 1


@pytest.mark.parametrize(
    ("fault", "reason", "requests"),
    [
        (Fault(410), "not-found", 1),
        (Fault(403), "permission-denied", 1),
        (Fault(418), "unreachable", 1),
        (Fault(is_cut=True), "unreachable", 4),
    ],
)
def test_what_cannot_be_fetched_has_its_reason(web: FileServer, fault: Fault, reason: str, requests: int) -> None:
    web.files["/1.png"] = PICTURES[0]
    web.faults["/1.png"] = [fault] * 9
    with pytest.raises(ImageError) as raised:
        read(f"{web.address}/1.png")
    assert raised.value.reason == reason
    assert web.count("GET") == requests


def test_a_page_in_the_place_of_a_picture_is_not_fetched_to_its_end(web: FileServer) -> None:
    web.files["/1.png"] = b"<html>" + b" " * (32 << 20)
    with pytest.raises(ImageError, match="not-an-image"):
        read(f"{web.address}/1.png")


def test_what_a_server_says_of_itself_may_be_anything(tmp_path: Path, web: FileServer) -> None:
    far = "Fri, 31 Dec 9999 23:59:59"
    for modified, length in ((f"{far} +9999", "9" * 5000), (f"{far} GMT", "-1")):
        web.odd["/0.png"] = {"Last-Modified": modified, "ETag": "W/\xff", "Content-Length": length}
        source = find_source(str(write_list(tmp_path, web, "csv")))
        [first, *_] = source.scan()
        [item] = source.check_changes([(replace(first, size_bytes=1, mtime_ns=1), True)])
        assert 0 <= item.mtime_ns < 2**63
        assert 0 <= item.size_bytes < 2**63
        with pytest.raises(ImageError, match="unreachable"):
            read(f"{web.address}/0.png")


def test_too_much_and_too_slow_are_given_up(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["/1.png"] = PICTURES[0]
    monkeypatch.setattr(reading, "MAX_FETCHED_BYTES", 1000)
    with pytest.raises(ImageError, match="file-too-large"):
        read(f"{web.address}/1.png")
    monkeypatch.undo()
    monkeypatch.setenv(VARIABLE, "127.0.0.1")
    monkeypatch.setattr(reading, "_MOST_S", -1.0)
    with pytest.raises(ImageError, match="unreachable: it did not come within"):
        read(f"{web.address}/1.png")
    monkeypatch.undo()
    monkeypatch.setenv(VARIABLE, "127.0.0.1")
    monkeypatch.setattr(remote_store, "TRIES", 1)
    monkeypatch.setattr(web_store, "_TIMEOUTS_S", {"connect": 1.0, "read": 0.05})
    web.faults["/1.png"] = [Fault(wait_s=0.3)]
    with pytest.raises(ImageError, match=r"unreachable: it cannot be reached: .*timed out"):
        read(f"{web.address}/1.png")


def test_hosts_that_are_not_there_are_said(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImageError, match="unreachable: unknown host"):
        read("http://nosuch.invalid/1.png")
    monkeypatch.setattr(remote_store, "TRIES", 2)
    with pytest.raises(ImageError, match=r"unreachable: it cannot be reached: .*, 2 times"):
        read("http://127.0.0.1:1/1.png")


@pytest.mark.parametrize(
    ("case", "is_same", "reason"),
    [
        *(("same", True, None), ("changed", False, None), ("gone", False, "not-found"), ("silent", True, None)),
        *(("no head", False, None), ("tells nothing", False, None)),
    ],
)
def test_known_items_are_asked_whether_they_changed_and_not_fetched(
    web: FileServer, tmp_path: Path, case: str, is_same: bool, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    source = find_source(str(write_list(tmp_path, web, "csv")))
    [first, *others] = source.scan()
    fetched = reading.fetch_place(source.locate(first)).fetched
    size_bytes, mtime_ns = fetched
    if case == "changed":
        web.files["/0.png"] = PICTURES[5]
    elif case == "gone":
        del web.files["/0.png"]
    elif case == "silent":
        web.faults["/0.png"] = [Fault(503)]
    elif case == "no head":
        web.has_head = False
    elif case == "tells nothing":
        web.plain.add("/0.png")
        mtime_ns = 0
    before = web.count("GET")
    known = replace(first, size_bytes=size_bytes, mtime_ns=mtime_ns)
    [now, *others] = source.check_changes([(known, True), *((item, False) for item in others)])
    assert ((now.size_bytes, now.mtime_ns) == (size_bytes, mtime_ns)) is is_same
    assert (now.problem and now.problem.reason) == reason
    assert [item.mtime_ns for item in others] == [0, 0]
    assert (web.count("GET"), web.count("HEAD")) == (before, 1)
    assert ("1 addresses did not answer whether they changed" in caplog.text) is (case == "silent")
