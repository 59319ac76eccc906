"""Hand-made attacks on a running server: nothing breaks, nothing leaks, memory and decoding are bounded."""

import io
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image

from tests.index.costly import jpeg_of_scans, png_of_exif_tags, tiff_of_one_tile
from tests.index.decoding_workers import wait_for_busy_workers, wait_for_the_end_of
from tests.index.hostile import PHOTO, contents, encode, first_part, png_bomb, text_bomb_png
from tests.serving_server import TOKEN, Answer, Server, check_refused, send_raw, serve

IMAGE_ROUTES = ("/v1/photos", "/v1/search/image", "/v1/embed", "/v1/images")

MEBIBYTE = 1024 * 1024
SCANS = jpeg_of_scans(4000, 5000)
BAD_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e39", "true", "null", '"1"', "[]", "{}", "[[1]]"]
BAD_COUNTS = ["1000000000", "9" * 400, "-1", "1e9", "1.5", str(2**63), str(2**64), "NaN", '"5"', "true", "null"]


def test_ids_of_no_image_are_refused_wherever_they_are_sent(server: Server) -> None:
    for image_id in (0, 10**6, 2**53 - 1):
        check_refused(server.post("/v1/search", {"queries": [{"image_id": image_id}]}), 404)
        whole = {"x": 0, "y": 0, "width": 1, "height": 1}
        check_refused(server.post("/v1/search", {"queries": [{"image_id": image_id, "crop": whole}]}), 404)
        check_refused(server.post("/v1/export", {"ids": [1, image_id], "format": "zip"}), 404)
        decision = {"decisions": [{"image_id": image_id, "decision": "keep"}]}
        check_refused(server.post("/v1/labels/decisions", decision), 404)
        check_refused(server.ask("DELETE", f"/v1/images/{image_id}"), 404)
    for image_id in (-1, 2**63, 2**64, 10**30, 1.5, "1", True, None, [1], {}):
        check_refused(server.post("/v1/search", {"queries": [{"image_id": image_id}]}), 422)
        check_refused(server.post("/v1/search", {"queries": [{"image_id": 1}], "exclude_ids": [image_id]}), 422)
        check_refused(server.post("/v1/export", {"ids": [image_id], "format": "csv"}), 422)


def test_numbers_that_are_none_are_refused(server: Server) -> None:
    for number in BAD_NUMBERS:
        vector = "[" + ",".join([number, *["0.5"] * 15]) + "]"
        check_refused(_post_text(server, f'{{"queries": [{{"vector": {vector}}}]}}'), 400, 422)
        if number != "1e39":
            check_refused(_post_text(server, f'{{"queries": [{{"image_id": 1, "weight": {number}}}]}}'), 400, 422)
        if number != "null":
            text = f'{{"queries": [{{"image_id": 1}}], "min_score": {number}}}'
            check_refused(_post_text(server, text), 400, 422)
    for name in ("k", "offset"):
        for number in BAD_COUNTS:
            check_refused(_post_text(server, f'{{"queries": [{{"image_id": 1}}], "{name}": {number}}}'), 400, 422)
            if number != "true":
                path = f"/v1/search/image?{name}={number}"
                check_refused(server.ask("POST", path, body=encode(PHOTO, "PNG")), 422)


def test_queries_that_overflow_or_cancel_out_are_refused(server: Server) -> None:
    most = [1e9] * 16
    assert server.post("/v1/search", {"queries": [{"vector": most, "weight": 10}]}).status == 200
    both = [{"image_id": 1, "weight": 1}, {"image_id": 1, "weight": -1}]
    check_refused(server.post("/v1/search", {"queries": both}), 422)
    check_refused(server.post("/v1/search", {"queries": [{"image_id": 1, "weight": 0}]}), 422)
    check_refused(server.post("/v1/search", {"queries": [{"image_id": 1}] * 17}), 422)
    for crop in ([0, 0, 1e-9, 1e-9], [0.9, 0.9, 0.5, 0.5], [-1, 0, 1, 1], [0, 0, 1e308, 1], [1, 1, 1, 1]):
        shape = dict(zip(("x", "y", "width", "height"), crop, strict=True))
        check_refused(server.post("/v1/search", {"queries": [{"image_id": 1, "crop": shape}]}), 422)


def test_json_that_is_deep_or_none_is_refused(server: Server) -> None:
    deep, wide = "[" * 200_000, '{"queries":' * 50_000
    texts = [
        deep,
        wide,
        deep + "]" * 200_000,
        "",
        "null",
        "[]",
        '"x"',
        "{",
        '{"queries": [{"image_id": 1}]} x',
        "\x00",
        '{"queries": [{"image_id": 1}], "text": "\\ud800"}',
        '{"queries": [{"image_id": 1}], "where": "\\u0000"}',
        '{"queries": [{"image_id": 1, "__proto__": {"k": 1}}]}',
        '{"queries": [{"image_id": 1, "photo": "aaaaaaaa"}]}',
    ]
    for text in texts:
        check_refused(_post_text(server, text), 400, 422)
    for body in (b"\xff\xfe{\x00}\x00", b"\x80\x81", b'{"queries": "\xff"}', bytes(100_000)):
        check_refused(_post_body(server, "/v1/search", body), 400, 422)
    numbers = b'{"queries":[{"image_id":1}],"exclude_ids":[' + b",".join([b"1"] * 400_000) + b"]}"
    check_refused(_post_body(server, "/v1/search", numbers), 422)
    digits = b'{"queries":[{"image_id":' + b"1" * 900_000 + b"}]}"
    check_refused(_post_body(server, "/v1/search", digits), 400, 422)


def test_forms_of_ten_thousand_fields_are_refused_on_every_route(server: Server) -> None:
    pairs = b"&".join(b"field%d=x" % number for number in range(10_000))
    parts = b"".join(b'--b\r\nContent-Disposition: form-data; name="f%d"\r\n\r\nx\r\n' % n for n in range(10_000))
    paths = server.get("/v1/openapi.json").json()["paths"]
    for path in (path for path, item in paths.items() if "post" in item):
        for kind, body in (("application/x-www-form-urlencoded", pairs), ("multipart/form-data; boundary=b", parts)):
            answer = server.ask("POST", path, body=body, headers={"Content-Type": kind})
            # An image's content type is not looked at, but for forms of files: what is no image is none.
            check_refused(answer, 415, *([422] if path in IMAGE_ROUTES else []))


def test_a_file_that_breaks_decoders_is_refused_in_words(server: Server) -> None:
    files = {"bomb": png_bomb(30_000), "truncated": first_part(encode(PHOTO, "JPEG"), 0.5)}
    files |= {os.fsdecode(name): data for name, (data, reason) in contents().items() if reason is not None}
    assert 90_000 < len(files["bomb"]) < 130_000
    for name, data in files.items():
        for route in ("/v1/photos", "/v1/embed", "/v1/images"):
            path = f"{route}?name={quote(name, errors='surrogateescape', safe='')}"
            answer = server.ask("POST", path, body=data)
            check_refused(answer, 422)
            assert answer.json()["error"]["code"] == "bad_image"
            assert "Traceback" not in answer.json()["error"]["message"]
    assert server.ask("POST", "/v1/photos", body=_many_frames(3000)).status == 201  # of which the first counts


def test_hundreds_of_bad_uploads_leave_no_memory_behind(server: Server) -> None:
    junk = os.urandom(MEBIBYTE)
    jpeg = encode(PHOTO.resize((1500, 1000)), "JPEG", quality=95)
    bodies = [png_bomb(20_000), text_bomb_png(), junk, b"\xff\xd8\xff\xe0" + junk, first_part(jpeg, 0.9), b"", jpeg]

    def send(number: int) -> int:
        route = ("/v1/photos", "/v1/embed", "/v1/search/image")[number % 3]
        return server.ask("POST", route, body=bodies[number % len(bodies)]).status

    def send_all(count: int) -> set[int]:
        with ThreadPoolExecutor(8) as pool:
            return set(pool.map(send, range(count)))

    assert send_all(84) <= {200, 201, 422}  # what is allocated once
    before = server.resident_bytes()
    assert send_all(168) <= {200, 201, 422}
    assert server.resident_bytes() - before < 60 * MEBIBYTE


def test_large_pictures_that_come_at_once_take_turns(gallery: Path, tmp_path: Path) -> None:
    picture = Image.new("RGB", (7700, 7700), (200, 30, 30))
    photos = [encode(picture, "WEBP", lossless=True, method=0, quality=0), encode(picture, "AVIF", speed=10)]
    assert max(map(len, photos)) < MEBIBYTE
    with serve(gallery, log=tmp_path / "log") as server:
        before = server.resident_bytes()
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda photo: server.ask("POST", "/v1/photos", body=photo).status, photos * 4))
        assert set(statuses) <= {201, 503}
        assert 201 in statuses
        assert server.most_resident_bytes() - before < 1400 * MEBIBYTE
        assert server.resident_bytes() - before < 250 * MEBIBYTE


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (b"Content-Length: -1", b"{}", 400),
        (b"Content-Length: +2", b"{}", 400),
        (b"Content-Length: 2, 2", b"{}", 422),
        (b"Content-Length: 2, 3", b"{}", 400),
        (b"Content-Length: 2\r\nContent-Length: 3", b"{}x", 400),
        (b"Content-Length: 0x2", b"{}", 400),
        (b"Content-Length: 99999999999999999999", b"{}", None),
        (b"Content-Length: 2097152", b"{}", 413),
        (b"Transfer-Encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n", 411),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 2", b"2\r\n{}\r\n0\r\n\r\n", None),
        (b"Transfer-Encoding: chunked", b"FFFFFFFFFFFFFFFFF\r\n{}", None),
        (b"Transfer-Encoding: xchunked", b"{}", None),
        (b"X-A: 1\r\n" * 2000 + b"Content-Length: 2", b"{}", None),
        (b"X-A: " + b"a" * 1_000_000 + b"\r\nContent-Length: 2", b"{}", None),
        (b"X A: 1\r\nContent-Length: 2", b"{}", None),
        (b" folded: 1\r\nContent-Length: 2", b"{}", None),
        (b"Expect: 100-continue\r\nContent-Length: 2097152", b"", 413),
    ],
)
def test_a_body_that_lies_about_its_length_is_refused(
    server: Server, head: bytes, body: bytes, status: int | None
) -> None:
    answer = send_raw(server.port, _head("/v1/search", head) + body, seconds=2)
    found = [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3})", answer)]
    assert all(400 <= code < 500 for code in found), found
    if status is not None:
        assert found[0] == status


def test_what_follows_a_body_is_no_request_of_its_own(server: Server) -> None:
    smuggled = f"GET /v1/gallery HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    head = b"Content-Length: 2\r\nTransfer-Encoding: chunked"
    answer = send_raw(server.port, _head("/v1/search", head) + b"0\r\n\r\n" + smuggled, seconds=2)
    assert b"HTTP/1.1 200" not in answer


@pytest.mark.parametrize(
    "name",
    [
        "a\r\nSet-Cookie: x=1\r\n\r\n<script>alert(1)</script>",
        'quote".jpg"; filename="evil.exe',
        "\u202egpj.exe",
        "../../../../etc/passwd",
        "\x1b]0;owned\x07\x1b[2J",
        "<img src=x onerror=alert(1)>",
        "\ufeff\u200b\u2028\u2029",
        "x" * 200,
        "C:\\windows\\system32\\x.png",
        "漢字 ünï.jpg",
    ],
)
def test_a_hostile_file_name_stays_a_text(server: Server, name: str) -> None:
    path = f"/v1/photos?name={quote(name, safe='')}"
    answer = server.ask("POST", path, body=encode(PHOTO, "PNG"))
    assert answer.status == 201
    assert answer.json()["name"].isprintable()
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-type"] == "application/json"
    picture = server.get(f"/v1/photos/{answer.json()['photo']}/preview")
    assert picture.headers["content-type"] == "image/jpeg"
    assert set(picture.headers) <= {*answer.headers, "cache-control"}
    refused = server.ask("POST", path, body=b"no image")
    check_refused(refused, 422)
    assert refused.json()["error"]["message"].isprintable()


def test_names_and_labels_beyond_the_limits_are_refused(server: Server) -> None:
    for name in ("%00", "a%00.jpg", "x" * 201):
        check_refused(server.ask("POST", f"/v1/photos?name={name}", body=encode(PHOTO, "PNG")), 422)
    for label in ("..", ".", "a/b", "..%2f..%2fetc", "a%5cb", ".hidden", "", "%00", "%0d%0a", "x" * 201, "%e6" * 90):
        check_refused(server.ask("POST", f"/v1/images?label={label}", body=encode(PHOTO, "PNG")), 422)
    assert server.ask("POST", "/v1/photos?name=%ff%fe.jpg", body=encode(PHOTO, "PNG")).status in (201, 422)
    added = server.log.parent / "small" / "annotations" / "added"
    assert not added.exists() or all(path.parent in (added, added.parent) for path in added.rglob("*"))


SQL = [
    "' OR 1=1 --",
    "label = 'a' OR 1=1",
    "label = 'a'; DROP TABLE images",
    "load_extension('x') = 1",
    "label = 'x' UNION SELECT sql FROM sqlite_master",
    "randomblob(1000000000) = 1",
    'label" = 1',
    "label = 'a'' OR ''1''=''1'",
    "id IN (SELECT id)",
    "label LIKE '" + "%a" * 400 + "'",
    "(" * 5000,
    "NOT " * 2000 + "label = 'a'",
    " OR ".join(["label = 'a'"] * 500),
    "\x01",
    "\u202e",
    "label = '\ud7ff'",
    "id = 9223372036854775808",
    "id = 1e400",
    "a.b.c.d.e = 1",
    "metadata. = 1",
    '"$.x[#-1]" = 1',
    '"\'" = 1',
    "label BETWEEN 1",
    "CASE WHEN 1 THEN 1 END = 1",
    "label = x'41'",
    "?1 = 1",
    ":a = 1",
    "%",
    "_",
    "\\",
    '"',
    "'",
    "--",
    "/*",
    "*/",
    "%' OR '1'='1",
    "\x00",
    " " * 9999,
    "x" * 10_001,
    "id = " + "9" * 5000,
]


def test_sql_in_conditions_and_words_is_nothing_but_text(server: Server) -> None:
    total = server.get("/v1/images?limit=1").json()["total"]
    for text in SQL:
        for name in ("where", "text"):
            shown = quote(text, safe="", errors="surrogatepass")
            for answer in (
                server.get(f"/v1/images?limit=1&{name}={shown}"),
                server.get(f"/v1/facets?{name}={shown}"),
                server.post("/v1/search", {"queries": [{"image_id": 1}], name: text}),
            ):
                assert answer.status in (200, 400, 422), (text, answer)
                if answer.status != 200:
                    check_refused(answer, 400, 422)
                    message = answer.json()["error"]["message"]
                    assert not re.search("sqlite3|sqlite error|syntax error|no such column|Traceback", message)
    assert server.get("/v1/images?limit=1").json()["total"] == total
    assert server.get("/v1/images?text=%25").json()["total"] == 0  # no name has one
    assert server.get("/v1/images?text=%25%27%20OR%20%271%27%3D%271").json()["total"] == 0


@pytest.mark.parametrize("kind", ["memory", "tile"])
def test_a_costly_picture_is_refused_with_its_reason(server: Server, kind: str) -> None:
    data = png_of_exif_tags(25_000, 8_000_000) if kind == "memory" else tiff_of_one_tile(26_000)
    expected = "takes more memory or processor time" if kind == "memory" else "26000 x 26000 pixels in a tile"
    for route in ("/v1/photos", "/v1/images") if kind == "memory" else IMAGE_ROUTES:
        answer = server.ask("POST", route, body=data)
        assert answer.status == 422, answer.body
        assert expected in answer.json()["error"]["message"]


def test_searches_and_photos_go_on_while_costly_pictures_are_decoded(server: Server) -> None:
    answers: list[Answer] = []

    def send() -> None:
        answers.append(server.ask("POST", "/v1/search/image", body=SCANS))

    senders = [threading.Thread(target=send) for _ in range(2)]
    for sender in senders:
        sender.start()
    wait_for_busy_workers(server.process.pid)
    tiff = encode(PHOTO, "TIFF")
    status = server.ask("POST", "/v1/photos", body=tiff, source="127.0.0.2").status
    is_busy = status == 503  # the machine, on which it waited too long
    if not is_busy:
        assert any(sender.is_alive() for sender in senders)  # it waited for one of them, and not for both
    while status == 503:
        status = server.ask("POST", "/v1/photos", body=tiff, source="127.0.0.2").status
    assert status == 201
    photo, count = encode(PHOTO, "JPEG"), 0
    while any(sender.is_alive() for sender in senders):
        status = server.ask("POST", "/v1/search/image", body=photo).status
        assert status in (200, 503)
        is_busy |= status == 503
        assert server.get("/v1/images/1/thumbnail").status in (200, 404)
        count += 1
    for sender in senders:
        sender.join()
    assert {answer.status for answer in answers} <= {422, 503}  # some may have waited too long for the others
    refused = [answer.json()["error"]["message"] for answer in answers if answer.status == 422]
    assert refused or is_busy
    assert all("5 s of processor time" in message for message in refused)
    assert count > 3 or is_busy  # in ten seconds of others' decoding, on a machine as slow as it may be


def test_a_server_that_is_told_to_end_waits_for_no_costly_picture(gallery: Path, tmp_path: Path) -> None:
    with serve(gallery, log=tmp_path / "log", token=TOKEN) as running:

        def send() -> None:
            with suppress(OSError):  # the server is gone
                running.ask("POST", "/v1/search/image", body=SCANS)

        senders = [threading.Thread(target=send) for _ in range(8)]
        for sender in senders:
            sender.start()
        workers = wait_for_busy_workers(running.process.pid)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=60) == 0
        for sender in senders:
            sender.join()
        wait_for_the_end_of(workers)
        assert "Traceback" not in running.log.read_text()  # as there is where the grace for requests runs out


def _head(path: str, lines: bytes) -> bytes:
    return (
        b"POST "
        + path.encode()
        + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer "
        + TOKEN.encode()
        + b"\r\nContent-Type: application/json\r\n"
        + lines
        + b"\r\n\r\n"
    )


def _post_text(server: Server, text: str) -> Any:
    return _post_body(server, "/v1/search", text.encode())


def _post_body(server: Server, path: str, body: bytes) -> Any:
    return server.ask("POST", path, body=body, headers={"Content-Type": "application/json"})


def _many_frames(count: int) -> bytes:
    """A GIF of many frames, of which the first counts."""
    frames = [Image.new("P", (16, 16), number % 256) for number in range(2)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=10)
    data = buffer.getvalue()
    start = data.rindex(b"\x21\xf9\x04")
    return data[:start] + data[start:-1] * count + b";"
