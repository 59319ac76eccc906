"""Moving the files of dropped near-duplicates in a real browser: the command, what would move, the move, its undo."""

import shlex
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from retrieval_app.commands.cli import main
from tests.conftest import draw_folder
from tests.e2e.test_page_access import sign_in
from tests.index.galleries import build
from tests.page_browser import OpenVisit
from tests.serving_server import TOKEN, serve

pytestmark = pytest.mark.browser


@pytest.fixture
def gallery(tmp_path: Path, tiny_model: Path) -> Path:
    """Fifteen images, and two copies."""
    photos = draw_folder(tmp_path / "photos")
    for number in range(2):
        shutil.copy(photos / "red" / f"{2 * number}.jpg", photos / "red" / f"copy{number}.jpg")
    build(photos, tmp_path / "gallery", tiny_model)
    return tmp_path / "gallery"


def test_copies_move_to_the_folder_of_the_server_and_come_back(
    browser: Browser, open_visit: OpenVisit, gallery: Path, tmp_path: Path
) -> None:
    photos, out = tmp_path / "photos", tmp_path / "moved"
    before = {path: path.read_bytes() for path in photos.rglob("*.*")}
    with serve(gallery, log=tmp_path / "log") as server:
        visit = open_visit(server=server)
        visit.open_view("duplicates").get_by_role("button", name="Move files…").click()
        command = shlex.split(visit.page.get_by_role("dialog").locator("pre").inner_text())
        assert command[:4] == ["retrieval", "duplicates", str(gallery), "--move-to"]
        assert main([*command[1:4], str(out), *command[5:]]) == 0
        visit.leave()
    allowed = ("--writable", "--allow-disk-changes", str(out))
    with serve(gallery, *allowed, log=tmp_path / "log", token=TOKEN) as server:
        visit = open_visit(server=server)
        visit.forgive("401 ")
        sign_in(visit.page, server.url, TOKEN)
        visit.open_view("duplicates").get_by_role("button", name="Move files…").click()
        asked = visit.page.get_by_role("dialog", name="Move 2 files?")
        expect(asked).to_contain_text("red/copy0.jpg")
        assert before.keys() == set(photos.rglob("*.*"))
        asked.get_by_role("button", name="Move", exact=True).click()
        told = visit.page.get_by_role("dialog", name="2 files moved")
        undo = told.locator("pre").inner_text()
        assert {path.name for path in before.keys() - set(photos.rglob("*.*"))} == {"copy0.jpg", "copy1.jpg"}
        told.get_by_role("button", name="Update the gallery").click()
        visit.wait_until(lambda: visit.ask("gallery")["images"] == len(before) - 2)
        visit.leave()
    assert main(shlex.split(undo)[1:]) == 0
    assert before == {path: path.read_bytes() for path in photos.rglob("*.*")}
