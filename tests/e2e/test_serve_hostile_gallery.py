"""A gallery whose files, names, labels and metadata are attacks: they are shown, and nothing of them is ever run."""

import csv
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image, PngImagePlugin

from tests.chromium import open_chromium
from tests.conftest import draw_image
from tests.index.galleries import build
from tests.index.hostile import SVG, encode, png_bomb
from tests.page_browser import wait_for
from tests.serving_server import Server, serve

IMG = "<img src=x onerror=alert(1)>"
TAG = "\"'><xss-x onmouseover=alert(1)>"
TEXTS = (
    IMG,
    TAG,
    "</script><script>alert(1)</script>",
    "{{constructor.constructor('alert(1)')()}} ${alert(1)}",
    "&lt;img src=x onerror=alert(1)&gt;",
    "javascript:alert(1)//\u202egpj.exe",
    "<svg><animate onbegin=alert(1) attributeName=x></svg>",
    "=cmd|' C calc'!A1",
)
GALLERY_NAME = 'shop"><img src=x onerror=alert(1)>'
COLOURS = {IMG: (220, 40, 40), TEXTS[2]: (40, 60, 220), "=SUM(1;2)": (30, 190, 60)}
PAYLOAD = b"<html><script>alert(1)</script></html>"


def write_images(folder: Path) -> Path:
    """Images with hostile names in every class, and a table that gives hostile labels and metadata to them."""
    folder.mkdir(parents=True)
    rows: list[dict[str, str]] = []
    for number, (label, colour) in enumerate(COLOURS.items()):
        for i in range(8):
            name = f"{number}{i} {TEXTS[i]}.png".replace("/", "\u2215")
            draw_image(colour, seed=100 * number + i).save(folder / name, format="PNG")
            wrong = i == 7 and number < 2  # what the working list of labels is about
            given = list(COLOURS)[(number + 1) % 3] if wrong else label
            more = {"note": TEXTS[i], IMG: TEXTS[-1 - i], "__proto__": "polluted"}
            rows.append({"path": name, "label": given, **more})
    for name, data in write_polyglots().items():
        (folder / name).write_bytes(data)
        rows.append({"path": name, "label": IMG, "note": "a polyglot"})
    first = folder / rows[0]["path"]
    for i in range(2):
        (folder / f"copy {i} {IMG}.png").write_bytes(first.read_bytes())
        rows.append({"path": f"copy {i} {IMG}.png", "label": (IMG, TEXTS[2])[i], "note": TAG})
    skipped = {"drawing.svg": SVG, "drawing.png": SVG, "page.html": PAYLOAD, "page.jpg": PAYLOAD, "empty.png": b""}
    for name, data in (skipped | {"bomb.png": png_bomb(30_000)}).items():
        (folder / name).write_bytes(data)
        rows.append({"path": name, "label": IMG, "note": "no image"})
    with (folder / "items.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["path", "label", "note", IMG, "__proto__"])
        writer.writeheader()
        writer.writerows(rows)
    return folder / "items.csv"


def write_polyglots() -> dict[str, bytes]:
    """Sound images that are something else too."""
    image, info = draw_image((200, 60, 50), seed=77), PngImagePlugin.PngInfo()
    info.add_itxt("Comment", SVG.decode())
    gif = bytearray(encode(image, "GIF"))
    gif[-1:] = b"\x21\xfe" + bytes([len(PAYLOAD)]) + PAYLOAD + b"\x00;"
    exif = Image.Exif()
    exif[0x010E] = PAYLOAD.decode()
    return {
        "gif.html": bytes(gif),
        "png.svg": encode(image, "PNG", pnginfo=info),
        "jpeg.js": encode(image, "JPEG", exif=exif, comment=PAYLOAD) + PAYLOAD,
        "jpeg.php": encode(image, "JPEG") + b"<?php echo 1; ?>",
    }


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The gallery's folder; the images lie in `../images`."""
    folder = tmp_path_factory.mktemp("hostile")
    build(write_images(folder / "images"), folder / GALLERY_NAME, tiny_model)
    return folder / GALLERY_NAME


@pytest.fixture(scope="module")
def server(gallery: Path) -> Iterator[Server]:
    """A server for this machine."""
    with serve(gallery, log=gallery.parent / "log") as server:
        yield server
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def images(server: Server) -> dict[str, int]:
    """The id of every image by its path."""
    listed = server.get("/v1/images?limit=500&include=path,label,metadata").json()
    assert listed["total"] == 8 * 3 + 4 + 2  # what is no image is in no list
    return {image["path"]: image["id"] for image in listed["images"]}


def check_is_data(answer: Any, kind: str) -> None:
    """An answer that no browser runs, whatever is in it."""
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == kind
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_every_picture_is_encoded_anew_and_nothing_else_is_sent(server: Server, images: dict[str, int]) -> None:
    for path, image_id in images.items():
        for route in ("thumbnail?side=64", "thumbnail?side=512", "preview"):
            answer = server.get(f"/v1/images/{image_id}/{route}", Accept="text/html")
            check_is_data(answer, "image/webp")
            assert answer.body.startswith(b"RIFF"), path
            with Image.open(io.BytesIO(answer.body)) as image:
                image.load()
                assert image.format == "WEBP"
                assert not image.getexif()
                assert set(image.info) <= {"loop", "background", "timestamp", "duration"}
            for part in (b"<script", b"<svg", b"<?php", b"Exif"):
                assert part not in answer.body


def test_a_photo_that_is_kept_is_encoded_anew(server: Server) -> None:
    for name, data in write_polyglots().items():
        token = server.ask("POST", f"/v1/photos?name={name}", body=data).json()["photo"]
        answer = server.get(f"/v1/photos/{token}/preview")
        check_is_data(answer, "image/jpeg")
        for part in (b"<script", b"<svg", b"<?php", b"Exif"):
            assert part not in answer.body


def test_hostile_texts_are_sent_as_json_only(server: Server, images: dict[str, int]) -> None:
    first = next(iter(images.values()))
    include = "include=label,path,source,metadata"
    for path in (
        *("gallery", "facets", f"images?{include}", f"images?seed=0&{include}", "quality", "map", "labels/issues"),
        *("duplicates", "labels/decisions", f"images/{first}", f"images/{first}/labels"),
    ):
        while (answer := server.get(f"/v1/{path}", Accept="text/html")).status == 202:
            pass
        check_is_data(answer, "application/json")
    body = {"queries": [{"image_id": first}], "include": ["label", "path", "source", "metadata"]}
    answer = server.post("/v1/search", body)
    check_is_data(answer, "application/json")
    hits = answer.json()["hits"]
    assert {hit["label"] for hit in hits} == set(COLOURS)
    assert any(hit["metadata"].get("__proto__") == "polluted" for hit in hits)
    for name in ("where", "text"):  # what is asked comes back in messages
        answer = server.get(f"/v1/images?{name}={quote(IMG + chr(0))}")
        assert answer.status in (400, 422)
        assert answer.headers["content-type"] == "application/json"


def test_the_page_of_a_gallery_with_a_hostile_name_has_no_tag_of_it(server: Server) -> None:
    page = server.get("/").body.decode()
    assert "<img src=x" not in page
    assert "<xss-x" not in page


def test_a_hostile_label_comes_back_from_the_label_file_as_decided(server: Server, images: dict[str, int]) -> None:
    labels = dict(zip(list(images.values())[-len(TEXTS) :], TEXTS, strict=True))
    choices = [{"image_id": i, "decision": "change", "label": text} for i, text in labels.items()]
    assert server.post("/v1/labels/decisions", {"decisions": choices}).json()["changed"] == len(TEXTS)
    rows = list(csv.DictReader(io.StringIO(server.get("/v1/labels/file").body.decode())))
    paths = {image_id: path for path, image_id in images.items()}
    found = {Path(row["path"]).name: row["label"] for row in rows}
    assert {image_id: found[paths[image_id]] for image_id in labels} == labels
    assert server.ask("POST", "/v1/labels/undo", body=b"").status == 200


def test_a_file_that_became_something_else_is_not_served(tmp_path: Path, tiny_model: Path, gallery: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(12):
        draw_image((9 * i, 200 - 9 * i, 40), seed=i).save(folder / f"{i:02d}.png")
    build(folder, tmp_path / "gallery", tiny_model)
    secret = gallery.parent / "images" / "items.csv"
    with serve(tmp_path / "gallery", log=tmp_path / "log") as server:
        ids = {image["path"]: image["id"] for image in server.get("/v1/images?include=path").json()["images"]}
        contents = (SVG, PAYLOAD, b"", png_bomb(30_000), b"\x89PNG\r\n\x1a\n" + SVG, b"GIF89a" + PAYLOAD)
        for number, data in enumerate(contents):
            (folder / f"{number:02d}.png").write_bytes(data)
        for number in range(6, 12):
            (folder / f"{number:02d}.png").unlink()
        (folder / "06.png").symlink_to("/etc/passwd")
        (folder / "07.png").symlink_to(secret)
        (folder / "08.png").mkdir()
        (folder / "09.png").symlink_to("09.png")
        os.mkfifo(folder / "10.png")
        before = server.resident_bytes()
        for path, image_id in ids.items():
            for route in ("thumbnail", "preview"):
                answer = server.get(f"/v1/images/{image_id}/{route}")
                assert answer.status in (404, 409), path
                assert set(answer.json()["error"]) == {"code", "message", "field"}
                assert answer.json()["error"]["code"] in ("not_found", "bad_image", "changed")
            crop = {"x": 0, "y": 0, "width": 1, "height": 1}
            answer = server.post("/v1/search", {"queries": [{"image_id": image_id, "crop": crop}]})
            assert answer.status in (404, 422)
            assert server.post("/v1/search", {"queries": [{"image_id": image_id}]}).status == 200
            assert server.get(f"/v1/images/{image_id}").status == 200
        answer = server.post("/v1/export", {"ids": list(ids.values()), "format": "zip"})
        with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
            assert archive.namelist() == ["list.csv"]
            assert b"root:" not in archive.read("list.csv")
        assert server.resident_bytes() - before < 200 * 1024 * 1024
        assert "Traceback" not in server.log.read_text()


VIEWS = (
    "?image={first}&more={second}&less={third}&group=1&k=40&details={second}",
    "?text={img}&f=label%20%3D%20%27{img}%27&details={third}",
    "?f={img}&text={tag}&k={img}&min={img}&ids={img}&photo={img}&crop={img}&image={img}&details={img}&view={img}",
    "?view=map&token={img}",
    "?view=quality",
    "?view=problems&kind={img}&at={img}",
    "?view=labels&label={img}&suggested={tag}&state={img}",
    "?view=labels",
    "?view=duplicates",
    "?photo={token}&details={first}&javascript:alert(1)",
)
SETTLED = "() => ![...document.querySelectorAll('.views .skeleton')].some(place => place.checkVisibility())"
LOOK = """() => ({
  injected: document.querySelectorAll('[onerror], [onmouseover], [onbegin], [onload], xss-x, animate, .views script')
    .length,
  polluted: ({}).polluted !== undefined || Object.prototype.note !== undefined,
  text: document.body.innerText,
})"""


@pytest.mark.browser
def test_a_browser_runs_nothing_of_a_hostile_gallery(server: Server, images: dict[str, int], tmp_path: Path) -> None:
    ids = list(images.values())
    (tmp_path / f"{IMG}.png").write_bytes(write_polyglots()["png.svg"])
    token = server.ask("POST", f"/v1/photos?name={quote(IMG)}", body=write_polyglots()["gif.html"]).json()["photo"]
    values = {"first": ids[0], "second": ids[9], "third": ids[17], "img": quote(IMG), "tag": quote(TAG)}
    values["token"] = token
    with open_chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        fired: list[str] = []
        asked: list[str] = []
        page.on("dialog", lambda dialog: (fired.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        seen = ""
        for view in VIEWS:
            page.goto(f"{server.url}/{view.format(**values)}")
            page.wait_for_selector(".views > :not([hidden]) h2, .views > :not([hidden]) .start", state="attached")
            wait_for(page, SETTLED)
            look = page.evaluate(LOOK)
            assert (look["injected"], look["polluted"]) == (0, False), view
            seen += look["text"]
            page.mouse.move(400, 300)
        page.goto(f"{server.url}/")
        page.set_input_files("input[type=file] >> nth=0", tmp_path / f"{IMG}.png")
        page.wait_for_selector(".card")
        assert page.evaluate(LOOK)["injected"] == 0
    assert fired == []
    assert [url for url in asked if not url.startswith((server.url, "data:", "blob:"))] == []
    assert [url for url in asked if url.endswith("/x")] == []
    assert IMG in seen  # it is shown, as a text
