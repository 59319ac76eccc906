"""Access control of a running server: no address, host, site or wrong token opens what is closed."""

import os
import re
from pathlib import Path

from tests.serving_server import ROOT, TOKEN, Server, check_refused, get_raw, send_raw

OUTSIDE = [
    "/page/../shell.py",
    "/page/%2e%2e/shell.py",
    "/page/..%2fshell.py",
    "/page/..%5cshell.py",
    "/page/%2fetc%2fpasswd",
    "/page/....//shell.py",
    "/page//etc/passwd",
    "/page/core/dom.js%00.css",
    "/page/core/dom.js/../../shell.py",
    "/page/",
    "/page/core/../nav.js/../../shell.py",
    "/page/core/..%2f..%2fshell.py",
    "/page/%c0%ae%c0%ae/shell.py",
    "/page/core/dom.js%0d%0aSet-Cookie:%20a=b",
    "/page/__init__.py",
    "/page/.",
    "/static/../routes.py",
    "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/static//etc/passwd",
    "/static/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/assets/../../../../../../etc/passwd",
    "/assets/%2e%2e/index.html",
    "/assets//etc/passwd",
    "/assets/..%252f..%252fetc%252fpasswd",
    "/svelte/../../routes.py",
    "/svelte/%2e%2e/x.py",
    "/../../../../etc/passwd",
    "//etc/passwd",
    "/etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/./etc/passwd",
    "/v1/../etc/passwd",
    "/v1/%2e%2e/gradio_api/file=/etc/passwd",
    "/v1/images/../../../etc/passwd",
    "/v1/images/1/thumbnail/../../../../review.sqlite",
    "/v1/images/..%2f..%2fannotations%2freview.sqlite/preview",
    "/v1/images/1%2f..%2f2/thumbnail",
    "/v1/images/%00",
    "/v1/images/1%00/thumbnail",
    "/v1/images/1/preview/",
    "/v1/photos/../../etc/passwd/preview",
    "/v1/photos/..%2f..%2f..%2fetc%2fpasswd/preview",
    "/v1/photos/%2e%2e/preview",
    "/v1/photos/%00%00%00%00%00%00%00%00/preview",
    "/v1/photos/%0d%0aX:y/preview",
    "/v1/jobs/..%2f..%2fetc%2fpasswd",
    "/v1/jobs/%00",
    "/v1/labels/file/../../../CURRENT",
    "/v1//gallery",
    "/file=/etc/passwd",
    "/file/etc/passwd",
    "/gradio_api/file=/etc/passwd",
    "/gradio_api/file%3d/etc/passwd",
    "/gradio_api/file=CURRENT",
    "/gradio_api/file/etc/passwd",
    "/gradio_api//file=/etc/passwd",
    "/gradio_api/heartbeat/../file=/etc/passwd",
    "/gradio_api/theme.css/../file=/etc/passwd",
    "/gradio_api/startup-events/%2e%2e/file=/etc/passwd",
    "/config/../file=/etc/passwd",
    "/favicon.ico/../x",
]


def test_no_address_leads_out_of_what_is_served(server: Server) -> None:
    for target in OUTSIDE:
        status, answer = get_raw(server.port, target.encode(), token=TOKEN)
        assert status in (400, 403, 404, 422), target
        for secret in (b"root:", b"import ", b"SQLite", b"Set-Cookie", b"set-cookie"):
            assert secret not in answer.replace(b"Set-Cookie:%20", b""), target


def test_a_request_line_that_is_none_gets_nothing(server: Server) -> None:
    for line in (
        b"GET http://evil.example/v1/gallery HTTP/1.1",
        b"GET /v1/images/1/thumbnail\xff\xfe HTTP/1.1",
        b"GET /v1/\x00 HTTP/1.1",
        b"GET /page/\xe2\x80\xae HTTP/1.1",
        b"GET ../../etc/passwd HTTP/1.1",
        b"GET  /v1/gallery HTTP/1.1",
        b"GET /v1/gallery HTTP/9.9",
        b"GET /v1/gallery\r HTTP/1.1",
        b"CONNECT evil.example:443 HTTP/1.1",
        b"TRACE /v1/gallery HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"A" * 100_000,
        b"GET /v1/gallery?" + b"a=1&" * 20_000 + b" HTTP/1.1",
    ):
        answer = send_raw(server.port, line + b"\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", seconds=2)
        assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 5")), line[:50]
        assert b"root:" not in answer


def test_neither_page_nor_document_names_a_place_of_this_machine(server: Server, gallery: Path) -> None:
    for path in ("/", "/v1/openapi.json"):
        body = server.get(path).body.decode()
        for place in (gallery.parent, ROOT, Path.home(), Path(os.__file__).parents[1]):
            assert f"{place}/" not in body, path


FORWARDING = [
    ("X-Forwarded-Host", "evil.example"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Prefix", "/evil.example"),
    ("X-Forwarded-For", "192.0.2.77"),
    ("X-Forwarded-Server", "evil.example"),
    ("X-Forwarded-Port", "7777"),
    ("X-Forwarded-Uri", "/evil.example"),
    ("X-Forwarded-Path", "/evil.example"),
    ("X-Script-Name", "/evil.example"),
    ("X-Forwarded-Scheme", "https"),
    ("X-Forwarded-Ssl", "on"),
    ("X-Url-Scheme", "https"),
    ("Front-End-Https", "on"),
    ("Forwarded", "for=192.0.2.77;host=evil.example;proto=https"),
    ("X-Original-Host", "evil.example"),
    ("X-Original-Url", "/evil.example"),
    ("X-Rewrite-Url", "/evil.example"),
    ("X-Real-Ip", "192.0.2.77"),
    ("X-Host", "evil.example"),
    ("Via", "1.1 evil.example"),
]


def test_what_a_request_says_of_its_way_is_not_repeated(server: Server) -> None:
    everywhere = (
        *("/", "/?view=map", "/favicon.ico", "/page/nav.js", "/nowhere", "/v1/gallery", "/v1/nowhere"),
        f"/?token={TOKEN}&view=map",
    )
    ways = [(dict(FORWARDING), everywhere)]
    ways += [({name: value}, ("/", "/v1/nowhere")) for name, value in FORWARDING]
    plain = {path: server.get(path) for path in everywhere}
    for headers, paths in ways:
        for path in paths:
            told = server.get(path, **headers)
            shown = told.body + str(dict(told.headers)).encode()
            assert not re.search(rb"evil\.example|https://127|https://localhost|192\.0\.2\.77|:7777", shown), path
            assert told.status == plain[path].status
            assert "secure" not in told.headers.get("set-cookie", "").lower()


def test_another_name_for_this_machine_opens_nothing(server: Server) -> None:
    hosts = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1]evil", "127.0.0.1:x", "0"]
    for host in hosts:
        for path in ("/", "/v1/gallery", "/v1/health", "/page/core/dom.js"):
            check_refused(server.get(path, Host=host), 400)
    answer = send_raw(server.port, b"GET /v1/health HTTP/1.0\r\n\r\n", seconds=2)
    assert answer.startswith(b"HTTP/1.1 400")


def test_the_token_is_in_no_answer(server: Server) -> None:
    for path in (f"/v1/gallery?token={TOKEN}", f"/v1/images/{TOKEN}", f"/v1/jobs/{TOKEN}", "/"):
        assert TOKEN.encode() not in server.get(path).body.replace(b"/v1/jobs/" + TOKEN.encode(), b"")
    command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    assert TOKEN.encode() not in command
