"""`retrieval dataset crop`: boxes of a COCO file as images of their own."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from index.errors import InputError
from index.sources.registry import find_source
from retrieval_app.commands.cli import main
from retrieval_app.dataset_export.crops import crop_boxes


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Two images of 60 x 40 pixels, red with a green square; a third one is missing."""
    (tmp_path / "photos").mkdir()
    for name in ("one.png", "two.png"):
        image = Image.new("RGB", (60, 40), (255, 0, 0))
        image.paste((0, 255, 0), (10, 10, 30, 30))
        image.save(tmp_path / "photos" / name)

    def note(number: int, image: int, box: Any, category: int = 1, crowd: int = 0) -> dict[str, Any]:
        return {"id": number, "image_id": image, "category_id": category, "bbox": box, "iscrowd": crowd}

    names = ("one.png", "two.png", "gone.png")
    document = {
        "images": [{"id": n, "file_name": name, "width": 60, "height": 40} for n, name in enumerate(names, start=1)],
        "categories": [{"id": 1, "name": "green"}, {"id": 2, "name": "a/b"}],
        "annotations": [
            *(note(1, 1, [10, 10, 20, 20]), note(2, 1, [0, 0, 60, 40], 2), note(3, 2, [50, 30, 40, 40])),
            *(note(4, 2, [70, 0, 5, 5]), note(5, 2, [1, 1, 0, 5]), note(6, 2, [0, 0, 9, 9], crowd=1)),
            *(note(7, 3, [0, 0, 9, 9]), note(8, 2, [0, 0, 9, 9], category=77), note(9, 77, [0, 0, 9, 9])),
            note(10, 77, [0, 0, 9, 9], crowd=1),
        ],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(document))
    return tmp_path / "boxes.json"


def test_boxes_become_images_that_an_index_reads_and_a_second_run_goes_on(coco: Path, tmp_path: Path) -> None:
    out = tmp_path / "crops"
    report = crop_boxes(coco, out, images=tmp_path / "photos")
    assert (report.crops, report.labels) == (3, {"a/b": 1, "green": 2})
    assert {one["annotation_id"]: one["source_image"] for one in report.left_out} == {
        4: "two.png",
        5: "two.png",
        7: "gone.png",
    }
    found = {item.path: item for item in find_source(str(out)).scan()}
    assert len(found) == 3
    assert {(item.label, item.metadata["annotation_id"]) for item in found.values() if item.metadata} == {
        ("green", 1),
        ("a/b", 2),
        ("green", 3),
    }
    with Image.open(out / "green" / "one-1.jpg") as image:
        assert image.size == (20, 20)
        assert image.getpixel((10, 10))[1] > 240
    with Image.open(out / "green" / "two-3.jpg") as image:
        assert image.size == (10, 10)  # what lies in the image
    kept = (out / "green" / "one-1.jpg").stat().st_mtime_ns
    (out / "green" / "two-3.jpg").unlink()
    (out / "metadata.jsonl").unlink()
    assert crop_boxes(coco, out, images=tmp_path / "photos") == report
    assert (out / "green" / "one-1.jpg").stat().st_mtime_ns == kept
    for other in ({"images": tmp_path / "photos", "margin": 0.1}, {"images": tmp_path}):
        with pytest.raises(InputError, match="another --out"):
            crop_boxes(coco, out, **other)


def test_an_annotation_of_nothing_is_left_out_and_the_others_are_cropped(coco: Path, tmp_path: Path) -> None:
    document = json.loads(coco.read_text())
    document["images"].append({"id": 9, "file_name": "\ud800.png"})
    one, *_ = document["annotations"]
    bad = [{"bbox": box} for box in ([10**400, 1, 2, 2], [1e308] * 4, [math.nan, 1, 2, 2], [1.5, 1, 0, 2])]
    bad.append({"image_id": 9})
    document["annotations"] = [one | {"id": "\ud800"}, *(one | {"id": n} | more for n, more in enumerate(bad))]
    coco.write_text(json.dumps(document))
    report = crop_boxes(coco, tmp_path / "crops", images=tmp_path / "photos", margin=0.5)
    assert (report.crops, [left["annotation_id"] for left in report.left_out]) == (1, [0, 1, 2, 3, 4])


def test_a_margin_is_added_and_bad_boxes_named(coco: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--images", str(tmp_path / "photos"), "--out", str(tmp_path / "wide"), "--margin", "0.25"]
    assert main(["dataset", "crop", str(coco), *words]) == 1
    assert "left out: annotation 4 of two.png: bbox [70, 0, 5, 5] lies outside" in capsys.readouterr().out
    with Image.open(tmp_path / "wide" / "green" / "one-1.jpg") as image:
        assert image.size == (30, 30)
