"""The map and the quality view in a real browser."""

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.page_browser import PageGallery, Visit, draw_round

pytestmark = [pytest.mark.browser, pytest.mark.shared_data]


def hover_an_image(visit: Visit, panel: Locator) -> tuple[float, float, int]:
    """Move the mouse over the map until it is on a point: where, and the image that is named there."""
    area = panel.get_by_role("application").bounding_box()
    picture = panel.locator("img[src*='/thumbnail']")
    middle_x, middle_y = area["x"] + area["width"] / 2, area["y"] + area["height"] / 2
    for step in range(400):  # outwards from the middle, in a spiral of square rings
        ring, turn = divmod(step, 20)
        x = middle_x + 13 * ring * [-1, 0, 1, 1, 1, 0, -1, -1][turn % 8]
        y = middle_y + 13 * ring * [-1, -1, -1, 0, 1, 1, 1, 0][turn % 8]
        visit.page.mouse.move(x, y)
        visit.page.wait_for_timeout(5)
        if picture.is_visible():
            return x, y, int(re.search(r"images/(\d+)/thumbnail", picture.get_attribute("src") or "")[1])
    raise AssertionError("the mouse met no image")


def test_the_map_names_what_the_mouse_is_over_and_a_click_opens_it(visit: Visit, page_gallery: PageGallery) -> None:
    panel = visit.open_view("map")
    layout = visit.ask("map")
    assert sorted(layout["ids"]) == sorted(page_gallery.ids.values())
    expect(panel).to_contain_text("All 243 images")
    x, y, image = hover_an_image(visit, panel)
    label = layout["labels"][layout["label"][layout["ids"].index(image)]]
    shown = panel.locator("div:has(> span > img[src*='/thumbnail'])")
    expect(shown).to_contain_text(label)
    visit.page.mouse.click(x, y)
    visit.page.wait_for_url(re.compile(f"image={image}&details={image}"))
    details = visit.page.get_by_role("complementary", name="Details")
    path = next(path for path, number in page_gallery.ids.items() if number == image)
    expect(details).to_contain_text(path)
    assert visit.ids() == [hit["id"] for hit in visit.search(queries=[{"image_id": image}], k=48)]


def test_a_line_drawn_round_images_leads_to_them(visit: Visit, page_gallery: PageGallery) -> None:
    page = visit.page
    panel = visit.open_view("map")
    panel.get_by_role("button", name="Choose an area").click()
    expect(panel.get_by_role("button", name="Choose an area")).to_have_attribute("aria-pressed", "true")
    draw_round(visit, panel)
    chosen = panel.get_by_role("group", name="Chosen images")
    expect(chosen).to_contain_text("243 images")
    chosen.get_by_role("button", name="Choose none").click()
    expect(chosen).to_be_hidden()

    page.keyboard.down("Shift")
    draw_round(visit, panel, share=0.5)
    page.keyboard.up("Shift")
    expect(chosen).to_be_visible()
    count = int(re.match(r"(\d+) image", chosen.inner_text())[1])
    assert 0 < count < 243
    layout = visit.ask("map")
    left = {image for image, x in zip(layout["ids"], layout["x"], strict=True) if x < sorted(layout["x"])[count // 2]}
    chosen.get_by_role("link", name="Show them").click()
    expect(page.get_by_role("heading", name=f"{count} chosen images")).to_be_visible()
    assert len(visit.address["ids"][0].split(",")) == count
    assert left <= {int(image) for image in visit.address["ids"][0].split(",")}
    assert visit.ids() == [int(image) for image in visit.address["ids"][0].split(",")][: len(visit.ids())]


def shown(share: float) -> str:
    return f"{100 * share:.1f}"


def test_the_quality_view_shows_the_numbers_of_the_api_and_its_failures_lead_on(visit: Visit) -> None:
    page, quality = visit.page, visit.ask("quality")
    panel = visit.open_view("quality")
    first, at_r = quality["recall_at"][0], quality["map_at_r"]
    short = panel.get_by_role("region", name="In short")
    expect(short).to_contain_text(re.compile(f"{shown(first['value'])}\\s%"))
    expect(short).to_contain_text(re.compile(f"MAP@R {shown(at_r['value'])}\\s%"))
    expect(short).to_contain_text("243 searches")
    for bound in first["interval"]:
        expect(short).to_contain_text(re.compile(f"{shown(bound)}\\s%"))

    figure = panel.get_by_role("figure", name=re.compile("^Found among the first K"))
    figure.get_by_text("The numbers").click()
    rows = figure.get_by_role("row")
    expect(rows).to_have_count(1 + len(quality["recall_at"]))
    for row, point in zip(rows.all()[1:], quality["recall_at"], strict=True):
        assert re.match(rf"{point['k']}\s+{shown(point['value'])}\s%", row.inner_text())

    classes = panel.get_by_role("table").filter(has=panel.page.get_by_role("button", name="Images", exact=True))
    expect(classes.get_by_role("row")).to_have_count(1 + len(quality["classes"]))
    for entry in quality["classes"]:
        row = classes.get_by_role("row").filter(has=page.get_by_role("link", name=entry["label"], exact=True))
        expect(row).to_contain_text(re.compile(rf"{entry['images']}\D*{shown(entry['recall_at_1'])}\s%"))

    pair = quality["confusion"][0]
    panel.get_by_role("link", name=f"{pair['label']} finds {pair['found']} {pair['count']}").click()
    expect(page.get_by_role("heading", name=f"{pair['count']} chosen images")).to_be_visible()
    assert visit.ids() == pair["ids"]
    page.go_back()
    worst = quality["worst"][0]
    panel.get_by_role("link", name=re.compile("^Search with this image")).first.click()
    page.wait_for_url(re.compile(f"image={worst['id']}$"))
    assert visit.ids()[0] == worst["hit"]["id"]
