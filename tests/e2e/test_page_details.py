"""What the page tells of an image, and what a selection becomes, in a real browser."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from tests.page_browser import Visit, skip_without_browser
from tests.page_gallery import PageGallery
from tests.page_parts import details, open_card

pytestmark = [pytest.mark.browser, pytest.mark.shared_data]
skip_without_browser()
from playwright.sync_api import expect  # noqa: E402


def test_a_selection_is_saved_as_csv_and_as_zip(visit: Visit, page_gallery: PageGallery) -> None:
    page = visit.open(f"?image={page_gallery.ids[page_gallery.of('hat')[0]]}")
    ids = visit.ids()
    visit.card(ids[1]).hover()
    visit.card(ids[1]).get_by_role("button", name="Select").click()
    visit.card(ids[4]).hover()
    visit.card(ids[4]).get_by_role("button", name="Select").click(modifiers=["Shift"])
    open_card(visit, ids[0]).focus()
    page.keyboard.press("x")
    bar = page.get_by_role("toolbar", name="Selection")
    expect(bar).to_contain_text("5 selected")
    expect(visit.card(ids[0]).get_by_role("button", name="Select")).to_have_attribute("aria-pressed", "true")

    with page.expect_download() as saved:
        bar.get_by_role("button", name="CSV").click()
    assert saved.value.suggested_filename.endswith(".csv")
    rows = list(csv.DictReader(io.StringIO(saved.value.path().read_text(encoding="utf-8"))))
    assert sorted(int(row["id"]) for row in rows) == sorted(ids[:5])
    paths = {image: path for path, image in page_gallery.ids.items()}
    assert all(row["path"] == paths[int(row["id"])] for row in rows)
    assert all(row["label"] == page_gallery.labels[row["path"]] for row in rows)
    with page.expect_download() as saved:
        bar.get_by_role("button", name="ZIP").click()
    assert saved.value.suggested_filename.endswith(".zip")
    with zipfile.ZipFile(saved.value.path()) as archive:
        pictures = [name for name in archive.namelist() if name != "list.csv"]
        assert "list.csv" in archive.namelist()
        assert len(pictures) == 5
        for name in pictures:
            Image.open(io.BytesIO(archive.read(name))).load()

    bar.get_by_role("button", name="Search with these").click()
    expect(bar).to_be_hidden()
    assert visit.address["image"] == [str(image) for image in (*ids[1:5], ids[0])]


def test_details_tell_what_an_image_is_and_why(visit: Visit, page_gallery: PageGallery) -> None:
    path, copy = page_gallery.copies[0]
    image = page_gallery.ids[path]
    visit.open(f"?image={page_gallery.ids[page_gallery.of('shoes')[0]]}")
    visit.ids()
    open_card(visit, image).click()
    panel = details(visit)
    expect(panel.get_by_role("heading", name=Path(path).name)).to_be_focused()
    told = visit.ask(f"images/{image}")
    for name in ("price", "shop"):
        expect(panel.get_by_role("row", name=re.compile(f"^{name}"))).to_contain_text(str(told["metadata"][name]))
    expect(panel).to_contain_text(path)
    why = visit.ask(f"images/{image}/labels?k=20")
    expect(panel).to_contain_text(f"{round(100 * why['own_share'])}\u00a0% of its 20 nearest are “shoes” too")
    neighbours = panel.get_by_role("button", name=re.compile("^Details of photos.*score"))
    expect(neighbours).to_have_count(12)
    expect(panel.get_by_role("button", name=f"Details of the duplicate {copy}, same file")).to_be_visible()
    expect(panel.get_by_role("link", name="Open the picture")).to_have_attribute(
        "href", re.compile(f"/v1/images/{image}/picture$")
    )

    panel.get_by_role("button", name=f"Details of the duplicate {copy}, same file").click()
    expect(panel.get_by_role("heading", name=Path(copy).name)).to_be_visible()
    assert visit.address["details"] == [str(page_gallery.ids[copy])]
    panel.get_by_role("button", name="Close").click()
    expect(panel).to_be_hidden()
    assert "details" not in visit.address


@pytest.mark.usefixtures("decisions")
def test_a_label_is_fixed_in_the_details(visit: Visit, page_gallery: PageGallery) -> None:
    path = next(path for path, label in page_gallery.wrong.items() if label == "pants")
    image = page_gallery.ids[path]
    page = visit.open(f"?details={image}")
    panel = details(visit)
    panel.get_by_role("button", name="Fix label").click()
    field = panel.get_by_label("The right label")
    expect(field).to_be_focused()
    change = panel.get_by_role("button", name="Change", exact=True)
    expect(change).to_be_disabled()
    field.fill("pants")
    change.click()
    expect(page.get_by_text("Label changed to “pants”")).to_be_visible()
    decision = visit.ask(f"images/{image}")["decision"]
    assert decision["decision"] == "change"
    assert "pants" in decision.values()
    page.get_by_role("region", name="Messages").get_by_role("button", name="Undo").click()
    expect(panel.get_by_role("button", name="Fix label")).to_be_visible()
    visit.wait_until(lambda: visit.ask(f"images/{image}")["decision"] is None)
