"""COCO annotation files: where their images are, and the label of an image with several boxes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from index.errors import InputError
from index.items import FoundItem
from index.sources.registry import find_source

CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]


def scan(file: Path, content: Mapping[str, Any]) -> list[FoundItem]:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return list(find_source(str(file)).scan())


def box(image_id: int, category_id: int, width: float) -> dict[str, Any]:
    return {"image_id": image_id, "category_id": category_id, "bbox": [0, 0, width, 2], "segmentation": [[1.0] * 9]}


def test_the_largest_box_labels_an_image(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = [{"id": n, "file_name": f"{n}.jpg", "width": 4, "license": 2, "shop": "A"} for n in range(3)]
    for image in images:
        (tmp_path / image["file_name"]).touch()
    boxes = [box(0, 1, 2), box(0, 2, 9), box(0, 1, 3), box(1, 1, 2), box(77, 1, 2), box(1, 99, 8)]
    found = scan(tmp_path / "x.json", {"images": images, "annotations": boxes, "categories": CATEGORIES})
    assert [(item.path, item.label, item.metadata) for item in found] == [
        ("0.jpg", "dog", {"shop": "A", "categories": ["dog", "cat"]}),
        ("1.jpg", "cat", {"shop": "A"}),
        ("2.jpg", None, {"shop": "A"}),
    ]
    assert "2 of 6 annotations have no image or category in the file, first id None, image_id 77" in caplog.text


@pytest.mark.parametrize("wrong", [{"image_id": "1"}, {"category_id": "1"}])
def test_annotations_of_no_image_or_category_at_all_are_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    boxes, images = [{**box(1, 1, 2), **wrong}], [{"id": 1, "file_name": "1.jpg"}]
    with pytest.raises(InputError, match="1 of 1 annotations have no image or category in the file"):
        scan(tmp_path / "x.json", {"images": images, "annotations": boxes, "categories": CATEGORIES})


@pytest.mark.parametrize("folder", ["annotations", "images", "annotations/data", "val2017"])
def test_images_are_found_where_such_files_have_them(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "1.jpg").touch()
    content = {"images": [{"id": 1, "file_name": "1.jpg"}]}
    (item,) = scan(tmp_path / "annotations" / "instances_val2017.json", content)
    assert item.problem is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2", "no readable JSON"),
        ("[]", 'expected COCO: an object with the lists "images"'),
        ('{"images": {}}', '"images" is not a list of objects'),
        (
            '{"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]}',
            "two entries of a image have the id 1",
        ),
        ('{"images": [{"file_name": "a"}]}', "image 1 has no id"),
        ('{"images": [{"id": 1, "file_name": 3}]}', "the image with id 1 has no usable file_name"),
    ],
)
def test_a_file_that_is_no_coco_says_what_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(InputError, match=message):
        list(find_source(str(tmp_path / "x.json")).scan())


def test_one_file_with_two_labels_is_refused(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "a.jpg"}]
    with pytest.raises(InputError, match=r"image 2: .*a.jpg is labelled 'dog' here and 'cat' above"):
        scan(
            tmp_path / "x.json",
            {"images": images, "annotations": [box(1, 1, 1), box(2, 2, 1)], "categories": CATEGORIES},
        )
