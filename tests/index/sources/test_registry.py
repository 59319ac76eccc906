import csv
import json
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from index.errors import InputError
from index.images.image_files import decode_image
from index.items import FoundItem
from index.sources import local_source
from index.sources.reading import read_place
from index.sources.registry import SOURCES, find_source, make_source
from index.versions.gallery_parts import make_mark
from tests.index.sources.test_archive_scan import PNG, write_zip
from tests.index.sources.test_archive_scan import write_tar as pack_tar


def fill(folder: Path, *names: str, content: bytes = PNG) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_tar(file: Path, *names: str) -> Path:
    return pack_tar(file, [(name, b'{"n": 1}' if name.endswith(".json") else PNG) for name in names])


def scan(text: Path | str) -> list[FoundItem]:
    return list(find_source(str(text)).scan())


def paths(text: Path | str) -> list[str]:
    return [item.path for item in scan(text)]


def reasons(text: Path | str) -> dict[str, str]:
    return {item.path: item.problem.reason for item in scan(text) if item.problem}


def check_readable(text: Path | str) -> None:
    source = find_source(str(text))
    items = list(source.scan())
    assert items
    for item in items:
        if item.problem is None:
            data = read_place(source.locate(item))
            assert len(data) == item.size_bytes
            decode_image(data, name=item.path, target_side=8)


def test_a_source_is_what_its_path_names(tmp_path: Path) -> None:
    kinds = {
        "a.TAR": "file",
        "a.zip": "file",
        "t.csv": "table",
        "t.Parquet": "table",
        "l.txt": "list",
        "l.LST": "list",
        "photo.jpg": "file",
        "no_extension": "file",
        "odd[1].jpg": "file",
        "c.json": "coco",
    }
    fill(tmp_path, *kinds)
    for pattern, root in (("/data/a/**/x", "/data/a"), ("/*", "/"), ("/d/x[12]/y", "/d"), ("/d/e/f?", "/d/e")):
        assert find_source(pattern) == make_source("glob", pattern)
        assert find_source(pattern).root == root
    for name, kind in kinds.items():
        source = find_source(str(tmp_path / name))
        assert (source.kind, source.location, source.root) == (kind, str(tmp_path / name), str(tmp_path))
    assert find_source(str(tmp_path)) == make_source("folder", str(tmp_path))
    assert find_source(f"{tmp_path}/").root == str(tmp_path)
    found = {find_source(str(tmp_path / name)).kind for name in kinds}
    fill(tmp_path, "t.csv", content=b"url,label\n")
    remote = "s3://bucket", "gs://bucket/*.png", "https://host/shard.tar.gz", "http://host/1.jpg"
    found |= {find_source(text).kind for text in (str(tmp_path / "t.csv"), *remote)}
    assert found | {"folder", "glob", "cells"} == {kind.kind for kind in SOURCES}


def test_relative_paths_and_links_of_folders_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "real", "1.jpg", "blob")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/shard.tar").symlink_to("blob")
    monkeypatch.chdir(tmp_path)
    assert find_source("link") == make_source("folder", f"{tmp_path}/real")
    assert find_source(".") == make_source("folder", str(tmp_path))
    assert find_source("link/../link/1.jpg") == make_source("file", f"{tmp_path}/real/1.jpg")
    assert find_source("link/shard.tar") == make_source("file", f"{tmp_path}/real/shard.tar")
    assert find_source("link/*.jpg") == make_source("glob", f"{tmp_path}/real/*.jpg")


def test_what_exists_is_never_read_as_a_pattern(tmp_path: Path) -> None:
    fill(tmp_path, "shoes[1]/x.jpg", "shoes1/y.jpg")
    assert paths(tmp_path / "shoes[1]") == ["x.jpg"]
    assert paths(tmp_path / "shoes[12]") == ["shoes1/y.jpg"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.tar", "no such file or folder"),
        ("nul\0*", "no such file or folder"),
        ("dangling[1]", "no such file or folder"),
        ("pipe", "found a device"),
    ],
)
def test_a_source_that_is_none_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling[1]").symlink_to("nowhere")
    with pytest.raises(InputError, match=problem):
        find_source(f"{tmp_path}/{name}")
    with pytest.raises(InputError, match="empty text"):
        find_source("")


def test_archives_in_a_folder_are_entered_where_they_stand(tmp_path: Path) -> None:
    fill(tmp_path, "a.jpg", "z/1.jpg", "00000.parquet", "00000_stats.json", "old.tar.gz", "z/bad.zip")
    write_tar(tmp_path / "00000.tar", "7.jpg", "7.json", "8.jpg")
    (tmp_path / "shoes").mkdir()
    write_tar(tmp_path / "shoes/part.TAR", "1.jpg")
    write_tar(tmp_path / "train.tar", "n01/x.jpg")
    write_zip(tmp_path / "z/1.zip", [("in/2.jpg", PNG)])
    items = scan(tmp_path)
    assert [(item.path, item.label, item.archive) for item in items] == [
        ("00000.parquet", None, None),
        ("00000.tar/7.jpg", None, "00000.tar"),
        ("00000.tar/8.jpg", None, "00000.tar"),
        ("00000_stats.json", None, None),
        ("a.jpg", None, None),
        ("old.tar.gz", None, None),
        ("shoes/part.TAR/1.jpg", "shoes", "shoes/part.TAR"),
        ("train.tar/n01/x.jpg", "n01", "train.tar"),
        ("z/1.jpg", "z", None),
        ("z/1.zip/in/2.jpg", "z", "z/1.zip"),
        ("z/bad.zip", "z", None),
    ]
    assert items[1].metadata == {"n": 1}
    assert reasons(tmp_path) == {"old.tar.gz": "corrupt-archive", "z/bad.zip": "corrupt-archive"}
    check_readable(tmp_path)


def test_a_source_that_vanished_is_refused_but_a_file_is_no_item(tmp_path: Path) -> None:
    fill(tmp_path, "d/1.jpg", "1.jpg", "x.zip", "l.txt", "t.csv")
    sources = [find_source(str(tmp_path / name)) for name in ("d", "1.jpg", "x.zip", "l.txt", "t.csv")]
    (tmp_path / "d/1.jpg").unlink()
    (tmp_path / "d").rmdir()
    for source in sources[1:]:
        Path(source.location).unlink()
    for source in sources:
        if source.is_one_item:
            assert list(source.scan()) == []
            continue
        with pytest.raises(InputError, match=r"no such f|No such file"):
            list(source.scan())


def test_a_part_of_a_folder_is_scanned_under_the_same_paths(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.jpg", "a/b/2.jpg", "c.jpg")
    write_tar(tmp_path / "a/s.tar", "3.jpg")
    folder, whole = find_source(str(tmp_path)), scan(tmp_path)
    assert list(folder.scan_below(str(tmp_path))) == whole
    assert list(folder.scan_below(f"{tmp_path}/a")) == whole[:-1]
    assert list(folder.scan_below(f"{tmp_path}/a/s.tar")) == whole[2:3]


def test_a_glob_gives_files_folders_and_archives_below_its_root(tmp_path: Path) -> None:
    fill(tmp_path, "cat/1.jpg", "cat/2.png", "cat/in/3.jpg", "dog/1.jpg", ".hidden/1.jpg", "top.jpg")
    (tmp_path / "s").mkdir()
    write_tar(tmp_path / "s/a-0.tar", "1.jpg")
    write_tar(tmp_path / "s/a-1.tar", "n/1.jpg")
    assert paths(f"{tmp_path}/*/*.jpg") == ["cat/1.jpg", "dog/1.jpg"]
    assert paths(f"{tmp_path}/c?t") == ["cat/1.jpg", "cat/2.png", "cat/in/3.jpg"]
    assert paths(f"{tmp_path}/s/a-[0-9].tar") == ["a-0.tar/1.jpg", "a-1.tar/n/1.jpg"]
    assert [item.label for item in scan(f"{tmp_path}/*/a-*.tar")] == ["s", "s"]
    assert [item.label for item in scan(f"{tmp_path}/s/a-*.tar")] == [None, "n"]
    assert [item.label for item in scan(f"{tmp_path}/*/1.jpg")] == ["cat", "dog"]
    assert paths(f"{tmp_path}/.h*/*") == [".hidden/1.jpg"]
    check_readable(f"{tmp_path}/**")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*.jpg", ["a/b/2.jpg", "a/b/c/3.jpg", "a/d/b/4.jpg", "top.jpg"]),
        ("**/b/*.jpg", ["a/b/2.jpg", "a/d/b/4.jpg"]),
        ("a/**", ["b/2.jpg", "b/c/3.jpg", "d/b/4.jpg", "x.png"]),
        ("a/**/**/?.jpg", ["b/2.jpg", "b/c/3.jpg", "d/b/4.jpg"]),
        ("**/.*/*.jpg", [".git/5.jpg"]),
        ("**", ["a/b/2.jpg", "a/b/c/3.jpg", "a/d/b/4.jpg", "a/x.png", "top.jpg"]),
    ],
)
def test_two_stars_stand_for_any_number_of_folders(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    fill(tmp_path, "a/b/2.jpg", "a/b/c/3.jpg", "a/d/b/4.jpg", "a/x.png", "top.jpg", ".git/5.jpg")
    assert paths(f"{tmp_path}/{pattern}") == expected


def test_two_stars_end_where_links_lead_in_circles(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.jpg", "b/2.jpg")
    for name in ("a", "b"):
        (tmp_path / name / "up").symlink_to("..")
        (tmp_path / name / "other").symlink_to("../a" if name == "b" else "../b")
    found = [item.path for item in scan(f"{tmp_path}/**/*.jpg")]
    assert {"a/1.jpg", "b/2.jpg"} <= set(found)
    assert len(found) == len(set(found)) < 10


def test_a_glob_enters_no_folder_that_cannot_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "0/1.jpg", "top.jpg", "other/many/2.jpg")
    (tmp_path / "a").symlink_to("0")
    assert paths(f"{tmp_path}/a*/*.jpg") == ["a/1.jpg"]  # though `0` comes first in a walk
    monkeypatch.setattr(local_source, "walk_folder", lambda folder: pytest.fail(f"{folder} was walked"))
    assert paths(f"{tmp_path}/*.jpg") == ["top.jpg"]
    assert paths(f"{tmp_path}/?/*.jpg") == ["0/1.jpg", "a/1.jpg"]


@pytest.mark.parametrize("pattern", ["*.gif", "none/**"])
def test_a_pattern_that_matches_nothing_is_refused(tmp_path: Path, pattern: str) -> None:
    fill(tmp_path, "a/1.jpg")
    with pytest.raises(InputError, match="the pattern matches no file"):
        scan(f"{tmp_path}/{pattern}")


def write_list(file: Path, *lines: str) -> Path:
    file.write_bytes(os.fsencode("\n".join(lines)))
    return file


def test_a_list_names_files_folders_and_archives(tmp_path: Path) -> None:
    fill(tmp_path, "in/b.jpg", "in/cat/a.jpg", "in/dog/1.jpg", "in/dog/x/2.jpg", "else/3.jpg", "in/ sp ace .jpg")
    write_tar(tmp_path / "in/cat/s.tar", "n/1.jpg")
    write_tar(tmp_path / "else/t.tar", "n/1.jpg", "2.jpg")
    lines = ["# a comment", "", "./cat/../b.jpg", f"{tmp_path}/in//cat/a.jpg", "   ", "dog", "../else/3.jpg"]
    file = write_list(tmp_path / "in/l.txt", *lines, "cat/s.tar", "../else/t.tar", " sp ace .jpg")
    items = scan(file)
    assert [(item.path, item.label) for item in items] == [
        *(("b.jpg", None), ("cat/a.jpg", "cat"), ("dog/1.jpg", "dog"), ("dog/x/2.jpg", "dog")),
        *((f"{tmp_path}/else/3.jpg", None), ("cat/s.tar/n/1.jpg", "cat"), (f"{tmp_path}/else/t.tar/n/1.jpg", "n")),
        *((f"{tmp_path}/else/t.tar/2.jpg", None), (" sp ace .jpg", None)),
    ]
    check_readable(file)


@pytest.mark.parametrize(
    ("name", "what", "command"),
    [
        ("w.safetensors", "weights of a network", "retrieval export"),
        ("run/head.safetensors", "a training run", "retrieval export"),
        ("W.PTH", "weights of a network", "retrieval export"),
        ("m.onnx", "an ONNX model", "retrieval index build"),
        ("run", "a training run", "retrieval export"),
        ("gallery", "a gallery", "retrieval index add"),
    ],
)
def test_models_runs_and_galleries_are_no_sources(tmp_path: Path, name: str, what: str, command: str) -> None:
    fill(tmp_path, "w.safetensors", "W.PTH", "m.onnx", "run/head.safetensors", "run/parity/1.png", "gallery/1.png")
    (tmp_path / "run/config.json").write_text('{"run_id": "12"}')
    make_mark(tmp_path / "gallery")
    given = str(tmp_path / name)
    with pytest.raises(InputError) as refused:
        find_source(given)
    assert str(refused.value).startswith(f"{given}: {what}, not images")
    assert command in str(refused.value)


def test_weights_among_the_photos_of_a_folder_are_items(tmp_path: Path) -> None:
    fill(tmp_path, "d/1.jpg", "w.safetensors", "m.onnx")
    assert paths(tmp_path) == ["d/1.jpg", "m.onnx", "w.safetensors"]


def test_a_list_may_have_a_mark_carriage_returns_and_odd_bytes(tmp_path: Path) -> None:
    fill(tmp_path, "a.jpg", "caf\udce9.jpg", "é.jpg")
    (tmp_path / "l.lst").write_bytes(b"\xef\xbb\xbfa.jpg\r\ncaf\xe9.jpg\r\n\xc3\xa9.jpg")
    assert paths(tmp_path / "l.lst") == ["a.jpg", "caf\udce9.jpg", "é.jpg"]
    check_readable(tmp_path / "l.lst")


def test_what_a_list_names_and_cannot_be_used_is_an_item(tmp_path: Path) -> None:
    fill(tmp_path, "a.jpg", "old.tar.gz")
    (tmp_path / "link.jpg").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    lines = ["none.jpg", "a.jpg/none", "link.jpg", "pipe", "long" * 100, "old.tar.gz", "none/"]
    file = write_list(tmp_path / "l.txt", *lines)
    assert reasons(file) == {
        "none.jpg": "unreadable",
        "a.jpg/none": "unreadable",
        "link.jpg": "dangling-link",
        "pipe": "not-a-file",
        "long" * 100: "unreadable",
        "old.tar.gz": "corrupt-archive",
        "none": "unreadable",
    }


@pytest.mark.parametrize("order", [("d/1.jpg", "d", "."), (".", "d", "d/1.jpg"), ("..", ".")])
def test_what_a_list_names_twice_is_one_item(tmp_path: Path, order: Sequence[str]) -> None:
    fill(tmp_path, "in/d/1.jpg", "in/d/2.jpg", "in/e.jpg")
    write_tar(tmp_path / "in/d/s.tar", "1.jpg")
    file = write_list(tmp_path / "in/l.lst", *order, "./d//1.jpg", "d/s.tar", "d/s.tar")
    found = paths(file)
    assert sorted(found) == ["d/1.jpg", "d/2.jpg", "d/s.tar/1.jpg", "e.jpg", "l.lst"]
    assert reasons(file) == {}


@pytest.mark.parametrize("content", [b"a.jpg\nb\0c.jpg\n", b"a.jpg\n" + b"x" * 70_000])
def test_a_text_that_is_no_list_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "l.txt").write_bytes(content)
    with pytest.raises(InputError, match=r"l\.txt, line 2: not a path; expected one path a line"):
        scan(tmp_path / "l.txt")


def write_rows(file: Path, columns: dict[str, Sequence[Any]]) -> Path:
    if file.suffix == ".parquet":
        parquet.write_table(pyarrow.table(columns), file)
    else:
        with file.open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([columns.keys(), *zip(*columns.values(), strict=True)])
    return file


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_gives_labels_and_metadata_in_its_order(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "in/cat/a.jpg", "in/b.jpg", "else/c.jpg")
    rows = {
        "path": ["b.jpg", "./cat/a.jpg", "../else/c.jpg", f"{tmp_path}/in/none.jpg"],
        "label": [" lamp ", "", "chair", "x"],
        "price": [19.5, 3, None, 1],
        "title": ["A lamp", None, "007", "y"],
    }
    file = write_rows(tmp_path / "in" / name, rows)
    items = scan(file)
    assert [(item.path, item.label, item.metadata) for item in items] == [
        ("b.jpg", "lamp", {"price": 19.5, "title": "A lamp"}),
        ("cat/a.jpg", None, {"price": 3}),
        (f"{tmp_path}/else/c.jpg", "chair", {"title": "007"}),
        ("none.jpg", "x", {"price": 1, "title": "y"}),
    ]
    assert reasons(file) == {"none.jpg": "unreadable"}
    check_readable(file)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_the_first_row_of_a_file_counts_and_labels_may_not_differ(tmp_path: Path, name: str) -> None:
    fill(tmp_path, "a.jpg")
    rows = {"path": ["a.jpg", "./a.jpg"], "label": ["x", " x"], "n": [1, 2]}
    assert [item.metadata for item in scan(write_rows(tmp_path / name, rows))] == [{"n": 1}]
    rows["label"][1] = "y"
    with pytest.raises(InputError, match=rf"{name}, .*: \./a\.jpg is labelled 'y' here and 'x' above; keep one"):
        scan(write_rows(tmp_path / name, rows))


def test_a_row_names_one_file(tmp_path: Path) -> None:
    fill(tmp_path, "d/1.jpg")
    write_tar(tmp_path / "x.tar", "1.jpg")
    file = write_rows(tmp_path / "t.csv", {"path": ["d", "x.tar"]})
    assert paths(file) == ["d", "x.tar"]
    assert reasons(file) == {"d": "not-a-file"}


FILES = st.lists(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join), min_size=1, max_size=8, unique=True
)


@settings(max_examples=40)
@given(FILES)
def test_folder_list_table_and_glob_agree(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    folder = tmp_path_factory.mktemp("same")
    fill(folder, *(f"in/{name}.jpg" for name in names), content=b"x")
    whole = scan(folder / "in")
    file_names = [f"in/{item.path}" for item in whole]
    fields = [(f"in/{i.path}", i.size_bytes, i.mtime_ns) for i in whole]
    sources = [
        write_list(folder / "files.lst", *file_names),
        write_list(folder / "folder.lst", "in"),
        write_rows(folder / "t.csv", {"path": file_names}),
        f"{folder}/[i]n",
        f"{folder}/**/*.jpg",
    ]
    for source in sources:
        assert [(i.path, i.size_bytes, i.mtime_ns) for i in scan(source)] == fields, source


def test_lists_and_tables_are_streamed(tmp_path: Path) -> None:
    text = json.dumps({"text": "x" * 500}).replace('"', '""')
    lines = [f"{i:05d}.jpg" for i in range(1500)]
    write_list(tmp_path / "l.txt", *lines)
    rows = "".join(f'{line},"{text}"\n' for line in lines)
    (tmp_path / "t.csv").write_text(f"path,note\n{rows}")
    for name in ("l.txt", "t.csv"):
        source = find_source(str(tmp_path / name))
        tracemalloc.start()
        count = sum(1 for _ in source.scan())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == len(lines)
        assert peak < 700_000  # the paths; the notes alone are 800 kB
