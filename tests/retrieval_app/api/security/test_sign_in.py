import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from retrieval_app.api.security import access, failed_tries
from retrieval_app.api.security.access import Access
from retrieval_app.api.security.sessions import SignedValues, read_secret
from retrieval_app.api.security.sign_in import SESSION_S, SignIn
from tests.retrieval_app.api.conftest import BASE_URL, TOKEN, serve
from tests.retrieval_app.api.security.conftest import Clock

FRIEND = {"Authorization": f"Bearer {TOKEN}"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def guarded(served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A server that asks for a token, follows no redirect by itself, and holds wrong tries back but shortly."""
    monkeypatch.setattr(failed_tries, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(failed_tries, "LONGEST_WAIT_S", 0.01)
    with serve(served, access=Access(token=TOKEN, loopback=False)) as client:
        client.follow_redirects = False
        yield client


def _sign_in(client: TestClient) -> SignIn:
    found: SignIn = client.app.state.sign_in  # type: ignore[attr-defined]
    return found


def _send(client: TestClient, body: str, *, query: str = "", **headers: str) -> Response:
    return client.post(f"/{query}", content=body, headers={**FORM, **headers})


def test_of_a_request_one_token_is_looked_at(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, compare = list[str](), access.are_equal
    monkeypatch.setattr(access, "are_equal", lambda *texts: seen.append(texts[0]) or compare(*texts))  # type: ignore[func-returns-value]
    guesses = "&".join(f"token=guess-number-{number:05}" for number in range(1000))
    assert guarded.get(f"/?{guesses}&token={TOKEN}").status_code == 401
    assert _send(guarded, f"{guesses[:3000]}&token={TOKEN}").status_code == 401
    assert seen == []
    several = [("Authorization", f"Bearer {text}") for text in ("guess-one", "guess-two", TOKEN)]
    assert guarded.get("/v1/gallery", headers=several).status_code == 401
    assert len(seen) <= 1
    one = {"Authorization": f"Bearer guess, Bearer {TOKEN}"}
    assert guarded.get("/v1/gallery", headers=one).status_code == 401
    assert len(seen) <= 2
    code = _sign_in(guarded).make_code()
    assert guarded.get(f"/?code=guess&code={code}").status_code == 401
    assert guarded.get(f"/?code={code}").status_code == 303


def test_the_token_in_the_address_opens_nothing_and_the_page_says_why(guarded: TestClient) -> None:
    response = guarded.get(f"/?token={TOKEN}&view=map")
    assert response.status_code == 401
    assert "set-cookie" not in response.headers
    assert "does not belong in the address" in response.text
    assert TOKEN not in response.text


def test_the_printed_address_opens_the_page_once(guarded: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    code = _sign_in(guarded).make_code()
    response = guarded.get(f"/?view=map&code={code}&f=label%20%3D%20%27a%27")
    assert response.status_code == 303
    assert response.headers["location"] == "./?view=map&f=label+%3D+%27a%27"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cache-control"] == "no-store"
    cookie = response.headers["set-cookie"].lower()
    assert [text in cookie for text in ("httponly", "samesite=lax")] == [True, True]
    # It ends with the browser.
    assert not [text for text in ("max-age", "expires", "secure", TOKEN, code.lower()) if text in cookie]
    assert guarded.get("/v1/gallery").status_code == 200  # the client keeps the cookie
    again = guarded.get(f"/?code={code}&view=map")
    assert (again.status_code, again.headers["location"]) == (303, "./?view=map")  # by the cookie
    assert "set-cookie" not in again.headers
    guarded.cookies.clear()
    refused = guarded.get(f"/?code={code}")
    assert refused.status_code == 401
    assert "has been used" in refused.text
    assert caplog.messages == ["a used or wrong address code from unknown"]
    assert code not in refused.text


def test_the_code_opens_the_page_alone(guarded: TestClient) -> None:
    code = _sign_in(guarded).make_code()
    for path in ("/v1/gallery", "/v1/images/1/thumbnail", "/page/core/dom.js", "/v1/ready"):
        response = guarded.get(f"{path}?code={code}")
        assert response.status_code in (401, 422), path
        assert "set-cookie" not in response.headers
    assert guarded.get("/v1/gallery", headers={"Authorization": f"Bearer {code}"}).status_code == 401
    assert guarded.get("/v1/gallery", headers={"Cookie": f"retrieval_7860={code}"}).status_code == 401
    assert _send(guarded, f"token={code}").status_code == 401
    assert _send(guarded, "", query=f"?code={code}").status_code == 401
    assert guarded.head(f"/?code={code}").status_code == 401  # whoever only looks ahead does not use it up
    assert guarded.get(f"/?code={code}").status_code == 303


def test_who_comes_without_gets_a_field_for_the_token(guarded: TestClient) -> None:
    response = guarded.get("/?view=map&text=%22%3E%3Cscript%3E")
    assert response.status_code == 401
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["cache-control"] == "no-store"
    assert "script" not in response.headers["content-security-policy"]
    assert "<script" not in response.text
    assert 'action="./?view=map&amp;text=%22%3E%3Cscript%3E"' in response.text


def test_another_text_in_the_field_opens_nothing(guarded: TestClient) -> None:
    for body in ("token=wrong-token", "token=", "", "token", "%", "token=%ff", "a=b&" * 1000):
        response = _send(guarded, body)
        assert response.status_code == 401
        assert "set-cookie" not in response.headers
        assert "That is not the token" in response.text
        assert "wrong-token" not in response.text


def test_the_field_is_sent_by_the_page_itself_and_is_short(guarded: TestClient) -> None:
    right = f"token={TOKEN}"
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert _send(guarded, right, **headers).status_code == 403
    assert _send(guarded, right, Origin="http://127.0.0.1:7860").status_code == 303
    assert guarded.post("/", content=right, headers={"Content-Type": "application/json"}).status_code == 415
    assert guarded.post("/", files={"token": TOKEN}).status_code == 415
    assert _send(guarded, f"{right}&a={'x' * 5000}").status_code == 413


def test_where_no_token_is_asked_for_there_is_no_field(client: TestClient) -> None:
    response = _send(client, f"token={TOKEN}")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")
    assert client.get("/?code=any&token=any").status_code == 200


def test_a_cookie_is_of_its_port_outlives_the_server_and_ends_with_its_token(served: Path) -> None:
    with serve(served, access=Access(token=TOKEN)) as one:
        one.follow_redirects = False
        other = TestClient(one.app, base_url="http://127.0.0.1:7861", follow_redirects=False)
        first, second = (_send(client, f"token={TOKEN}").headers["set-cookie"] for client in (one, other))
        assert (first.partition("=")[0], second.partition("=")[0]) == ("retrieval_7860", "retrieval_7861")
        value = first.partition("=")[2].partition(";")[0]
        other.cookies.clear()
        cookie = {"Cookie": f"retrieval_7860={value}"}
        assert one.get("/v1/gallery", headers=cookie).status_code == 200
        assert other.get("/v1/gallery", headers=cookie).status_code == 401
    for token, status in ((TOKEN, 200), (f"{TOKEN}2", 401)):
        with serve(served, access=Access(token=token)) as other:
            assert other.get("/v1/gallery", headers=cookie).status_code == status


def test_signing_out_ends_a_session_wherever_its_cookie_was_copied_to_and_for_good(served: Path) -> None:
    with serve(served, access=Access(token=TOKEN)) as client:
        client.follow_redirects = False
        cookie = {"Cookie": _send(client, f"token={TOKEN}").headers["set-cookie"].partition(";")[0]}
        client.cookies.clear()
        assert client.get("/v1/gallery", headers=cookie).status_code == 200
        left = client.post("/", content="sign_out=", headers={**FORM, **cookie})
        assert "max-age=0" in left.headers["set-cookie"].lower()
    with serve(served, access=Access(token=TOKEN)) as again:
        assert again.get("/v1/gallery", headers=cookie).status_code == 401


def test_who_opens_the_page_stays_signed_in(guarded: TestClient, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    for timed in (_sign_in(guarded), _sign_in(guarded)._values):
        monkeypatch.setattr(timed, "_clock", clock)
    first = _send(guarded, f"token={TOKEN}").headers["set-cookie"].partition(";")[0]
    clock.now += 0.4 * SESSION_S
    assert "set-cookie" not in guarded.get("/").headers  # it holds for long enough
    clock.now += 0.4 * SESSION_S
    second = guarded.get("/").headers["set-cookie"].partition(";")[0]
    clock.now += 0.4 * SESSION_S
    guarded.cookies.clear()
    for cookie, status in ((first, 401), (second, 200)):
        assert guarded.get("/v1/gallery", headers={"Cookie": cookie}).status_code == status


def test_cookies_of_others_and_a_password_for_a_proxy_do_not_hide_ours(guarded: TestClient) -> None:
    ours = _send(guarded, f"token={TOKEN}").headers["set-cookie"].partition(";")[0]
    guarded.cookies.clear()
    for other in ('prefs={"theme":"dark","n":[1,2]}', "a b=c d", "(x)=/;", "no-name", "ü=é", '"="'):
        for text in (f"{other}; {ours}", f"{ours};{other}"):
            assert guarded.get("/v1/gallery", headers={b"Cookie": text.encode()}).status_code == 200
        assert guarded.get("/v1/gallery", headers={b"Cookie": other.encode()}).status_code == 401
    _send(guarded, f"token={TOKEN}")
    assert guarded.get("/v1/gallery", headers={"Authorization": "Basic dXNlcjpwYXNz"}).status_code == 200
    assert guarded.get("/v1/gallery", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_the_cookie_is_for_tls_alone_where_a_proxy_here_speaks_it(guarded: TestClient) -> None:
    for address, secure in (("127.0.0.1", True), ("192.0.2.1", False)):
        asked = TestClient(guarded.app, base_url=BASE_URL, client=(address, 5), follow_redirects=False)
        cookie = _send(asked, f"token={TOKEN}", **{"X-Forwarded-Proto": "https"}).headers["set-cookie"]
        assert ("Secure" in cookie) is secure


def test_wrong_tokens_wait_and_the_right_one_does_not(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_tries, "FIRST_WAIT_S", 2.0)
    with serve(served, access=Access(token=TOKEN)) as client, client, ThreadPoolExecutor(20) as pool:

        def ask(text: str) -> tuple[int, float]:
            started = time.monotonic()
            status = client.get("/v1/gallery", headers={"Authorization": f"Bearer {text}"}).status_code
            return status, time.monotonic() - started

        wrong = [pool.submit(ask, "wrong-token") for _ in range(16)]
        while sum(future.done() for future in wrong) < 8:  # until those for which there is no room are sent away
            time.sleep(0.01)
        assert ask(TOKEN)[0] == 200
        assert sum(not future.done() for future in wrong) == 8
        answers = [future.result() for future in wrong]
    waited = [seconds for status, seconds in answers if status == 401]
    assert len(waited) == 8
    assert min(waited) >= 1.9
    assert sum(status == 429 for status, _ in answers) == 16 - 8


def test_too_many_wrong_tokens_at_once_are_sent_away(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_tries, "MOST_WAITING_IN_ALL", 0)
    response = guarded.get("/v1/gallery", headers={"Authorization": "Bearer wrong"})
    assert (response.status_code, response.json()["error"]["code"]) == (429, "too_many_tries")
    assert response.headers["connection"] == "close"
    assert int(response.headers["retry-after"]) >= 1
    page = _send(guarded, "token=wrong")
    assert page.status_code == 429
    assert "Too many wrong tokens" in page.text
    assert guarded.get("/v1/gallery", headers=FRIEND).status_code == 200
    assert _send(guarded, f"token={TOKEN}").status_code == 303


def test_the_log_tells_who_tried_and_never_what(guarded: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="retrieval_app"):
        refused = guarded.get("/v1/ready", headers={"Authorization": "Bearer this-was-guessed"})
        assert refused.status_code == 401  # where no token is needed
        guarded.get("/?code=this-was-guessed")
        _send(guarded, "token=this-was-guessed")
        _send(guarded, f"token={TOKEN}")
        guarded.get("/v1/gallery")  # with its cookie
    assert caplog.messages == ["a wrong token from unknown"]  # the test's client has no address
    assert "this-was-guessed" not in caplog.text
    assert TOKEN not in caplog.text


@pytest.fixture
def values(tmp_path: Path, clock: Clock) -> SignedValues:
    return SignedValues([tmp_path], key=lambda: b"key", clock=clock)


def test_a_value_is_of_its_kind_key_and_time(values: SignedValues, tmp_path: Path, clock: Clock) -> None:
    value = values.make("code", owner="anna", seconds=60)
    read = values.read("code", value)
    assert (read.owner, read.until) == ("anna", clock.now + 60)
    assert values.read("session", value) is None
    for key in (b"another", None):
        assert SignedValues([tmp_path], key=lambda key=key: key, clock=clock).read("code", value) is None  # type: ignore[misc]
    for other in ("", "x", ".", "é" * 40, "\udcff", value[:-1], value.replace("anna", "ben"), f"{value}.", f"x{value}"):
        assert values.read("code", other) is None
    clock.now += 61
    assert values.read("code", value) is None


def test_a_spent_value_is_so_after_a_new_start_and_forgotten_when_it_is_over(
    values: SignedValues, tmp_path: Path, clock: Clock
) -> None:
    value = values.make("code", seconds=60)
    read = values.read("code", value)
    assert [values.spend(read), values.spend(read)] == [True, False]
    file = tmp_path / "spent"
    file.write_bytes(file.read_bytes() + b"damaged\n\xff x\n5000")  # as a full disk or a kill may leave it
    for started in (values, SignedValues([tmp_path], key=lambda: b"key", clock=clock)):
        assert started.read("code", value) is None
    assert file.read_text().split()[::2] == [read.id]
    clock.now += 100
    SignedValues([tmp_path], key=lambda: b"key", clock=clock)
    assert file.read_text() == ""


def test_a_renewed_session_ends_with_the_one_that_it_was(values: SignedValues, clock: Clock) -> None:
    first = values.make("session", owner="anna", seconds=60)
    read = values.read("session", first)
    second = values.make("session", seconds=90, of=read)
    clock.now += 70
    renewed = values.read("session", second)
    assert (renewed.id, renewed.owner) == (read.id, "anna")
    values.spend(renewed)
    assert values.read("session", second) is None


def test_without_a_file_a_spent_value_is_so_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    values = SignedValues([tmp_path / "file"], key=lambda: b"key")
    value = values.make("code", seconds=60)
    read = values.read("code", value)
    assert [values.spend(read), values.spend(read)] == [True, False]
    assert values.read("code", value) is None
    assert "does not know that a session was ended" in caplog.text


def test_a_session_is_ended_for_all_of_its_cookies(values: SignedValues, tmp_path: Path, clock: Clock) -> None:
    read = values.read("session", values.make("session", seconds=60))
    renewed = values.make("session", seconds=100, of=read)
    values.spend(read, keep_s=100)
    clock.now += 80  # when the first one is over
    assert SignedValues([tmp_path], key=lambda: b"key", clock=clock).read("session", renewed) is None


@pytest.mark.parametrize("is_readable_by_others", [False, True])
def test_the_secret_of_sessions_is_one_file_that_others_cannot_read(
    tmp_path: Path, is_readable_by_others: bool, caplog: pytest.LogCaptureFixture
) -> None:
    secret = read_secret(tmp_path / "sessions")
    file = tmp_path / "sessions/secret"
    assert (file.stat().st_mode & 0o777, len(secret)) == (0o600, 64)
    if is_readable_by_others:
        file.chmod(0o644)
    assert (read_secret(tmp_path / "sessions") == secret) is not is_readable_by_others
    assert ("chmod 600" in caplog.text) is is_readable_by_others
