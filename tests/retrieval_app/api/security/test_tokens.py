import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.durable import is_temporary
from index.errors import InputError
from retrieval_app.api.security import tokens
from retrieval_app.api.security.rights import ALL, spread_rights
from retrieval_app.api.security.tokens import (
    TokenBook,
    add_token,
    check_token,
    is_open_to_others,
    read_token_entries,
    read_token_file,
    revoke_token,
    rotate_token,
)


@pytest.mark.parametrize(
    "token",
    [
        *("", "short", "fifteen-letters", "with a space in the middle", "mit-ümlaut-und-noch-mehr", "x" * 513),
        *("with-a-line\nbreak-in-it", "with-a-nul\0-in-the-middle"),
    ],
)
def test_a_token_that_is_guessed_or_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(InputError, match="a token has 16 to 512 characters") as refused:
        check_token(token)
    assert "openssl rand -hex 16" in str(refused.value)
    assert not token or token not in str(refused.value)


def test_a_file_that_is_not_there_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    file, before = tmp_path / "token", os.umask(0)
    try:
        token = read_token_file(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not is_open_to_others(file)
    assert read_token_file(file) == token  # and is the same from then on
    for mode in (0o640, 0o604, 0o620):
        file.chmod(mode)
        assert is_open_to_others(file)
    file.write_text("  please-choose-your-own\r\n\n")
    assert read_token_file(file) == "please-choose-your-own"


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40, b"two tokens-in-one-file", b"x" * 100_000])
def test_a_file_without_a_token_is_named_and_not_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"--token-file .*/token: a token has") as refused:
        read_token_file(file)
    assert "two tokens" not in str(refused.value)
    assert file.read_bytes() == content
    with pytest.raises(InputError, match="cannot be made: No such file"):
        read_token_file(tmp_path / "none" / "token")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_token_file(tmp_path)


ADD_ENDLESSLY = """
import sys, itertools
from pathlib import Path
from retrieval_app.api.security.tokens import add_token, revoke_token
file, name = Path(sys.argv[1]), sys.argv[2]
for number in itertools.count():
    add_token(file, f"{name}-{number}", may=["read"])
    print(number, flush=True)
    if number > 20:
        revoke_token(file, f"{name}-{number - 20}")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "team.tokens"


def test_rights_include_the_lesser_ones() -> None:
    assert spread_rights(["write"]) == ALL
    assert spread_rights(["review"]) == {"read", "review"}
    assert spread_rights(["all"]) == spread_rights([]) == frozenset()


def test_a_right_of_one_gallery_is_none_elsewhere(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry, token = add_token(file, "anna", may=["review:shop", "read"])
    assert entry.may == ("read", "review:shop")
    assert entry.rights_in(()) == entry.rights_in(["fashion"]) == {"read"}
    assert entry.rights_in(["shop"]) == {"read", "review"}
    book = TokenBook(file)
    assert book.find(token) == entry
    book.warn_of_others(["shop"])
    assert not caplog.records
    book.warn_of_others(["shoes"])
    assert [record.args for record in caplog.records] == [("shop",)]


def test_a_file_never_becomes_larger_than_what_is_read(file: Path) -> None:
    rights = [f"read:gallery-{number:04d}-{'x' * 40}" for number in range(2000)]

    def fill() -> None:
        for number in range(1000):
            add_token(file, f"guest-{number}", may=rights)

    with pytest.raises(InputError, match="revoke unused tokens"):
        fill()
    assert len(read_token_entries(file).entries) > 5


def test_names_that_would_mislead_in_a_log_and_rights_that_are_none_are_refused(file: Path) -> None:
    for right in ("review:", "review:a b", "review:../x", ":shop", "all:shop", "read:shop:more", "", "all"):
        with pytest.raises(InputError, match=r"rights are some of|is not a valid gallery name"):
            add_token(file, "anna", may=["read", right])
    with pytest.raises(InputError, match="rights are some of read, review, write"):
        add_token(file, "anna", may=[])
    for name in ("", "a b", "-a", "ä", "a\n", "a" * 65):
        with pytest.raises(InputError, match="not a valid token name"):
            add_token(file, name, may=["read"])
    assert not file.exists()


def test_a_token_opens_by_itself_and_the_file_does_not_hold_it(file: Path) -> None:
    entry, token = add_token(file, "anna", may=["review"])
    assert TokenBook(file).find(token) == entry
    assert token not in file.read_text()
    assert token.removeprefix("retrieval_") not in file.read_text()
    assert len(token) > 40


def test_only_its_owner_may_read_the_file_and_one_that_others_may_write_opens_nothing(file: Path) -> None:
    before = os.umask(0)
    try:
        add_token(file, "anna", may=["read"])
        rotate_token(file, "anna")
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o622)
    with pytest.raises(InputError, match="chmod 600"):
        TokenBook(file)


def test_a_name_is_taken_once_and_has_to_be_there_to_be_revoked(file: Path) -> None:
    add_token(file, "anna", may=["read"])
    with pytest.raises(InputError, match=r"team\.tokens: there is a token of the name anna already"):
        add_token(file, "anna", may=["write"])
    with pytest.raises(InputError, match="no token of the name 'ben'; those there are: anna"):
        revoke_token(file, "ben")


def test_a_token_expires_and_rotation_renews_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, token = add_token(file, "anna", may=["read"], days=90)
    book = TokenBook(file)
    now = datetime.now(UTC)

    class Later(datetime):
        days = 89

        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            del tz
            return now + timedelta(days=cls.days)

    monkeypatch.setattr(tokens, "datetime", Later)
    found = book.find(token)
    Later.days = 91
    assert book.find(token) is None
    assert book.find_again(found.sha256) is None
    monkeypatch.undo()
    renewed, before = rotate_token(file, "anna")
    assert renewed.days == 90
    entry, after = rotate_token(file, "anna", days=7)
    book = TokenBook(file)
    assert book.find(before) is None
    assert book.find(after) == entry
    assert (entry.may, entry.days) == (("read",), 7)


@pytest.mark.parametrize(
    ("whole", "entry"),
    [
        ({"format": "other"}, {}),
        ({"format_version": 2}, {}),
        ({"salt": ""}, {}),
        ({"tokens": "twice"}, {}),
        *(
            ({}, wrong)
            for wrong in (
                *({"may": ["read", "root"]}, {"may": ["read", 1]}, {"may": ["review:/etc"]}, {"may": "read"}),
                *({"sha256": None}, {"days": 0}, {"days": "never"}, {"made_at": "2026-01-01"}),
            )
        ),
    ],
)
def test_a_damaged_file_opens_nothing(file: Path, whole: dict[str, object], entry: dict[str, object]) -> None:
    add_token(file, "anna", may=["read"])
    values = json.loads(file.read_text())
    one = values["tokens"][0] | entry
    values |= {"tokens": [one]} | whole | ({"tokens": [one, one]} if whole.get("tokens") else {})
    file.write_text(json.dumps(values))
    for read in (read_token_entries, TokenBook, lambda file: add_token(file, "ben", may=["read"])):
        with pytest.raises(InputError, match=r"team\.tokens: .*damaged"):
            read(file)
    assert json.loads(file.read_text()) == values


def test_what_is_no_file_of_tokens_is_named(file: Path) -> None:
    with pytest.raises(InputError, match="there is no such file; `retrieval tokens add` makes one"):
        TokenBook(file)
    with pytest.raises(InputError, match="its folder does not exist"):
        add_token(file / "deeper", "anna", may=["read"])
    for content in (b"", b"[]", b"[" * 100_000, b"\xff", b"null", b'{"format": "retrieval-tokens"}'):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"team\.tokens: no file of tokens, or a damaged one"):
            read_token_entries(file)


def test_writers_at_the_same_time_lose_nothing(file: Path) -> None:
    names = [f"guest-{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda name: add_token(file, name, may=["read"])[1], names))
    book = TokenBook(file)
    assert [found.name for token in tokens if (found := book.find(token))] == names


@pytest.mark.slow
def test_two_writers_that_are_killed_leave_a_sound_file_with_all_that_they_told(file: Path) -> None:
    add_token(file, "anna", may=["write"])
    writers = [
        subprocess.Popen([sys.executable, "-c", ADD_ENDLESSLY, str(file), name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    for writer in writers:
        for _ in range(8):
            writer.stdout.readline()
    for writer in writers:
        writer.kill()
    told = [len(writer.communicate()[0].split()) + 8 for writer in writers]
    names = {entry.name for entry in read_token_entries(file).entries.values()}
    for name, count in zip(("one", "two"), told, strict=True):
        kept = {f"{name}-{number}" for number in range(max(1, count - 18), count)}
        assert kept <= names
    assert "anna" in names
    for left in file.parent.iterdir():
        assert left == file or is_temporary(left.name)
        assert left.stat().st_mode & 0o777 == 0o600
    add_token(file, "ben", may=["read"])  # nobody holds the lock any more


@given(st.data())
def test_no_other_text_opens_anything(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    file = tmp_path_factory.mktemp("tokens") / "team.tokens"
    entry, token = add_token(file, "anna", may=["read"])
    changed = st.builds(
        lambda at, to: token[:at] + to + token[at + 1 :], st.integers(0, len(token)), st.text(max_size=2)
    )
    kept = st.sampled_from([entry.sha256, entry.name, "", token.upper(), token + "\0", f" {token}"])
    text = data.draw(st.text() | changed | kept)
    assert TokenBook(file).find(text) is None or text == token
