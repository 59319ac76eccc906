"""The page of a comparison: what is written into it, and what a person can do with it in a real browser."""

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import retrieval_app
from retrieval_app.comparing.compare_report import HITS
from tests.chromium import open_chromium, read_data
from tests.models import write_tiny_model
from tests.photos import KINDS, write_photos

HOSTILE = '"><img src=x onerror=alert(1)>'
HOSTILE_FILE = os.fsdecode(b"caf\xe9 <img src=x onerror=alert(2)> ${alert(3)}.jpg")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three models on sixty photos of five kinds, one of a hostile name, and one lone photo."""
    work = tmp_path_factory.mktemp("compared")
    write_photos(work / "photos", kinds=KINDS[4:9], pictures_per_kind=12, seed=0, size=48)
    hostile = work / "photos" / HOSTILE
    (work / "photos" / KINDS[4]).rename(hostile)
    next(hostile.glob("*000.jpg")).rename(hostile / HOSTILE_FILE)
    write_photos(work / "photos", kinds=["shoes"], pictures_per_kind=1, seed=0, size=48)
    models = {"builtin": "builtin", f"small {HOSTILE}": write_tiny_model(work / "one.onnx")}
    models["other"] = write_tiny_model(work / "two.onnx", seed=5)
    return retrieval_app.compare(work / "photos", models, work / "out", cache=work / "cache")


def test_every_shown_query_has_the_hits_of_both_and_is_of_its_kind(comparison: dict[str, Any]) -> None:
    data = read_data(Path(comparison["files"][1]))
    labels = [photo["label"] for photo in data["photos"]]

    def is_right(query: dict[str, Any], candidate: int) -> bool:
        hits = query["hits"][str(candidate)]
        assert len(hits) == HITS
        assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
        assert query["photo"] not in [photo for photo, _ in hits]
        return bool(labels[hits[0][0]] == labels[query["photo"]])

    for pair in data["pairs"]:
        for name, expected in (("first", (True, False)), ("second", (False, True)), ("wrong", (False, False))):
            for number in pair["shown"][name]:
                query = data["queries"][number]
                assert (is_right(query, pair["first"]), is_right(query, pair["second"])) == expected


@pytest.mark.browser
def test_filters_show_their_queries_with_right_hits_marked_and_nobody_is_asked(comparison: dict[str, Any]) -> None:
    url, complaints = Path(comparison["files"][1]).as_uri(), list[str]()
    pair = comparison["pairs"][0]
    with open_chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda asked: asked.url.startswith(("data:", url)) or complaints.append(asked.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.goto(url)
        for words, count, first_marks in (
            ("A right, B wrong", pair["only_first_right"], ["right", "wrong"]),
            ("B right, A wrong", pair["only_second_right"], ["wrong", "right"]),
            ("Both wrong", pair["both_wrong"], ["wrong", "wrong"]),
        ):
            chosen = page.get_by_role("group", name="Queries").get_by_role("button", name=words)
            chosen.click()
            expect(chosen.locator(".tally")).to_have_text(str(count))
            queries = page.locator(".query").all()
            assert 0 < len(queries) <= count
            for query in queries[:4]:
                marks = [hits.locator(".hit").first.get_attribute("class") for hits in query.locator(".hits").all()]
                assert marks == [f"hit {mark}" for mark in first_marks]
        chosen = page.get_by_label("Class", exact=True)
        chosen.select_option(HOSTILE)
        page.get_by_label("Candidate A").select_option("2")
        expect(chosen).to_have_value(HOSTILE)  # also where no list of classes has it
        chosen.select_option("")
        expect(page.locator(".query").first).to_be_visible()
    assert complaints == []
