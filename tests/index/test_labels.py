from __future__ import annotations

from pathlib import Path

import pytest

from index.errors import InputError
from index.labels import folder_label, read_label_file, read_labels


@pytest.mark.parametrize(
    ("path", "label"),
    [("1.jpg", None), ("cat/1.jpg", "cat"), ("cat/in/1.jpg", "cat"), ("caf\udce9/1", "caf\\xe9")],
)
def test_the_first_folder_is_the_label(path: str, label: str | None) -> None:
    assert folder_label(path) == label


def test_paths_are_relative_to_the_csv_or_absolute_and_empty_labels_are_none(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(
        "\ufeffpath,label,note\na/1.jpg,cat,x\n"
        f"{tmp_path}/b.jpg, dog ,\n"
        '../c.jpg,"a, b",\nd.jpg,,\n"new\nline.jpg",owl,\n',
        encoding="utf-8",
    )
    assert read_label_file(file) == {
        tmp_path / "a/1.jpg": "cat",
        tmp_path / "b.jpg": "dog",
        tmp_path.parent / "c.jpg": "a, b",
        tmp_path / "new\nline.jpg": "owl",
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"file,label\na,b\n", "columns path,label; found"),
        (b"", "columns path,label"),
        (b"path,label\n,b\n", "line 2: the path is empty"),
        (b"path,label\na.jpg,cat\n./a.jpg,dog\n", "line 3: ./a.jpg is labelled 'dog' here and 'cat' above"),
        (b"path,label\n\xff\xfe,b\n", "not a readable UTF-8 CSV"),
    ],
)
def test_a_label_file_that_cannot_be_right_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "labels.csv").write_bytes(content)
    with pytest.raises(InputError, match=problem):
        read_label_file(tmp_path / "labels.csv")


def test_a_missing_label_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.csv: no such label file"):
        read_label_file(tmp_path / "none.csv")


def test_labels_by_text_are_those_by_path(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\n./a//b/../1.jpg,cat\n/else/2.jpg,dog\n")
    labels = read_labels(tmp_path / "labels.csv")
    assert labels == {f"{tmp_path}/a/1.jpg": "cat", "/else/2.jpg": "dog"}
    assert read_label_file(tmp_path / "labels.csv") == {Path(path): label for path, label in labels.items()}


def test_the_same_label_twice_is_no_conflict(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\na.jpg,cat\na.jpg,cat\n")
    assert read_label_file(tmp_path / "labels.csv") == {tmp_path / "a.jpg": "cat"}
