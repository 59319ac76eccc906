"""A server behind nginx and behind Caddy with TLS, by the commands and files that docs/deploy.md shows."""

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import ConsoleMessage, expect

from tests.chromium import open_chromium
from tests.page_browser import DESKTOP
from tests.proxies import DOCUMENT, Site, put, read_recipe, require_programs, run_caddy, run_nginx
from tests.serving_server import TOKEN, Server, serve
from tests.waiting import wait_for

require_programs("nginx", "caddy", "openssl")
GUESS = "a-guess-of-sixteen-or-more"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ROOT_PATH = "/photos"


def _read_options() -> list[list[str]]:
    """The options of the servers that the page shows, but for the token's file: the tests have a token of their own."""
    commands = re.findall(r"^\$ retrieval serve gallery --token-file token (.+)$", DOCUMENT.read_text(), re.MULTILINE)
    return [shlex.split(options) for options in commands]


@pytest.fixture(scope="module")
def top(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that has a host of its own."""
    options, _ = _read_options()
    with serve(gallery, *options, log=tmp_path_factory.mktemp("top") / "log", token=TOKEN) as server:
        yield server
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def below(gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that lives below a path of a host."""
    _, options = _read_options()
    assert options[-2:] == ["--root-path", ROOT_PATH]
    with serve(gallery, *options, log=tmp_path_factory.mktemp("below") / "log", token=TOKEN) as server:
        yield server
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def sites(top: Server, below: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """All proxies before both servers, by name."""
    folder, nginx = tmp_path_factory.mktemp("proxies"), read_recipe("photos.conf")
    location = ("location / {", f"location {ROOT_PATH}/ {{")
    caddy = read_recipe("photos-below.caddy")
    with ExitStack() as running:
        enter = running.enter_context
        yield {
            "nginx": enter(run_nginx(nginx, folder / "1", server=top.port)),
            "caddy": enter(run_caddy(read_recipe("photos.caddy"), folder / "2", server=top.port)),
            "nginx, path kept": enter(run_nginx(put(nginx, location), folder / "3", server=below.port, root=ROOT_PATH)),
            "caddy, path stripped": enter(run_caddy(caddy, folder / "6", server=below.port, root=ROOT_PATH)),
        }


@pytest.fixture(params=["nginx", "caddy", "nginx, path kept", "caddy, path stripped"])
def site(sites: dict[str, Site], request: pytest.FixtureRequest) -> Site:
    """One of the proxies."""
    return sites[request.param]


one_of_each = pytest.mark.parametrize("site", ["nginx", "caddy, path stripped"], indirect=True)


@pytest.fixture(scope="module")
def photo(gallery: Path) -> bytes:
    """A photo of the gallery."""
    return next(gallery.parent.glob("images/**/*.png")).read_bytes()


def _sign_in(site: Site, **headers: str) -> Any:
    return site.ask("POST", "/", body=f"token={TOKEN}".encode(), headers={**FORM, **headers})


def test_a_token_that_is_typed_gives_a_cookie_of_tls_and_of_this_path_alone(site: Site) -> None:
    assert site.ask("GET", "/").status == 401
    answer = _sign_in(site, Origin=site.origin)
    assert (answer.status, answer.headers["location"]) == (303, "./")
    given, *attributes = answer.headers["set-cookie"].split("; ")
    told = {"httponly", "secure", "samesite=lax", f"path={site.root}/".lower()}
    assert {name.lower() for name in attributes} == told
    page = site.ask("GET", "/?view=map", headers={"Cookie": given})
    assert b"app-frame" in page.body


def test_the_page_names_no_address_outside_its_path(site: Site) -> None:
    page = site.ask("GET", "/", headers=BEARER).body.decode()
    addresses = re.findall(r'(?:href|src)="([^"#][^"]*)"', page)
    assert len(addresses) > 5
    for address in addresses:
        assert not address.startswith(("/", "http")), address
        answer = site.ask("GET", f"/{address.removeprefix('./')}", headers=BEARER)
        assert answer.status in (200, 307), (address, answer)


@one_of_each
def test_a_photo_is_searched_with_and_a_large_one_is_taken_or_refused_by_its_size(site: Site, photo: bytes) -> None:
    hits = site.ask("POST", "/v1/search/image?k=3", body=photo, headers=BEARER).json()["hits"]
    assert [hit["rank"] for hit in hits] == [1, 2, 3]
    padded = photo + bytes(15 * 1024 * 1024)  # more than proxies take unasked
    assert site.ask("POST", "/v1/search/image?k=1", body=padded, headers=BEARER).status == 200
    with suppress(OSError):  # as some proxies hang up on whoever goes on sending
        assert site.ask("POST", "/v1/search/image", body=bytes(21 * 1024 * 1024), headers=BEARER).status == 413


@one_of_each
def test_decisions_are_taken_from_this_sites_pages_by_tls_alone(site: Site) -> None:
    cookie = _sign_in(site).headers["set-cookie"].partition(";")[0]
    image = site.ask("GET", "/v1/images?limit=1", headers=BEARER).json()["images"][0]["id"]
    body = {"decisions": [{"image_id": image, "decision": "keep"}]}

    def decide(**headers: str) -> int:
        return site.ask("POST", "/v1/labels/decisions", json=body, headers=headers).status

    assert decide(Cookie=cookie, Origin=site.origin) == 200
    assert decide(**BEARER) == 200
    assert decide() == 401
    for origin in ("https://evil.example", site.origin.replace("https", "http"), f"https://{site.host}:1"):
        assert decide(Cookie=cookie, Origin=origin) == 403, origin


def test_who_says_wrong_things_of_himself_through_the_proxy_is_known(sites: dict[str, Site], top: Server) -> None:
    forged = {"X-Forwarded-For": "6.6.6.6", "Forwarded": "for=6.6.6.6", "X-Real-IP": "6.6.6.6"}
    for name, source in (("nginx", "127.0.0.31"), ("caddy", "127.0.0.32")):
        before = len(top.log.read_text())
        headers = {"Authorization": f"Bearer {GUESS}", **forged}
        assert sites[name].ask("GET", "/v1/gallery", source=source, headers=headers).status == 401
        wait_for(lambda: f"from {source}" in top.log.read_text()[before:])  # noqa: B023 - which are those of this turn
    assert "6.6.6.6" not in top.log.read_text()


@pytest.mark.browser
def test_a_visitor_signs_in_searches_and_reads_of_the_api_below_a_path(sites: dict[str, Site]) -> None:
    site, asked, complaints = sites["caddy, path stripped"], list[str](), list[str]()
    below = f"{site.origin}{site.root}"

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(f"{message.text} ({message.location.get('url', '')})")

    with open_chromium(f"--host-resolver-rules=MAP {site.host} 127.0.0.1") as browser:
        context = browser.new_context(ignore_https_errors=True, viewport=DESKTOP, locale="en-GB")
        page = context.new_page()
        context.on("request", lambda request: asked.append(request.url))
        context.on("console", note)
        page.goto(below)
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("ol[aria-label=Results] > li[data-id]").first).to_be_visible()
        assert [(one["secure"], one["path"]) for one in context.cookies()] == [(True, f"{site.root}/")]
        page.goto(f"{below}/docs")
        expect(page.get_by_role("heading", name="Image retrieval")).to_be_visible()
    assert [url for url in asked if url != below and not url.startswith((f"{below}/", "data:", "blob:"))] == []
    # one image has no file any more, and browsers look for an icon unasked
    forgiven = ("401", "WebGL", "GL Driver", "/thumbnail", f"{site.origin}/favicon.ico")
    assert [text for text in complaints if not any(part in text for part in forgiven)] == []
