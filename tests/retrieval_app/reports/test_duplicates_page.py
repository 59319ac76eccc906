"""The page of duplicates: what is written into it."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from index.duplicates.duplicate_config import DuplicateConfig
from index.errors import InputError
from index.sources.items import Place
from retrieval_app.reports.duplicates_page import SIDE, write_duplicates_page
from retrieval_app.reports.duplicates_report import DuplicateGroup, DuplicateReport, GroupedImage
from tests.photos import write_photos

TAG, CLOSER = '"><img src=x onerror=alert(1)>', "</style><script>alert(1)</script>"
HOSTILE_FILE = os.fsdecode(b'caf\xe9, "<img src=x onerror=alert(1)>\n.jpg')


def image(path: Path, label: str | None, *, number: int = 1, **more: Any) -> GroupedImage:
    """One image of a group, with what is not given made up."""
    data = path.read_bytes() if path.is_file() else os.fsencode(path)
    defaults = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    return GroupedImage(number, path.name, str(path.parent), label, **(defaults | more))


def report_of(*groups: DuplicateGroup, **more: Any) -> DuplicateReport:
    defaults: dict[str, Any] = {"gallery": "photos <b>", "images": 90, "config": DuplicateConfig().settle(None)}
    images = [image for group in groups for image in group.images]
    places = {
        image.id: Place(Path(image.source) / image.path, image.path, sha256=image.sha256) for image in images
    }
    return DuplicateReport(groups=groups, places=places, **(defaults | more))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four pictures, the third of a hostile name."""
    folder = tmp_path_factory.mktemp("pictures")
    write_photos(folder, kinds=("polo",), pictures_per_kind=4, seed=3, size=256)
    found = sorted((folder / "polo").iterdir())
    hostile = Path(os.fsdecode(os.fsencode(folder) + b"/" + os.fsencode(HOSTILE_FILE)))
    found[2].rename(hostile)
    return [*found[:2], hostile, found[3]]


@pytest.fixture(scope="module")
def report(pictures: list[Path]) -> DuplicateReport:
    """Two groups: five images with different labels, of which two files are equal; and a pair that agrees."""
    first, second, hostile, last = pictures
    kept = image(first, "polo", number=7)
    large = DuplicateGroup(
        kept,
        (
            image(first, TAG, number=8, similarity=1.0, hash_distance=0),
            image(second, "polo", number=9, similarity=0.98765, hash_distance=2),
            image(hostile, CLOSER, number=10, similarity=0.93, hash_distance=6),
            image(last, None, number=11, indexed=False),
        ),
    )
    pair = DuplicateGroup(
        image(last, "lime", number=12), (image(second, None, number=13, similarity=0.95, hash_distance=4),)
    )
    return report_of(large, pair)


def test_equal_files_share_one_small_picture(report: DuplicateReport, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    out = tmp_path / "duplicates.html"
    assert write_duplicates_page(report, out, limit=9, progress=lambda *done: seen.append(done)) == 2
    pictures = re.findall(r'src="data:image/webp;base64,([^"]+)"', out.read_text(encoding="utf-8"))
    assert len(pictures) == 6
    with Image.open(io.BytesIO(base64.b64decode(pictures[0]))) as picture:
        assert (picture.format, picture.size) == ("WEBP", (SIDE, SIDE))
    assert seen == [(1, 2), (2, 2)]
    assert [path.name for path in tmp_path.iterdir()] == ["duplicates.html"]


def test_the_limit_takes_groups_with_different_labels_first_and_they_keep_their_numbers(tmp_path: Path) -> None:
    def group(name: str, *labels: str | None) -> DuplicateGroup:
        first, *others = (image(tmp_path / f"{name}{i}.jpg", label) for i, label in enumerate(labels))
        return DuplicateGroup(first, tuple(others))

    groups = [group("a", "x", "x", "x"), group("b", "x", None, None), group("c", "x", "y"), group("d", "x", "x")]
    out = tmp_path / "page.html"
    assert write_duplicates_page(report_of(*groups), out, limit=2) == 2
    html = out.read_text(encoding="utf-8")
    assert re.findall(r'class="panel group([^"]*)" id="group-(\d)"', html) == [("", "1"), (" differ", "3")]
    assert "<b>2 of 4 groups</b> are on this page" in html
    write_duplicates_page(report_of(*groups), out, limit=4)
    assert "are on this page" not in out.read_text(encoding="utf-8")


def test_no_name_or_label_is_markup_and_nothing_is_let_in(report: DuplicateReport, tmp_path: Path) -> None:
    write_duplicates_page(report, tmp_path / "page.html", limit=9)
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script" not in html
    assert html.count("</style>") == 1
    assert html.count("<img") == html.count('<img src="data:image/webp;base64,')
    assert "default-src 'none'; style-src 'sha256-" in unescape(html)
    assert "unsafe" not in html
    assert r"caf\xe9, &#34;&lt;img src=x onerror=alert(1)&gt;\n.jpg" in html


def test_a_page_that_cannot_be_written_is_said_to_be_so(report: DuplicateReport, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing/page\.html: the page cannot be written"):
        write_duplicates_page(report, tmp_path / "missing" / "page.html", limit=1)
