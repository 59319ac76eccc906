"""Folders with metadata tables, as Hugging Face's ImageFolder has them."""

from pathlib import Path

import pytest

from index.errors import InputError
from index.items import FoundItem
from index.sources.local_source import FolderSource


def scan(folder: Path, files: dict[str, str]) -> dict[str, FoundItem]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {item.path: item for item in FolderSource(str(folder)).scan()}


def test_the_nearest_table_describes_an_image(tmp_path: Path) -> None:
    found = scan(
        tmp_path,
        {
            "metadata.csv": "file_name,label,price\ncats/1.jpg,tiger,7\n./2.jpg,,\ngone.jpg,cat,\n",
            "cats/1.jpg": "x",
            "2.jpg": "x",
            "cats/3.jpg": "x",
            "dogs/metadata.jsonl": '{"file_name": "a/1.jpg", "tags": ["x"]}\n',
            "dogs/a/1.jpg": "x",
        },
    )
    assert {name: (item.label, item.metadata) for name, item in found.items()} == {
        "2.jpg": (None, None),
        "cats/1.jpg": ("tiger", {"price": 7}),
        "cats/3.jpg": ("cats", None),
        "dogs/a/1.jpg": ("dogs", {"tags": ["x"]}),
        "gone.jpg": ("cat", None),
    }
    assert found["gone.jpg"].problem is not None
    (part,) = FolderSource(str(tmp_path)).scan_below(str(tmp_path / "cats" / "1.jpg"))
    assert part == found["cats/1.jpg"]


def test_a_table_without_file_names_is_a_file_like_others(tmp_path: Path) -> None:
    assert scan(tmp_path, {"metadata.csv": "path,label\n1.jpg,cat\n", "metadata.jsonl": "no JSON"}).keys() == {
        "metadata.csv",
        "metadata.jsonl",
    }


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"file_name": "1.jpg"}\n{"file_name"', "metadata.jsonl: no readable JSON lines"),
        ('{"file_name": "../1.jpg"}', "expected a file_name below the table's folder, found ../1.jpg"),
        (
            '{"file_name": "1.jpg", "label": "a"}\n{"file_name": "1.jpg", "label": "b"}',
            "labelled 'b' here and 'a' above",
        ),
    ],
)
def test_a_broken_table_is_one_clear_error(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scan(tmp_path, {"metadata.jsonl": rows, "1.jpg": "x"})
