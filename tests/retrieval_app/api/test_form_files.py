import time
from contextlib import suppress

import pytest
from fastapi.testclient import TestClient

from retrieval_app.api.errors import ApiError
from retrieval_app.api.form_files import read_form_file

KIND = 'multipart/form-data; boundary="b"'


def _form(content: bytes, *, head: bytes = b'name="file"; filename="q.jpg"', end: bytes = b"--\r\n") -> bytes:
    return b"--b\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + content + b"\r\n--b" + end


@pytest.mark.parametrize("content", [b"", b"x", b"\r\n", b"--b", b"\r\n--a\r\n\r\n", bytes(range(256)) * 1000])
def test_the_file_is_found_to_the_byte(content: bytes) -> None:
    assert read_form_file(_form(content), KIND) == content
    assert read_form_file(_form(content, end=b"--"), "Multipart/Form-Data; charset=utf-8; boundary=b") == content


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        (_form(b"x"), "multipart/form-data", "has no boundary"),
        (_form(b"x"), "multipart/form-data; boundary=c", "does not begin"),
        (b"", KIND, "does not begin"),
        (b"--b\r\nContent-Disposition: form-data; " + b"a" * 5000 + b"\r\n\r\nx\r\n--b--", KIND, "does not begin"),
        (_form(b"x")[:-6], KIND, "has no end"),
        (_form(b"x", end=b"\r\n") + _form(b"y")[5:], KIND, "more fields"),
        (_form(b"x", end=b"--and more"), KIND, "more fields"),
        (_form(b"x", head=b'name="photo"; filename="q.jpg"'), KIND, "field is 'photo'"),
        (_form(b"x", head=b'name="file"'), KIND, "a text and no file"),
        (b"--b\r\nContent-Type: image/jpeg\r\n\r\nx\r\n--b--", KIND, "has no name"),
    ],
)
def test_another_form_is_refused_in_words(body: bytes, kind: str, problem: str) -> None:
    with pytest.raises(ApiError, match=problem) as raised:
        read_form_file(body, kind)
    assert "-F file=@query.jpg" in str(raised.value)


@pytest.mark.parametrize("fill", [b"\r\n--", b"-", b"\r\n--b\r\n"])
def test_no_form_takes_long_to_be_read(fill: bytes) -> None:
    started = time.thread_time()
    body = fill * (20 * 1024 * 1024 // len(fill))
    for form in (body, _form(body), _form(body)[:-8]):
        with suppress(ApiError):
            read_form_file(form, KIND)
    assert time.thread_time() - started < 2


def test_a_form_finds_what_the_bytes_find(client: TestClient, image_ids: dict[str, int]) -> None:
    data = client.get(f"/v1/images/{image_ids['blue/0.jpg']}/thumbnail").content
    for path, same in (("/v1/search/image?k=3", "hits"), ("/v1/embed", "vector")):
        bare = client.post(path, content=data).json()[same]
        assert client.post(path, files={"file": ("query.png", data)}).json()[same] == bare
    assert client.post("/v1/photos", files={"file": ("query.png", data)}).status_code == 201


def test_a_form_is_refused_where_it_is_of_no_use(client: TestClient) -> None:
    assert client.post("/v1/search", files={"file": b"x"}).status_code == 415
    refused = client.post("/v1/embed", files={"image": ("a.png", b"x")})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "body")
    mixed = client.post("/v1/embed", content=b"x", headers={"Content-Type": "multipart/mixed; boundary=b"})
    assert mixed.status_code == 415
    large = client.post("/v1/embed", files={"file": ("a.png", bytes(21 * 1024 * 1024))})
    assert large.status_code == 413
