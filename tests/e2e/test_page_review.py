"""The working lists of label issues and of duplicates in a real browser."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.page_browser import OpenVisit, PageGallery, Visit
from tests.serving_server import serve

pytestmark = [pytest.mark.browser, pytest.mark.shared_data]


def row_of(panel: Locator, item: dict[str, Any]) -> Locator:
    """The row of a label issue, or the card of a group."""
    path = item["path"] if "path" in item else item["images"][0]["path"]
    return panel.get_by_role("article", name=re.compile(re.escape(Path(path).name)))


def press_show(panel: Locator, name: str) -> None:
    panel.get_by_role("group", name="Which to show").get_by_role("button", name=re.compile(f"^{name}")).click()


def decided(visit: Visit, item: dict[str, Any]) -> dict[str, Any] | None:
    """What the server keeps as decided about an image."""
    return visit.ask(f"images/{item['id']}")["decision"]


def wait_until_decided(visit: Visit, panel: Locator, count: int) -> None:
    """Until the page shows that so many are decided, and the server knows."""
    expect(panel.get_by_text(re.compile(f"^{count} of \\d+ decided"))).to_be_visible()
    visit.wait_until(lambda: visit.ask("labels/issues?limit=1&state=all")["decided"] == count)


@pytest.mark.usefixtures("decisions")
def test_labels_are_decided_by_key_and_undone(visit: Visit) -> None:
    page = visit.page
    panel = visit.open_view("labels")
    items = visit.ask("labels/issues?limit=10")["items"]
    start = next(place for place, item in enumerate(items) if item["verdict"] == "change")
    first, second, third, fourth = items[start : start + 4]
    expect(panel.get_by_role("article")).to_have_count(30)
    expect(row_of(panel, first)).to_contain_text(first["suggested"])
    row_of(panel, first).focus()
    page.keyboard.press("a")
    expect(row_of(panel, second)).to_be_focused()
    page.keyboard.press("l")
    page.keyboard.press("x")
    page.keyboard.press("2")
    wait_until_decided(visit, panel, 4)
    other = fourth["suggestions"][1]["label"]
    for item, words in zip(
        (first, second, third, fourth),
        (f"Change to {first['suggested']}", f"Keep {second['label']}", "Drop", f"→ {other}"),
        strict=True,
    ):
        expect(row_of(panel, item).get_by_role("button", name=words, pressed=True)).to_be_visible()
    decisions = [decided(visit, item) for item in (first, second, third, fourth)]
    assert [decision["decision"] for decision in decisions] == ["change", "keep", "drop", "change"]
    assert first["suggested"] in decisions[0].values()
    assert other in decisions[3].values()

    page.keyboard.press("u")
    wait_until_decided(visit, panel, 3)
    assert decided(visit, fourth) is None
    expect(row_of(panel, fourth)).to_be_focused()
    panel.get_by_role("button", name="Undo").click()
    wait_until_decided(visit, panel, 2)
    keep = row_of(panel, second).get_by_role("button", name=f"Keep {second['label']}")
    keep.click()  # a second press takes it back
    wait_until_decided(visit, panel, 1)
    assert decided(visit, second) is None
    assert decided(visit, first) is not None


@pytest.mark.usefixtures("decisions")
def test_a_label_that_is_probably_wrong_is_never_kept_by_accepting(visit: Visit) -> None:
    def keep_first(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        found["items"][0] |= {"verdict": "keep", "kind": "rare_class", "p_error": 0.93}
        route.fulfill(response=answer, json=found)

    first = visit.ask("labels/issues?limit=1")["items"][0]
    visit.page.route(re.compile(r"/v1/labels/issues\?"), keep_first)
    panel = visit.open_view("labels")
    row = row_of(panel, first)
    row.focus()
    visit.page.keyboard.press("a")
    visit.page.keyboard.press("Enter")
    expect(visit.page.get_by_role("region", name="Messages")).to_contain_text("no recommendation")
    expect(row).to_be_focused()
    row.get_by_role("checkbox").check()
    panel.get_by_role("button", name="Accept verdicts").click()
    expect(visit.page.get_by_role("dialog")).to_have_count(0)
    assert decided(visit, first) is None
    row.focus()
    visit.page.keyboard.press("l")
    wait_until_decided(visit, panel, 1)
    visit.page.unroute_all()


@pytest.mark.usefixtures("decisions")
def test_a_sample_is_answered_by_key_until_it_proves_its_share(visit: Visit, page_gallery: PageGallery) -> None:
    page, right = visit.page, {page_gallery.ids[path]: label for path, label in page_gallery.wrong.items()}
    panel = visit.open_view("labels")
    panel.get_by_role("button", name="Check a sample").press("Enter")
    page.get_by_role("dialog").get_by_label("Share of wrong labels, in percent").fill("30")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Draw images").press("Enter")
    for _ in range(20):
        expect(panel.get_by_text(re.compile("looked at"))).to_be_visible()
        if (now := visit.ask("labels/certificate"))["is_proved"]:
            break
        waiting = visit.ask("labels/issues?state=sample")["items"]
        row_of(panel, waiting[0]).focus()
        for item in waiting:
            expect(row_of(panel, item)).to_be_focused()
            if item["id"] in right:
                page.keyboard.press("x")
            else:
                page.keyboard.press("l")
        target = now["looked_at"] + len(waiting)
        visit.wait_until(lambda least=target: visit.ask("labels/certificate")["looked_at"] >= least)
        visit.wait_until(lambda: (one := visit.ask("labels/certificate"))["waiting"] > 0 or one["is_proved"])
    expect(panel.get_by_text(re.compile("^Proved: at most 30%"))).to_be_visible()
    assert now["looked_at"] < 150
    with page.expect_download() as download:
        panel.get_by_role("button", name="Download the certificate").click()
    assert "Proved" in download.value.path().read_text(encoding="utf-8")
    panel.get_by_role("button", name="Back to label issues").click()
    expect(panel.get_by_role("button", name=re.compile("^To decide"), pressed=True)).to_be_visible()


@pytest.mark.usefixtures("decisions")
def test_the_list_takes_what_decisions_teach_by_itself_but_not_under_a_dialog(visit: Visit) -> None:
    page = visit.page
    panel = visit.open_view("labels")
    first, second = visit.ask("labels/issues?limit=2")["items"]
    rows = panel.get_by_role("article")
    row_of(panel, first).focus()
    page.keyboard.press("a")
    page.keyboard.press("z")
    expect(page.get_by_role("dialog", name="Picture")).to_contain_text(second["path"])
    before = rows.evaluate_all("rows => rows.map(row => row.ariaLabel)")

    def is_learnt() -> bool:
        found = visit.ask("labels/issues?limit=1")
        return found["decisions_used"] == 1 and not found["is_updating"]

    visit.wait_until(is_learnt, seconds=90)
    page.wait_for_timeout(4000)
    assert rows.evaluate_all("rows => rows.map(row => row.ariaLabel)") == before
    page.keyboard.press("Escape")
    expect(page.get_by_text("The list is up to date")).to_have_count(1)
    assert rows.evaluate_all("rows => rows.map(row => row.ariaLabel)") != before
    expect(row_of(panel, second)).to_be_focused()
    expect(row_of(panel, first)).to_be_visible()  # what was decided stays in sight
    page.keyboard.press("u")
    wait_until_decided(visit, panel, 0)


@pytest.mark.usefixtures("decisions")
def test_decided_labels_are_found_again_and_others_can_be_written(visit: Visit) -> None:
    page = visit.page
    panel = visit.open_view("labels")
    first, second = visit.ask("labels/issues?limit=2")["items"]
    row_of(panel, first).get_by_role("button", name="Other label…").click()
    dialog = page.get_by_role("dialog", name="What does it show?")
    dialog.get_by_role("combobox", name="New label").fill("cape & <i>hood</i>")
    dialog.get_by_role("button", name="Change the label").click()
    expect(dialog).to_have_count(0)
    row_of(panel, second).get_by_role("button", name="Drop").click()
    wait_until_decided(visit, panel, 2)

    page.reload()
    expect(panel.get_by_role("article").first).to_be_visible()
    expect(row_of(panel, first)).to_have_count(0)
    press_show(panel, "Decided")
    expect(panel.get_by_role("article")).to_have_count(2)
    expect(row_of(panel, first).get_by_role("button", name="→ cape & <i>hood</i>")).to_be_visible()
    assert visit.address["state"] == ["decided"]
    press_show(panel, "All")
    every = panel.get_by_role("button", name=re.compile(r"^All \d+"))  # how many changes as decisions are learnt from
    expect(every).to_have_attribute("aria-pressed", "true")
    expect(row_of(panel, first)).to_be_visible()


@pytest.mark.usefixtures("decisions")
def test_a_goal_sets_doubtful_images_aside_and_a_person_decides_them(visit: Visit) -> None:
    page = visit.page
    panel = visit.open_view("labels")
    panel.get_by_role("button", name="Accept in bulk…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Share of right labels, in percent").fill("98")
    accept, effect = dialog.get_by_role("button", name="Accept", exact=True), dialog.get_by_role("status")
    expect(accept).to_be_enabled()
    aside = int(re.findall(r"(\d+) images? (?:is|are) set aside", effect.inner_text())[0])
    assert aside > 1
    accept.click()
    expect(dialog).to_have_count(0)
    press_show(panel, f"Set aside {aside}")
    first, second = visit.ask("labels/issues?state=set_aside&limit=2")["items"]
    assert first["decision"]["source"] == "bulk"
    expect(row_of(panel, first)).to_contain_text("set aside in bulk")

    row_of(panel, first).focus()
    page.keyboard.press("b")  # brings back
    expect(row_of(panel, second)).to_be_focused()
    page.keyboard.press("l")
    visit.wait_until(lambda: (decided(visit, second) or {}).get("decision") == "keep")
    assert decided(visit, first) is None
    assert decided(visit, second)["p_right"] == 1
    press_show(panel, "Decided")
    changed = next(
        item
        for item in visit.ask("labels/issues?state=decided&limit=200")["items"]
        if item["decision"]["decision"] == "change"
    )
    expect(row_of(panel, changed)).to_contain_text("accepted in bulk, right with")
    row_of(panel, changed).focus()
    page.keyboard.press("c")  # confirms
    visit.wait_until(lambda: decided(visit, changed)["source"] == "person")
    assert decided(visit, changed)["p_right"] == 1
    for _ in range(4):
        page.keyboard.press("u")
    visit.wait_until(lambda: visit.ask("labels/issues?limit=1&state=set_aside")["set_aside"] == 0)
    assert visit.ask("labels/decisions")["decisions"] == []


@pytest.mark.usefixtures("decisions")
def test_what_does_not_belong_to_a_class_is_set_aside_by_key_and_brought_back(visit: Visit) -> None:
    page = visit.page
    panel = visit.open_view("labels")
    panel.get_by_role("button", name="Look at classes").click()
    classes = visit.ask("labels/classes")["classes"]
    first, second = (one["label"] for one in classes[:2])
    shown = visit.ask(f"labels/class?label={first}")["images"]
    images = panel.get_by_role("list", name="Images of the class").get_by_role("button")
    expect(images).to_have_count(len(shown))
    ids = images.evaluate_all("images => images.map(image => Number(image.dataset.id))")
    assert ids == [image["id"] for image in shown]
    expect(images.nth(0)).to_be_focused()
    for key in ("x", "ArrowRight", "ArrowRight", "Space"):
        page.keyboard.press(key)
    expect(panel.get_by_role("group", name="Marked images")).to_contain_text("2 images marked")
    page.keyboard.press("n")  # not before what is marked is set aside
    expect(page.get_by_text("S sets aside, Esc marks none")).to_be_visible()
    page.keyboard.press("s")
    aside = panel.get_by_role("list", name="Images set aside").get_by_role("button")
    expect(aside).to_have_count(2)
    expect(images.nth(1)).to_be_focused()  # the one behind those that left
    assert [decided(visit, shown[place])["decision"] for place in (0, 2)] == ["set_aside", "set_aside"]
    assert decided(visit, shown[1]) is None

    aside.first.click()
    page.keyboard.press("b")
    expect(aside).to_have_count(1)
    expect(images.nth(1)).to_have_attribute("data-id", str(shown[2]["id"]))  # in its place again
    page.keyboard.press("n")
    expect(panel.get_by_text(f"1 of {len(classes)} classes looked at")).to_be_visible()
    assert visit.address["look"] == [second]
    page.keyboard.press("u")
    page.keyboard.press("u")
    visit.wait_until(lambda: decided(visit, shown[0]) is None)
    expect(panel.get_by_text(f"{first} · {len(shown)} images")).to_be_visible()
    page.reload()
    expect(panel.get_by_text(f"1 of {len(classes)} classes looked at")).to_be_visible()
    panel.get_by_role("button", name="Label issues").click()
    expect(panel.get_by_role("article").first).to_be_visible()


@pytest.mark.usefixtures("decisions")
def test_duplicates_are_decided_remembered_and_listed(visit: Visit, page_gallery: PageGallery) -> None:
    page = visit.page
    panel = visit.open_view("duplicates")
    groups = visit.ask("duplicates")["items"]
    expect(panel.get_by_role("article")).to_have_count(len(groups))
    assert {tuple(sorted(image["path"] for image in group["images"])) for group in groups} == {
        tuple(sorted(pair)) for pair in page_gallery.copies
    }
    expect(row_of(panel, groups[0])).to_contain_text("same file")
    expect(row_of(panel, groups[0])).to_contain_text("labels differ")

    first, second, third = (row_of(panel, group) for group in groups)
    first.get_by_role("checkbox").nth(0).uncheck()
    first.get_by_role("checkbox").nth(1).check()
    first.get_by_role("button", name="Duplicates: keep 1, drop 1").click()
    second.get_by_role("button", name="Different images, keep all").click()
    expect(panel.get_by_text("2 of 3 decided")).to_be_visible()
    third.focus()
    page.keyboard.press("1")  # keeps both, as the one with the shorter name is proposed
    expect(third.get_by_role("button", name="Duplicates, keep all")).to_be_visible()
    page.keyboard.press("a")
    expect(panel.get_by_text("3 of 3 decided")).to_be_visible()
    page.keyboard.press("u")
    expect(panel.get_by_text("2 of 3 decided")).to_be_visible()
    visit.wait_until(lambda: visit.ask("duplicates")["decided"] == 2)

    rule = panel.get_by_role("combobox", name="Image to keep")
    rule.select_option("first")
    expect(panel.get_by_text("decides 1 group, drops 1 image")).to_be_visible()
    panel.get_by_role("button", name="Apply…").click()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    expect(panel.get_by_text("3 of 3 decided")).to_be_visible()
    dropped = groups[2]["images"][1]["id"]
    hits = visit.search(queries=[{"image_id": groups[2]["images"][0]["id"]}], k=1)
    assert hits[0]["id"] != dropped
    panel.get_by_role("button", name="Undo").click()
    expect(panel.get_by_text("2 of 3 decided")).to_be_visible()

    page.reload()
    expect(panel.get_by_text("2 of 3 decided")).to_be_visible()
    press_show(panel, "Decided")
    expect(panel.get_by_role("article")).to_have_count(2)
    expect(first.get_by_role("checkbox").nth(0)).not_to_be_checked()
    expect(first.get_by_role("checkbox").nth(1)).to_be_checked()
    expect(second.get_by_role("button", name="Different images", pressed=True)).to_be_visible()
    second.get_by_role("button", name=re.compile("^Enlarge")).first.click()
    dialog = page.get_by_role("dialog", name="Compare")
    expect(dialog).to_contain_text("1 of 2")
    page.keyboard.press("ArrowRight")
    expect(dialog).to_contain_text(groups[1]["images"][1]["path"])
    dialog.get_by_role("link", name="Search with this image").click()
    page.wait_for_url(re.compile(f"image={groups[1]['images'][1]['id']}"))


def test_the_page_says_that_nobody_may_decide(open_visit: OpenVisit, page_gallery: PageGallery, tmp_path: Path) -> None:
    with serve(page_gallery.path, "--host", "0.0.0.0", "--no-token", log=tmp_path / "log") as server:
        visit = open_visit(server=server)
        for view in ("labels", "duplicates"):
            panel = visit.open_view(view)
            expect(panel.get_by_role("note")).to_contain_text("Read-only")
            expect(panel.get_by_label("Paths in the file")).to_have_count(0)
            expect(panel.get_by_role("article").first).to_be_visible()
            decide = re.compile("^(Undo|Keep|Drop|Duplicates|Different)")
            expect(panel.get_by_role("button", name=decide)).to_have_count(0)
            visit.page.keyboard.press("a")
            visit.page.keyboard.press("x")
            expect(panel.get_by_text(re.compile("^0 of"))).to_be_visible()
        image = page_gallery.ids[next(iter(page_gallery.wrong))]
        visit.open(f"?details={image}")
        details = visit.page.get_by_role("complementary", name="Details")
        expect(details).to_contain_text("File and metadata")
        expect(details.get_by_role("button", name=re.compile("Fix label|Keep|Change"))).to_have_count(0)
        visit.leave()
