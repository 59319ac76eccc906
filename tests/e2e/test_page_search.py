"""Searching on the page in a real browser: queries, crops, filters, facets, results."""

import csv
import io
import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from index.gallery.gallery import Gallery
from index.writing.build import build_gallery
from tests.described_photos import save_photo
from tests.page_browser import (
    CHOOSE,
    OpenVisit,
    PageGallery,
    Visit,
    details,
    give_files,
    keep_bodies,
    last_body,
    open_card,
    query_card,
)
from tests.serving_server import serve

pytestmark = [pytest.mark.browser, pytest.mark.shared_data]


def query_parts(visit: Visit) -> Locator:
    """The images of a query that has several."""
    return query_card(visit).get_by_role("list", name="All parts of the query").get_by_role("listitem")


def test_a_dropped_photo_begins_anew_or_joins_the_former(visit: Visit, page_gallery: PageGallery) -> None:
    image, dropped = (page_gallery.of(label)[4] for label in ("pants", "dress"))
    page = visit.open(f"?image={page_gallery.ids[image]}")
    visit.ids()
    give_files(visit, "drop", page_gallery.photos.parent / dropped)
    page.wait_for_url(re.compile(r"\?photo=[^&]*$"))
    expect(visit.cards.first).to_have_attribute("data-id", str(page_gallery.ids[dropped]))
    page.get_by_role("button", name="Combine with the former").click()
    expect(query_parts(visit)).to_have_count(2)
    assert visit.address["image"] == [str(page_gallery.ids[image])]
    hat = page_gallery.photos.parent / page_gallery.of("hat")[4]
    query_card(visit).get_by_label("Add a photo").set_input_files(hat)
    expect(query_parts(visit)).to_have_count(3)
    assert len(visit.address["photo"]) == 2


def test_a_sample_starts_a_search_which_more_like_and_less_like_lead_on(visit: Visit) -> None:
    page = visit.open()
    page.get_by_role("button", name=re.compile("^Search with photos")).nth(2).click()
    expect(query_card(visit)).to_contain_text("photos/")
    start = int(visit.address["image"][0])
    found = visit.ids()
    assert found == [hit["id"] for hit in visit.search(queries=[{"image_id": start}], k=48)]

    keep_bodies(visit)
    visit.card(found[1]).hover()
    visit.card(found[1]).get_by_role("button", name="More like this").click()
    expect(page.get_by_text("Looking for more like it")).to_be_visible()
    visit.card(found[5]).hover()
    visit.card(found[5]).get_by_role("button", name="Less like this").click()
    expect(visit.card(found[1])).to_have_count(0)
    assert (visit.address["more"], visit.address["less"]) == ([str(found[1])], [str(found[5])])
    visit.ids()
    queries = last_body(visit, "/v1/search")["queries"]
    assert [query["image_id"] for query in queries] == [start, found[1], found[5]]
    assert queries[0]["weight"] > queries[1]["weight"] > 0 > queries[2]["weight"]
    assert visit.ids() == [hit["id"] for hit in visit.search(queries=queries, k=48)]

    query_card(visit).get_by_role("button", name=re.compile("^Less like (image|photos)")).click()
    pressed = query_card(visit).get_by_role("group", name="How it counts").get_by_role("button", pressed=True)
    expect(pressed).to_have_text("Less like")
    query_card(visit).get_by_role("button", name="Clear").click()
    expect(page.get_by_role("heading", name="All 243 images")).to_be_visible()


def test_a_part_of_a_picture_is_chosen_with_the_mouse_and_reset(visit: Visit, page_gallery: PageGallery) -> None:
    image = page_gallery.ids[page_gallery.of("outwear")[0]]
    page = visit.open(f"?image={image}")
    whole = visit.ids()
    box = query_card(visit).get_by_role("group", name=re.compile("^Part to search with"))
    area = box.bounding_box()
    page.mouse.move(area["x"] + 0.3 * area["width"], area["y"] + 0.2 * area["height"])
    page.mouse.down()
    page.mouse.move(area["x"] + 0.6 * area["width"], area["y"] + 0.5 * area["height"], steps=4)
    page.mouse.move(area["x"] + 0.7 * area["width"], area["y"] + 0.6 * area["height"])
    page.mouse.up()
    reset = query_card(visit).get_by_role("button", name="Reset crop")
    expect(reset).to_be_visible()
    key, _, numbers = visit.address["crop"][0].partition(":")
    assert key == f"i{image}"
    assert [float(number) for number in numbers.split(",")] == pytest.approx([0.3, 0.2, 0.4, 0.4], abs=0.02)
    x, y, width, height = map(float, numbers.split(","))
    crop = {"x": x, "y": y, "width": width, "height": height}
    cropped = [hit["id"] for hit in visit.search(queries=[{"image_id": image, "crop": crop}], k=48)]
    assert cropped != whole
    expect(visit.cards.first).to_have_attribute("data-id", str(cropped[0]))
    assert visit.ids() == cropped
    reset.click()
    expect(reset).to_have_count(0)
    assert visit.ids() == whole
    assert "crop" not in visit.address


@pytest.mark.parametrize("phone", [False, True])
def test_words_search_alone_and_beside_an_image(open_visit: OpenVisit, page_gallery: PageGallery, phone: bool) -> None:
    visit = open_visit(phone=phone)
    page = visit.open()
    expect(page.get_by_role("region", name=re.compile("search by words: this gallery knows"))).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("haat nord")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("words=haat"))
    expect(page.get_by_role("heading", name=re.compile("'haat' read as hat; [0-9]+ images have"))).to_be_visible()
    found = visit.search(queries=[{"text": "haat nord"}], k=48, include=["label", "path"])
    assert visit.ids() == [hit["id"] for hit in found]
    assert {"hat", "nord"} <= set(found[0]["words"])
    expect(visit.card(found[0]["id"])).to_contain_text("“hat”")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("m")
    page.wait_for_url(re.compile("more="))
    expect(query_parts(visit)).to_have_count(2)
    visit.ids()
    query_card(visit).get_by_role("button", name=re.compile("^Remove .*jpg")).click()
    page.get_by_role("button", name="Only these").click()
    expect(page.get_by_role("list", name="Conditions")).to_contain_text("with the words “hat nord”")
    expect(page.get_by_role("heading", name=re.compile("images found"))).to_be_visible()
    visit.forgive("status of 422")
    visit.open("?words=xyzzy")
    expect(page.get_by_role("alert")).to_contain_text("is written or taught about 'xyzzy'")


def test_conditions_narrow_and_a_refused_one_says_why(visit: Visit, page_gallery: PageGallery) -> None:
    page = visit.open()
    box = page.get_by_role("combobox", name="Words or a condition")
    box.fill("price < 20")
    expect(page.get_by_text("Enter adds this condition")).to_be_visible()
    box.press("Enter")
    chips = page.get_by_role("list", name="Conditions").get_by_role("listitem")
    expect(chips).to_have_text([re.compile("price < 20")])
    expect(box).to_have_value("")
    assert visit.address == {"f": ["price < 20"]}
    total = visit.ask("images?where=price%20%3C%2020")["total"]
    expect(page.get_by_role("heading", name=f"{total} images found")).to_be_visible()

    visit.forgive("status of 422")
    box.fill("prise < 20")
    box.press("Enter")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text(re.compile("prise.*(price|column)", re.DOTALL))).to_be_visible()
    expect(chips).to_have_count(1)
    box.fill("label in ('hat', 'shoes')")
    box.press("Enter")
    expect(chips).to_have_count(3)  # two conditions, and what clears all
    expect(box).not_to_have_attribute("aria-invalid", "true")
    labels = {path: page_gallery.labels[path] for path, image in page_gallery.ids.items() if image in visit.ids()}
    assert set(labels.values()) == {"hat", "shoes"}
    chips.first.get_by_role("button", name="Remove the condition price < 20").click()
    expect(page.get_by_role("heading", name="61 images found")).to_be_visible()


def test_facets_narrow_with_counts_that_hold(visit: Visit) -> None:
    page = visit.open()
    facets = page.get_by_role("region", name="Narrow down")
    hat = facets.get_by_role("checkbox", name=re.compile("^hat "))
    expect(hat).to_have_accessible_name("hat 30")
    hat.check()
    expect(page.get_by_role("heading", name="30 images found")).to_be_visible()
    chips = page.get_by_role("list", name="Conditions").get_by_role("listitem")
    expect(chips).to_have_text([re.compile("Label: hat")])
    shoes = facets.get_by_role("checkbox", name=re.compile("^shoes "))
    expect(shoes).to_have_accessible_name("shoes 31")  # within a facet values add up
    shoes.check()
    expect(page.get_by_role("heading", name="61 images found")).to_be_visible()
    expect(chips).to_have_text([re.compile("Label: hat or shoes")])
    folder = facets.get_by_role("checkbox", name=re.compile("^photos.hat "))
    expect(folder).to_have_accessible_name("photos/hat 30")
    folder.check()
    expect(page.get_by_role("heading", name="30 images found")).to_be_visible()
    expect(chips).to_have_count(3)
    facets.get_by_text("shop", exact=True).click()
    where = facets.get_by_role("checkbox", name=re.compile("^<b>West"))
    count = int((where.locator("xpath=..").inner_text()).split()[-1])
    where.check()
    expect(page.get_by_role("heading", name=f"{count} images found")).to_be_visible()
    page.get_by_role("button", name="Clear all").click()
    expect(page.get_by_role("heading", name="All 243 images")).to_be_visible()
    expect(hat).not_to_be_checked()


def test_more_comes_with_scrolling(visit: Visit) -> None:
    page = visit.open("?k=12&image=1&f=label+IN+%28%27dress%27,%27shirt%27,%27hat%27%29")
    where = "label IN ('dress','shirt','hat')"
    expected = [hit["id"] for hit in visit.search(queries=[{"image_id": 1}], k=500, where=where)]
    assert len(expected) > 60
    shown = visit.ids()
    assert shown == expected[: len(shown)]
    assert len(shown) <= 24  # the first page, and perhaps the one ahead
    for _ in range(40):
        if len(visit.ids()) == len(expected):
            break
        page.mouse.move(640, 600)
        page.mouse.wheel(0, 4000)
        page.wait_for_timeout(50)
    expect(page.get_by_role("heading", name=f"{len(expected)} results")).to_be_visible()
    assert visit.ids() == expected


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
    with page.expect_download() as saved:
        bar.get_by_role("button", name="ZIP").click()
    with zipfile.ZipFile(saved.value.path()) as archive:
        assert len(archive.namelist()) == 6  # the images and their list
    bar.get_by_role("button", name="Search with these").click()
    expect(bar).to_be_hidden()
    assert visit.address["image"] == [str(image) for image in (*ids[1:5], ids[0])]


def test_details_tell_what_an_image_is_and_why(visit: Visit, page_gallery: PageGallery) -> None:
    path, copy = page_gallery.copies[0]
    image = page_gallery.ids[path]
    visit.open(f"?image={page_gallery.ids[page_gallery.of('shoes')[0]]}&k=200")
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
    expect(panel.get_by_role("button", name=re.compile("^Details of photos.*score"))).to_have_count(12)
    panel.get_by_role("button", name=f"Details of the duplicate {copy}, same file").click()
    expect(panel.get_by_role("heading", name=Path(copy).name)).to_be_visible()
    assert visit.address["details"] == [str(page_gallery.ids[copy])]
    panel.get_by_role("button", name="Close").click()
    expect(panel).to_be_hidden()
    assert "details" not in visit.address


def test_a_ranking_is_semantic_until_copies_are_asked_for(two: Gallery, open_visit: OpenVisit, tmp_path: Path) -> None:
    with serve(two.path, log=tmp_path / "log") as server:
        visit = open_visit(server=server)
        own = int(two.ids[0])
        page = visit.open(f"?image={own}")
        choice = page.get_by_role("region", name="Ranking").get_by_label("Find")
        expect(choice).to_have_value("semantic")
        asked = {"queries": [{"image_id": own}], "k": 48}
        assert visit.ids() == [hit["id"] for hit in visit.search(**asked)]
        choice.select_option("copies")
        page.wait_for_url(re.compile("by=copy"))
        hits = visit.search(**asked, by="copy")
        visit.wait_until(lambda: visit.ids() == [hit["id"] for hit in hits])
        copies = [hit["id"] for hit in hits if hit["is_copy"]]
        assert 0 < len(copies) < len(hits)
        expect(page.get_by_text("copy", exact=True).locator("visible=true")).to_have_count(len(copies))
        visit.leave()


def test_photos_that_cannot_be_used_are_refused_in_words(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    (tmp_path / "notes.jpg").write_text("dear diary")
    visit.forgive("status of 4")
    page.get_by_label(CHOOSE).set_input_files(tmp_path / "notes.jpg")
    expect(page.get_by_role("alert").filter(has_text="notes.jpg")).to_be_visible()
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(21 * 1024 * 1024)
    sent = sum("/v1/photos" in url for url in visit.requests)
    page.get_by_label(CHOOSE).set_input_files(tmp_path / "huge.png")
    expect(page.get_by_role("alert").filter(has_text="huge.png: 22 MB, at most 21 MB")).to_be_visible()
    assert sum("/v1/photos" in url for url in visit.requests) == sent
    expect(page.get_by_role("heading", name="All 243 images")).to_be_visible()


def test_photos_are_ordered_and_narrowed_by_when_they_were_taken(
    open_visit: OpenVisit, tiny_model: Path, tmp_path: Path
) -> None:
    years = (2019, 2023, 2021, 2023, None)
    for number, year in enumerate(years):
        taken = None if year is None else f"{year}:05:0{number + 1} 12:00:00"
        save_photo(tmp_path / "photos" / f"{number}.jpg", taken, seed=number)
    build_gallery(model_path=tiny_model, sources=[tmp_path / "photos"], out=tmp_path / "gallery")
    with serve(tmp_path / "gallery", log=tmp_path / "log") as server:
        visit = open_visit(server=server)
        page = visit.open()
        assert visit.ids() == [1, 2, 3, 4, 5]
        page.get_by_role("combobox", name="Order").select_option("Newest first")
        visit.wait_until(lambda: visit.ids() == [4, 2, 3, 1, 5])
        bars = page.get_by_role("group", name="Taken").get_by_role("button")
        expect(bars).to_have_count(3)
        assert [bar.get_attribute("aria-label") for bar in bars.all()] == [
            "2019: 1 image",
            "2021: 1 image",
            "2023: 2 images",
        ]
        bars.nth(2).click()
        visit.wait_until(lambda: visit.ids() == [4, 2])
        expect(bars.nth(2)).to_have_attribute("aria-pressed", "true")
        bars.nth(0).click()
        visit.wait_until(lambda: visit.ids() == [4, 2, 1])
        expect(page.get_by_role("list", name="Conditions")).to_contain_text("Taken: 2023 or 2019")
        page.go_back()
        visit.wait_until(lambda: visit.ids() == [4, 2])
        visit.leave()
