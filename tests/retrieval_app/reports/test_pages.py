"""The page of an audit, with what a person can do in a real browser."""

import base64
import csv
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from index.labels.decisions import CHANGE, DROP, KEEP, LabelDecision
from index.labels.issues import LabelIssue, LabelIssues
from retrieval_app.reports.audit_page import ISSUE_SIDE, NEIGHBOUR_SIDE, write_audit_page
from tests.chromium import open_chromium, read_data
from tests.photos import write_photos
from tests.training.audits import audit_of

KINDS = ("polo", "lime", "skirt")
TAG, CLOSER, TEMPLATE, LINES = '"><img src=x onerror=alert(1)>', "</script>", "${alert(1)}", 'a, "b"\nc'
HOSTILE_FILE = os.fsdecode(b'caf\xe9, "<img src=x onerror=alert(1)>\n.jpg')
RUN = Path("run <b>")
COLUMNS = ["path", "sha256", "label", "decision", "new_label"]


def audit_image(path: Path, label: str, *, p_error: float, verdict: str = KEEP, **more: Any) -> LabelIssue:
    """One row of an audit; what is not given is as plain as can be."""
    data = path.read_bytes() if path.is_file() else os.fsencode(path)
    values = {"id": 0, "sha256": hashlib.sha256(data).hexdigest(), "confidence": 1 - p_error} | more
    return LabelIssue(path=str(path), label=label, p_error=p_error, verdict=verdict, **values)


def draw_report(folder: Path) -> LabelIssues:
    """Eight images: three to change, one to drop, a duplicate and its twin, two to keep."""
    write_photos(folder, kinds=KINDS, pictures_per_kind=3, seed=3, size=256)
    polos, limes, skirts = ([folder / kind / f"{kind}-00{i}.jpg" for i in range(2)] for kind in KINDS)
    hostile = Path(os.fsdecode(os.fsencode(folder) + b"/" + os.fsencode(HOSTILE_FILE)))
    (folder / "polo" / "polo-002.jpg").rename(hostile)
    wrong: dict[str, Any] = {"verdict": CHANGE, "kind": "wrong_label"}
    images = (
        audit_image(
            hostile,
            LINES,
            p_error=0.99,
            suggestions=((TAG, 0.7), (CLOSER, 0.2)),
            agreeing=((6, 0.9),),
            disagreeing=((1, 0.8, "lime"), (5, 0.7, "lime")),
            **wrong,
        ),
        audit_image(
            polos[0], "lime", p_error=0.9, suggestions=(("polo", 0.8), ("skirt", 0.15)), confidence=0.05, **wrong
        ),
        audit_image(polos[1], "lime", p_error=0.8, suggestions=(("polo", 0.6),), confidence=0.1, **wrong),
        audit_image(limes[0], TEMPLATE, p_error=0.95, verdict=DROP, kind="outlier", suggestions=(("lime", 0.3),)),
        audit_image(
            limes[1], "skirt", p_error=0.7, verdict=DROP, kind="conflicting_duplicates", confidence=0.02, duplicate_of=5
        ),
        audit_image(limes[1], "lime", p_error=0.2, verdict=KEEP, confidence=0.8),
        audit_image(skirts[0], "skirt", p_error=0.1),
        audit_image(skirts[1], "skirt", p_error=0.3),
    )
    return audit_of(
        images,
        classes=(("lime", 3, 0.66), (TAG, 1, 0.2)),
        pairs=(("lime", "polo", 2.0),),
        look_alikes=1.0,
        confused_classes=(("lime", "polo", 4.2),),
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> LabelIssues:
    return draw_report(tmp_path_factory.mktemp("audited"))


def test_pictures_are_embedded_once_and_neighbours_smaller(report: LabelIssues, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    out = tmp_path / "audit.html"
    write_audit_page(report, out, run=RUN, limit=5, progress=lambda done, total: seen.append((done, total)))
    data = read_data(out)
    assert len(data["pictures"]) == len(set(data["pictures"])) == 6  # the two of one content share theirs
    assert seen == [(done, 6) for done in range(1, 7)]
    sides = []
    for encoded in data["pictures"]:
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as picture:
            assert picture.format == "WEBP"
            sides.append(max(picture.size))
    assert sorted(sides) == [NEIGHBOUR_SIDE] + [ISSUE_SIDE] * 5
    assert [path.name for path in tmp_path.iterdir()] == ["audit.html"]


def test_a_picture_that_is_damaged_gone_or_another_one_by_now_is_a_placeholder(tmp_path: Path) -> None:
    (tmp_path / "damaged.jpg").write_bytes(b"\xff\xd8\xff no more")
    Image.new("RGB", (8, 8)).save(tmp_path / "other.png")
    images = [audit_image(tmp_path / name, "a", p_error=0.5) for name in ("damaged.jpg", "gone.jpg")]
    images.append(audit_image(tmp_path / "other.png", "a", p_error=0.5, sha256="0" * 64))
    write_audit_page(audit_of(images), tmp_path / "audit.html", run=RUN, limit=9)
    data = read_data(tmp_path / "audit.html")
    assert data["pictures"] == ["", "", ""]
    reasons = re.findall(r"No image: ([^<]+)</span>", (tmp_path / "audit.html").read_text(encoding="utf-8"))
    assert reasons[1:] == ["reading failed or the file vanished", "the file has changed since it was read first"]


def test_the_limit_takes_issues_first_and_the_most_probable_of_them(tmp_path: Path) -> None:
    images = tuple(
        audit_image(tmp_path / f"{name}.jpg", "a", p_error=wrong, verdict=verdict)
        for name, wrong, verdict in (("k", 0.9, KEEP), ("l", 0.2, DROP), ("m", 0.6, DROP), ("n", 0.1, KEEP))
    )
    write_audit_page(audit_of(images), tmp_path / "audit.html", run=RUN, limit=3)
    data = read_data(tmp_path / "audit.html")
    assert [Path(item["path"]).stem for item in data["items"]] == ["m", "l", "k"]
    counts = re.findall(r'data-verdict="(\w+)">[\w ]+<span class="tally">(\d+)<', (tmp_path / "audit.html").read_text())
    assert dict(counts) == {"issues": "2", "change": "0", "set_aside": "0", "drop": "2", "keep": "1", "all": "3"}


def test_no_name_or_label_ends_the_data_and_nothing_is_let_in(report: LabelIssues, tmp_path: Path) -> None:
    write_audit_page(report, tmp_path / "audit.html", run=RUN, limit=9)
    html = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert html.count("</script>") == 2
    assert "<img" not in html.partition('id="data">')[2].partition("</script>")[0]
    assert html.count("<img") == html.count("<img data-picture=")
    assert "default-src 'none'; script-src 'sha256-" in unescape(html)
    assert "unsafe" not in html


@dataclass
class Visit:
    page: Page
    complaints: list[str] = field(default_factory=list)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def card(self, number: int) -> Locator:
        return self.page.locator(".items > .issue").nth(number)

    def pressed(self, number: int) -> list[str]:
        """The decision on the card of a number: the buttons that are down."""
        return self.card(number).locator(".decide [aria-pressed=true] > span").all_text_contents()

    def download(self) -> list[list[str]]:
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name="Download decisions").click()
        assert download.value.suggested_filename == "decisions.csv"
        text = Path(download.value.path()).read_bytes().decode("utf-8")
        return list(csv.reader(io.StringIO(text, newline="")))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """Write the page of a report and open it; it asks nobody for anything and complains of nothing."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    visits: list[Visit] = []

    def open_page(report: LabelIssues, *, before: str = "", limit: int = 1000) -> Visit:
        write_audit_page(report, tmp_path / "audit.html", run=RUN, limit=limit)
        url = (tmp_path / "audit.html").as_uri()
        visit = Visit(context.new_page())
        visits.append(visit)
        visit.page.on("request", lambda r: r.url.startswith("data:") or r.url == url or visit.complaints.append(r.url))
        visit.page.on("console", lambda message: visit.complaints.append(message.text))
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.on("dialog", lambda dialog: (visit.complaints.append(dialog.message), dialog.dismiss()))
        visit.page.add_init_script(before)
        visit.page.goto(url)
        return visit

    yield open_page
    complaints = [complaint for visit in visits for complaint in visit.complaints]
    context.close()
    assert complaints == []


@pytest.fixture
def visit(open_page: Callable[..., Visit], report: LabelIssues) -> Visit:
    return open_page(report)


@pytest.mark.browser
def test_hostile_names_and_labels_are_text_and_no_other_script_runs(visit: Visit) -> None:
    card, page = visit.card(0), visit.page
    expect(card.locator(".given")).to_have_text(r'a, "b"\nc')
    expect(card.locator(".suggested")).to_have_text(TAG)
    expect(card.locator(".path")).to_have_text(r'caf\xe9, "<img src=x onerror=alert(1)>\n.jpg')
    expect(card.locator(".suggestions")).to_contain_text(CLOSER)
    assert page.locator("img:not([data-picture])").count() == 0
    page.wait_for_function("document.images[0].complete && document.images[0].naturalWidth > 0")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    assert page.evaluate("window.ran") is None
    assert "Content Security Policy" in visit.complaints.pop()


@pytest.mark.browser
def test_images_are_filtered_and_keys_decide_go_on_and_undo(visit: Visit) -> None:
    page, found = visit.page, visit.page.locator("#found")
    page.locator("aside button").filter(has_text="lime → polo").click()
    expect(found).to_have_text("2 images, lime → polo")
    page.locator("aside button").filter(has_text="lime → polo").click()
    page.get_by_role("group", name="Verdict").get_by_role("button", name="Drop").click()
    expect(found).to_have_text("2 images")
    page.reload()
    visit.press("a", "l", "2", "x")
    expect(visit.card(4)).to_be_focused()
    assert [visit.pressed(number) for number in range(4)] == [
        [f"Change to {TAG}"],
        [f"Keep {TEMPLATE}"],
        ["→ skirt"],
        ["Drop image"],
    ]
    visit.press("u")
    expect(visit.card(3)).to_be_focused()
    assert visit.pressed(3) == []


@pytest.mark.browser
def test_accepting_all_asks_first_spares_what_is_decided_and_is_undone_at_once(visit: Visit) -> None:
    page, dialog = visit.page, visit.page.get_by_role("dialog")
    visit.press("l")
    page.get_by_label("Least probability of a label error, in percent").fill("75")
    words = re.compile("2 labels change .*, 0 images are set aside, 1 is dropped")
    expect(page.locator("#accepted")).to_contain_text(words)
    page.get_by_role("button", name="Accept…").click()
    expect(dialog).to_contain_text("2 labels change")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#done")).to_contain_text("1 of 5 decided")
    page.get_by_role("button", name="Accept…").click()
    page.get_by_role("button", name="Accept", exact=True).click()
    expect(page.locator("#done")).to_contain_text("4 of 5 decided")
    visit.press("u")
    expect(page.locator("#done")).to_contain_text("1 of 5 decided")


@pytest.mark.browser
def test_decisions_outlive_the_page_and_are_written_exactly(visit: Visit, report: LabelIssues) -> None:
    visit.press("a", "x", "r")
    visit.page.keyboard.type(' new, "quoted" ')
    visit.press("Enter")
    expect(visit.page.locator("#done")).to_contain_text("3 of 5 decided")
    visit.press("l")
    visit.page.reload()
    expect(visit.page.locator("#done")).to_contain_text("4 of 5 decided")
    first, second, third, fourth = (report.items[row] for row in (0, 3, 1, 2))
    path = os.fsencode(first.path).decode("utf-8", "backslashreplace")
    assert visit.download() == [
        COLUMNS,
        [path, first.sha256, LINES, "change", TAG],
        [str(second.path), second.sha256, TEMPLATE, "drop", ""],
        [str(third.path), third.sha256, "lime", "change", 'new, "quoted"'],
        [str(fourth.path), fourth.sha256, "lime", "keep", ""],
    ]


@pytest.mark.browser
def test_a_loaded_file_is_kept_whole(open_page: Callable[..., Visit], report: LabelIssues, tmp_path: Path) -> None:
    visit = open_page(report, limit=2)
    shown, hidden = report.items[0], report.items[1]
    rows = [
        [os.fsencode(shown.path).decode("utf-8", "backslashreplace"), shown.sha256, LINES, "change", LINES + "!"],
        ["moved/elsewhere.jpg", hidden.sha256, "lime", "drop", ""],
    ]
    with (tmp_path / "mine.csv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    visit.page.set_input_files("input[type=file]", tmp_path / "mine.csv")
    expect(visit.page.locator(".toast")).to_contain_text("2 decisions loaded")
    expect(visit.page.locator("#done")).to_contain_text("1 of 2 decided")
    visit.page.get_by_role("button", name="Decided").click()
    expect(visit.card(0).locator(".other")).to_contain_text('→ a, "b"')
    visit.page.reload()
    assert visit.download() == [COLUMNS, *rows]


@pytest.mark.browser
def test_a_file_that_is_none_of_decisions_is_refused_whole(visit: Visit, tmp_path: Path) -> None:
    head = ",".join(COLUMNS)
    for text, complaint in (
        ("path,label\na,b\n", f"expected a header with the columns {head}"),
        (f"{head}\na,00,b,keep,\na,00,b,change,\n", "row 2: expected keep, change with a new_label"),
        (f'{head}\na,"00" 1,b,keep,\n', "a quote stands where none can"),
    ):
        (tmp_path / "bad.csv").write_text(text)
        visit.page.set_input_files("input[type=file]", tmp_path / "bad.csv")
        expect(visit.page.locator(".toast").last).to_contain_text(f"bad.csv was not loaded: {complaint}")
        expect(visit.page.locator("#done")).to_contain_text("0 of 5 decided")


@pytest.mark.browser
def test_earlier_decisions_are_shown_and_overruled(open_page: Callable[..., Visit], report: LabelIssues) -> None:
    keys = [report.items[row].key for row in (0, 3)]
    made = {key: LabelDecision(*key, KEEP, path="anywhere.jpg") for key in keys}
    visit = open_page(report.with_decisions(made))
    visit.page.get_by_role("button", name="Decided").click()
    expect(visit.page.locator(".items > .issue")).to_have_count(2)
    visit.card(0).locator("[aria-pressed=true]").click()
    visit.card(1).get_by_role("button", name="Drop image").click()
    visit.page.reload()
    expect(visit.page.locator("#done")).to_contain_text("1 of 5 decided")
    visit.page.get_by_role("button", name="Decided").click()
    expect(visit.page.locator(".items > .issue")).to_have_count(1)
    assert visit.pressed(0) == ["Drop image"]


@pytest.mark.browser
def test_a_browser_without_storage_is_told(open_page: Callable[..., Visit], report: LabelIssues) -> None:
    refuse = "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }})"
    visit = open_page(report, before=refuse)
    expect(visit.page.get_by_role("alert")).to_contain_text("does not keep what is decided")
    visit.press("a")
    assert visit.pressed(0) == [f"Change to {TAG}"]
    assert len(visit.download()) == 2
